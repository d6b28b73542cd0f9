"""House rules that a linter off the shelf does not know, checked on the syntax tree of the package.

Each rule is a function ``rule(module) -> findings``; a finding is a line number and what is wrong there.  ``test_package.py``
runs them over the package, and over small bad modules to see that each of them can fail.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

MAX_MODULE_LINES = 600
MAX_FUNCTION_LINES = 90
MAX_PARAMETERS = 14

# modules whose jit decorators bring the package's compile options, and the one place that may use numba's own
_JIT_HOME = "fastgemm.jit"
_NUMBA_DECORATORS = {"njit", "jit", "cfunc", "vectorize", "guvectorize", "stencil", "generated_jit"}
_PLAIN_DECORATORS = {
    "property",
    "cached_property",
    "staticmethod",
    "classmethod",
    "lru_cache",
    "cache",
    "contextmanager",
    "setter",
}
_UNFINISHED = re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b")
_MACHINE_PATH = re.compile(r"(?:^|[\s\"'`(=])(?:/work/|/home/\w|/root/|/Users/\w|[A-Z]:\\\\Users)")


@dataclass(frozen=True)
class Module:
    """One source file, parsed."""

    name: str
    source: str
    tree: ast.Module

    @classmethod
    def parse(cls, name: str, source: str) -> Module:
        return cls(name, source, ast.parse(source))

    @classmethod
    def read(cls, path: Path, root: Path) -> Module:
        name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        return cls.parse(name, path.read_text(encoding="utf-8"))

    @property
    def builds_ir(self) -> bool:
        return self.name.startswith("fastgemm.gemm.emit")


Findings = Iterator[tuple[int, str]]
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def _functions(tree: ast.AST) -> Iterator[_Function]:
    for node in ast.walk(tree):
        if isinstance(node, _Function):
            yield node


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        return _dotted(node.func)
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _imports(module: Module) -> Iterator[tuple[int, str]]:
    """Every imported module and name, absolute: ``from .jit import njit`` in fastgemm.gemm.x is fastgemm.gemm.jit.njit."""
    package = module.name.split(".")
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level]) if node.level else ""
            home = ".".join(filter(None, [base, node.module or ""]))
            for alias in node.names:
                yield node.lineno, f"{home}.{alias.name}"


def jitted_by_the_house_decorator(module: Module) -> Findings:
    """A jitted function states its fastmath decision by coming from ``fastgemm.jit``, which owns it."""
    if module.name == _JIT_HOME:
        return
    for line, name in _imports(module):
        root, _, last = name.rpartition(".")
        if root.split(".")[0] == "numba" and last in _NUMBA_DECORATORS:
            yield line, f"{name}: take njit and cfunc from fastgemm.jit, which decides on fastmath, nogil and the cache"
    for node in ast.walk(module.tree):
        if (
            isinstance(node, ast.Attribute)
            and node.attr in _NUMBA_DECORATORS
            and _dotted(node.value) in ("numba", "nb")
        ):
            yield (
                node.lineno,
                f"{_dotted(node)}: take it from fastgemm.jit, which decides on fastmath, nogil and the cache",
            )
        if isinstance(node, ast.keyword) and node.arg == "fastmath" and not _is_constant(node.value, False):
            yield node.value.lineno, "fastmath: only False is allowed; nothing here may reassociate or drop NaN"


def _is_constant(node: ast.expr, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def ir_is_built_in_one_place(module: Module) -> Findings:
    """LLVM IR is built by ``fastgemm/gemm/emit*.py`` alone."""
    if module.builds_ir:
        return
    for line, name in _imports(module):
        if name.startswith("llvmlite.ir") or name == "numba.core.cgutils":
            yield line, f"{name}: IR is built in fastgemm/gemm/emit*.py only"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if re.search(r"^\s*(define|declare) .*@[\w.]+\(", node.value, re.MULTILINE):
                yield node.lineno, "text of LLVM IR: it is built in fastgemm/gemm/emit*.py only"


def linked_code_allocates_nothing(module: Module) -> Findings:
    """A function under ``entry`` or ``inner`` works on memory it is given: a pointer does not keep a local array alive."""
    for function in _functions(module.tree):
        if not {_dotted(decorator) for decorator in function.decorator_list} & {"entry", "inner"}:
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and _dotted(node).startswith("np.") and "int" not in _dotted(node):
                yield node.lineno, f"{function.name}: {_dotted(node)}; take the memory as an argument"


def modules_stay_short(module: Module) -> Findings:
    """No module above the limit."""
    lines = module.source.count("\n")
    if lines > MAX_MODULE_LINES:
        yield lines, f"{lines} lines; at most {MAX_MODULE_LINES}"


def functions_stay_short(module: Module) -> Findings:
    """No function above the limits on lines and parameters."""
    for function in _functions(module.tree):
        lines = (function.end_lineno or function.lineno) - function.lineno + 1
        if lines > MAX_FUNCTION_LINES:
            yield function.lineno, f"{function.name} has {lines} lines; at most {MAX_FUNCTION_LINES}"
        arguments = function.args
        count = len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs)
        if count > MAX_PARAMETERS and not _signature_is_given(function):
            yield function.lineno, f"{function.name} takes {count} parameters; at most {MAX_PARAMETERS}"


def _signature_is_given(function: _Function) -> bool:
    """``matmul`` and ``plan`` carry numpy's keywords and ours, an intrinsic those of the emitted kernel; nothing else may."""
    intrinsic = any(_dotted(decorator).endswith("intrinsic") for decorator in function.decorator_list)
    return intrinsic or function.name in {"matmul", "plan"}


def nothing_unfinished(module: Module) -> Findings:
    """No marker of unfinished work and no function that only says it is missing."""
    for number, text in enumerate(module.source.splitlines(), 1):
        if _UNFINISHED.search(text):
            yield number, f"unfinished: {text.strip()}"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Raise) and node.exc is not None and _dotted(node.exc) == "NotImplementedError":
            yield node.lineno, "NotImplementedError: an abstract method belongs in a Protocol, missing work nowhere"


def no_machine_paths(module: Module) -> Findings:
    """No path of the machine it was written on."""
    for number, text in enumerate(module.source.splitlines(), 1):
        if _MACHINE_PATH.search(text):
            yield number, f"a path of one machine: {text.strip()}"


def public_functions_are_annotated(module: Module) -> Findings:
    """Every public function and method that numba does not compile has annotations on all arguments and the result."""
    lines = module.source.splitlines()
    for scope in (module.tree, *(node for node in module.tree.body if isinstance(node, ast.ClassDef))):
        for function in scope.body:
            if not isinstance(function, _Function) or function.name.startswith("_"):
                continue
            if _is_compiled(function, lines):
                continue
            arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
            bare = [a.arg for a in arguments if a.annotation is None and a.arg not in ("self", "cls")]
            if bare or function.returns is None:
                yield function.lineno, f"{function.name}: annotate {', '.join([*bare, 'the result'])}"


def _is_compiled(function: _Function, lines: list[str]) -> bool:
    """Numba compiles it: any decorator but Python's own, or a note to the type checker where it is compiled further down."""
    decorators = {_dotted(decorator).rpartition(".")[2] for decorator in function.decorator_list}
    return bool(decorators - _PLAIN_DECORATORS) or "type: ignore[no-untyped-def]" in lines[function.lineno - 1]


def modules_say_what_they_are(module: Module) -> Findings:
    """A module that holds code begins with a docstring."""
    if module.tree.body and ast.get_docstring(module.tree) is None:
        yield 1, "no docstring at the head of the module"


def no_room_for_leftovers(module: Module) -> Findings:
    """No module named after nothing in particular."""
    if module.name.rpartition(".")[2] in {"utils", "util", "common", "helpers", "misc"}:
        yield 1, f"{module.name}: name the module after what it holds"


RULES: tuple[Callable[[Module], Findings], ...] = (
    jitted_by_the_house_decorator,
    ir_is_built_in_one_place,
    linked_code_allocates_nothing,
    modules_stay_short,
    functions_stay_short,
    nothing_unfinished,
    no_machine_paths,
    public_functions_are_annotated,
    modules_say_what_they_are,
    no_room_for_leftovers,
)
