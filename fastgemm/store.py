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

__all__ = ["cache_dir", "clear", "is_own", "read", "size", "source_stamp", "write"]

_DIGEST = hashlib.sha256().digest_size
_ROOT = Path(__file__).parent
_STAMP = "[0-9a-f]" * 16


@lru_cache(maxsize=1)
def source_stamp() -> str:
    """A digest over every module of the package and the versions below it.

    Numba's own cache watches only the file of the cached function; a helper edited in another file would go unnoticed.
    """
    from importlib.metadata import version

    digest = hashlib.sha256()
    for path in sorted(_ROOT.rglob("*.py")):
        digest.update(path.relative_to(_ROOT).as_posix().encode())
        digest.update(path.read_bytes())
    for package in ("numba", "llvmlite", "numpy"):
        digest.update(f"{package}={version(package)}".encode())
    digest.update(sys.version.encode())
    return digest.hexdigest()[:16]


def is_own(file: str) -> bool:
    """Whether the source file belongs to the package, so that the stamp covers it."""
    return Path(file).is_relative_to(_ROOT)


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:  # a user the system does not know, without HOME
        return _private_folder()


def _private_folder() -> Path:
    """A folder for temporary files that only this user writes to: what is read from a cache is executed."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    folder = Path(tempfile.gettempdir()) / f"fastgemm-{user}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        state = folder.lstat()
    except OSError:
        return Path(os.devnull)  # nothing can be read or written below it
    mine = not hasattr(os, "getuid") or (state.st_uid == user and not state.st_mode & 0o022)
    return folder if mine else Path(os.devnull)


def _base() -> Path:
    chosen = os.environ.get("FASTGEMM_CACHE_DIR")
    if chosen:
        return Path(chosen)
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    if chosen:
        return Path(chosen) / "fastgemm"
    if sys.platform == "win32":
        root = Path(os.environ.get("LOCALAPPDATA", str(_home() / "AppData" / "Local")))
    elif sys.platform == "darwin":
        root = _home() / "Library" / "Caches"
    else:
        root = Path(os.environ.get("XDG_CACHE_HOME") or _home() / ".cache")
    return root / "fastgemm"


def cache_dir() -> Path:
    """The folder entries of this very source tree live in (it need not exist).

    ``FASTGEMM_CACHE_DIR`` names the base folder, else ``NUMBA_CACHE_DIR``, else the user's cache folder.
    """
    return _base() / source_stamp()


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


def _folders(*, all_versions: bool) -> list[Path]:
    """The folders of entries.  The base folder may be any folder of the user's: what else is in it is not ours to count."""
    return [folder for folder in _base().glob(_STAMP) if folder.is_dir()] if all_versions else [cache_dir()]


def clear() -> int:
    """Remove every entry, those of older versions too; returns the bytes freed."""
    freed = size(all_versions=True)
    for folder in _folders(all_versions=True):
        shutil.rmtree(folder, ignore_errors=True)
    return freed


def size(*, all_versions: bool = False) -> int:
    """Bytes of the entries in use (or of every version's)."""
    total = 0
    for root in _folders(all_versions=all_versions):
        for folder, _, files in os.walk(root):
            for file in files:
                try:
                    total += os.stat(os.path.join(folder, file)).st_size
                except OSError:
                    continue
    return total
