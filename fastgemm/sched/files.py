"""Files of our own for one or many DAGs: a NumPy archive (.npz) of flat columns, documented in ``docs/scheduling.md``.

Every array field of `Dag` is one column, the arrays of all DAGs one after the other; ``<column>.start`` says where each DAG's
begin.  ``header`` is JSON: format, version, and per DAG what is not an array.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .dag import Dag
from .model import DagError

__all__ = ["FORMAT", "VERSION", "load", "save"]

FORMAT = "fastgemm-dags"
VERSION = 1
_PLAIN = ("name", "machine", "vgpr_limit", "sgpr_limit", "whole_single_block_loop")
_TABLES = ("opcodes", "windows")
_COLUMNS = tuple(f.name for f in fields(Dag) if f.name not in (*_PLAIN, *_TABLES))


def save(path: str | Path, dags: Iterable[Dag]) -> None:
    """Write DAGs to one file (the name is kept as it is; `.npz` is customary)."""
    dags = list(dags)
    tables: list[list[str]] = []  # name tables are shared by the DAGs of a kernel
    numbers: dict[tuple[str, ...], int] = {}
    rows = []
    for dag in dags:
        row: dict[str, Any] = {name: getattr(dag, name) for name in _PLAIN}
        for name in _TABLES:
            table = getattr(dag, name)
            row[name] = numbers.setdefault(table, len(tables))
            if row[name] == len(tables):
                tables.append(list(table))
        rows.append(row)
    header = {"format": FORMAT, "version": VERSION, "tables": tables, "dags": rows}
    arrays: dict[str, NDArray[Any]] = {"header": np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)}
    for name in _COLUMNS:
        parts = [getattr(dag, name) for dag in dags]
        arrays[name] = np.concatenate(parts) if parts else np.zeros(0)
        arrays[f"{name}.start"] = np.concatenate([[0], np.cumsum([part.size for part in parts])]).astype(np.int64)
    with open(path, "wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def load(path: str | Path) -> list[Dag]:
    """Read the DAGs of a file `save` wrote, validated. Raises `DagError` if it is none or of a newer version."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return _dags(archive)
    except (EOFError, KeyError, ValueError, zipfile.BadZipFile, json.JSONDecodeError) as error:
        if isinstance(error, DagError):
            raise
        raise DagError(f"{path} is no file of fastgemm DAGs: {error}") from None


@lru_cache(maxsize=1)
def _dtypes() -> dict[str, np.dtype[Any]]:
    empty = Dag.from_arrays([], [])
    return {name: getattr(empty, name).dtype for name in _COLUMNS}


def _dags(archive: Any) -> list[Dag]:
    header = json.loads(archive["header"].tobytes())
    if header.get("format") != FORMAT:
        raise DagError(f"the file says format {header.get('format')!r}; this reads {FORMAT!r}")
    if header["version"] > VERSION:
        raise DagError(
            f"the file has version {header['version']}, this fastgemm reads up to {VERSION}: update fastgemm"
        )
    tables = [tuple(table) for table in header["tables"]]
    columns = {name: (archive[name], archive[f"{name}.start"]) for name in _COLUMNS}
    dags = []
    for i, row in enumerate(header["dags"]):
        arrays = {name: data[start[i] : start[i + 1]] for name, (data, start) in columns.items()}
        dag = Dag(**arrays, **{k: row[k] for k in _PLAIN}, **{k: tables[row[k]] for k in _TABLES})
        dag = dag.replace(**{name: column.astype(_dtypes()[name]) for name, column in arrays.items()})
        dag.validate()
        dags.append(dag)
    return dags
