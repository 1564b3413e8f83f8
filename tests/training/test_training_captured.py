"""`training.run` by CUDA graphs: the sequence of captures and replays, on CPU tensors under a
stand-in for a graph.

The stand-in does what a graph does: it notes the operations of the captured step, with their
tensors and numbers, and undoes them; a replay computes them again from the same tensors into the
same tensors. Real graphs are in `tests/triton/test_training.py`.
"""

import contextlib
import copy
import functools
import re
import sys
import time
import types
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from npu_kernels import NAU, NMU, NPU, functional, iNALU, use_backend
from npu_kernels._triton import for_graph
from npu_kernels.optim import Adam
from npu_kernels.training import SteppedSchedule, TrainingResult, make_step, run
from tests.support.loops import one_by_one, why
from tests.training.test_training_obstacles import OnGpu

FIRST_STEPS = 3  # made one by one before a capture
MIN_REPLAYS = 16  # of a call for which a graph is captured
events: list[str] = []


class Stream:
    """Stands for torch.cuda.Stream: a stream of the device that was current when it was made."""

    active: Any = 0  # the current device, which has the tensors
    current: Any = None

    def __init__(self) -> None:
        self.device = Stream.active

    def wait_stream(self, other: Any) -> None:
        events.append("wait")


class Graph(TorchDispatchMode):
    """Stands for torch.cuda.CUDAGraph, and within it for what captures."""

    refuses = False  # whether a step cannot be captured

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []
        self.before: dict[int, tuple[Tensor, Tensor]] = {}
        self.captures = self.fails = False

    def capture_begin(self, *pool: Any, **settings: Any) -> None:
        events.append("capture")
        self.captures = Stream.current.device == Stream.active
        if self.captures:
            self.__enter__()

    def capture_end(self) -> None:
        if not self.captures:
            warnings.warn("The CUDA Graph is empty. This usually means that ...", stacklevel=2)
            return
        self.__exit__(None, None, None)
        with torch.no_grad():
            for tensor, value in self.before.values():
                tensor.copy_(value)
        if self.fails:
            raise RuntimeError("CUDA error: operation failed due to a previous error")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.refuses:
            self.fails = True
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nmore")
        if func._schema.is_mutable:
            for tensor in tree_leaves((args, kwargs)):
                if isinstance(tensor, Tensor) and id(tensor) not in self.before:
                    self.before[id(tensor)] = tensor, tensor.clone()
        outputs = func(*args, **kwargs)
        if not func.is_view:
            self.calls.append((func, args, kwargs, outputs))
        return outputs

    def replay(self) -> None:
        events.append("replay")
        with torch.no_grad():
            for func, args, kwargs, recorded in self.calls:
                repeated = func(*args, **kwargs)
                for old, new in zip(tree_leaves(recorded), tree_leaves(repeated), strict=True):
                    if isinstance(old, Tensor) and old is not new:
                        old.copy_(new)


class On:
    """Stands for torch.cuda.stream."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        events.append("side stream")
        self.before, Stream.current = Stream.current, self.stream

    def __exit__(self, *error: Any) -> None:
        events.append("back")
        Stream.current = self.before


@pytest.fixture
def gpu_is_played(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """CPU tensors take the way of CUDA tensors; formulas compute, whose every operation is seen.

    torch.cuda.graph is torch's own.
    """
    # On a slow machine a slice of so many seconds may have too few steps for a capture.
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    for name, value in {
        "device": lambda device: contextlib.nullcontext(),
        "Stream": Stream,
        "current_stream": lambda: Stream.current,
        "set_stream": lambda stream: setattr(Stream, "current", stream),
        "stream": On,
        "CUDAGraph": Graph,
        "synchronize": lambda: None,
        "empty_cache": lambda: None,
        "is_current_stream_capturing": lambda: False,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch._C, "_host_emptyCache", lambda: None, raising=False)
    monkeypatch.setattr(torch.cuda.graph, "default_capture_stream", None)
    monkeypatch.setattr(Stream, "active", 0)
    monkeypatch.setattr(Stream, "current", Stream())
    for name in ("adam", "rmsprop"):
        module = sys.modules[f"torch.optim.{name}"]  # torch.optim deletes their names
        monkeypatch.setattr(module, "_get_capturable_supported_devices", lambda **_: ["cpu"])
    monkeypatch.setattr(Graph, "refuses", False)
    events.clear()
    with use_backend("reference"):
        yield


def model_of(models: int | None, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    options: dict[str, Any] = {"num_models": models, "dtype": dtype}
    return nn.Sequential(NPU(2, 4, init_im="uniform", **options), NAU(4, 3, **options))


def data(dtype: torch.dtype = torch.float64, rows: int = 20) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(rows, 2, generator=generator, dtype=dtype) + 0.5
    return x.as_subclass(OnGpu), torch.stack([x[:, 0] * x[:, 1], x[:, 0] / x[:, 1], x[:, 0]], -1)


def ordinary(*arguments: Any, **settings: Any) -> TrainingResult:
    with one_by_one():
        return run(*arguments, **settings)


def assert_same(result: TrainingResult, other: TrainingResult, within: float = 1e-10) -> None:
    torch.testing.assert_close(result.losses, other.losses, rtol=within, atol=within)
    for p, q in zip(result.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=within, atol=within)
        for name, value in other.optimizer.state[q].items():
            moment = result.optimizer.state[p][name]
            assert moment.dtype == value.dtype
            torch.testing.assert_close(moment, value, rtol=within, atol=within)
    for group, expected in zip(
        result.optimizer.param_groups, other.optimizer.param_groups, strict=True
    ):
        assert {k: v for k, v in group.items() if k != "params"} == {
            k: v for k, v in expected.items() if k != "params"
        }


SETTINGS: dict[str, dict[str, Any]] = {
    "all rows": {},
    "drawn rows": {"batch_size": 7},
    "given rows": {"batch_indices": torch.arange(40 * 5).view(40, 5) % 20},
    "a rate that falls": {"lr": lambda step: 0.01 / step},
    "penalties": {"penalties": {"l1": SteppedSchedule(1e-4, 1e-2, step=20),
                                "madsen": lambda n: 1e-4 * n, "paper": 0.1}},
    "frobenius": {"penalties": {"frobenius": lambda step: 1e-3 / step, "integer": 1e-3},
                  "project": 2.0},
    "weights, few losses": {"sample_weight": torch.linspace(0, 1, 60,
                                                            dtype=torch.float64).view(20, 3),
                            "record_every": 7},
    "zero, no projection": {"nonfinite": "zero", "project": False},
    "rmsprop": {"optimizer": "rmsprop", "lr": 1e-3, "batch_size": 6},
    "callbacks": {"callbacks": lambda record: None, "callback_every": 20},
    "one by one between callbacks": {"callbacks": lambda record: None, "callback_every": MIN_REPLAYS - 1},
}  # fmt: skip


@pytest.mark.usefixtures("gpu_is_played")
@pytest.mark.parametrize("models", [None, 3])
@pytest.mark.parametrize("name", SETTINGS)
def test_as_the_ordinary_loop(name: str, models: int | None) -> None:
    model, settings = model_of(models), {"lr": 0.01, **SETTINGS[name]}
    if models and "sample_weight" in settings:
        settings["sample_weight"] = settings["sample_weight"].expand(3, 20, 3).contiguous()
        settings["y"] = data()[1].expand(3, 20, 3).contiguous()
    x, y = data()
    y = settings.pop("y", y)
    runs = []
    for make in (run, ordinary):
        torch.manual_seed(3)
        runs.append(make(copy.deepcopy(model), x, y, steps=40, **copy.deepcopy(settings)))  # type: ignore[operator]
    assert_same(runs[0], runs[1])
    assert (runs[0].captured, runs[1].captured) == (True, False)
    assert ("replay" in events) == (name != "one by one between callbacks")


@pytest.mark.usefixtures("gpu_is_played")
def test_steps_before_a_capture_launch_its_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel cannot be loaded while a stream is captured."""
    chosen: list[bool] = []
    npu = functional.npu

    def noted(*arguments: Any, **options: Any) -> Tensor:
        chosen.append(for_graph.active())
        return npu(*arguments, **options)

    monkeypatch.setattr(functional, "npu", noted)
    assert run(model_of(None), *data(), steps=40).captured
    assert chosen == [True] * (1 + FIRST_STEPS + 1)  # the first gives the optimizer its state
    assert not for_graph.active()


@pytest.mark.usefixtures("gpu_is_played")
@pytest.mark.parametrize("foreach", [False, True])
def test_given_optimizers(foreach: bool) -> None:
    """Two groups with rates and settings of their own, a state to continue, a frozen parameter;
    float32 too."""
    for dtype, within in ((torch.float64, 1e-10), (torch.float32, 1e-4)):
        for kind, more in ((Adam, {}), (torch.optim.AdamW, {"weight_decay": 0.1})):
            results = []
            for make in (run, ordinary):
                model = model_of(2, dtype)
                model[0].gate.requires_grad_(False)  # type: ignore[index]
                groups = [
                    {"params": model[0].parameters(), "lr": 0.02},
                    {"params": model[1].parameters()},
                ]  # type: ignore[index]
                optimizer = kind(groups, lr=0.01, foreach=foreach, **more)  # type: ignore[operator]
                for _ in range(2):
                    result = make(model, *data(dtype), steps=30, optimizer=optimizer)  # type: ignore[operator]
                results.append(result)
            assert results[0].captured
            assert_same(results[0], results[1], within)


@pytest.mark.usefixtures("gpu_is_played")
def test_rmsprop_with_a_rate_that_falls() -> None:
    """torch has it for many tensors at a time, its choice on a GPU, and otherwise needs the rate on
    the processor."""
    runs = []
    for make in (run, ordinary):
        model = model_of(None)
        optimizer = torch.optim.RMSprop(model.parameters(), foreach=True, momentum=0.5)
        runs.append(
            make(model, *data(), steps=40, optimizer=optimizer, lr=lambda step: 1e-3 / step)
        )  # type: ignore[operator]
    assert runs[0].captured
    assert_same(runs[0], runs[1])


@pytest.mark.usefixtures("gpu_is_played")
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_fused_with_a_rate_that_falls(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's fused kernels for CUDA read a rate on the device as float32."""
    name = f"_fused_{kind.__name__.lower()}_"
    original = getattr(torch, name)

    def fused(*arguments: Any, lr: Any, **settings: Any) -> None:
        if isinstance(lr, Tensor) and lr.dtype != torch.float32:
            raise RuntimeError("expected scalar type Float but found Double")
        original(*arguments, lr=lr, **settings)

    monkeypatch.setattr(torch, name, fused)
    results = []
    for make in (run, ordinary):
        model = model_of(None, torch.float32)
        optimizer = kind(model.parameters(), fused=True)
        x, y = data(torch.float32)
        results.append(make(model, x, y, steps=40, optimizer=optimizer, lr=lambda n: 0.01 / n))  # type: ignore[operator]
    assert results[0].captured
    assert "replay" in events
    assert_same(results[0], results[1], 1e-4)


@pytest.mark.usefixtures("gpu_is_played")
def test_the_sequence() -> None:
    """The first step begins the state, three on a side stream, a capture, replays, each step made
    once."""
    model, rows = model_of(None), torch.arange(40).view(40, 1) % 20
    optimizer, before = Adam(model.parameters(), 0.5), rows.clone()
    stream = Stream.current
    run(model, *data(), steps=40, optimizer=optimizer, lr=0.01, batch_indices=rows)
    assert Stream.current is stream
    assert events == [
        "wait",
        "side stream",
        "back",
        "wait",
        "side stream",
        "capture",
        "back",
        *["replay"] * (40 - 1 - FIRST_STEPS),
    ]
    assert torch.equal(rows, before)
    assert all(state["step"].item() == 40 for state in optimizer.state.values())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(group["capturable"] for group in optimizer.param_groups)
    # the optimizer's own, not the graph's
    assert [group["lr"] for group in optimizer.param_groups] == [0.01]


@pytest.mark.usefixtures("gpu_is_played")
def test_when_the_state_has_begun() -> None:
    """The state of each trained parameter has to have begun, not of some of them."""
    model: Any = model_of(None)
    model[0].gate.requires_grad_(False)
    optimizer = Adam(model.parameters(), 0.01)
    for parameter in model[1].parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for count in (16 - 1 - FIRST_STEPS, 16 - FIRST_STEPS):
        events.clear()
        run(model, *data(), steps=16, optimizer=optimizer)
        assert events.count("replay") == count


def _smaller_steps(record: TrainingResult) -> None:
    if record.n_steps == 40:
        record.optimizer.param_groups[0]["eps"] = 0.1


def _other_address(record: TrainingResult) -> None:
    if record.n_steps == 40:
        weight = record.model[0].weight_re  # type: ignore[index]
        weight.data = weight.data.clone()


def _frozen(record: TrainingResult) -> None:
    if record.n_steps == 40:
        record.model[0].gate.requires_grad_(False)  # type: ignore[index]


def _values(record: TrainingResult) -> None:
    with torch.no_grad():
        record.model[0].weight_re.mul_(0.99)  # type: ignore[index]
    (record.model(data()[0]).sum()).backward()


@pytest.mark.usefixtures("gpu_is_played")
@pytest.mark.parametrize(("change", "settings", "captures"), [
    (lambda record: None, {}, 1),
    (lambda record: None, {"batch_size": 7, "lr": lambda n: 0.01 / n}, 1),
    (lambda record: None, {"penalties": {"l1": lambda n: 1e-4 if n <= 40 else 1e-3}}, 2),
    (_values, {}, 1), (_smaller_steps, {}, 2), (_other_address, {}, 2), (_frozen, {}, 2),
])  # fmt: skip
def test_one_capture_serves_all_calls(change: Any, settings: dict[str, Any], captures: int) -> None:
    """Until something changes that the graph holds: then the next call captures anew."""
    results = []
    for make in (run, ordinary):
        torch.manual_seed(3)
        options = {"steps": 120, "callbacks": change, "callback_every": 20, "lr": 0.01, **settings}
        results.append(make(model_of(None), *data(), **options))  # type: ignore[operator]
    assert_same(results[0], results[1])
    assert events.count("capture") == captures
    assert events.count("replay") >= 100


@pytest.mark.usefixtures("gpu_is_played")
def test_a_capture_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """One notice, and the ordinary loop from there on: the same numbers."""
    monkeypatch.setattr(Graph, "refuses", True)
    runs, notice, before = [], list[str](), Stream.current
    for make in (run, ordinary):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            settings = {
                "lr": lambda step: 0.01 / step,
                "batch_indices": torch.arange(200).view(40, 5) % 19,
            }
            runs.append(
                make(
                    model_of(None), *data(), steps=40, callbacks=lambda _: None, callback_every=20,
                    **settings,
                )
            )  # fmt: skip
        assert len(caught) == (make is run)
        notice += [str(warning.message) for warning in caught]
    because = r"one by one, because no CUDA graph can be captured of them"
    assert re.search(rf"{because} \(RuntimeError: CUDA error: .* capturing\)$", notice[0])
    assert Stream.current is before  # the user's; torch leaves its own where a capture fails
    assert_same(runs[0], runs[1])
    assert not runs[0].captured
    assert events.count("capture") == 1
    assert "replay" not in events


@pytest.mark.usefixtures("gpu_is_played")
def test_a_run_on_a_second_device() -> None:
    """torch's own stream for captures belongs to the device of a process's first capture."""
    for Stream.active in (0, 1):
        Stream.current = Stream()
        events.clear()
        assert run(model_of(None), *data(), steps=40).captured
        assert "replay" in events


@pytest.mark.usefixtures("gpu_is_played")
def test_an_empty_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """A notice, and the ordinary loop. The step that was not captured was made, and is no other."""
    elsewhere = types.SimpleNamespace(device="another", wait_stream=lambda other: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: elsewhere)
    results = []
    for make in (run, ordinary):
        settings = {
            "lr": lambda step: 0.01 / step,
            "batch_indices": torch.arange(200).view(40, 5) % 19,
        }
        notice = pytest.warns(UserWarning, match=r"no CUDA graph .*UserWarning: The CUDA Graph is")
        with notice if make is run else contextlib.nullcontext():
            results.append(make(model_of(3), *data(), steps=40, **settings))  # type: ignore[operator]
    assert_same(results[0], results[1])
    assert not results[0].captured
    assert "replay" not in events


@pytest.mark.usefixtures("gpu_is_played")
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("before", [False, True])
def test_a_capture_has_one_stream(
    before: bool, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tensor that the user has kept does not change it; afterwards torch's setting is his."""
    if not hasattr(torch.autograd.graph, "set_override_stale_capture_stream"):
        pytest.skip("torch has no such setting before 2.13")
    seen: list[bool] = []
    begin, setting = Graph.capture_begin, torch._C._override_stale_capture_stream

    def noted(self: Graph, **settings: Any) -> None:
        seen.append(setting())
        begin(self, **settings)

    monkeypatch.setattr(Graph, "capture_begin", noted)
    monkeypatch.setattr(Graph, "refuses", fails)
    torch.autograd.graph.set_override_stale_capture_stream(before)
    try:
        notice = pytest.warns(UserWarning, match="no CUDA graph")
        with notice if fails else contextlib.nullcontext():
            run(model_of(None), *data(), steps=30)
        assert (seen, setting()) == ([True], before)
    finally:
        torch.autograd.graph.set_override_stale_capture_stream(False)


def test_the_notice_names_tensors_that_are_alive(
    gpu_is_played: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are a cause where torch cannot leave their streams."""
    name = "set_override_stale_capture_stream"
    monkeypatch.delattr(torch.autograd.graph, name, raising=False)
    monkeypatch.setattr(Graph, "refuses", True)
    match = r"If a tensor computed from the parameters is alive.* `del` it: before torch 2\.13"
    with pytest.warns(UserWarning, match=match):
        run(model_of(None), *data(), steps=30)


# ---- what is not tried ---------------------------------------------------------------------------


class Own(NPU):
    pass


def _why(
    model: nn.Module, optimizer: torch.optim.Optimizer | None = None, outputs: int = 3
) -> str | None:
    x = data()[0].float().as_subclass(OnGpu)
    return why(model.float(), optimizer, x=x, y=torch.ones(20, outputs))


@pytest.mark.usefixtures("gpu_is_played")
def test_obstacles(monkeypatch: pytest.MonkeyPatch) -> None:
    for model in (model_of(3), iNALU(2, 3), nn.Sequential(nn.Linear(2, 2), nn.Tanh(), NMU(2, 3))):
        assert _why(model) is None
    for model, name in (
        (nn.Sequential(NPU(2, 3), nn.Dropout()), "Dropout"),
        (Own(2, 3), "Own"),
    ):
        assert f"{name} may do something else at each step" in str(_why(model))
    hooked = model_of(None)
    hooked.register_forward_hook(lambda *_: None)
    assert _why(hooked) == "a module has hooks"
    for register in (Tensor.register_hook, Tensor.register_post_accumulate_grad_hook):
        hooked = model_of(None).float()
        register(next(hooked.parameters()), lambda _: None)
        assert _why(hooked) == "a parameter has hooks"
    torch.nn.utils.parametrize.register_parametrization(unit := NAU(2, 3), "weight", nn.Identity())
    assert "may do something else" in str(_why(unit))
    prune.l1_unstructured(unit := NAU(2, 3), "weight", 1)
    assert _why(unit) == "a module has hooks"
    model = model_of(None).float()
    assert "SGD" in str(_why(model, torch.optim.SGD(model.parameters())))
    assert "tensor" in str(_why(model, torch.optim.Adam(model.parameters(), lr=torch.tensor(0.01))))
    optimizer = Adam(model.parameters(), 0.01)
    optimizer.register_step_post_hook(lambda *_: None)
    assert _why(model, optimizer) == "the optimizer has hooks"
    with torch.autocast("cpu"):
        assert "autocast" in str(_why(model))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert _why(model) == "a CUDA graph is being captured already"


class GpuParameter(nn.Parameter):
    is_cuda = True


@pytest.mark.usefixtures("gpu_is_played")
@pytest.mark.parametrize("devices", ["cuda", "cpu", "both"])
def test_adam_by_name_is_fused_on_a_gpu(devices: str) -> None:
    """One launch for all parameters; on the CPU, and beside parameters there, torch's default."""
    model = model_of(None)
    for n, layer in enumerate(model.children() if devices != "cpu" else ()):
        for name, parameter in layer.named_parameters() if devices == "cuda" or n else ():
            setattr(layer, name, GpuParameter(parameter.detach()))
    result = run(model, *data(), steps=1, lr=0.1)
    assert result.optimizer.param_groups[0]["fused"] == {"cuda": True}.get(devices)


@pytest.mark.usefixtures("gpu_is_played")
@pytest.mark.parametrize("models", [None, 3])
@pytest.mark.parametrize("kind", [Adam, functools.partial(torch.optim.RMSprop, foreach=True)])
def test_steps_of_a_loop_of_ones_own(models: int | None, kind: Any) -> None:
    """`make_step`: three ordinary steps and one that begins the state, then replays of one graph.
    (RMSprop as it is on a GPU: its step of one tensor reads a rate as a number.)

    Data, rates and weights of penalties are copied to where the graph reads them; data of another
    shape and other settings have a graph of their own.
    """
    model = model_of(models)
    other = copy.deepcopy(model)
    optimizers = kind(model.parameters(), lr=0.01), kind(other.parameters(), lr=0.01)
    settings: dict[str, Any] = {"penalties": {"l1": lambda n: 1e-3 * n}, "nonfinite": "zero"}
    steps = make_step(model, optimizers[0], **settings), make_step(other, optimizers[1], **settings)

    def make(count: int, rows: int, first: int = 0) -> None:
        for number in range(first, first + count):
            x, y = data(rows=rows + number)
            x, y = x[number:].as_subclass(OnGpu), y[number:]
            for optimizer in optimizers:
                optimizer.param_groups[0]["lr"] = 0.01 / (1 + number)
            loss = steps[0](x, y)
            with one_by_one(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.testing.assert_close(loss, steps[1](x, y), rtol=1e-10, atol=1e-10)
            assert type(optimizers[0].param_groups[0]["lr"]) is float
        for p, q in zip(model.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-10, atol=1e-10)

    make(4, 20)
    assert events.count("capture") == 0
    assert not steps[0].captured
    make(5, 20, first=4)
    assert events.count("capture") == 1
    assert events.count("replay") == 5
    assert steps[0].captured
    make(2, 20, first=1)  # an earlier rate
    optimizers[0].param_groups[0]["weight_decay"] = 0.1
    optimizers[1].param_groups[0]["weight_decay"] = 0.1
    make(2, 20)
    assert events.count("capture") == 2
    make(6, 9)
    assert events.count("capture") == 3
    assert steps[0].captured


@pytest.mark.usefixtures("gpu_is_played")
def test_steps_that_no_graph_can_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Graph, "refuses", True)
    model = model_of(None)
    other = copy.deepcopy(model)
    step, again = (make_step(m, Adam(m.parameters(), lr=0.01)) for m in (model, other))
    x, y = data()
    for _ in range(4):
        step(x, y)
    with pytest.warns(UserWarning, match="make_step makes eager steps, because no CUDA graph"):
        step(x, y)
    for _ in range(2):
        step(x, y)
    assert not step.captured
    with one_by_one(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(7):
            again(x, y)
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-10, atol=1e-10)
