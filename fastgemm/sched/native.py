"""What the jitted scheduler needs beside `fastgemm.vectors`: functions compiled only once, as a part of their callers, and
pointers from addresses and into the middle of a vector."""

from __future__ import annotations

import ast
import gc
import threading
from collections import namedtuple
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from llvmlite import binding
from numba import config, types
from numba.core import transforms, typed_passes, untyped_passes
from numba.core.caching import NullCache
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.compiler_machinery import FunctionPass, PassManager, register_pass
from numba.core.lowering import Lower
from numba.extending import intrinsic
from numpy.typing import NDArray

from ..jit import njit
from ..pipeline import PartLibrary, PartPipeline
from . import layout

__all__ = ["State", "addresses", "at_address", "at_int16", "at_int32", "at_int8", "entry", "inner", "shifted"]


class _LinkedLibrary(PartLibrary):
    """A part's code, without that of the parts below it: the entry links each of them once."""

    def finalize(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


class _EntryLibrary(JITCodeLibrary):
    """The code of a function Python calls: links all functions below it, once each, and optimises the whole."""

    def finalize(self) -> None:
        below = dict.fromkeys(self._linking_libraries)  # type: ignore[has-type]
        queue = list(below)
        while queue:
            library = queue.pop()
            if isinstance(library, _LinkedLibrary):
                new = [other for other in library._linking_libraries if other not in below]
                below.update(dict.fromkeys(new))
                queue += new
        self._linking_libraries = list(below)
        super().finalize()

    def _optimize_final_module(self) -> None:
        """One run instead of numba's two (the first is for reference counts), no search for loops to vectorise (every loop follows
        lists), and less inlined: the code is as fast (1.0 and 1.6 million picks/s of the late and the early profile either way)."""
        options = binding.create_pipeline_tuning_options(speed_level=2)
        options.loop_vectorization = options.slp_vectorization = False
        options.inlining_threshold = 150  # 225 by default
        builder = binding.create_pass_builder(self._codegen._tm, options)
        builder.getModulePassManager().run(self._final_module, builder)


_ALONE = threading.RLock()  # one entry is compiled at a time
_PLAIN = (types.Integer, types.IntegerLiteral, types.Boolean, types.BooleanLiteral, types.CPointer)


@contextmanager
def _remembered_operators(context: Any) -> Iterator[None]:
    """Let a typing context resolve an operator over integers and pointers once instead of at every place it is used, and for
    all numbers alike: a third of the time."""
    resolve = context.resolve_function_type
    known: dict[Any, Any] = {}

    def remembering(func: Any, args: Any, kws: Any) -> Any:
        if kws or not isinstance(func, types.Function) or not all(isinstance(arg, _PLAIN) for arg in args):
            return resolve(func, args, kws)
        key = (func, *(types.unliteral(arg) for arg in args))
        if key not in known:
            known[key] = resolve(func, key[1:], kws)
        return known[key]

    context.resolve_function_type = remembering
    try:
        yield
    finally:
        context.resolve_function_type = resolve


class _EntryCompiler(Compiler):
    """Numba's compiler for a function Python calls."""

    def compile_extra(self, func: Callable[..., Any]) -> Any:
        self.state.library = _EntryLibrary(self.state.targetctx.codegen(), func.__qualname__)
        self.state.library.enable_object_caching()
        with _ALONE:
            collecting = gc.isenabled()
            gc.disable()  # the compiler makes millions of objects and next to no garbage
            try:
                with _remembered_operators(self.state.typingctx):
                    return super().compile_extra(folded(func))
            finally:
                if collecting:
                    gc.enable()


class _PlainLower(Lower):
    """Lowers functions over integers and pointers: there is nothing to count references of, no debug information to size
    variables for, and no operator has a second form for numbers known beforehand."""

    def init(self) -> None:
        super().init()
        self.context.get_abi_sizeof = lambda _: 0  # a context of this function's own

    def incref(self, typ: Any, val: Any) -> None: ...

    def decref(self, typ: Any, val: Any) -> None: ...

    def delvar(self, name: str) -> None: ...

    def storevar(self, value: Any, name: str, argidx: int | None = None) -> None:
        self._alloca_var(name, self.typeof(name))
        if name in self._singly_assigned_vars:
            self._blk_local_varmap[name] = value
        else:
            self.builder.store(value, self.getvar(name))

    def lower_binop(self, resty: Any, expr: Any, op: Any) -> Any:
        context, builder, signature = self.context, self.builder, self.fndesc.calltypes[expr]
        values = [
            context.cast(builder, self.loadvar(side.name), self.typeof(side.name), wanted)
            for side, wanted in zip((expr.lhs, expr.rhs), signature.args, strict=True)
        ]
        kind = context.typing_context.resolve_value_type(op)
        try:
            function = context.get_function(kind, signature)
        except KeyError:  # never asked for these very types, only for some that widen to them
            function = context.get_function(kind, kind.get_call_type(context.typing_context, signature.args, {}))
        return context.cast(builder, function(builder, values), signature.return_type, resty)


@register_pass(mutates_CFG=False, analysis_only=False)
class _PlainProcessing(FunctionPass):
    """What numba does with fresh IR, without the lifetimes of variables."""

    _name = "fastgemm_plain_processing"

    def __init__(self) -> None:
        super().__init__()

    def run_pass(self, state: Any) -> bool:
        state.func_ir.blocks = transforms.canonicalize_cfg(state.func_ir.blocks)
        return True


@register_pass(mutates_CFG=True, analysis_only=False)
class _PlainLowering(typed_passes.NativeLowering):
    _name = "fastgemm_plain_lowering"

    @property
    def lowering_class(self) -> type[Lower]:
        return _PlainLower


class _LinkedCompiler(PartPipeline):
    """The compiler of parts without the passes that plain loops over integers and pointers never need: closures, single
    assignment, literal unrolling, array expressions, rewrites, lifetimes."""

    library_class = _LinkedLibrary

    def define_pipelines(self) -> list[PassManager]:
        manager = PassManager("linked")
        for step in (
            untyped_passes.TranslateByteCode,
            untyped_passes.FixupArgs,
            _PlainProcessing,
            typed_passes.NopythonTypeInference,
            _PlainLowering,
            typed_passes.NoPythonBackend,
        ):
            manager.add_pass(step, step.__name__)
        manager.finalize()
        return [manager]

    def compile_extra(self, func: Callable[..., Any]) -> Any:
        return super().compile_extra(folded(func))


class _Folding(ast.NodeTransformer):
    """Writes the numbers of `layout` in place of `L.NAME`, those of the module's own names, and a variable of its own for each
    field of the state: looking names up is a third of what numba has to type."""

    def __init__(self, function: Callable[..., Any]) -> None:
        own = function.__code__.co_varnames
        self._known = {n: v for n, v in function.__globals__.items() if type(v) is int and n not in own}
        self._has_state = own[:1] == ("s",) and function.__code__.co_argcount > 0
        self.fields: dict[str, None] = {}

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.value, ast.Name) and node.value.id == "L":
            return ast.copy_location(ast.Constant(getattr(layout, node.attr)), node)
        if self._has_state and isinstance(node.value, ast.Name) and node.value.id == "s":
            self.fields[node.attr] = None
            return ast.copy_location(ast.Name(f"s_{node.attr}", ast.Load()), node)
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.copy_location(ast.Constant(self._known[node.id]), node) if node.id in self._known else node


@lru_cache(maxsize=64)
def _definitions(file: str) -> dict[int, ast.FunctionDef]:
    """The functions of a source file by the line they begin at, their decorators included."""
    functions = [node for node in ast.parse(Path(file).read_bytes()).body if isinstance(node, ast.FunctionDef)]
    return {min([node.lineno, *(d.lineno for d in node.decorator_list)]): node for node in functions}


def folded(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function with the names of numbers replaced by the numbers."""
    code = function.__code__
    definition = _definitions(code.co_filename).pop(code.co_firstlineno, None)  # it is changed, so it serves once
    if definition is None:
        _definitions.cache_clear()
        definition = _definitions(code.co_filename).pop(code.co_firstlineno)
    definition.decorator_list = []
    folding = _Folding(function)
    folding.visit(definition)
    heads = ast.parse("\n".join(f"s_{name} = s.{name}" for name in folding.fields)).body
    for head in heads:
        for node in ast.walk(head):
            ast.copy_location(node, definition.body[0])
    definition.body[:0] = heads
    scope: dict[str, Any] = {}
    exec(compile(ast.Module([definition], []), code.co_filename, "exec"), function.__globals__, scope)
    result: Callable[..., Any] = scope[function.__name__]
    return result


def inner(function: Callable[..., Any]) -> Any:
    """Compile a function that only jitted code calls: linked into its callers, which hold it in their cache entries.

    A call with the number 1, one with an int32 and one with an int64 share their code (numba would compile each for itself).
    """
    if config.DISABLE_JIT:
        return function
    options: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "pipeline_class": _LinkedCompiler}
    dispatcher = njit(function, **options)
    dispatcher._cache = NullCache()
    template = dispatcher.get_call_template
    dispatcher.get_call_template = lambda args, kws: template(tuple(_widened(arg) for arg in args), kws)
    return dispatcher


def _widened(kind: Any) -> Any:
    """The type an argument is passed as: every integer as int64."""
    return types.int64 if isinstance(kind, types.Integer | types.IntegerLiteral) else types.unliteral(kind)


# the state every function of the scheduler takes: packed instructions, their dynamic rows, the work vector, scalars, unit
# records, the model (all int64) and the log (int32); see `fastgemm.sched.layout`
State = namedtuple("State", ["node", "live", "work", "c", "unit", "model", "log"])


def _at(element: types.Integer) -> Any:
    @intrinsic
    def at(typingctx, address):  # type: ignore[no-untyped-def]
        """The vector at an address."""

        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return types.CPointer(element)(types.int64), generate

    return at


at_address, at_int32, at_int16, at_int8 = _at(types.int64), _at(types.int32), _at(types.int16), _at(types.int8)


def entry(function: Callable[..., Any] | None = None, *, nogil: bool = False) -> Any:
    """Compile a function Python calls and that calls `inner` ones; cached on disk like any other of the package.

    It keeps the interpreter's lock unless it is long: a thread that gives the lock up for the 20 us a small DAG takes waits
    longer than that to get it back (`schedule_batch` with a mutation gained nothing from its second thread).
    """
    if function is None:
        return lambda real: entry(real, nogil=nogil)
    if config.DISABLE_JIT:
        return function
    return njit(function, nogil=nogil, no_cfunc_wrapper=True, pipeline_class=_EntryCompiler)


def addresses(*parts: NDArray[np.generic] | list[int]) -> NDArray[np.int64]:
    """Where the elements of contiguous arrays begin, for jitted code that makes vectors of them.  The arrays must outlive it.

    A list stands for addresses known already (`Dag.addresses`): asking an array costs a microsecond.
    """
    found: list[int] = []
    for part in parts:
        if isinstance(part, list):
            found += part
        else:
            found.append(part.__array_interface__["data"][0])
    return np.array(found, dtype=np.int64)


@intrinsic
def shifted(typingctx, vector, count):  # type: ignore[no-untyped-def]
    """The vector from its element `count` on."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.gep(arguments[0], [arguments[1]])

    return vector(vector, types.int64), generate
