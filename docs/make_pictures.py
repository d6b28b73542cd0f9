"""Draw the pictures of the documentation anew, all of them from what the package itself returns.

python docs/make_pictures.py [FOLDER]        (default: docs/img; needs the 'plot' extra)
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.patches import Rectangle  # noqa: E402

import fastgemm as fg  # noqa: E402

BLOCK_COLOURS = ("#4878a8", "#d98b4a", "#6aa56a")
LRU_BYTES = 32 << 20


def swizzle_orders(path: Path) -> None:
    """Six block orders of an 8 x 6 grid on six cores, by the package's own picture."""
    from fastgemm.explain import traversal_picture

    swizzles = {
        "RowMajor()": fg.RowMajor(),
        "IdentitySwizzle(1, 0)": fg.IdentitySwizzle(1, 0),
        "IdentitySwizzle(3, 0)": fg.IdentitySwizzle(3, 0),
        "IdentitySwizzle(3, 1)": fg.IdentitySwizzle(3, 1),
        "L1FullLoadSwizzle()": fg.L1FullLoadSwizzle(),
        "AswtSwizzle()": fg.AswtSwizzle(),
    }
    figure, axes = plt.subplots(2, 3, figsize=(12, 9.6), layout="constrained")
    for (title, swizzle), ax in zip(swizzles.items(), axes.flat, strict=True):
        traversal_picture(swizzle.bind(problem=(8, 6, 1), tile=(1, 1, 1), cores=6), ax=ax)
        ax.set_title(title, fontsize=11)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def hit_rate(swizzle: object, problem: tuple[int, int, int], tile: tuple[int, int, int], item: int = 4) -> float:
    """Share of the bytes loaded that are found in one cache with least-recently-used replacement, one core."""
    tasks = swizzle.bind(problem=problem, tile=tile[:2]).schedule()  # type: ignore[attr-defined]
    k_tiles = -(-problem[2] // tile[2])
    sizes = {"a": tile[0] * tile[2] * item, "b": tile[1] * tile[2] * item}
    held: OrderedDict[tuple[str, int, int], int] = OrderedDict()
    used = hits = loads = 0
    for m, n in tasks[["m", "n"]].tolist():
        for k in range(k_tiles):
            for key in (("a", m, k), ("b", n, k)):
                loads += sizes[key[0]]
                if key in held:
                    hits += sizes[key[0]]
                    held.move_to_end(key)
                    continue
                held[key] = sizes[key[0]]
                used += sizes[key[0]]
                while used > LRU_BYTES:
                    used -= held.popitem(last=False)[1]
    return hits / loads


def swizzle_traffic(path: Path) -> None:
    """Misses against the offset: the gentle rise and the cliff."""
    problem, tile = (4096, 4096, 4096), (128, 256, 256)
    offsets = [1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 14, 16, 20, 24]
    figure, ax = plt.subplots(figsize=(8, 4.2), layout="constrained")
    for direction, colour in ((0, BLOCK_COLOURS[0]), (1, BLOCK_COLOURS[1])):
        misses = [1 - hit_rate(fg.IdentitySwizzle(offset, direction), problem, tile) for offset in offsets]
        band = "rows" if direction == 0 else "columns"
        ax.plot(offsets, misses, "o-", color=colour, label=f"direction {direction}: bands of {band}")
    row_major = 1 - hit_rate(fg.RowMajor(), problem, tile)
    ax.axhline(row_major, color="#777777", linestyle="--", label="RowMajor")
    ax.set(
        xlabel="offset (blocks in a band)", ylabel="bytes loaded that miss the cache", ylim=(0, 0.75), xticks=offsets
    )
    ax.legend()
    ax.grid(alpha=0.3)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def policies_ops(path: Path) -> None:
    """The ops of two blocks of three K tiles, in order of issue, one row of boxes per kind of op."""
    tile = fg.Tile(l1=(64, 64, 64))
    policies = {
        "Pingpong()": fg.Pingpong(),
        "Preload(shuffle_k=False)": fg.Preload(shuffle_k=False),
        "PreloadAsync(preload_stages=2, l1_stages=3, shuffle_k=False)": fg.PreloadAsync(
            preload_stages=2, l1_stages=3, shuffle_k=False
        ),
        "PreloadAsyncWithCallback(shuffle_k=False)": fg.PreloadAsyncWithCallback(shuffle_k=False),
        "HostPanels()": fg.HostPanels(),
    }
    lanes = {"LOAD_A": 3, "LOAD_B": 2, "MMAD": 1, "STORE": 0, "BEFORE": 0, "AFTER": 0}
    figure, axes = plt.subplots(len(policies), 1, figsize=(11, 8.6), layout="constrained", sharex=True)
    longest = 0
    for (title, policy), ax in zip(policies.items(), axes, strict=True):
        ops = fg.trace(64, 128, 192, policy=policy, tile=tile, cores=1, swizzle=fg.RowMajor())
        longest = max(longest, len(ops))
        for step, op in enumerate(ops):
            name = fg.Op(int(op["op"])).name
            small = name in ("BEFORE", "AFTER")
            ax.add_patch(
                Rectangle(
                    (step + 0.04, lanes[name] + 0.06),
                    0.92,
                    0.88,
                    color=BLOCK_COLOURS[op["n"] % 3],
                    alpha=0.45 if small else 1,
                )
            )
            label = name.lower() if small else "store" if name == "STORE" else str(op["k"])
            ax.text(
                step + 0.5,
                lanes[name] + 0.5,
                label,
                ha="center",
                va="center",
                fontsize=7.5,
                color="black" if small else "white",
            )
        ax.set(ylim=(0, 4), yticks=[0.5, 1.5, 2.5, 3.5], yticklabels=["write back", "multiply", "load B", "load A"])
        ax.set_title(title, fontsize=10, loc="left")
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
    axes[-1].set(xlim=(0, longest), xlabel="order of issue", xticks=[])
    figure.savefig(path, dpi=110)
    plt.close(figure)


def mutation(kernel: str) -> Callable[[Path], None]:
    """Live ranges, register pressure and live-register histogram of a kernel, with and without the mutation."""
    from fastgemm.sched import compare, synthetic
    from fastgemm.sched.pictures import comparison_picture

    return lambda path: comparison_picture(compare(synthetic.parse(kernel)), path)


def main(folder: Path) -> None:
    """Draw every picture into a folder."""
    from fastgemm.sched.comparison import ARTICLE

    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in (
        ("swizzle-orders.png", swizzle_orders),
        ("swizzle-traffic.png", swizzle_traffic),
        ("policies-ops.png", policies_ops),
        ("mutation-mxfp8.png", mutation(ARTICLE[0])),
        ("mutation-f16.png", mutation(ARTICLE[1])),
    ):
        draw(folder / name)
        print(folder / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "img")
