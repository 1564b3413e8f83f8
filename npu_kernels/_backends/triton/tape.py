"""Calls of launchers again, without the work that is the same at every call.

A launcher checks its operands, looks up configurations, allocates and launches; Triton then binds the arguments
of every launch to names, finds the type and the alignment of each, and makes a key to find the compiled kernel. All of
it follows from the operands' shapes, dtypes and devices and from the options. So :class:`Repeated` records, at the
second call with the same ones, what the launcher allocates and launches, and from then on does these allocations and
launches alone, the latter by calling Triton's own launcher of the compiled kernel.

A recording is used where nothing can be seen of it:

- operands are contiguous (others are copied first, as launchers do) and addresses are multiples of 16 bytes, as they
  were when the kernels were compiled
- the configurations (:func:`tuning.generation`) and, where kernels depend on it, the float32 matmul precision are the
  recorded ones, and the operands' device is the current one
- nothing wants to see a launch or to change what is compiled: launch hooks, which profilers set, hooks of a
  kernel, Triton's debug mode and instrumentation, a replaced ``JITFunction.run``

Nothing is recorded of kernels that Triton interprets, of large layers (`npu_large`), of a launcher that computes with
torch, and with a Triton whose compiled kernels are made otherwise than those of 3.6 to 3.9: these launch in Triton's
own way at every call.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from operator import itemgetter, or_
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from triton import knobs
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from npu_kernels._backends.triton import tuning
from npu_kernels._operators.precision import float32_matmul_precision

_UNALIGNED = 16 - 1
_MOST = (
    1024  # recordings of a launcher; numbers of rows that vary without end must not fill the memory
)
_ALLOCATIONS = (
    torch.ops.aten.new_empty.default,
    torch.ops.aten.empty.memory_format,
    torch.ops.aten.empty_like.default,
)
# Kernels without float32 matrix products; all others may depend on the float32 matmul precision.
_ANY_PRECISION = {"npu_small_forward", "npu_small_backward", "sum_partials"}
_ANY_PRECISION |= {"nmu_forward", "nmu_backward", "nmru_forward", "nmru_backward"}
_CPU = -1  # for a test whose launches are mocked
_SEEN, _NEVER, _BY_PRECISION = "seen", "never", "by precision"
_run = JITFunction.run
_recorders = threading.local()


class _Launch(NamedTuple):
    """A launch as the compiled kernel's launcher takes it."""

    run: Any
    function: int
    metadata: Any
    programs: int
    tensors: Any  # takes them from all tensors' addresses
    rest: tuple[Any, ...]  # numbers, and constants, which the launcher skips
    kernel: Any  # the JITFunction
    compiled: Any  # unloaded when nothing refers to it


class _Allocation(NamedTuple):
    """A new tensor like the one at that place, or with another shape and dtype if given."""

    like: int
    shape: tuple[int, ...] | None
    dtype: torch.dtype | None


class Tape:
    """What a launcher did."""

    def __init__(self, recorder: _Recorder, results: Sequence[int]) -> None:
        self.driver = driver.active
        self.device = self.driver.get_current_device()
        self.allocations, self.launches = tuple(recorder.allocations), tuple(recorder.launches)
        self.hooks = [launch.kernel.pre_run_hooks for launch in recorder.launches]
        self.results = itemgetter(*results)  # a tensor if there is one, else a tuple

    def replay(self, operands: Sequence[Tensor | None]) -> Any:
        """The launcher's result; None where the recording does not hold, and then nothing was launched."""
        active, device = driver.active, self.device
        if active is not self.driver or active.get_current_device() != device:
            return None
        for hooks in self.hooks:
            if hooks:
                return None
        tensors: list[Any] = [tensor for tensor in operands if tensor is not None]
        for like, shape, dtype in self.allocations:
            source = tensors[like]
            tensors.append(
                torch.empty_like(source) if shape is None else source.new_empty(shape, dtype=dtype)
            )
        addresses: list[Any] = [tensor.data_ptr() for tensor in tensors]
        if functools.reduce(or_, addresses) & _UNALIGNED:
            return None
        addresses.append(None)
        stream = active.get_current_stream(device)
        for run, function, metadata, programs, pointers, rest, _, _ in self.launches:
            run(
                programs,
                1,
                1,
                stream,
                function,
                metadata,
                None,
                None,
                None,
                *pointers(addresses),
                *rest,
            )
        return self.results(tensors)


class _Recorder(TorchDispatchMode):
    """Within it a launcher's allocations and launches are noted; `works` is false if it does anything else."""

    def __init__(self, operands: Sequence[Tensor | None]) -> None:
        super().__init__()
        given = [id(tensor) for tensor in operands if tensor is not None]
        self.works = len(given) == len(
            set(given)
        )  # else a later call may have two tensors in the place of one
        self.tensors = [tensor for tensor in operands if tensor is not None]
        self.places = {id(tensor): place for place, tensor in enumerate(self.tensors)} | {
            id(None): -1
        }
        self.allocations: list[_Allocation] = []
        self.launches: list[_Launch] = []
        self.seen = 0  # launches, also those that do not come by `start`

    def __enter__(self) -> Any:
        _recorders.now, self.thread = self, threading.get_ident()
        self.hook = knobs.runtime.launch_enter_hook
        if self.hook is not None:
            self.hook.add(self._see)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        _recorders.now = None
        if self.hook is not None:
            self.hook.remove(self._see)
        super().__exit__(*error)

    def _see(self, facts: Any) -> None:
        self.seen += threading.get_ident() == self.thread

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func in _ALLOCATIONS:
            self._allocate(made)
        elif not func.is_view:  # a view that a launch takes is no known tensor
            self.works = False
        return made

    def _allocate(self, made: Tensor) -> None:
        found = None
        for place, tensor in enumerate(self.tensors):
            if tensor.device == made.device:
                if tensor.dtype is made.dtype and tensor.shape == made.shape:
                    found = _Allocation(place, None, None)
                    break
                found = found or _Allocation(place, tuple(made.shape), made.dtype)
        if found is None or not made.is_contiguous():
            self.works = False
            return
        self.allocations.append(found)
        self.places[id(made)] = len(self.tensors)
        self.tensors.append(made)

    def launch(
        self, kernel: Any, programs: int, options: dict[str, Any], arguments: Any, compiled: Any
    ) -> None:
        """Note a launch; the kernel's arguments are tensors named ``*_ptr``, then numbers, then constants."""
        try:
            names = [param.name for param in kernel.params]
            tensors = sum(name.endswith("_ptr") for name in names)
            places = itemgetter(*[self.places[id(tensor)] for tensor in arguments[:tensors]])
            rest = (*arguments[tensors:], *(options[name] for name in names[len(arguments) :]))
            found = (
                compiled.run,
                compiled.function,
                compiled.packed_metadata,
                programs,
                places,
                rest,
            )
            self.works = self.works and type(kernel) is JITFunction and callable(compiled.run)
            self.launches.append(_Launch(*found, kernel, compiled))
        except (
            AttributeError,
            KeyError,
        ):  # an interpreted kernel, another Triton, a tensor that is not known
            self.works = False

    def tape(self, results: Any) -> Tape | None:
        """The recording, None where there can be none."""
        single = isinstance(results, Tensor)
        places = [self.places.get(id(result), -1) for result in ((results,) if single else results)]
        if (
            not self.works
            or not self.launches
            or self.seen != len(self.launches)
            or min(places) < 0
        ):
            return None
        device = driver.active.get_current_device()
        for tensor in self.tensors:
            if tensor.data_ptr() & _UNALIGNED or tensor.get_device() not in (device, _CPU):
                return None
        return Tape(self, places)


def start(kernel: Any, programs: int, options: dict[str, Any], *arguments: Any) -> None:
    """Launch ``kernel[(programs,)](*arguments, **options)``; arguments: tensors or None, then numbers, constants."""
    compiled = kernel[(programs,)](*arguments, **options)
    recorder = getattr(_recorders, "now", None)
    if recorder is not None:
        recorder.launch(kernel, programs, options, arguments, compiled)


def never_repeat() -> None:
    """The call at work is not recorded: its launches have arguments that a recording cannot hold."""
    recorder = getattr(_recorders, "now", None)
    if recorder is not None:
        recorder.works = False


def _undisturbed() -> bool:
    """Whether nothing wants to see launches or to change what is compiled."""
    try:
        runtime = knobs.runtime
        enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
        return not (
            (enter is not None and enter.calls)
            or (leave is not None and leave.calls)
            or runtime.debug
            or runtime.add_stages_inspection_hook is not None
            or knobs.compilation.instrumentation_mode
            or JITFunction.run is not _run
        )
    except AttributeError:  # another Triton, or a hook that is a plain function
        return False


class Repeated:
    """A launcher with the work of repeated calls left out; its first `operands` arguments are tensors."""

    def __init__(self, launcher: Callable[..., Any], operands: int) -> None:
        self.launcher, self.operands = launcher, operands
        self.tapes: dict[Any, Any] = {}

    def __call__(self, *arguments: Any) -> Any:
        """The launcher's result."""
        return self.call(arguments)[0]

    def call(self, arguments: tuple[Any, ...]) -> tuple[Any, Tape | None]:
        """The launcher's result, and the recording that was used."""
        if not _undisturbed():
            return self.launcher(*arguments), None
        tensors = arguments[: self.operands]
        signature: list[Any] = [tuning.generation(), *arguments[self.operands :]]
        for tensor in tensors:
            if tensor is None:
                signature.append(None)
            elif tensor.is_contiguous():
                signature += (tensor.shape, tensor.dtype, tensor.get_device())
            else:
                return self.call(self._contiguous(arguments))
        return self._find(tuple(signature), arguments)

    def call_after(self, tape: Tape, arguments: tuple[Any, ...]) -> Any:
        """The result of a backward's launcher after the call of a forward's that used this recording: the operands and
        what was saved are of the same shapes, dtypes and device, and the gradient is like the result.
        """
        if not _undisturbed():
            return self.launcher(*arguments)
        for tensor in arguments[: self.operands]:
            if tensor is not None and not tensor.is_contiguous():
                return self.call_after(tape, self._contiguous(arguments))
        return self._find((tape, tuning.generation(), *arguments[self.operands :]), arguments)[0]

    def _contiguous(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        tensors = [None if t is None else t.contiguous() for t in arguments[: self.operands]]
        return *tensors, *arguments[self.operands :]

    def _find(self, key: Any, arguments: tuple[Any, ...]) -> tuple[Any, Tape | None]:
        tape = self.tapes.get(key)
        if tape is _BY_PRECISION:
            key = (_BY_PRECISION, float32_matmul_precision(), key)
            tape = self.tapes.get(key)
        if type(tape) is Tape:
            result = tape.replay(arguments[: self.operands])
            if result is not None:
                return result, tape
        elif tape is _SEEN:
            return self._record(key, arguments)
        elif tape is None:
            if len(self.tapes) >= _MOST:
                self.tapes.clear()
            self.tapes[key] = _SEEN
        return self.launcher(*arguments), None

    def _record(self, key: Any, arguments: tuple[Any, ...]) -> tuple[Any, Tape | None]:
        with _Recorder(arguments[: self.operands]) as recorder:
            results = self.launcher(*arguments)
        tape = recorder.tape(results)
        if tape is not None and key[0] is not _BY_PRECISION:
            names = {launch.kernel.__name__.removesuffix("_kernel") for launch in tape.launches}
            if not names.issubset(_ANY_PRECISION):
                self.tapes[key] = _BY_PRECISION
                key = (_BY_PRECISION, float32_matmul_precision(), key)
        self.tapes[key] = _NEVER if tape is None else tape
        return results, tape
