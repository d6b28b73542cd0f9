"""The scheduler half of fastgemm: kernel DAGs, machines as data, AMD's CoExec pre-RA scheduler, DAG mutations, evaluation.

Names resolve on first use, so that importing the package compiles nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import on_demand

# public name -> module that defines it
_NAMES = {
    "Dag": "dag",
    **dict.fromkeys(["DagError", "EdgeKind", "Flag", "Flavor", "OperandKind", "Reason"], "model"),
    **dict.fromkeys(["Machine", "machine", "machines"], "machine"),
    **dict.fromkeys(["Region", "read_corpus"], "corpus"),
    **dict.fromkeys(["Schedule", "schedule"], "scheduling"),
    **dict.fromkeys(["Profile", "profile", "profiles", "rungs"], "ladders"),
    **dict.fromkeys(["Replay", "fidelity", "replay"], "replaying"),
    **dict.fromkeys(["Batch", "schedule_batch"], "batching"),
    **dict.fromkeys(["load", "save"], "files"),
    **dict.fromkeys(["mutate", "mutations"], "mutation"),
    **dict.fromkeys(["Evaluation", "evaluate"], "evaluation"),
    **dict.fromkeys(["StaticMachine", "static_machine"], "inorder"),
    **dict.fromkeys(["Bounds", "bounds"], "lower_bounds"),
    **dict.fromkeys(["compare", "report"], "comparison"),
}
_MODULES = ("synthetic",)

__all__ = [*_NAMES, *_MODULES]

if TYPE_CHECKING:  # for type checkers and editors
    from . import synthetic as synthetic
    from .batching import Batch as Batch
    from .batching import schedule_batch as schedule_batch
    from .comparison import compare as compare
    from .comparison import report as report
    from .corpus import Region as Region
    from .corpus import read_corpus as read_corpus
    from .dag import Dag as Dag
    from .evaluation import Evaluation as Evaluation
    from .evaluation import evaluate as evaluate
    from .files import load as load
    from .files import save as save
    from .inorder import StaticMachine as StaticMachine
    from .inorder import static_machine as static_machine
    from .ladders import Profile as Profile
    from .ladders import profile as profile
    from .ladders import profiles as profiles
    from .ladders import rungs as rungs
    from .lower_bounds import Bounds as Bounds
    from .lower_bounds import bounds as bounds
    from .machine import Machine as Machine
    from .machine import machine as machine
    from .machine import machines as machines
    from .model import DagError as DagError
    from .model import EdgeKind as EdgeKind
    from .model import Flag as Flag
    from .model import Flavor as Flavor
    from .model import OperandKind as OperandKind
    from .model import Reason as Reason
    from .mutation import mutate as mutate
    from .mutation import mutations as mutations
    from .replaying import Replay as Replay
    from .replaying import fidelity as fidelity
    from .replaying import replay as replay
    from .scheduling import Schedule as Schedule
    from .scheduling import schedule as schedule


__getattr__, __dir__ = on_demand(__name__, _NAMES, _MODULES)
