"""Numba's compiler, cut to what the package's functions need: a first call waits for every pass.

Three savings, none of which changes what a function computes:

* :class:`Pipeline` folds ``module.CONSTANT`` and arithmetic on integers before the types are inferred (one statement costs numba
  about 0.9 ms, whatever it does), and leaves out the passes for closures, ``with`` blocks, literal unrolling, array expressions
  and inlined overloads, which no function here contains.
* :class:`PartPipeline` is for functions that only jitted code calls (:func:`fastgemm.vectors.inner`): their IR is neither
  optimised nor turned into machine code on its own, only where it is linked into a caller.
"""

from __future__ import annotations

import operator
from collections import Counter
from types import ModuleType
from typing import Any

from numba import _dynfunc
from numba.core import compiler, ir, typed_passes, untyped_passes
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler_machinery import FunctionPass, register_pass
from numba.core.ir_utils import build_definitions

__all__ = ["PartLibrary", "PartPipeline", "Pipeline"]

_UNUSED = (
    untyped_passes.WithLifting,
    untyped_passes.InlineClosureLikes,
    untyped_passes.MakeFunctionToJitFunction,
    untyped_passes.InlineInlinables,
    untyped_passes.FindLiterallyCalls,
    untyped_passes.LiteralUnroll,
    untyped_passes.LiteralPropagationSubPipelinePass,
    typed_passes.InlineOverloads,
    typed_passes.NopythonRewrites,
    typed_passes.AnnotateTypes,
    typed_passes.DumpParforDiagnostics,
)
_FOLDED = {operator.add, operator.sub, operator.mul, operator.floordiv}


@register_pass(mutates_CFG=False, analysis_only=False)
class FoldConstants(FunctionPass):
    """Replace attributes of modules, and sums and products of integer constants, by their values."""

    _name = "fastgemm_fold_constants"

    def __init__(self) -> None:
        super().__init__()

    def run_pass(self, state: Any) -> bool:
        func_ir = state.func_ir
        passed = _passed(func_ir)
        values: dict[str, Any] = {}
        for block in func_ir.blocks.values():
            for statement in block.body:
                if isinstance(statement, ir.Assign) and statement.target.name.startswith("$"):
                    value = _value(statement.value, values)
                    if value is None or statement.target.name in values:
                        continue
                    values[statement.target.name] = value
                    if isinstance(value, int) and statement.target.name not in passed:
                        statement.value = ir.Const(value, statement.loc)
        used: Counter[str] = Counter()
        for block in func_ir.blocks.values():
            for statement in block.body:
                read = statement.value if isinstance(statement, ir.Assign) else statement
                used.update(var.name for var in getattr(read, "list_vars", list)())
                if isinstance(read, ir.Var):
                    used[read.name] += 1
        for block in func_ir.blocks.values():
            block.body = [
                s
                for s in block.body
                if not (isinstance(s, ir.Assign) and s.target.name in values and not used[s.target.name])
            ]
        func_ir._definitions = build_definitions(func_ir.blocks)
        return True


def _passed(func_ir: Any) -> set[str]:
    """The variables that are arguments of calls: numba compiles a callee anew for each constant, but not for an attribute."""
    calls = [
        statement.value
        for block in func_ir.blocks.values()
        for statement in block.find_insts(ir.Assign)
        if isinstance(statement.value, ir.Expr) and statement.value.op == "call"
    ]
    return {var.name for call in calls for var in (*call.args, *dict(call.kws).values())}


def _value(expression: Any, values: dict[str, Any]) -> Any:
    """The integer or the module an expression stands for, None if that is not known before the run."""
    if isinstance(expression, ir.Const | ir.Global | ir.FreeVar):
        value = expression.value
    elif isinstance(expression, ir.Expr) and expression.op == "getattr":
        value = getattr(values.get(expression.value.name), expression.attr, None)
    elif isinstance(expression, ir.Expr) and expression.op == "binop" and expression.fn in _FOLDED:
        left, right = values.get(expression.lhs.name), values.get(expression.rhs.name)
        value = expression.fn(left, right) if type(left) is int and type(right) is int else None
    else:
        return None
    return value if type(value) is int or isinstance(value, ModuleType) else None


class Pipeline(compiler.CompilerBase):  # type: ignore[misc]  # numba has no stubs
    """The nopython pipeline with constants folded and without the passes in ``_UNUSED``."""

    def define_pipelines(self) -> list[Any]:
        manager = compiler.DefaultPassBuilder.define_nopython_pipeline(self.state)
        manager.passes = [entry for entry in manager.passes if entry[0] not in _UNUSED]
        manager.add_pass_after(FoldConstants, untyped_passes.FixupArgs)
        manager.finalize()
        return [manager]


class PartLibrary(JITCodeLibrary):  # type: ignore[misc]
    """IR that waits to be linked into a caller's library, where it is optimised and compiled."""

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None: ...

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


def _no_executable(library: Any, fndesc: Any, env: Any) -> Any:
    """What numba registers a function under that Python cannot call (address 0, as for any without a wrapper for Python)."""
    return _dynfunc.make_function(fndesc.lookup_module(), fndesc.qualname, "", 0, env, (library,))


class PartPipeline(Pipeline):
    """:class:`Pipeline` for a function that has no machine code of its own."""

    library_class: type[PartLibrary] = PartLibrary

    def compile_extra(self, func: Any) -> Any:
        state = self.state
        state.library = self.library_class(state.targetctx.codegen(), func.__qualname__)
        state.targetctx.get_executable = _no_executable
        return super().compile_extra(func)
