"""The table at the end of a benchmark run: ours beside numpy's, one line a group."""

from __future__ import annotations

import pytest

_rows: dict[str, dict[str, dict[str, float]]] = {}


@pytest.fixture
def report():
    """Take one library's result of a group for the table."""

    def take(group: str, library: str, **figures: float) -> None:
        _rows.setdefault(group, {})[library] = figures

    return take


def pytest_terminal_summary(terminalreporter):
    """Print what :func:`report` was told."""
    if not _rows:
        return
    terminalreporter.section("beside numpy (medians; above 1 fastgemm is faster)")
    terminalreporter.write_line(
        f"{'what':44} {'ours, us':>10} {'numpy, us':>10} {'ratio':>6} {'GFLOP/s':>8} {'of peak':>8}"
    )
    for group, libraries in _rows.items():
        if len(libraries) == 2:
            ours, peer = libraries["fastgemm"], libraries["numpy"]
            terminalreporter.write_line(
                f"{group:44} {ours['seconds'] * 1e6:10.1f} {peer['seconds'] * 1e6:10.1f} "
                f"{peer['seconds'] / ours['seconds']:6.2f} {ours['gflops']:8.1f} {ours['peak_fraction']:8.1%}"
            )
