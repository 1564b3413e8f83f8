"""Which backend computes, and why not the other.

device   first choice                          otherwise, with one warning
cpu      "cpu", the C++ library                "reference", the eager implementation
cuda     "triton"                              "reference"
other    -                                     "reference"
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import threading
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.compiler import is_compiling
from torch.jit import is_tracing
from torch.nn import Parameter

from npu_kernels import reference
from npu_kernels._common.checks import check_choice, warn
from npu_kernels._operators import cpu, ops
from npu_kernels._triton import for_graph, interpreted

BACKENDS = ("reference", "cpu", "triton")

_Function = TypeVar("_Function", bound=Callable[..., Any])

FAST_PATH = (None, "cpu")  # forced backends with which the fast path is taken
_forced: ContextVar[str | None] = ContextVar("npu_kernels.use_backend", default=None)
_outer: ContextVar[tuple[str | None, ...]] = ContextVar("npu_kernels.outer_blocks", default=())
forced = _forced.get  # the backend that use_backend names in this thread or task
_launchers: dict[str, Callable[..., Any]] = {}  # of Triton's kernels, once they can be launched
# Operator -> what reaches Triton's interpreter in another way than `launch`.
interpreted_by: dict[str, Callable[..., Any]] = {}
# Device -> backend where none is forced, filled at first use.
_chosen: dict[torch.device, str] = {}


class _Thread(threading.local):
    """The value of `forced` in this thread, for torch.compile, which reads no context variables."""

    def __init__(self) -> None:
        self.forced: str | None = None


_thread = _Thread()


class use_backend(contextlib.ContextDecorator):
    """Force one backend in a ``with`` block or, as a decorator, in a function.

    name: "reference" (the eager implementation, any device), "cpu" (the C++ library) or "triton".

    The choice holds until the block ends. It applies to the current thread; within asyncio, to the
    current task and the tasks that it starts. Other threads are not affected, even if the block
    starts them. A backward pass uses the backend of its forward pass, in any thread, also under
    `torch.utils.checkpoint`. In three cases it does not, and the block must enclose both passes:

    - `ode.rollout` with adaptive steps;
    - selective checkpoints (``context_fn`` of `torch.utils.checkpoint`);
    - code that `torch.compile` compiles. Enter the block outside of compiled functions. A compiled
      function does not distinguish asyncio tasks: it uses the last choice that any task of its
      thread made.

    Raises ValueError for an unknown name. A call under a backend that cannot run on its tensors
    raises RuntimeError, which lists why each backend cannot run.

        >>> import torch, npu_kernels
        >>> layer, x = npu_kernels.NPU(2, 6), torch.rand(100, 2)
        >>> with npu_kernels.use_backend("reference"):
        ...     y = layer(x)
    """

    def __init__(self, name: str) -> None:
        check_choice("use_backend", "name", name, BACKENDS)
        self.name = name

    def __enter__(self) -> use_backend:
        if self.name == "triton":
            _interpret()
        _outer.set((*_outer.get(), forced()))
        self._force(self.name)
        return self

    def __exit__(self, *error: object) -> None:
        *outer, name = _outer.get()
        _outer.set(tuple(outer))
        self._force(name)

    @staticmethod
    def _force(name: str | None) -> None:
        _forced.set(name)
        _thread.forced = name


def choices() -> tuple[str | None, bool] | None:
    """Return the forced backend, and whether kernels are chosen for a CUDA graph; None if neither.

    A backward takes those of its forward, by `as_forward`.
    """
    name, graph = forced(), for_graph.active()
    return None if name is None and not graph else (name, graph)


def as_forward(
    chosen: tuple[str | None, bool] | None,
) -> contextlib.AbstractContextManager[object]:
    """Choose as the forward of a backward did: on a GPU, autograd runs this in its own thread."""
    if chosen is None:
        return contextlib.nullcontext()
    name, graph = chosen
    blocks = contextlib.ExitStack()
    if name is not None:
        blocks.enter_context(use_backend(name))
    if graph:
        blocks.enter_context(for_graph())
    return blocks


def forces_formulas() -> bool:
    """Whether `use_backend` forces eager code. `backend_for` does so while compiling."""
    return not is_compiling() and forced() == "reference"


def constant_in_graphs(function: _Function) -> _Function:
    """`torch.compiler.assume_constant_result`, which would import the compiler at every start."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def triton() -> ModuleType:
    """Import the Triton backend's module; ImportError where it or triton is missing."""
    return importlib.import_module("npu_kernels._triton")


def _state(backend: str, device: torch.device) -> tuple[bool, str]:
    if backend == "reference":
        return True, ""
    if backend == "cpu":
        return cpu.available(device.type)
    try:
        return triton().available(device)  # type: ignore[no-any-return]
    except ImportError as error:
        return False, str(error)


def reasons(device: torch.device | str) -> dict[str, tuple[bool, str]]:
    """Whether each backend runs on tensors of that device, and if not, why.

    A device without an index stands for all of its type, of which one must run; the reason then
    names those that do not.
    """
    return {backend: _state(backend, torch.device(device)) for backend in BACKENDS}


def _explain(device: torch.device) -> str:
    answers = reasons(device).items()
    return "; ".join(f"{name}: {'available' if ok else why}" for name, (ok, why) in answers)


@constant_in_graphs
def _default(device: torch.device) -> str:
    """Return the backend for a device when none is forced; its first use makes it ready."""
    if device not in _chosen:
        backend = {"cpu": "cpu", "cuda": "triton"}.get(device.type, "reference")
        backend = backend if _state(backend, device)[0] else "reference"
        if backend == "triton":
            triton().register()
            _launchers.update(triton().repeated())
        text = _fallback_text(device, backend)
        said = list(itertools.starmap(_fallback_text, _chosen.items()))
        _chosen[device] = backend
        if text and text not in said:
            warn(text)
    return _chosen[device]


def _fallback_text(device: torch.device, backend: str) -> str:
    """Return what is slower than necessary with that backend, and the remedy; "" if nothing is."""
    if backend == "reference" and device.type != "meta":  # meta tensors compute nothing
        of_type = torch.device(device.type)
        subject = device if _state("triton", of_type)[0] else of_type  # what holds for one device
        build = f"; build the kernels with `{cpu.build_command()}`" if device.type == "cpu" else ""
        return (
            f"npu_kernels: {subject} tensors are computed with the slower eager implementation "
            f"({_explain(subject)}){build}"
        )
    if backend == "cpu" and _no_fast_path:
        return (
            "npu_kernels: small layers on the CPU take longer than they need, because the fast "
            f"path from Python to the kernels is missing: {_no_fast_path}. To build it for this "
            f"torch: `{cpu.build_command()}`"
        )
    return ""


def without_fast_path(reason: str) -> None:
    """Make the first call on the CPU report that the fast path is missing, and why."""
    global _cpu_runs, _no_fast_path
    if cpu.available()[0]:
        _cpu_runs, _no_fast_path = False, reason  # `_fallback_text` says it


@constant_in_graphs
def _forced_backend(name: str, device: torch.device) -> str:
    if not _state(name, device)[0]:
        raise RuntimeError(
            f"npu_kernels: backend {name!r} cannot run on {device} tensors. "
            f"Candidates: {_explain(device)}"
        )
    return name


def backend_for(tensor: Tensor) -> str:
    """Return the name of the backend that is chosen for a call with this tensor.

    During `torch.jit.trace` and `torch.onnx.export` the name is "reference". A trace needs
    operations whose derivatives it can record, and ONNX has no operators of this package. Raises
    RuntimeError, with every candidate and its reason, when the backend that `use_backend` forces
    cannot run.
    """
    compiling = is_compiling()
    if is_tracing() or (compiling and torch.onnx.is_in_onnx_export()):
        return "reference"
    name = _thread.forced if compiling else forced()
    if name is not None:
        return _forced_backend(name, tensor.device)
    return "cpu" if _cpu_runs and tensor.is_cpu else _default(tensor.device)


def by_fast_path(function: Callable[..., Any] | None, *arguments: Any) -> Any:
    """Return the result of a function of the fast path; NotImplemented where it is not taken."""
    if function is None or is_compiling() or forced() not in FAST_PATH:
        return NotImplemented
    return function(*arguments)


def launch(name: str, *args: Any) -> Any:
    """Run Triton's kernels: compiled on CUDA tensors, interpreted on CPU ones, a call at a time."""
    tensors = args[:3]  # a gradient may be absent
    on_cpu = any(isinstance(tensor, Tensor) and tensor.is_cpu for tensor in tensors)
    with interpreted.lock if on_cpu else contextlib.nullcontext():
        return triton().launchers()[name](*args)


_dispatch_modes = torch._C._len_torch_dispatch_stack
_function_modes = torch._C._len_torch_function_stack
_profiled = torch.autograd._profiler_enabled
_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
# Whether a gradient stands for many, without storage: torch.autograd.grad(is_grads_batched=True)
# runs a backward with such ones. Torch's dispatcher takes them apart for a registered operator;
# nothing else of this package can read them.
is_batched_gradient: Callable[[Tensor], bool] = torch._C._functorch.is_legacy_batchedtensor


def launcher(name: str, tensors: Sequence[Tensor | None]) -> Any:
    """Return Triton's launcher of that name, to be called without torch's slower dispatcher.

    None: the operator must be called. That is so on the CPU, under a compiler, a mode of torch or a
    profiler, and for subclasses of tensors, tensors of transforms, and lazily negated ones.

    tensors: those that nothing else has checked; the first one has the device of the call.
    """
    if is_compiling() or not _launchers or _dispatch_modes() or _function_modes() or _profiled():
        return None
    for tensor in tensors:
        if tensor is None:
            continue
        kind = type(tensor)
        if kind is not Parameter and (kind is not Tensor or _wrapped(tensor)):
            return None
        if tensor.is_neg() or is_batched_gradient(tensor):
            return None
    return None if tensors[0].is_cpu and not _interprets() else _launchers[name]  # type: ignore[union-attr]


def by_cpu_library(tensors: Sequence[Tensor | None]) -> bool:
    """Whether the C++ library computes these tensors outside of compilers, modes and subclasses."""
    if is_compiling() or _dispatch_modes() or _function_modes():
        return False
    plain = all(tensor is None or type(tensor) in (Tensor, Parameter) for tensor in tensors)
    return plain and backend_for(tensors[0]) == "cpu"  # type: ignore[arg-type]


def _interprets() -> bool:
    return forced() == "triton"


def _run(name: str, *args: Any) -> Any:
    """Run an operator on a device for which no kernel is registered."""
    if backend_for(args[0]) == "triton":
        return launch(name, *args)
    # A formula's outputs have the strides of its matrix products; an operator's are contiguous.
    outputs = getattr(reference, name)(*args)
    if isinstance(outputs, Tensor):
        return outputs.contiguous()
    return tuple(output.contiguous() for output in outputs)


@functools.cache
def _interpret() -> torch.library.Library | None:
    """Let operators on CPU tensors call Triton's kernels, in a process where Triton interprets."""
    if not (cpu.available()[0] and _state("triton", torch.device("cpu"))[0]):
        return None  # without the C++ library `_run` is their kernel already
    names = ops.NAMES + ops.TIME_LOOPS
    kernels = {name: functools.partial(interpreted_by.get(name, launch), name) for name in names}
    _launchers.update({name: triton().repeat(name, kernels[name]) for name in ops.NAMES})
    return interpreted.register(kernels, _interprets)


for _name in ops.NAMES:
    ops.library.impl(_name, functools.partial(_run, _name), "CompositeExplicitAutograd")
cpu.load()
_cpu_runs = cpu.available()[0]
_no_fast_path = ""  # why the fast path is missing
