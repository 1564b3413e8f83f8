"""`training.make_step`: the same numbers as a loop of one's own, whatever changes between steps."""

import copy
import gc
import pickle
import threading
import types
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from npu_kernels import NAU, NMRU, NMU, NPU, NaiveNPU, RealNPU, use_backend
from npu_kernels.optim import Adam
from npu_kernels.training import Step, SteppedSchedule, l1, make_step, project_, regularizer
from tests.support.loops import new_notices

Batch = tuple[Tensor, ...]
LAYERS: dict[str, Callable[..., nn.Module]] = {
    "NPU, NAU": lambda **o: nn.Sequential(NPU(3, 4, init_im="uniform", **o), NAU(4, 2, **o)),
    "RealNPU": lambda **o: RealNPU(3, 2, **o),
    "NaiveNPU": lambda **o: NaiveNPU(3, 2, **o),
    "NAU, NMU": lambda **o: nn.Sequential(NAU(3, 4, **o), NMU(4, 2, **o)),
    "NMRU": lambda **o: NMRU(3, 2, **o),
}


def batch(rows: int = 7, models: int | None = None, weighted: bool = False, seed: int = 0,
          dtype: torch.dtype = torch.float64) -> Batch:  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    lead = [] if models is None else [models]
    x = torch.rand(*lead, rows, 3, generator=generator, dtype=dtype) + 0.5
    y = torch.stack([x[..., 0] * x[..., 1], x[..., 1] / x[..., 2]], -1)
    return (x, y, y.abs()) if weighted else (x, y)


def own_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor,
    weight: Tensor | None = None, penalty: Callable[[nn.Module], Any] = lambda model: 0.0,
    project: Any = project_,
) -> Tensor:  # fmt: skip
    """The step that a user writes."""
    optimizer.zero_grad()
    squares = (model(x) - y).square() * (1.0 if weight is None else weight)
    error = squares.mean((-2, -1))
    (error + penalty(model)).sum().backward()
    optimizer.step()
    project(model)
    return error.detach()


def assert_same(a: nn.Module, b: nn.Module, optimizers: Any = (), within: float = 1e-9) -> None:
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=within, atol=within)
    if optimizers:
        states = [optimizer.state_dict()["state"] for optimizer in optimizers]
        torch.testing.assert_close(*states, rtol=within, atol=within)


def pair(name: str = "NPU, NAU", kind: Any = torch.optim.Adam, **options: Any) -> Any:
    settings = options.pop("settings", {"lr": 1e-2})
    torch.manual_seed(0)
    model = LAYERS[name](dtype=torch.float64, **options)
    other = copy.deepcopy(model)
    return model, kind(model.parameters(), **settings), other, kind(other.parameters(), **settings)


OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "Adam": (torch.optim.Adam, {"lr": 1e-2, "weight_decay": 1e-3}),
    "AdamW": (torch.optim.AdamW, {"lr": 1e-2, "maximize": True}),
    "our Adam": (Adam, {"lr": 1e-2, "betas": (0.8, 0.99)}),
    "RMSprop": (torch.optim.RMSprop, {"lr": 1e-3, "centered": True, "momentum": 0.5}),
    "SGD, an ordinary step": (torch.optim.SGD, {"lr": 1e-3}),
}


@pytest.mark.filterwarnings("ignore:npu_kernels. training.make_step makes eager steps")
@pytest.mark.parametrize("models", [None, 4])
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_as_a_loop_of_ones_own(name: str, models: int | None, optimizer: str) -> None:
    """Batches of any number of rows, of all models or of each, with weights and without."""
    kind, settings = OPTIMIZERS[optimizer]
    model, optimizer_of, other, other_of = pair(name, kind, settings=settings, num_models=models)
    step = make_step(model, optimizer_of)
    for number in range(12):
        own_rows = models if number % 3 == 0 else None
        data = batch(5 + number % 3, own_rows, weighted=number % 4 == 2 and models is None,
                     seed=number)  # fmt: skip
        loss = step(*data)
        torch.testing.assert_close(loss, own_step(other, other_of, *data), rtol=1e-9, atol=1e-12)
        assert not loss.requires_grad
    assert_same(model, other, (optimizer_of, other_of))
    assert step.n_steps == 12
    assert step.fused == (optimizer != "SGD, an ordinary step")
    if step.fused:
        assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("models", [None, 2])
def test_penalties_and_projection(models: int | None) -> None:
    """A schedule counts the steps; a wrong call does not advance it."""
    model, optimizer, other, other_of = pair(num_models=models)
    schedule, number = SteppedSchedule(1e-4, 1e-2, step=3), 0
    step = make_step(
        model, optimizer, project=0.9,
        penalties={"l1": copy.deepcopy(schedule), "madsen": lambda n: 1e-3 * n, "paper": 1e-2},
    )  # fmt: skip

    def penalty(model: nn.Module) -> Any:
        kinds = regularizer(model), regularizer(model, form="paper")
        return l1(model, schedule.step()) + 1e-3 * number * kinds[0] + 1e-2 * kinds[1]

    for number in range(1, 10):
        data = batch(6, seed=number)
        with pytest.raises(ValueError, match="step: x and y must have the same number of rows"):
            step(data[0], data[1][:-1])
        step(*data)
        bounded = lambda model: project_(model, weight_bound=0.9)  # noqa: E731
        own_step(other, other_of, *data, penalty=penalty, project=bounded)
        assert_same(model, other)


def test_gradients_that_are_not_finite() -> None:
    model, optimizer, *_ = pair("RealNPU")
    step = make_step(model, optimizer, nonfinite="zero", project=False)
    x, y = batch()
    for _ in range(3):
        step(x, y * torch.tensor([1.0, float("inf")], dtype=torch.float64))
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    loss = make_step(*pair("RealNPU")[:2], project=False)(x, y * float("nan"))
    assert loss.isnan()


def _freeze(model: nn.Module, optimizer: Any) -> None:
    model[0].gate.requires_grad_(False)  # type: ignore[index,union-attr]


def _new_values(model: nn.Module, optimizer: Any) -> None:
    with torch.no_grad():
        model[0].weight_re.copy_(model[0].weight_re / 2)  # type: ignore[index,union-attr]


def _new_memory(model: nn.Module, optimizer: Any) -> None:
    model[0].weight_re.data = model[0].weight_re.data * 0.5  # type: ignore[index,union-attr]


def _new_parameter(model: nn.Module, optimizer: Any) -> None:
    model[1].weight = nn.Parameter(model[1].weight.detach() * 0.5)  # type: ignore[index,union-attr]
    optimizer.add_param_group({"params": [model[1].weight], "lr": 0.05})  # type: ignore[index]


def _new_layer(model: nn.Module, optimizer: Any) -> None:
    torch.manual_seed(5)
    model[1] = NAU(4, 2, dtype=torch.float64)  # type: ignore[index,operator]


def _state(model: nn.Module, optimizer: Any) -> None:
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for state in optimizer.state.values():
        state["exp_avg"].mul_(0.5)


def _count(model: nn.Module, optimizer: Any) -> None:
    for state in optimizer.state.values():
        state["step"] += 7


def _no_state(model: nn.Module, optimizer: Any) -> None:
    optimizer.state.clear()


def _scaled_gradients(model: nn.Module, optimizer: Any) -> None:
    model[0].gate.register_hook(lambda grad: grad / 2)  # type: ignore[index,union-attr]


def _after_gradients(model: nn.Module, optimizer: Any) -> None:
    def double(parameter: Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad *= 2

    model[1].weight.register_post_accumulate_grad_hook(double)  # type: ignore[index,union-attr]


def _forward_hook(model: nn.Module, optimizer: Any) -> None:
    model[0].register_forward_hook(lambda module, inputs, y: y * 0.9)  # type: ignore[index,union-attr]


def _another_forward(model: nn.Module, optimizer: Any) -> None:
    original = model.forward
    model.forward = lambda x: 0.5 * original(x)  # type: ignore[method-assign]


def _optimizer_hook(model: nn.Module, optimizer: Any) -> None:
    def halve(optimizer: Any, arguments: Any, named: Any) -> None:
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad /= 2

    optimizer.register_step_pre_hook(halve)


def _state_elsewhere(move: Callable[[Tensor], Any]) -> Callable[[nn.Module, Any], None]:
    def change(model: nn.Module, optimizer: Any) -> None:
        for state in optimizer.state.values():
            for value in state.values():
                move(value)

    return change


def _data_elsewhere(value: Tensor) -> None:
    value.data = value.data * (1.0 if value.dim() == 0 else 1.5)


def _other_storage(value: Tensor) -> None:
    size, numbers = value.untyped_storage().nbytes(), value.clone()
    value.untyped_storage().resize_(0)
    value.untyped_storage().resize_(size)
    value.copy_(numbers)


def _whole_count(model: nn.Module, optimizer: Any) -> None:
    for state in optimizer.state.values():
        state["step"] = state["step"].to(torch.int64)


def _another_group(model: nn.Module, optimizer: Any) -> None:
    optimizer.param_groups[0] = {**optimizer.param_groups[0], "weight_decay": 0.5}


def _other_groups(model: nn.Module, optimizer: Any) -> None:
    optimizer.param_groups = [dict(group, lr=0.1) for group in optimizer.param_groups]


def _swapped_tensors(model: nn.Module, optimizer: Any) -> None:
    first, second = model[0].weight_re, model[0].weight_im  # type: ignore[index,union-attr]
    torch.utils.swap_tensors(first, second)


class _TwiceNPU(NPU):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def _another_class(model: nn.Module, optimizer: Any) -> None:
    model[0].__class__ = _TwiceNPU  # type: ignore[index,assignment]


def _other_attributes(model: nn.Module, optimizer: Any) -> None:
    torch.manual_seed(5)
    other = NPU(3, 4, dtype=torch.float64)
    model[0].__dict__.update(vars(other))  # type: ignore[index]


def _set(name: str, value: Any) -> Callable[[nn.Module, Any], None]:
    return lambda model, optimizer: optimizer.param_groups[0].update({name: value})


def _option(number: int, name: str, value: Any) -> Callable[[nn.Module, Any], None]:
    return lambda model, optimizer: setattr(model[number], name, value)  # type: ignore[index]


CHANGES: dict[str, Callable[[nn.Module, Any], None]] = {
    "rate": _set("lr", 0.1), "a whole rate": _set("lr", 1), "betas": _set("betas", (0.5, 0.9)),
    "decay": _set("weight_decay", 0.1), "maximize": _set("maximize", True),
    "a rate in a tensor": _set("lr", torch.tensor(0.05, dtype=torch.float64)),
    "eps of the optimizer": _set("eps", 1e-3), "eps": _option(0, "eps", 1e-3),
    "gate gradient": _option(0, "gate_gradient", "straight_through"),
    "clip": _option(1, "clip", False), "frozen": _freeze, "values": _new_values,
    "memory": _new_memory, "parameter": _new_parameter, "layer": _new_layer, "state": _state,
    "count": _count, "no state": _no_state, "hook of a gradient": _scaled_gradients,
    "hook after a gradient": _after_gradients, "hook of a layer": _forward_hook,
    "another forward": _another_forward, "hook of the optimizer": _optimizer_hook,
    "memory of the state": _state_elsewhere(_data_elsewhere),
    "storage of the state": _state_elsewhere(_other_storage),
    "shared state": _state_elsewhere(Tensor.share_memory_), "whole count": _whole_count,
    "a group": _another_group, "groups": _other_groups, "class": _another_class,
    "attributes": _other_attributes, "maximize by 2": _set("maximize", 2),
    "swapped": _swapped_tensors,
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:npu_kernels. training.make_step makes eager steps")
@pytest.mark.filterwarnings("ignore:lr_scheduler")
@pytest.mark.parametrize("change", CHANGES)
def test_every_step_sees_what_has_changed(change: str) -> None:
    model, optimizer, other, other_of = pair()
    step, data = make_step(model, optimizer), batch()
    for number in range(9):
        if number == 5:
            CHANGES[change](model, optimizer)
            CHANGES[change](other, other_of)
        loss = step(*data)
        torch.testing.assert_close(loss, own_step(other, other_of, *data), rtol=1e-9, atol=1e-12)
    assert_same(model, other, (optimizer, other_of))


def _settings_in_lists(model: nn.Module, optimizer: Any) -> None:
    optimizer.param_groups[0]["betas"] = [0.9, 0.999]


def _another_setting_in_a_list(model: nn.Module, optimizer: Any) -> None:
    optimizer.param_groups[0]["betas"][0] = 0.3


def _own_method(model: nn.Module, optimizer: Any) -> None:
    optimizer.step = optimizer.step  # as after a patch that was undone


def _another_method(model: nn.Module, optimizer: Any) -> None:
    def step(self: torch.optim.Optimizer) -> None:
        type(self).step(self)
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter /= 2

    optimizer.step = types.MethodType(step, optimizer)


def _a_note(model: nn.Module, optimizer: Any) -> None:
    model.note = 1  # type: ignore[assignment]


def _another_note(model: nn.Module, optimizer: Any) -> None:
    del model.note
    model.remark = 1  # type: ignore[assignment]


def _a_tensor(model: nn.Module, optimizer: Any) -> None:
    model.batch = torch.ones(1)


def _forward_for_a_tensor(model: nn.Module, optimizer: Any) -> None:
    del model.batch
    _another_forward(model, optimizer)


@pytest.mark.filterwarnings("ignore:npu_kernels. training.make_step makes eager steps")
@pytest.mark.parametrize(
    ("first", "then"),
    [
        (_settings_in_lists, _another_setting_in_a_list), (_own_method, _another_method),
        (_a_note, _another_note), (_a_tensor, _forward_for_a_tensor),
    ],
)  # fmt: skip
def test_a_step_sees_what_has_changed_in_its_place(first: Any, then: Any) -> None:
    model, optimizer, other, other_of = pair()
    step, data = make_step(model, optimizer), batch()
    for change in (first, then):
        change(model, optimizer)
        change(other, other_of)
        for _ in range(3):
            loss = step(*data)
            right = own_step(other, other_of, *data)
            torch.testing.assert_close(loss, right, rtol=1e-9, atol=1e-12)
    assert_same(model, other, (optimizer, other_of))


@pytest.mark.filterwarnings("ignore:npu_kernels. training.make_step makes eager steps")
def test_parameters_of_another_shape_are_an_error() -> None:
    model, optimizer, *_ = pair()
    step, (x, y) = make_step(model, optimizer), batch()
    step(x, y)
    model[0].weight_re.data = model[0].weight_re.data[:3]  # type: ignore[index,union-attr]
    with pytest.raises(ValueError, match="shape of weight_re"):
        step(x, y)


@pytest.mark.filterwarnings("ignore:npu_kernels. training.make_step makes eager steps")
@pytest.mark.filterwarnings("ignore:Anomaly Detection", "ignore:Error detected")
def test_what_watches_a_backward_is_obeyed() -> None:
    """Hooks of saved tensors; anomaly mode, which refuses nan."""
    model, optimizer, other, other_of = pair()
    step, data = make_step(model, optimizer), batch()
    kept: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    step(*data)
    own_step(other, other_of, *data)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        step(*data)
    own_step(other, other_of, *data)
    assert kept
    step(*data)
    own_step(other, other_of, *data)
    assert_same(model, other)
    with torch.no_grad():
        model[0].weight_re.fill_(float("nan"))  # type: ignore[index,operator,union-attr]
    with (
        torch.autograd.detect_anomaly(),
        pytest.raises(RuntimeError, match="nan"),
    ):
        step(*data)


def test_ways_of_computing_are_obeyed() -> None:
    """A backend, autocast and modes of torch, in whose blocks steps are ordinary."""
    model, optimizer, other, other_of = pair()
    step, data = make_step(model, optimizer), batch()
    step(*data)
    own_step(other, other_of, *data)
    notice = pytest.warns(UserWarning, match="make_step makes eager steps, because the C\\+\\+")
    with new_notices(), use_backend("reference"), notice:
        step(*data)
    assert not step.fused
    own_step(other, other_of, *data)
    for _ in range(64):  # after an ordinary step it need not be the first one
        with torch.no_grad():  # as in `run`, a step has gradients of its own
            step(*data)
        own_step(other, other_of, *data)
    assert step.fused
    assert_same(model, other, (optimizer, other_of))


@pytest.mark.parametrize("scheduler", ["StepLR", "OneCycleLR"])
def test_schedulers(scheduler: str) -> None:
    model, optimizer, other, other_of = pair()
    step, data = make_step(model, optimizer), batch()

    def made(optimizer: Any) -> Any:
        if scheduler == "StepLR":
            return torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20)

    schedules = made(optimizer), made(other_of)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(8):
            step(*data)
            schedules[0].step()
            own_step(other, other_of, *data)
            schedules[1].step()
    assert step.fused
    assert optimizer.param_groups[0]["lr"] == other_of.param_groups[0]["lr"]
    assert_same(model, other)


def test_an_earlier_graph_notices_the_step() -> None:
    """Parameters count as changed in place, by every step."""
    model, optimizer, *_ = pair()
    step, data = make_step(model, optimizer), batch()
    for _ in range(3):
        loss = model(data[0]).sum()
        step(*data)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_data_of_other_kinds() -> None:
    """Views, and rows that lie in the memory of a parameter, have the numbers of an own step."""
    model, optimizer, other, other_of = pair("NAU, NMU")
    step = make_step(model, optimizer)
    x, y = batch(8)
    step(x, y)
    own_step(other, other_of, x, y)
    for data in ((x[::2], y[::2]), (x.mT.contiguous().mT, y), (-x._neg_view(), y)):
        step(*data)
        own_step(other, other_of, *data)
    assert_same(model, other, (optimizer, other_of))
    weight, other_weight = next(model.parameters()), next(other.parameters())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        step(weight.detach()[:2], y[:2])
    own_step(other, other_of, other_weight.detach()[:2].clone(), y[:2])
    assert_same(model, other, (optimizer, other_of))


def test_errors_name_the_argument() -> None:
    model, optimizer, *_ = pair()
    x, y = batch()
    step = make_step(model, optimizer)
    for _ in range(2):  # before a plan is kept, and with one
        for arguments, text in (
            ((x[:, :2], y), "step: x must have last dimension 3 (in_features of model)"),
            ((x, y[:-1]), "step: x and y must have the same number of rows, at least 1"),
            ((x.float(), y), "step: x must have the dtype of model, torch.float64"),
            ((x, y, y[:1]), "step: sample_weight must have shape, dtype and device of y"),
            ((x, y, -y), "step: sample_weight must be finite and at least 0"),
            ((x, None), "step: y must be a Tensor"),
        ):
            with pytest.raises((TypeError, ValueError)) as error:
                step(*arguments)  # type: ignore[arg-type]
            assert text.split("must")[0] in str(error.value)
        step(x, y)
    with pytest.raises(ValueError, match="make_step: penalties must be of"):
        make_step(model, optimizer, penalties={"l2": 1.0})


def test_threads_may_share_a_step() -> None:
    model, optimizer, *_ = pair()
    step, data = make_step(model, optimizer), batch(200)
    step(*data)
    threads = [threading.Thread(target=lambda: [step(*data) for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(float(state["step"]) == 201 for state in optimizer.state.values())
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_copies_and_pickles_go_on() -> None:
    """A copy has a model and an optimizer of its own."""
    model, optimizer, other, other_of = pair()
    step, data = make_step(model, optimizer), batch()
    for _ in range(3):
        step(*data)
        own_step(other, other_of, *data)
    for copied in (copy.deepcopy(step), pickle.loads(pickle.dumps(step))):
        assert isinstance(copied, Step)
        first = copied(*data)
        assert copied.n_steps == 4
    torch.testing.assert_close(first, own_step(other, other_of, *data))
    assert step.n_steps == 3


def test_a_model_is_free_after_its_step() -> None:
    """Nothing of a model remains when nobody has it any more."""
    import weakref

    model, optimizer, *_ = pair()
    step = make_step(model, optimizer)
    step(*batch())
    gone = weakref.ref(model[0].weight_re)
    del model, optimizer, step, _
    gc.collect()
    assert gone() is None
