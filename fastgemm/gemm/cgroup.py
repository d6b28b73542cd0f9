"""The CPU quota a container was given (Linux control groups, versions 1 and 2).

A process in a group with half a second of CPU time per second is stopped for the other half, whatever its affinity mask says;
threads beyond the quota only bring that moment closer.  The tightest quota on the way from the process's group to the root of
the hierarchy counts.  Sources: cgroups(7), "CPU Interface Files" in the kernel's cgroup-v2.rst, sched-bwc.rst.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

__all__ = ["cpu_quota"]


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except (OSError, ValueError):
        return None


def _mounts(root: Path) -> Iterator[tuple[int, PurePosixPath, PurePosixPath]]:
    """(version, folder of the hierarchy that is mounted, where) of every hierarchy that can hold the cpu controller."""
    for line in (_read(root / "proc/self/mountinfo") or "").splitlines():
        before, _, after = line.partition(" - ")
        fields, source = before.split(), after.split()
        if len(fields) < 5 or len(source) < 3:
            continue
        if source[0] == "cgroup2":
            yield 2, PurePosixPath(fields[3]), PurePosixPath(fields[4])
        elif source[0] == "cgroup" and "cpu" in source[2].split(","):
            yield 1, PurePosixPath(fields[3]), PurePosixPath(fields[4])


def _groups(root: Path) -> dict[int, PurePosixPath]:
    """The process's group in the version 2 hierarchy and in the version 1 hierarchy of the cpu controller."""
    found = {}
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            found[2] = PurePosixPath(path)
        elif "cpu" in controllers.split(","):
            found[1] = PurePosixPath(path)
    return found


def _quota(folder: Path, version: int) -> float | None:
    """The quota written in one group's folder, in processors."""
    if version == 2:
        fields = (_read(folder / "cpu.max") or "").split()
    else:
        fields = [(_read(folder / f"cpu.cfs_{name}_us") or "").strip() for name in ("quota", "period")]
    if len(fields) != 2 or not all(field.isdecimal() for field in fields) or "0" in fields:
        return None  # "max", -1, absent or damaged: no limit that we know of
    return int(fields[0]) / int(fields[1])


def cpu_quota(root: Path | str = "/") -> float | None:
    """The processors' worth of CPU time the process may use, or None without a limit.

    `root` stands for the root of the file system, so that the layouts of other machines can be tested.
    """
    root = Path(root)
    groups = _groups(root)
    quotas = []
    for version, mounted, where in _mounts(root):
        group = groups.get(version)
        if group is None:
            continue
        # In a container the mount may show only a part of the hierarchy; a group outside it is seen at the mount's root.
        inside = group.relative_to(mounted) if group.is_relative_to(mounted) else PurePosixPath()
        folder = PurePosixPath(*where.parts[1:])
        for step in [inside, *inside.parents]:
            quota = _quota(root / folder / step, version)
            if quota is not None:
                quotas.append(quota)
    return min(quotas, default=None)
