"""``fastgemm mutate``: apply a DAG mutation, say what it did and, on request, what it is worth."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from .console import add_command, print_json, print_table, progress, require
from .kernels import HELP, parse_options, read_kernels

if TYPE_CHECKING:
    from fastgemm.sched import Dag
    from fastgemm.sched.comparison import Comparison
    from fastgemm.sched.mutation_report import MutationReport


def add_parser(subparsers: Any) -> None:
    """Options of the command."""
    parser = add_command(
        subparsers,
        "mutate",
        "Apply a DAG mutation to every region of a kernel (by default the WMMA / LDS-load window mutation) and list fragments, "
        "windows, budget and edges. --compare also schedules with and without it and evaluates both orders.",
        "mutate gemm:256x256x256:mxfp8:schedule=sliceNK",
        "mutate gemm:256x128x128:f16:buffers=3:schedule=single_warp --compare",
        "mutate kernel.json.gz --region bb.1 --variant slim --json",
        "mutate random:500 --mutation sched_group_barrier -o pattern=DS_READ:2,WMMA:4",
    )
    parser.add_argument("kernel", nargs="*", help=HELP)
    parser.add_argument("--mutation", default="wmma_window", help="which one (default: %(default)s); 'list' names all")
    parser.add_argument("--variant", help="article (default), first_draft or slim, for wmma_window")
    parser.add_argument("--edits", help="edits of wmma_window to make, by name or number: 1,2,4")
    parser.add_argument(
        "-o", "--option", action="append", default=[], metavar="KEY=VALUE", help="any other option of the mutation"
    )
    parser.add_argument("--machine", help="machine whose DS latency mode counts (default: gfx1250, loaded)")
    parser.add_argument("--region", help="only this region: its number, or a basic block such as bb.1")
    parser.add_argument(
        "--histogram", action="store_true", help="print live fragment registers before and after easing"
    )
    parser.add_argument("--compare", action="store_true", help="schedule and evaluate with and without the mutation")
    parser.add_argument(
        "--profile", default="llvm24-late", help="scheduler profile for --compare (default: %(default)s)"
    )
    parser.add_argument("--picture", metavar="FILE", help="draw the comparison of the first region to a picture file")
    parser.add_argument("--out", metavar="FILE", help="write the mutated DAGs to a file of our own format")


def run(args: argparse.Namespace) -> int:
    """Do it."""
    from fastgemm.sched.mutation import mutate, mutations

    if args.mutation == "list":
        print_json(list(mutations())) if args.json else print("\n".join(mutations()))
        return 0
    dags = [dag for kernel in args.kernel for dag in read_kernels(kernel, args.region)]
    if not dags:
        raise ValueError(
            "nothing to mutate: " + (f"no regions in {', '.join(args.kernel)}" if args.kernel else "name a kernel")
        )
    options = _options(args)
    results = []
    for number, dag in enumerate(dags):
        progress(f"{number + 1}/{len(dags)}")
        results.append((dag, *mutate(dag, args.mutation, machine=args.machine, **options)))
    progress("")
    comparisons = _compare(args, dags, options) if args.compare or args.picture else []
    if args.out:
        from fastgemm.sched import save

        save(args.out, [changed for _, changed, _ in results])
    if args.picture:
        _draw(args.picture, comparisons)
    if args.json:
        print_json(
            {
                "regions": [
                    {"kernel": dag.name, "nodes": dag.n, "edges": dag.edges, **report.to_dict()}
                    for dag, _, report in results
                ],
                "comparisons": [comparison.to_dict() for comparison in comparisons],
            }
        )
        return 0
    _print_regions(results)
    if len(results) == 1:
        _print_one(results[0][2], args.histogram)
    if comparisons:
        _print_comparisons(comparisons)
    return 0


def _options(args: argparse.Namespace) -> dict[str, Any]:
    options = parse_options(args.option)
    if args.variant is not None:
        options["variant"] = args.variant
    if args.edits is not None:
        options["edits"] = [int(edit) if edit.isdigit() else edit for edit in args.edits.split(",")]
    if "pattern" in options and isinstance(options["pattern"], tuple):
        options["pattern"] = [options["pattern"]]
    return options


def _compare(args: argparse.Namespace, dags: list[Dag], options: dict[str, Any]) -> list[Comparison]:
    from fastgemm.sched.comparison import compare

    comparisons = []
    for number, dag in enumerate(dags[:1] if args.picture and not args.compare else dags):
        progress(f"scheduling {number + 1}/{len(dags)}")
        comparisons.append(compare(dag, args.mutation, profile=args.profile, scheduler_machine=args.machine, **options))
    progress("")
    return comparisons


def _draw(path: str, comparisons: list[Comparison]) -> None:
    require("matplotlib", "plot", "--picture")
    from fastgemm.sched.pictures import comparison_picture

    comparison_picture(comparisons[0], path)


def _print_regions(results: list[tuple[Dag, Dag, MutationReport]]) -> None:
    rows = []
    for number, (dag, _, report) in enumerate(results):
        counts = report.edges_by_edit().values()
        rows.append(
            (
                number,
                dag.name,
                dag.n,
                report.positions or "",
                len(report.fragments) or "",
                report.budget or "",
                report.corrected,
                *(sum(count[key] for count in counts) for key in ("added", "present", "refused")),
                report.note,
            )
        )
    columns = [
        "region",
        "kernel",
        "nodes",
        "WMMA",
        "fragments",
        "budget",
        "latencies set",
        "edges added",
        "present",
        "refused",
        "",
    ]
    print_table(
        columns, rows, title=f"mutation {results[0][2].mutation} {results[0][2].variant}".rstrip(), left=(1, 10)
    )


def _print_one(report: MutationReport, histogram: bool) -> None:
    if report.fragments:
        rows = [
            (f"%{f.register}", f.vgprs, len(f.loads), f.first_consumer, f.last_consumer, f.late_start, f.anchor or "")
            for f in report.fragments
        ]
        print_table(
            ["fragment", "VGPRs", "loads", "first use", "last use", "late start", "anchor"],
            rows,
            title="windows (positions count matrix instructions; no anchor: may start at once)",
            caption=f"budget {report.budget} VGPRs, latency of a load {report.load_latency}, of a matrix op {report.wmma_latency}",
        )
    edits = [(edit, c["added"], c["present"], c["refused"]) for edit, c in report.edges_by_edit().items()]
    if edits:
        print_table(["edit", "added", "present", "refused"], edits)
    for reason in report.reasons()[:20]:
        print(reason)
    if histogram and report.positions:
        width = 60 / max(1, report.budget)
        for p in range(report.positions):
            before, after = int(report.histogram_before[p]), int(report.histogram_after[p])
            print(
                f"W{p:<4} {before:4} {after:4} {'#' * int(before * width)}{'+' * (int(after * width) - int(before * width))}"
            )


def _print_comparisons(comparisons: list[Comparison]) -> None:
    from fastgemm.sched.comparison import COLUMNS

    rows = [[row[column] for column in COLUMNS] for comparison in comparisons for row in comparison.rows()]
    gains = ", ".join(f"{comparison.gain:.2f}" for comparison in comparisons)
    print_table(
        COLUMNS,
        rows,
        title=f"without and with the mutation, scheduled by {comparisons[0].profile}, on the in-order machine",
        caption=f"cycles without / with: {gains}. held: matrix instructions between a load and its first use, mean.",
    )
