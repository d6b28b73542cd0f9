"""The on-disk cache of compiled code: checksummed entries, keyed by everything that decides their content.

One entry is one file, ``<name>-<key>.bin``: a SHA-256 of the payload, then the payload.  An entry that is short, damaged or
unreadable counts as absent; an entry that cannot be written is skipped.  Nothing here raises because of the disk.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from functools import lru_cache
from pathlib import Path

__all__ = ["cache_dir", "clear", "read", "size", "source_stamp", "write"]

_DIGEST = hashlib.sha256().digest_size


@lru_cache(maxsize=1)
def source_stamp() -> str:
    """A digest over every module of the package and the versions below it.

    Numba's own cache watches only the file of the cached function; a helper edited in another file would go unnoticed.
    """
    from importlib.metadata import version

    digest = hashlib.sha256()
    root = Path(__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes())
    for package in ("numba", "llvmlite", "numpy"):
        digest.update(f"{package}={version(package)}".encode())
    digest.update(sys.version.encode())
    return digest.hexdigest()[:16]


def _base() -> Path:
    chosen = os.environ.get("FASTGEMM_CACHE_DIR")
    if chosen:
        return Path(chosen)
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    if chosen:
        return Path(chosen) / "fastgemm"
    if sys.platform == "win32":
        root = Path(os.environ.get("LOCALAPPDATA", str(Path.home() / "AppData" / "Local")))
    elif sys.platform == "darwin":
        root = Path.home() / "Library" / "Caches"
    else:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "fastgemm"


def cache_dir() -> Path:
    """The folder entries of this very source tree live in (it need not exist).

    ``FASTGEMM_CACHE_DIR`` names the base folder, else ``NUMBA_CACHE_DIR``, else the user's cache folder.
    """
    try:
        return _base() / source_stamp()
    except RuntimeError:  # no home folder at all
        return Path(tempfile.gettempdir()) / "fastgemm" / source_stamp()


def _path(name: str, key: str) -> Path:
    digest = hashlib.sha256(key.encode()).hexdigest()[:32]
    return cache_dir() / f"{name}-{digest}.bin"


def read(name: str, key: str) -> bytes | None:
    """The payload stored under (name, key), or None if there is none that is whole."""
    try:
        blob = _path(name, key).read_bytes()
    except OSError:
        return None
    payload = blob[_DIGEST:]
    if hashlib.sha256(payload).digest() != blob[:_DIGEST]:
        return None
    return payload


def write(name: str, key: str, payload: bytes) -> bool:
    """Store a payload atomically; False if the folder cannot be written."""
    path = _path(name, key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=path.name, dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.sha256(payload).digest())
                file.write(payload)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError:
        return False
    return True


def clear() -> int:
    """Remove every entry, those of older versions too; returns the bytes freed."""
    freed = size(all_versions=True)
    shutil.rmtree(_base(), ignore_errors=True)
    return freed


def size(*, all_versions: bool = False) -> int:
    """Bytes of the entries in use (or of every version's)."""
    root = _base() if all_versions else cache_dir()
    total = 0
    for folder, _, files in os.walk(root):
        for file in files:
            try:
                total += os.stat(os.path.join(folder, file)).st_size
            except OSError:
                continue
    return total
