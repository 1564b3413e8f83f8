"""Repeated calls of launchers, without the work that is the same at every call.

A launcher checks its operands, looks up configurations, allocates and launches; Triton then binds
the arguments of every launch to names, derives their types and alignments, and makes a key to look
up the compiled kernel. All of it follows from the operands' shapes, dtypes and devices and from the
options. So :class:`Repeated` records, at the second call with the same signature, the launcher's
allocations and launches. Later calls only repeat these, the launches by Triton's own launcher of
the compiled kernel. One allocation holds all intermediate tensors, and their places are used again.
The processor time that this saves was measured with a mocked driver.

A recording is used only if it makes no visible difference:

- operands are contiguous (others are copied first, as launchers do) and addresses are multiples of
  16 bytes, as they were when the kernels were compiled
- the configurations (:func:`tuning.generation`) and, where kernels depend on it, the float32 matmul
  precision are the recorded ones, and the operands' device is the current one
- nothing observes launches or changes what is compiled: launch hooks, which profilers set, hooks of
  a kernel, Triton's debug mode and instrumentation, a replaced ``JITFunction.run``

Interpreted kernels, launchers that compute with torch, and all kernels with a Triton outside of
:data:`CHECKED` are not recorded: they launch in Triton's own way at every call. A tensor
descriptor, by which large layers (`npu_large`) read planes, is made at every call.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from operator import itemgetter, or_
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from triton import knobs
from triton.runtime import driver
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

from npu_kernels._operators.precision import float32_matmul_precision
from npu_kernels._triton import for_graph, tuning
from npu_kernels._triton.launch import contiguous

CHECKED = ("3.6", "3.7", "3.8", "3.9")  # versions of Triton with the launcher that is used here
_UNALIGNED = 16 - 1  # bits of an address
_ALIGNED = 512  # bytes, as torch's allocator does
# Recordings of a launcher: numbers of rows that vary without end must not fill the memory.
_MAX_RECORDINGS = 1024
_aten = torch.ops.aten
_ALLOCATIONS = (_aten.new_empty.default, _aten.empty.memory_format, _aten.empty_like.default)
# Kernels without float32 matrix products; all others may depend on the float32 matmul precision.
_ANY_PRECISION = {"npu_small_forward", "npu_small_backward", "sum_partials"}
_ANY_PRECISION |= {"nmu_forward", "nmu_backward", "nmru_forward", "nmru_backward"}
_new = object.__new__  # without the checks that the first one has passed
_CPU = -1  # for a test whose launches are mocked
_SEEN, _NEVER, _BY_PRECISION = "seen", "never", "by precision"
_run = JITFunction.run
_recorders = threading.local()


class _Launch(NamedTuple):
    """A launch as the compiled kernel's launcher takes it."""

    run: Any  # Triton's launcher
    function: int  # the handle of the loaded kernel
    metadata: Any  # of the compiled kernel, packed
    programs: int  # the grid
    tensors: Any  # selects the kernel's tensors from all tensors' addresses
    numbers: tuple[Any, ...]  # and constants, which the launcher skips
    kernel: Any  # the JITFunction
    compiled: Any  # a reference, without which the kernel would be unloaded


class _Allocation(NamedTuple):
    """A new tensor."""

    like: int  # the index of an operand, whose device it shares
    shape: tuple[int, ...] | None  # None: those of the operand
    dtype: torch.dtype | None
    size: int  # bytes
    first: int  # the first launch that may use it
    offset: int | None = None  # in the memory of the intermediate tensors; None: a result


class _Base(NamedTuple):
    """The tensor of a descriptor, whose address Triton's launcher requires."""

    address: int

    def data_ptr(self) -> int:
        return self.address


def _packed(lives: Sequence[tuple[int, int, int]]) -> tuple[list[int], int]:
    """Return offsets in one memory, and its size, from tensors' sizes, first and last launches.

    Tensors that no launch needs at the same time may share a place. The largest are placed first,
    each as low as possible.
    """
    offsets, placed = [0] * len(lives), list[tuple[int, int, int, int]]()
    for index in sorted(range(len(lives)), key=lambda index: -lives[index][0]):
        size, first, last = lives[index]
        for begin, end, other_first, other_last in sorted(placed):
            overlaps = begin < offsets[index] + size and offsets[index] < end
            if overlaps and first <= other_last and other_first <= last:
                offsets[index] = end
        placed.append((offsets[index], offsets[index] + size, first, last))
    return offsets, max((end for _, end, _, _ in placed), default=0)


class Tape:
    """The recorded allocations and launches of a launcher.

    One allocation holds all intermediate tensors.
    """

    def __init__(self, recorder: _Recorder, results: Sequence[int]) -> None:
        self.driver = driver.active
        self.device = self.driver.get_current_device()
        self.launches = tuple(recorder.launches)
        self.descriptors = recorder.descriptors[::-1]
        self.kernels = [launch.kernel for launch in self.launches]
        self.hooks = [kernel.pre_run_hooks for kernel in self.kernels]
        self.allocations = list(recorder.allocations)
        operands = len(recorder.tensors) - len(self.allocations)
        shared, lives, single = [], [], list(range(operands))  # single: tensors by themselves
        for number, (_, _, _, size, first, _) in enumerate(self.allocations):
            index = operands + number
            if index in results:
                single.append(index)
            else:
                shared.append(number)
                lives.append((size, first, recorder.last_use.get(index, first)))
        offsets, self.size = _packed(lives)
        for number, offset in zip(shared, offsets, strict=True):
            self.allocations[number] = self.allocations[number]._replace(offset=offset)
        # a tensor if there is one, else a tuple
        self.results = itemgetter(*map(single.index, results))

    def replay(self, operands: Sequence[Tensor | None]) -> Any:
        """Return the launcher's result; None, without a launch, if the recording does not fit."""
        active, device = driver.active, self.device
        if active is not self.driver or active.get_current_device() != device:
            return None
        for hooks in self.hooks:
            if hooks:
                return None
        tensors: list[Any] = [tensor for tensor in operands if tensor is not None]
        addresses: list[Any] = [tensor.data_ptr() for tensor in tensors]
        memory = tensors[0].new_empty(self.size, dtype=torch.uint8) if self.size else None
        base = 0 if memory is None else memory.data_ptr()
        for like, shape, dtype, _, _, offset in self.allocations:
            if offset is not None:
                addresses.append(base + offset)
                continue
            new, source = tensors[like].new_empty, tensors[like]
            tensors.append(torch.empty_like(source) if shape is None else new(shape, dtype=dtype))
            addresses.append(tensors[-1].data_ptr())
        if functools.reduce(or_, addresses) & _UNALIGNED:
            return None
        for index, fields in self.descriptors:
            descriptor = _new(TensorDescriptor)
            descriptor.__dict__.update(fields, base=_Base(addresses[index]))
            addresses.append(descriptor)
        addresses.append(None)
        stream = active.get_current_stream(device)
        for launch in self.launches:
            run, function, metadata, programs, select, numbers, _, _ = launch
            arguments = select(addresses) + numbers
            run(programs, 1, 1, stream, function, metadata, None, None, None, *arguments)
        return self.results(tensors)


class _Recorder(TorchDispatchMode):
    """A recording of the allocations and launches in the block; `valid` is false for other work."""

    def __init__(self, operands: Sequence[Tensor | None]) -> None:
        super().__init__()
        self.tensors = [tensor for tensor in operands if tensor is not None]
        self.indices = {id(tensor): index for index, tensor in enumerate(self.tensors)}
        self.valid = ".".join(triton.__version__.split(".")[:2]) in CHECKED
        self.indices[id(None)] = -1
        self.allocations: list[_Allocation] = []
        self.last_use: dict[int, int] = {}  # the last launch with a tensor
        self.launches: list[_Launch] = []
        # Each descriptor's tensor and fields. A launch takes the first by the index -2, then -3.
        self.descriptors: list[tuple[int, dict[str, Any]]] = []
        self.seen = 0  # launches, with and without `start`

    def __enter__(self) -> Any:
        _recorders.active, self.thread = self, threading.get_ident()
        self.hook = knobs.runtime.launch_enter_hook
        if self.hook is not None:
            self.hook.add(self._see)
        return super().__enter__()

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        _recorders.active = None
        if self.hook is not None:
            self.hook.remove(self._see)
        super().__exit__(kind, error, traceback)

    def _see(self, facts: Any) -> None:
        self.seen += threading.get_ident() == self.thread

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _ALLOCATIONS:
            self._allocate(result)
        elif not func.is_view:  # a launch of a view is refused, because the view has no index
            self.valid = False
        return result

    def _allocate(self, new: Tensor) -> None:
        operands = self.tensors[: len(self.tensors) - len(self.allocations)]
        beside = [index for index, operand in enumerate(operands) if operand.device == new.device]
        if not beside or not new.is_contiguous():
            self.valid = False
            return
        size = -(-new.nbytes // _ALIGNED) * _ALIGNED
        allocation = _Allocation(beside[0], tuple(new.shape), new.dtype, size, len(self.launches))
        for index in beside:
            if operands[index].dtype is new.dtype and operands[index].shape == new.shape:
                allocation = allocation._replace(like=index, shape=None)
                break
        self.allocations.append(allocation)
        self.indices[id(new)] = len(self.tensors)
        self.tensors.append(new)

    def launch(
        self, kernel: Any, programs: int, options: dict[str, Any], arguments: Any, compiled: Any
    ) -> None:
        """Record a launch; its arguments are tensors and descriptors, numbers and constants."""
        try:
            names = [param.name for param in kernel.params]
            kinds = Tensor, TensorDescriptor
            tensors = sum(operand is None or isinstance(operand, kinds) for operand in arguments)
            select = itemgetter(*[self._index(operand) for operand in arguments[:tensors]])
            constants = (options[name] for name in names[len(arguments) :])
            numbers = (*arguments[tensors:], *constants)
            self.valid = self.valid and type(kernel) is JITFunction and callable(compiled.run)
            launch = _Launch(
                run=compiled.run,
                function=compiled.function,
                metadata=compiled.packed_metadata,
                programs=programs,
                tensors=select,
                numbers=numbers,
                kernel=kernel,
                compiled=compiled,
            )
            self.launches.append(launch)
        except (AttributeError, KeyError):  # interpreted, another Triton, or a foreign tensor
            self.valid = False

    def _index(self, operand: Any) -> int:
        """The index of a tensor's address or of a descriptor among a replay's addresses."""
        tensor = operand.base if type(operand) is TensorDescriptor else operand
        self.last_use[self.indices[id(tensor)]] = len(self.launches)
        if tensor is operand:
            return self.indices[id(operand)]
        fields = {name: value for name, value in vars(operand).items() if name != "base"}
        self.descriptors.append((self.indices[id(operand.base)], fields))
        return -1 - len(self.descriptors)

    def tape(self, results: Any) -> Tape | None:
        """The recording, None where the calls cannot be repeated."""
        results = (results,) if isinstance(results, Tensor) else results
        indices = [self.indices.get(id(result), -1) for result in results]
        complete = self.launches and self.seen == len(self.launches)
        if not self.valid or not complete or min(indices) < 0:
            return None
        if any(tensor.data_ptr() & _UNALIGNED for tensor in self.tensors):
            return None
        return Tape(self, indices)


def start(
    kernel: Any,
    programs: int,
    options: dict[str, Any],
    tensors: tuple[Any, ...],
    numbers: tuple[Any, ...],
    constants: tuple[Any, ...],
) -> None:
    """Launch a kernel with its arguments in their order.

    tensors: tensors, descriptors or None. numbers: known when it runs. constants: when it is
    compiled.
    """
    arguments = tensors + numbers + constants
    compiled = kernel[(programs,)](*arguments, **options)
    recorder = getattr(_recorders, "active", None)
    if recorder is not None:
        recorder.launch(kernel, programs, options, arguments, compiled)


def _recordable(operands: Sequence[Tensor | None]) -> bool:
    """Return whether a recording of a call with these operands would serve others like it.

    Not with a tensor that is passed twice, which may be two tensors in a later call, nor with an
    address or a current device that no replay accepts. A later call may be replayed.
    On the CPU, where kernels are interpreted, there may be no driver to ask for a device.
    """
    tensors = [tensor for tensor in operands if tensor is not None]
    if len(set(map(id, tensors))) < len(tensors):
        return False
    devices = {tensor.get_device() for tensor in tensors} - {_CPU}
    if devices and devices != {driver.active.get_current_device()}:
        return False
    return not any(tensor.data_ptr() & _UNALIGNED for tensor in tensors)


def _undisturbed() -> bool:
    """Return whether nothing observes launches or changes what is compiled."""
    try:
        runtime = knobs.runtime
        enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
        if (enter is not None and enter.calls) or (leave is not None and leave.calls):
            return False
        changed = runtime.debug or runtime.add_stages_inspection_hook is not None
        changed = changed or knobs.compilation.instrumentation_mode
        return not changed and JITFunction.run is _run
    except AttributeError:  # another Triton, or a hook that is a plain function
        return False


class Repeated:
    """A launcher without the repeated work; its first `operands` arguments are tensors."""

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
        settings = tuning.generation(), for_graph.active()
        signature: list[Any] = [*settings, *arguments[self.operands :]]
        for tensor in tensors:
            if tensor is None:
                signature.append(None)
            elif tensor.is_contiguous():
                signature += (tensor.shape, tensor.dtype, tensor.get_device())
            else:
                return self.call(self._contiguous(arguments))
        return self._find(tuple(signature), arguments)

    def call_after(self, tape: Tape, arguments: tuple[Any, ...]) -> Any:
        """The result of a backward's launcher after the forward's call that used this recording.

        So operands, saved tensors and gradient have the recording's shapes, dtypes and device.
        """
        if not _undisturbed():
            return self.launcher(*arguments)
        for tensor in arguments[: self.operands]:
            if tensor is not None and not tensor.is_contiguous():
                return self.call_after(tape, self._contiguous(arguments))
        return self._find((tape, tuning.generation(), *arguments[self.operands :]), arguments)[0]

    def _contiguous(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        return *contiguous(arguments[: self.operands]), *arguments[self.operands :]

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
            if _recordable(arguments[: self.operands]):
                return self._record(key, arguments)
        elif tape is None:
            if len(self.tapes) >= _MAX_RECORDINGS:
                self.tapes.clear()
            self.tapes[key] = _SEEN
        return self.launcher(*arguments), None

    def _record(self, key: Any, arguments: tuple[Any, ...]) -> tuple[Any, Tape | None]:
        with _Recorder(arguments[: self.operands]) as recorder:
            results = self.launcher(*arguments)
        tape = recorder.tape(results)
        if tape is not None and key[0] is not _BY_PRECISION:
            names = {kernel.__name__.removesuffix("_kernel") for kernel in tape.kernels}
            if not names.issubset(_ANY_PRECISION):
                self.tapes[key] = _BY_PRECISION
                key = (_BY_PRECISION, float32_matmul_precision(), key)
        self.tapes[key] = _NEVER if tape is None else tape
        return results, tape
