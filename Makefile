# Everything a person does here.  Needs Python 3.11 or newer and nothing else: the tools go into .venv.
#
#   make demo        the main job on real data, under every policy, checked against numpy
#   make test        all tests, warnings are errors
#   make lint        ruff and mypy
#   make docs-check  every example of the README and the docs, run
#   make docs        the pictures of the docs, drawn anew by the package
#   make bench       speed beside numpy, and of a start (quiet machine, please)
#   make dist        wheel and source distribution in dist/
#   make clean       remove what the above made

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
EXTRAS := cli,plot,arrow,test,lint
STAMP  := $(VENV)/.installed

.PHONY: demo test lint docs-check docs bench dist clean
.DELETE_ON_ERROR:

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit("fastgemm needs Python 3.11 or newer; this is %s. Name another: make PYTHON=python3.12" % sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

# anew whenever the dependencies may have changed
$(STAMP): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[$(EXTRAS)]'
	touch $@

demo: $(STAMP)
	$(BIN)/python -m fastgemm demo

test: $(STAMP)
	$(BIN)/python -m pytest -W error -n auto

lint: $(STAMP)
	$(BIN)/python -m ruff check fastgemm tests bench docs
	$(BIN)/python -m ruff format --check fastgemm tests bench docs
	$(BIN)/python -m mypy

docs-check: $(STAMP)
	$(BIN)/python -m pytest -W error -q --doctest-glob='*.md' README.md docs

docs: $(STAMP)
	$(BIN)/python docs/make_pictures.py

# OPENBLAS_* overrides would slow the peer that is compared with
bench: $(STAMP)
	env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE $(BIN)/python -m fastgemm bench 64 128 256 512 1024 2048
	mkdir -p .benchmarks
	env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE $(BIN)/python -m pytest -q bench/bench_gemm.py --benchmark-enable \
		--benchmark-columns=median,iqr,rounds --benchmark-sort=name --benchmark-json=.benchmarks/gemm.json
	$(BIN)/python bench/bench_start.py

dist: $(STAMP)
	rm -rf build dist
	$(BIN)/python -m pip install --quiet --disable-pip-version-check build
	$(BIN)/python -m build --outdir dist .

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks *.egg-info
	rm -rf $(VENV)
