"""Adam in one call, beside torch's."""

import copy
import functools
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from npu_kernels import NPU, use_backend
from npu_kernels.optim import Adam
from tests.conftest import compiles, needs_library
from tests.support.machine import without_fast_path

OPTIONS: list[dict[str, Any]] = [
    {},
    {"betas": (0.5, 0.9), "eps": 1e-6},
    {"weight_decay": 0.1},
    {"weight_decay": 0.1, "decoupled_weight_decay": True},
    {"maximize": True},
    {"amsgrad": True},
]


@pytest.fixture
def by_torch(monkeypatch: pytest.MonkeyPatch) -> list[Adam]:
    """Our optimizers whose steps torch's Adam makes, one for each step."""
    seen: list[Adam] = []
    step = torch.optim.Adam.step

    @functools.wraps(step)
    def noted(self: Any, *arguments: Any) -> Any:
        if isinstance(self, Adam):
            seen.append(self)
        return step(self, *arguments)

    monkeypatch.setattr(torch.optim.Adam, "step", noted)
    return seen


def parameters(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(n, dtype=dtype, generator=generator).requires_grad_() for n in (1, 3, 40, 9000)
    ]


def train(optimizer: torch.optim.Optimizer, leaves: list[Tensor], steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        sum(p.cos().sum() for p in leaves).backward()  # type: ignore[union-attr]
        optimizer.step()


@needs_library
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "plain")
def test_as_torchs(options: dict[str, Any], dtype: torch.dtype, by_torch: list[Adam]) -> None:
    ours, theirs = parameters(dtype), parameters(dtype)
    mine, torchs = (
        Adam(ours, lr=1e-2, **options),
        torch.optim.Adam(theirs, lr=1e-2, fused=True, **options),
    )
    train(mine, ours, 60)
    train(torchs, theirs, 60)
    assert len(by_torch) == (60 if "amsgrad" in options else 1)  # the first step makes the state
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6 if dtype is torch.float32 else 1e-12)
    for ours_leaf, theirs_leaf in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.state[ours_leaf], torchs.state[theirs_leaf])


@needs_library
def test_states_are_exchanged(by_torch: list[Adam]) -> None:
    """Half the steps by one optimizer and half by the other, through state_dict, in both orders."""
    expected = parameters()
    train(torch.optim.Adam(expected, lr=1e-2), expected, 20)
    for first, second in ((Adam, torch.optim.Adam), (torch.optim.Adam, Adam)):
        leaves = parameters()
        before = first(leaves, lr=1e-2)
        train(before, leaves, 10)
        after = second(leaves, lr=1.0)
        after.load_state_dict(copy.deepcopy(before.state_dict()))
        train(after, leaves, 10)
        torch.testing.assert_close(leaves, expected, rtol=0, atol=1e-6)
    assert len(by_torch) == 1


@needs_library
def test_groups_schedules_and_missing_gradients(by_torch: list[Adam]) -> None:
    """Groups with rates of their own, a schedule, a parameter without a gradient now and then."""
    results = []
    for kind in (Adam, torch.optim.Adam):
        leaves = parameters()
        optimizer = kind(
            [{"params": leaves[:2], "lr": 1e-3}, {"params": leaves[2:], "weight_decay": 0.1}],
            lr=1e-2,
        )
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        for step in range(12):
            optimizer.zero_grad()
            sum(p.cos().sum() for n, p in enumerate(leaves) if n != step % 3).backward()  # type: ignore[union-attr]
            optimizer.step()
            schedule.step()
        results.append(leaves)
    torch.testing.assert_close(*results, rtol=0, atol=1e-6)
    # not the first two: the second has a parameter whose state has not begun
    assert len(by_torch) == 2


@needs_library
def test_general_steps(by_torch: list[Adam]) -> None:
    """Hooks, closures, profilers, tensors as learning rates and other backends take torch's step,
    hooks included."""
    leaves = parameters()
    optimizer = Adam(leaves, lr=1e-2)
    train(optimizer, leaves, 2)
    assert len(by_torch) == 1
    seen: list[str] = []
    for register in (
        optimizer.register_step_pre_hook,
        optimizer.register_step_post_hook,
        register_optimizer_step_pre_hook,
        register_optimizer_step_post_hook,
    ):
        handle = register(lambda *_: seen.append("hook"))
        train(optimizer, leaves, 1)
        handle.remove()
    assert seen == ["hook"] * 4
    for name in ("grad_scale", "found_inf"):  # of torch.amp.GradScaler, for fused steps
        setattr(optimizer, name, torch.ones(()))
        with pytest.raises(AssertionError):  # torch's step, which takes them on a GPU alone
            train(optimizer, leaves, 1)
        delattr(optimizer, name)
    assert optimizer.step(lambda: 5.0) == 5.0
    with torch.profiler.profile(acc_events=True) as profile:
        train(optimizer, leaves, 1)
    assert any("Optimizer.step#Adam" in event.key for event in profile.key_averages())
    with use_backend("reference"):
        train(optimizer, leaves, 1)
    optimizer.param_groups[0]["lr"] = torch.tensor(1e-2)
    train(optimizer, leaves, 1)
    assert len(by_torch) == 11
    optimizer.param_groups[0]["lr"] = 1e-2
    train(optimizer, leaves, 1)
    assert len(by_torch) == 11


@pytest.mark.parametrize("name", ["Adam", "SGD"])
def test_hooks_where_torch_has_made_no_adam(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each hook runs once, also where torch's name means another class."""
    theirs: Any = torch.optim.Adam
    if hasattr(theirs.step, "hooked"):  # an earlier test of this process has made one
        monkeypatch.setattr(theirs, "step", theirs.step.__wrapped__)
    assert not hasattr(theirs.step, "hooked")
    monkeypatch.setattr(torch.optim, "Adam", {"Adam": Adam, "SGD": torch.optim.SGD}[name])
    weights = parameters()
    optimizer, calls = Adam(weights, lr=1e-2), list[str]()
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    for _ in range(2):
        train(optimizer, weights, 1)
    assert calls == ["before", "after"] * 2


@compiles
@needs_library
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")
def test_a_compiler_sees_torchs_step(by_torch: list[Adam]) -> None:
    leaves = parameters()
    optimizer = Adam(leaves, lr=1e-2)
    train(optimizer, leaves, 2)
    torch.compile(optimizer.step, backend="eager")()
    assert len(by_torch) == 2
    assert all(state["step"] == 3 for state in optimizer.state.values())


def test_zero_grad_keeps_the_tensors_on_request() -> None:
    leaves = parameters()
    optimizer = Adam(leaves)
    train(optimizer, leaves, 1)
    grads = [p.grad for p in leaves]
    optimizer.zero_grad(set_to_none=False)
    assert all(p.grad is grad and not grad.any() for p, grad in zip(leaves, grads, strict=True))  # type: ignore[union-attr]
    optimizer.zero_grad()
    assert all(p.grad is None for p in leaves)


@needs_library
def test_gradients_of_any_layout(by_torch: list[Adam]) -> None:
    """A gradient with other strides than its parameter's; a parameter that is not contiguous is
    torch's matter."""
    results = []
    for kind in (Adam, torch.optim.Adam):
        weight = torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_()
        turned = torch.linspace(-1, 1, 12).reshape(3, 4).t().requires_grad_()
        for leaves in (weight, turned):
            optimizer = kind([leaves], lr=1e-2)
            for _ in range(5):
                leaves.grad = leaves.detach().cos().t().contiguous().t()
                optimizer.step()
        results.append([weight, turned])
    torch.testing.assert_close(*results, rtol=0, atol=1e-6)
    assert len(by_torch) == 1 + 5


@needs_library
def test_a_changed_parameter_is_noticed() -> None:
    """A step between forward and backward is the error that it is with torch's Adam."""
    layer = NPU(2, 3)
    optimizer = Adam(layer.parameters())
    x = torch.randn(5, 2)
    for _ in range(2):
        optimizer.zero_grad()
        layer(x).sum().backward()
        optimizer.step()
    y = layer(x)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@needs_library
def test_it_is_pickled_and_copied(by_torch: list[Adam]) -> None:
    leaves = parameters()
    optimizer = Adam(leaves, lr=1e-2)
    train(optimizer, leaves, 2)
    twin = copy.deepcopy(optimizer)
    copies = twin.param_groups[0]["params"]
    train(optimizer, leaves, 3)
    train(twin, copies, 3)
    assert len(by_torch) == 1
    torch.testing.assert_close(leaves, copies, rtol=0, atol=0)


def test_in_the_place_of_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's name made to mean this class, as one does to change every optimizer of a program."""
    expected = parameters()
    train(torch.optim.Adam(expected, lr=1e-2), expected, 3)
    monkeypatch.setattr(torch.optim, "Adam", Adam)
    leaves = parameters()
    train(torch.optim.Adam(leaves, lr=1e-2), leaves, 3)
    torch.testing.assert_close(leaves, expected, rtol=0, atol=1e-6)


def test_without_the_fast_path_it_is_torchs() -> None:
    expected, leaves = parameters(), parameters()
    train(torch.optim.Adam(expected, lr=1e-2), expected, 3)
    with without_fast_path():
        train(Adam(leaves, lr=1e-2), leaves, 3)
    torch.testing.assert_close(leaves, expected, rtol=0, atol=0)
