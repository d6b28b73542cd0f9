"""``fastgemm schedule``: schedule the regions of a kernel and print every pick, a summary or the debug text."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from .console import add_command, print_json, print_table
from .kernels import HELP, parse_options, read_kernels

if TYPE_CHECKING:
    from fastgemm.sched import Dag, Schedule


def add_parser(subparsers: Any) -> None:
    """Options of the command."""
    parser = add_command(
        subparsers,
        "schedule",
        "Schedule every region of a kernel as a compiler's CoExec pre-RA scheduler would. One region prints its picks, several "
        "print one line each; --trace prints queues, comparisons and winners.",
        "schedule kernel.llvm24-late.json.gz --profile llvm24-late",
        "schedule kernel.llvm24-early.json.gz --profile llvm24-early --region bb.2 --trace",
        "schedule gemm:256x256x256:mxfp8:schedule=sliceNK --mutation wmma_window",
        "schedule random:500 --rungs stall,critical,order --json",
    )
    parser.add_argument("kernel", nargs="*", help=HELP)
    parser.add_argument("--profile", default="llvm24-late", help="scheduler (default: %(default)s); 'list' names all")
    parser.add_argument(
        "--rungs", help="another ladder for the profile: rungs by name, strongest first; 'list' names all"
    )
    parser.add_argument("--machine", help="take node facts, queues and windows from this machine; 'list' names all")
    parser.add_argument(
        "--mutation", action="append", default=[], help="mutate the DAG first (may be given several times)"
    )
    parser.add_argument(
        "-o", "--option", action="append", default=[], metavar="KEY=VALUE", help="an option of the mutation"
    )
    parser.add_argument("--region", help="only this region: its number, or a basic block such as bb.1")
    parser.add_argument("--trace", action="store_true", help="print the debug text: queues, comparisons, winners")
    parser.add_argument("--threads", type=int, help="threads for several regions (default: fastgemm's)")
    parser.add_argument("--out", metavar="FILE", help="write the scheduled DAGs to a file of our own format")


def run(args: argparse.Namespace) -> int:
    """Do it."""
    import fastgemm.sched as sched

    for option, names in (("profile", sched.profiles), ("rungs", sched.rungs), ("machine", sched.machines)):
        if getattr(args, option) == "list":
            print_json(list(names())) if args.json else print("\n".join(names()))
            return 0
    dags = [dag for kernel in args.kernel for dag in read_kernels(kernel, args.region)]
    if not dags:
        raise ValueError("nothing to schedule: name a kernel (fastgemm schedule --help shows examples)")
    profile = sched.profile(args.profile, rungs=args.rungs.split(",") if args.rungs else None)
    if args.machine is None:  # a synthetic kernel takes the facts of the build the profile describes
        dags = [dag.on(profile.machine) if dag.machine == "gfx1250" else dag for dag in dags]
    options = parse_options(args.option)
    mutations = [(name, options) for name in args.mutation]
    common: dict[str, Any] = {"profile": profile, "mutations": mutations, "machine": args.machine}
    if args.out:
        sched.save(args.out, [_mutated(dag, common) for dag in dags])
    if args.trace:
        for dag in dags:
            print(sched.schedule(dag, trace=True, **common).trace)
        return 0
    batch = sched.schedule_batch(dags, threads=args.threads, progress=True, **common)
    if args.json:
        print_json([_as_json(result) for result in batch])
    elif len(batch) == 1:
        _print_picks(batch[0])
    else:
        _print_regions(list(batch))
    return 0 if batch.complete else 130


def _mutated(dag: Dag, common: dict[str, Any]) -> Dag:
    from fastgemm.sched.scheduling import prepare

    return prepare(dag, common["mutations"], common["machine"])[0]


def _as_json(result: Schedule) -> dict[str, Any]:
    from fastgemm.sched import Reason
    from fastgemm.sched.scheduling import STALL_KINDS

    picks = result.picks
    columns: dict[str, Any] = {name: picks[name] for name in picks.dtype.names or ()}
    columns["reason"] = [Reason(int(reason)).label for reason in picks["reason"]]
    columns["stall"] = [STALL_KINDS[int(kind)] for kind in picks["stall"]]
    summary = {name: getattr(result, name) for name in ("profile", "machine", "length", "peak_vgpr", "peak_sgpr")}
    return {"name": result.dag.name, **summary, "reports": list(result.reports), "picks": columns}


def _print_picks(result: Schedule) -> None:
    from fastgemm.sched import Flavor, Reason
    from fastgemm.sched.scheduling import STALL_KINDS

    dag = result.dag
    rows = [
        (
            i,
            int(pick["cycle"]),
            int(pick["ready"]),
            int(pick["node"]),
            dag.opcode_name(int(pick["node"])),
            Flavor(int(dag.flavor[pick["node"]])).label,
            Reason(int(pick["reason"])).label or "only choice",
            f"{pick['available']}+{pick['pending']}",
            f"{STALL_KINDS[int(pick['stall'])]} {pick['wait']}" if pick["wait"] else "",
            int(pick["vgpr"]),
            int(pick["sgpr"]),
        )
        for i, pick in enumerate(result.picks)
    ]
    print_table(
        ("pick", "cycle", "ready", "node", "opcode", "unit", "reason", "queues", "stall", "vgpr", "sgpr"),
        rows,
        title=f"{dag.name or 'kernel'}: {dag.n} instructions, profile {result.profile}, machine {result.machine}",
        caption=f"{result.length} cycles, peak {result.peak_vgpr} VGPR and {result.peak_sgpr} SGPR",
        left=(4, 5, 6, 8),
    )
    for report in result.reports:
        if report is not None:
            edges = ", ".join(f"{edit}: {count}" for edit, count in report.edges_by_edit().items())
            print(f"{report.mutation} {report.variant}: {report.corrected} latencies corrected; {edges}")


def _print_regions(results: list[Schedule]) -> None:
    from collections import Counter

    from fastgemm.sched import Reason

    rows = []
    for result in results:
        reasons = Counter(Reason(int(reason)).label or "only choice" for reason in result.picks["reason"])
        common = ", ".join(f"{name} {count}" for name, count in reasons.most_common(3))
        rows.append((result.dag.name, result.dag.n, result.length, result.peak_vgpr, result.peak_sgpr, common))
    title = f"profile {results[0].profile}, machine {results[0].machine}"
    print_table(("region", "picks", "cycles", "vgpr", "sgpr", "reasons"), rows, title=title, left=(0, 5))
