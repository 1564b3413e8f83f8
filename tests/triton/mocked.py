"""The path from a layer to a launch, real but for the GPU: Triton binds and keys arguments, nothing
compiles.

`mock` makes calls with CPU tensors take the way of CUDA tensors; a launch notes its arguments and
does nothing. For a process of its own without TRITON_INTERPRET. ``python -m tests.triton.mocked``
prints the processor time of a step; ``python -m tests.triton.mocked --checks`` runs the functions
named ``check_*``, which `test_tape` reads.
"""

import contextlib
import itertools
import json
import statistics
import sys
import time
import traceback
import types
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import CompiledKernel
from triton.runtime.jit import JITFunction

import npu_kernels
from npu_kernels._operators import dispatch, fast_path
from npu_kernels._triton import for_graph, launchers, repeat, tape, tuning
from tests.support.kernels import ALL, KEEP, NPU, forward, options
from tests.support.samples import RECORDS
from tools.aot.compiling import StubDriver

LAYERS = ("npu", "nmu", "nmru", "nalu", "inalu")
OPERATORS = [f"{layer}_{direction}" for layer in LAYERS for direction in ("forward", "backward")]
repeated: dict[str, Any] = {}  # the launchers that leave out what is the same at every call
launched: list[
    tuple[Any, ...]
] = []  # kernel, programs, stream, its tensors' addresses, numbers and constants
ordinary: list[str] = []  # kernels that went through Triton's own `run`
compiled: list[str] = []  # kernels that Triton would have compiled


notes = True  # else launches are not noted either, for timing


def _do_nothing(*arguments: Any) -> None:
    facts, enter = arguments[6:8]
    if enter is not None:
        enter(facts)


class _Kernel(CompiledKernel):  # type: ignore[misc]
    """Stands for a compiled kernel; what it has of its class is what a launch needs."""

    def __init__(self, src: Any) -> None:
        self.src, self.name, self.hash, self.module = src, src.fn.__name__, "", 1
        compiled.append(self.name)
        self.function, self.packed_metadata = 7, (4, 1, 0)
        self._run = self._launch if notes else _do_nothing

    def __del__(self) -> None:
        pass

    def _launch(
        self, x: int, y: int, z: int, stream: int, function: int, metadata: Any, *rest: Any
    ) -> None:
        assert (y, z, function, metadata) == (1, 1, 7, (4, 1, 0))
        facts, enter, leave, *arguments = rest
        if enter is not None:
            enter(facts)
        for n, argument in enumerate(arguments):
            if isinstance(argument, Tensor):
                arguments[n] = argument.data_ptr()
        launched.append((self.name, x, stream, *arguments))
        if leave is not None:
            leave(facts)


class _Driver(StubDriver):
    def __init__(self) -> None:
        super().__init__(GPUTarget("cuda", 90, 32))
        self.stream = 0
        self.device = 0

    def get_current_device(self) -> int:
        return self.device

    def get_current_stream(self, device: int = 0) -> int:
        return self.stream


driver = _Driver()


def mock() -> None:
    """Make the layers of this process launch Triton's kernels from now on, of which none runs."""
    triton.runtime.driver.set_active(driver)
    # JITFunction takes it from here for every device.
    triton.compiler.compile = lambda src, **_: _Kernel(src)
    dispatch._chosen[torch.device("cpu")], dispatch._cpu_runs = "triton", False
    dispatch._interprets = lambda: True
    repeated.update({name: repeat(name, launchers()[name]) for name in OPERATORS})
    dispatch._launchers.update(repeated)
    for name in fast_path.NAMES:  # as they answer for CUDA tensors
        setattr(fast_path, name, lambda *arguments: NotImplemented)
    library = torch.library.Library("npu_kernels", "IMPL", "CPU")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning only once for all operators")
        for name, launcher in repeated.items():
            library.impl(name, launcher, allow_override=True)
    _alive.append(library)


_alive: list[Any] = []


# ---- processor time ------------------------------------------------------------------------------


def _step(in_features: int, out_features: int) -> Callable[[], object]:
    layer = npu_kernels.NPU(in_features, out_features)
    x, grad_y = torch.rand(100, in_features, requires_grad=True), torch.ones(100, out_features)
    leaves = [x, *layer.parameters()]
    return lambda: torch.autograd.grad(layer(x), leaves, grad_y)


def _least() -> Callable[[], object]:
    """What torch takes for a Function of these tensors that allocates and computes nothing."""

    class Least(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Tensor:
            y = torch.empty_like(grad_y)
            ctx.save_for_backward(*inputs[:4], y, torch.empty_like(y))
            return y

        @staticmethod
        def backward(ctx: Any, _: Tensor) -> tuple[Any, ...]:
            return *map(torch.empty_like, ctx.saved_tensors[:4]), None, None

    layer = npu_kernels.NPU(6, 2)
    x, grad_y = torch.rand(100, 6, requires_grad=True), torch.ones(100, 2)
    leaves = [x, *layer.parameters()]
    return lambda: torch.autograd.grad(Least.apply(*leaves, 1e-7, False), leaves, grad_y)


def _without_tapes(step: Callable[[], object]) -> Callable[[], object]:
    """The same with Triton's own `run` and torch's dispatcher."""

    def run() -> object:
        launcher, dispatch.launcher = dispatch.launcher, lambda name, tensors: None
        undisturbed, tape._undisturbed = tape._undisturbed, lambda: False
        try:
            return step()
        finally:
            dispatch.launcher, tape._undisturbed = launcher, undisturbed

    return run


def processor_times(rounds: int = 30, calls: int = 40) -> dict[str, float]:
    """Microseconds of processor time of forward and backward, medians of rounds that take turns;
    "least": what torch takes alone; "... before": without tapes."""
    global notes
    notes = False
    small, tiled = _step(6, 2), _step(100, 100)
    steps = {"least": _least(), "small": small, "tiled": tiled}
    steps |= {"small before": _without_tapes(small), "tiled before": _without_tapes(tiled)}
    times_of: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            step()
            begin = time.process_time_ns()
            for _ in range(calls):
                step()
            times_of[name].append((time.process_time_ns() - begin) / calls / 1e3)
    return {name: round(statistics.median(times), 1) for name, times in times_of.items()}


# ---- checks --------------------------------------------------------------------------------------


def _count_ordinary() -> None:
    """Note launches that go through Triton's own `run`, without replacing it."""
    for module in ("npu", "npu_small", "nmu", "nalu", "reduction"):
        for value in vars(sys.modules[f"{launchers.__module__}.{module}"]).values():
            if type(value) is JITFunction and "run" not in vars(value):

                def run(self: Any, *arguments: Any, **rest: Any) -> Any:
                    ordinary.append(self.__name__)
                    return JITFunction.run(self, *arguments, **rest)

                value.run = types.MethodType(run, value)


def _places(call: tuple[Any, ...], tensors: list[Tensor | None]) -> tuple[Any, ...]:
    """The launch with each address replaced by the tensor there, or "new"."""
    names = {
        t.data_ptr(): f"tensor {n}" for n, t in enumerate(tensors) if t is not None and t.numel()
    }
    smallest_pointer = 2**20  # sizes and strides are below; the heap may begin soon above
    return tuple(
        names.get(a, "new" if isinstance(a, int) and a >= smallest_pointer else a) if n > 2 else a
        for n, a in enumerate(call)
    )


def calls(
    name: str, sizes: tuple[int, int, int], dtype: torch.dtype, models: int | None = None,
    **changes: Any,
) -> Any:  # fmt: skip
    """Functions that call a layer's launchers, each with its tensors, on a sample."""
    sample = RECORDS[name].sample(*sizes, num_models=models, dtype=torch.float64, **changes)
    sample = sample.map(lambda tensor: tensor.to(dtype))
    operands, keep = [sample.x, *sample.tensors.values()], KEEP.get(name, ())
    on_meta = forward(sample.map(lambda tensor: tensor.to("meta")), torch.ops.npu_kernels)
    y, *saved = (torch.empty(part.shape, dtype=part.dtype) for part in on_meta)
    if name == NPU:
        saved = [y, *saved]
    more = (False,) * (name == NPU)
    backward = [torch.ones_like(y), *operands, *saved], (*options(sample), *more, ALL)
    return {
        f"{name}_forward": (operands, (*options(sample), *keep)),
        f"{name}_backward": backward,
    }


def check_the_same_launches() -> None:
    """A repeated call launches what the launcher launches, with tensors in the same places."""
    sizes = [((100, 6, 2), None), ((2000, 6, 2), 2), ((100, 100, 100), None), ((33, 40, 30), 3)]
    for name in LAYERS:
        for (shape, models), dtype in (
            (s, d) for s in sizes for d in (torch.float32, torch.float64, torch.bfloat16)
        ):
            for operator, (tensors, rest) in calls(name, shape, dtype, models).items():
                repeated = repeat(operator, launchers()[operator])
                seen = []
                for call in (launchers()[operator], repeated, repeated, repeated):
                    launched.clear()
                    ordinary.clear()
                    result = call(*tensors, *rest)
                    outputs = [result] if isinstance(result, Tensor) else list(result)
                    all_tensors = [*tensors, *outputs]
                    facts = [(t.shape, t.dtype, t.is_contiguous()) for t in outputs]
                    seen.append(
                        ([_places(call, all_tensors) for call in launched], facts, type(result))
                    )
                # the last call was a replay
                assert not ordinary, (operator, shape, dtype, ordinary)
                assert seen[0][0], (operator, shape, dtype)
                assert all(entry == seen[0] for entry in seen), (operator, shape, dtype, seen)


# The operators of every public layer, and the operands that it leaves out.
PUBLIC = {
    "NPU": ("npu", ()), "RealNPU": ("npu", ("weight_im",)),
    "NaiveNPU": ("npu", ("weight_im", "gate")), "NMU": ("nmu", ()), "NMRU": ("nmru", ()),
    "NALU": ("nalu", ()), "iNALU": ("inalu", ()),
}  # fmt: skip
FULL_BATCHES = ((1000, 6, 2), (128, 100, 100), (512, 480, 490))
LAST_BATCHES = (500, 104, 60, 8, 1)  # rows


def check_nothing_is_compiled_for_a_last_batch() -> None:
    """Fewer rows launch the kernels of the first batch, in every public layer."""
    assert all(hasattr(npu_kernels, name) for name in PUBLIC)
    dtypes = (torch.float32, torch.float64, torch.bfloat16)
    inputs: dict[str, dict[str, Any]] = {
        "one model": {}, "shared x": {"models": 3, "shared": True}, "own x": {"models": 3},
    }  # fmt: skip
    faults = []
    for (layer, (name, without)), full, (label, changes), dtype in itertools.product(
        PUBLIC.items(), FULL_BATCHES, inputs.items(), dtypes
    ):
        for rows in (full[0], *(rows for rows in LAST_BATCHES if rows < full[0])):
            compiled.clear()
            launches = calls(name, (rows, *full[1:]), dtype, without=without, **changes)
            for operator, (tensors, rest) in launches.items():
                launchers()[operator](*tensors, *rest)
            if compiled and rows < full[0]:
                faults.append(f"{layer} {full} {label} {dtype}: {rows} rows: {compiled}")
    assert not faults, "\n".join(faults)


def check_what_must_not_be_repeated() -> None:
    """Hooks, debug mode, another stream or device, an address that 16 does not divide."""
    tensors, rest = calls("npu", (100, 6, 2), torch.float32)["npu_forward"]
    repeated: Any = repeat("npu_forward", launchers()["npu_forward"])

    def is_ordinary(*operands: Any) -> bool:
        ordinary.clear()
        repeated(*(operands or tensors), *rest)
        return bool(ordinary)

    assert [is_ordinary() for _ in range(4)] == [True, True, False, False]
    seen: list[Any] = []
    runtime = triton.knobs.runtime
    runtime.launch_enter_hook.add(seen.append)
    assert is_ordinary()
    assert seen[0].get()["name"] == "npu_small_forward_kernel"
    runtime.launch_enter_hook.remove(seen.append)
    assert not is_ordinary()
    for knob, value in (
        ("debug", True),
        ("launch_exit_hook", lambda facts: None),
        ("add_stages_inspection_hook", 1),
    ):
        before = getattr(runtime, knob)
        setattr(
            runtime, knob, value if knob != "add_stages_inspection_hook" else lambda *a: ("", "")
        )
        assert is_ordinary(), knob
        setattr(runtime, knob, before)
    kernel = sys.modules[f"{launchers.__module__}.npu_small"].npu_small_forward_kernel
    kernel.pre_run_hooks.append(lambda *a, **k: None)
    assert is_ordinary()
    kernel.pre_run_hooks.clear()
    assert not is_ordinary()

    memory = torch.rand(100 * 6 + 1)
    launched.clear()
    assert is_ordinary(memory[1:].view(100, 6), *tensors[1:])
    assert launched[-1][3] == memory.data_ptr() + 4
    assert not is_ordinary(torch.rand(6, 100).t(), *tensors[1:])  # copied first
    driver.stream = 5
    assert not is_ordinary()
    assert launched[-1][2] == 5
    driver.stream, driver.device = 0, 1
    assert is_ordinary()
    driver.device = 0
    assert not is_ordinary()
    original = JITFunction.run
    JITFunction.run = lambda self, *a, **k: ordinary.append("replaced")
    assert is_ordinary()
    JITFunction.run = original
    assert not is_ordinary()


def check_what_makes_another_call() -> None:
    """Shapes, dtypes, options, absent operands, configurations and, for products, the precision."""
    tensors, rest = calls("npu", (100, 6, 2), torch.float32)["npu_forward"]
    large, large_rest = calls("npu", (64, 256, 256), torch.float32)["npu_forward"]
    repeated: Any = repeat("npu_forward", launchers()["npu_forward"])

    def launch(operands: Any = tensors, options: Any = rest) -> tuple[Any, ...]:
        for _ in range(3):
            launched.clear()
            ordinary.clear()
            repeated(*operands, *options)
        assert not ordinary
        return launched[-1]

    assert launch()[9] == 100  # B
    assert launch((tensors[0][:50], *tensors[1:]))[9] == 50
    assert launch((*tensors[:2], None, tensors[3]))[5] is None
    assert launch(options=(1e-3, True))[13] == 1e-3
    assert launch()[13] == rest[0]
    with tuning.use_config("npu_small_forward", {"BLOCK_B": 32, "num_warps": 1}):
        assert launch()[1] == 4  # programs
    assert launch()[1] != 4
    highest = launch(large, large_rest)
    torch.set_float32_matmul_precision("medium")
    medium = launch(large, large_rest)
    torch.set_float32_matmul_precision("highest")
    assert highest[10:] != medium[10:]
    assert launch(large, large_rest)[10:] == highest[10:]
    other: Any = repeat("npu_forward", launchers()["npu_forward"])
    for _ in range(3):  # one tensor twice: nothing says which of the two a launch takes
        other(tensors[0], tensors[1], tensors[1], tensors[3], *rest)
    launched.clear()
    other(*tensors, *rest)
    assert launched[-1][4:6] == (tensors[1].data_ptr(), tensors[2].data_ptr())
    for rows in range(1, 2 * tape._MAX_RECORDINGS):
        repeated(tensors[0][: rows % 100], *tensors[1:], 1e-7 * (1 + rows // 100), True)
    assert len(repeated.tapes) <= tape._MAX_RECORDINGS


def check_wrong_operands_are_still_errors() -> None:
    tensors, rest = calls("npu", (100, 6, 2), torch.float32)["npu_forward"]
    for _ in range(3):
        repeated["npu_forward"](*tensors, *rest)
    for _ in range(3):
        with pytest.raises(
            ValueError, match=r"weight_im must have shape \(2, 6\), got shape \(1, 6\)"
        ):
            repeated["npu_forward"](tensors[0], tensors[1], tensors[2][:1], tensors[3], *rest)


def check_steps_of_layers() -> None:
    """Through autograd no operator is called; gradients are right, hooks and modes see all."""
    for name in ("NPU", "RealNPU", "NaiveNPU", "NMU", "NMRU", "NALU", "iNALU"):
        layer = getattr(npu_kernels, name)(6, 2)
        frozen, x = next(layer.parameters()), torch.rand(100, 6)
        for needs_x in (True, False):
            for frozen_weight in (True, False):
                x.requires_grad_(needs_x)
                frozen.requires_grad_(not frozen_weight)
                if not any(tensor.requires_grad for tensor in (x, *layer.parameters())):
                    continue
                for _ in range(4):
                    ordinary.clear()
                    layer(x).sum().backward()
                assert not ordinary, name
                for tensor in (x, *layer.parameters()):
                    assert (tensor.grad is not None) == tensor.requires_grad, name
                    assert tensor.grad is None or tensor.grad.shape == tensor.shape
                    tensor.grad = None


def check_who_wants_to_see_operators() -> None:
    """A profiler, a mode and a subclass see the operators; a negative view is resolved."""
    from torch.utils._python_dispatch import TorchDispatchMode

    layer, x = npu_kernels.NPU(6, 2), torch.rand(100, 6)
    for _ in range(3):
        layer(x).sum().backward()
    with torch.profiler.profile(acc_events=True) as profile:
        layer(x).sum().backward()
    names = {event.name for event in profile.events()}
    assert {"npu_kernels::npu_forward", "npu_kernels::npu_backward"} <= names

    class See(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    seen: list[str] = []
    with See():
        layer(x).sum().backward()
    assert {"npu_kernels.npu_forward.default", "npu_kernels.npu_backward.default"} <= set(seen)
    negative = torch.complex(torch.rand(100, 6), torch.rand(100, 6)).conj().imag
    assert negative.is_neg()
    assert dispatch.launcher("npu_forward", (negative,)) is None
    assert dispatch.launcher("npu_forward", (x, layer.weight_re, None)) is not None
    assert torch.func.grad(
        lambda t: float(dispatch.launcher("npu_forward", (t,)) is None) * t.sum()
    )(x).all()
    with torch.device("cpu"):  # a function mode
        assert dispatch.launcher("npu_forward", (x,)) is None


def check_kernels_of_graphs_are_their_threads() -> None:
    """Other threads than that of a block for a graph launch as ever; a backward launches what belongs to
    its forward, in whichever thread it runs."""
    layer, x = npu_kernels.NPU(192, 192), torch.rand(64, 192)
    usual = {"npu_forward_kernel"}, {"npu_backward_x_kernel", "npu_backward_w_kernel"}
    large = (
        {"npu_large_forward_kernel"},
        {"npu_large_backward_x_kernel", "npu_large_backward_w_kernel"},
    )

    def names(step: Callable[[], object]) -> set[str]:
        launched.clear()
        step()
        return {call[0] for call in launched if call[0] in set.union(*usual, *large)}

    def forward() -> None:
        losses.append(layer(x).sum())

    losses: list[Tensor] = []
    with ThreadPoolExecutor(1) as thread:
        for watch in (contextlib.nullcontext, lambda: torch.profiler.profile(acc_events=True)):
            for _ in range(4):  # launched, recorded, and repeated
                with watch():
                    with for_graph():
                        assert names(forward) == large[0]
                        assert thread.submit(names, forward).result() == usual[0]
                        backward = losses.pop().backward
                        assert thread.submit(names, backward).result() == usual[1]
                    assert names(forward) == usual[0]
                    assert names(losses.pop().backward) == usual[1]
                    assert thread.submit(names, losses.pop().backward).result() == large[1]
                    assert thread.submit(names, forward).result() == usual[0]
                    losses.clear()


def check_the_gradient_arrives_in_any_form() -> None:
    """Expanded, transposed, absent needs; second backward; double backward by the formula."""
    layer, x = npu_kernels.NPU(6, 3), torch.rand(100, 6, requires_grad=True)
    for _ in range(4):
        y = layer(x)
        y.backward(torch.ones(3, 100).t(), retain_graph=True)
        y.backward(torch.ones(()).expand(100, 3))
    y = layer(x)
    (grad,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    grad.sum().backward()
    # other strides
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.t().clone(), lambda t: t.t()):
        for _ in range(4):
            y = layer(x)
            launched.clear()
            y.sum().backward()
    assert launched


def check_a_launch_in_another_way() -> None:
    """Launchers that launch without `start`, or compute with torch, are not recorded."""
    tensors, rest = calls("npu", (100, 6, 2), torch.float32)["npu_forward"]
    launcher = launchers()["npu_forward"]
    kernel = sys.modules[f"{launchers.__module__}.reduction"].sum_partials_kernel

    def launches(*arguments: Any) -> Any:
        kernel[(1,)](*[None] * 15, *[1] * 9, *[False] * 6, ROWS=16, BLOCK=64)
        return launcher(*arguments)

    def computes(*arguments: Any) -> Any:
        y, s = launcher(*arguments)
        return y.zero_(), s

    for other in (launches, computes):
        repeated = repeat("npu_forward", other)
        for _ in range(4):
            ordinary.clear()
            repeated(*tensors, *rest)
            assert "npu_small_forward_kernel" in ordinary


def check_another_triton() -> None:
    """Every launch is Triton's own with a newer Triton, and where an attribute is missing."""
    tensors, rest = calls("npu", (100, 6, 2), torch.float32)["npu_forward"]
    repeated: Any = repeat("npu_forward", launchers()["npu_forward"])
    original = tape._Recorder.launch

    def launch(
        self: Any, kernel: Any, programs: int, options: Any, arguments: Any, compiled: Any
    ) -> None:
        original(
            self, kernel, programs, options, arguments, types.SimpleNamespace(run=compiled.run)
        )

    def all_are_ordinary(repeated: Any) -> bool:
        for _ in range(4):
            ordinary.clear()
            repeated(*tensors, *rest)
        return bool(ordinary)

    tape._Recorder.launch = launch
    assert all_are_ordinary(repeated)
    tape._Recorder.launch = original
    for version, recorded in ((triton.__version__, True), ("3.10.0", False), ("4.0.1", False)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(triton, "__version__", version)
            again = repeat("npu_forward", launchers()["npu_forward"])
            assert all_are_ordinary(again) is not recorded
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tape, "knobs", types.SimpleNamespace(runtime=types.SimpleNamespace()))
        assert not tape._undisturbed()
    assert tape._undisturbed()


def main() -> None:
    torch.set_num_threads(1)
    mock()
    if "--checks" in sys.argv:
        _count_ordinary()
        for name, check in list(globals().items()):
            if name.startswith("check_"):
                try:
                    check()
                    print(json.dumps([name, ""]), flush=True)
                except Exception:
                    print(json.dumps([name, traceback.format_exc()]), flush=True)
    else:
        print(json.dumps(processor_times()))


if __name__ == "__main__":
    main()
