"""`training.run`: every setting is used, and every wrong one is an error."""

import math
import threading
import time
from typing import Any

import pytest
import torch
from torch import nn

from npu_kernels import NAU, NPU
from npu_kernels.training import SteppedSchedule, run
from tests.conftest import needs_library

pytestmark = pytest.mark.filterwarnings("ignore:.*makes its steps one by one")

X = torch.rand(21, 2, generator=torch.Generator().manual_seed(0)) + 0.5
Y = torch.stack([X.prod(1), X[:, 0] / X[:, 1]], 1)


def model(fused: bool = True, k: int | None = None) -> nn.Sequential:
    torch.manual_seed(5)
    chain = nn.Sequential(NPU(2, 3, num_models=k, init_im="uniform"), NAU(3, 2, num_models=k))
    return chain if fused else chain.append(nn.Identity())


def losses(**settings: Any) -> torch.Tensor:
    trained = settings.pop("model", None) or model()
    return run(trained, X, Y, **{"steps": 30, "lr": 0.01, "progress": False, **settings}).losses


both = pytest.mark.parametrize("fused", [pytest.param(True, marks=needs_library), False])


# ---- rows ----------------------------------------------------------------------------------------


@both
def test_rows_are_drawn_by_the_generator(fused: bool) -> None:
    """Uniformly with replacement, from the generator that is passed, or one that torch seeds."""
    generator, twin = (torch.Generator().manual_seed(7) for _ in range(2))
    drawn = losses(model=model(fused), batch_size=4, generator=generator)
    expected = losses(model=model(fused), batch_indices=torch.randint(21, (30, 4), generator=twin))
    assert torch.equal(drawn, expected)
    assert torch.equal(generator.get_state(), twin.get_state())
    seeded = []
    for seed in (1, 1, 2):
        started = model(fused)
        torch.manual_seed(seed)
        seeded.append(losses(model=started, batch_size=4))
    assert torch.equal(seeded[0], seeded[1])
    assert not torch.equal(seeded[0], seeded[2])


def test_all_rows_draw_nothing() -> None:
    state, generator = torch.get_rng_state(), torch.Generator().manual_seed(7)
    before = generator.get_state()
    started = model()
    torch.set_rng_state(state)
    losses(model=started, generator=generator)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(generator.get_state(), before)


def test_rows_of_any_strides() -> None:
    rows = torch.randint(21, (4, 30), generator=torch.Generator().manual_seed(1))
    assert torch.equal(losses(batch_indices=rows.T), losses(batch_indices=rows.T.contiguous()))


@both
def test_data_of_any_strides(fused: bool) -> None:
    x, y, weight = (
        torch.rand(2, 21, generator=torch.Generator().manual_seed(n)).T + 0.5 for n in range(3)
    )
    settings: dict[str, Any] = {"steps": 30, "lr": 0.01, "progress": False}
    result = run(model(fused), x, y, sample_weight=weight, **settings)
    plain = run(
        model(fused), x.contiguous(), y.contiguous(), sample_weight=weight.contiguous(), **settings
    )
    assert torch.equal(result.losses, plain.losses)


def drawn(monkeypatch: pytest.MonkeyPatch, batch: int, steps: int) -> list[int]:
    """The steps whose rows a run draws at a time."""
    sizes, draw = [], torch.randint

    def spied(high: int, size: tuple[int, ...], **options: Any) -> torch.Tensor:
        sizes.append(size[0])
        return draw(high, size, **options)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "randint", spied)
        losses(model=model(fused=False), batch_size=batch, steps=steps, generator=torch.Generator())
    return sizes


def test_few_rows_are_drawn_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four million at most."""
    assert drawn(monkeypatch, 2**21, 3) == [2, 1]
    assert drawn(monkeypatch, 2**22 + 1, 2) == [1, 1]


# ---- optimizers and schedules --------------------------------------------------------------------


@both
def test_lr_beside_an_optimizer(fused: bool) -> None:
    """A number is its rate from now on, a function gives it at each step, None leaves it."""
    expected = losses(model=model(fused), lr=0.01)
    for lr, optimizer_lr in ((0.01, 0.5), (lambda step: 0.01, 0.5), (None, 0.01)):
        trained = model(fused)
        optimizer = torch.optim.Adam(trained.parameters(), optimizer_lr)
        result = run(trained, X, Y, steps=30, optimizer=optimizer, lr=lr, progress=False)
        torch.testing.assert_close(result.losses, expected)
        assert result.fused is fused
        assert optimizer.param_groups[0]["lr"] == 0.01


@both
def test_groups_have_their_own_rates(fused: bool) -> None:
    trained = model(fused)
    before = [p.detach().clone() for p in trained.parameters()]
    first, *trained_parameters = trained.parameters()
    optimizer = torch.optim.Adam(
        [{"params": [first], "lr": 0.0}, {"params": trained_parameters}], 0.01
    )
    losses(model=trained, optimizer=optimizer, lr=None)
    assert [torch.equal(p, old) for p, old in zip(trained.parameters(), before, strict=True)] == [
        True,
        *[False] * 3,
    ]
    assert [group["lr"] for group in optimizer.param_groups] == [0.0, 0.01]
    losses(model=trained, optimizer=optimizer, lr=0.02)
    assert [group["lr"] for group in optimizer.param_groups] == [0.02, 0.02]


@both
def test_functions_get_every_step_from_1(fused: bool) -> None:
    rates, weights = [], []

    def rate(step: int) -> float:
        rates.append(step)
        return 0.1 / step

    def weight(step: int) -> float:
        weights.append(step)
        return step / 1000

    trained = model(fused)
    result = run(trained, X, Y, steps=30, lr=rate, penalties={"l1": weight}, progress=False)
    assert rates == [1, *range(1, 31)]  # the first one makes the optimizer
    assert weights == list(range(1, 31))
    assert result.optimizer.param_groups[0]["lr"] == 0.1 / 30


def test_schedules_step_once_a_step() -> None:
    schedule = SteppedSchedule(1e-3, 1.0, step=10)
    losses(penalties={"l1": schedule})
    assert (schedule.iteration, schedule.beta) == (30, pytest.approx(1.0))
    constant, other = (losses(penalties={"l1": weight}) for weight in (1.0, 2))
    assert not torch.equal(constant, other)


@pytest.mark.parametrize(
    ("name", "kind"), [("adam", torch.optim.Adam), ("rmsprop", torch.optim.RMSprop)]
)
def test_named_optimizers_are_torchs(name: str, kind: Any) -> None:
    trained, twin = model(), model()
    actual = losses(model=trained, optimizer=name)
    expected = losses(model=twin, optimizer=kind(twin.parameters(), lr=0.01))
    assert torch.equal(actual, expected)


# ---- records and callbacks -----------------------------------------------------------------------


def test_records_of_a_long_run() -> None:
    """A run keeps at most a thousand losses, of every n-th step, unless `every` is set."""
    every_step, result = (
        losses(steps=1001, record_every=1),
        run(model(), X, Y, steps=1001, lr=0.01, progress=False),
    )
    assert result.record_every == 2
    assert torch.equal(result.losses, every_step[::2])
    assert len(losses(steps=1000)) == 1000
    assert losses(steps=7, record_every=3, model=model(k=2)).shape == (3, 2)


def test_callbacks() -> None:
    """All are called after each stretch and at the end; True of one of them alone ends the run."""
    calls: list[tuple[str, int, bool]] = []

    def first(part: Any) -> Any:
        calls.append(("first", part.n_steps, part.complete))
        return part.n_steps == 9

    def second(part: Any) -> Any:
        calls.append(("second", part.n_steps, part.complete))
        assert len(part.losses) == part.n_steps
        return 1

    result = run(
        model(),
        X,
        Y,
        steps=30,
        lr=0.01,
        callbacks=(first, second),
        progress=False,
        callback_every=3,
    )
    assert (result.n_steps, result.complete) == (9, False)
    assert calls == [(name, step, False) for step in (3, 6, 9) for name in ("first", "second")]
    calls.clear()
    result = run(model(), X, Y, steps=250, lr=0.01, callbacks=second, progress=False)
    assert [step for _, step, _ in calls] == [*range(3, 250, 3), 250]
    assert [done for *_, done in calls] == [False] * 83 + [True]
    assert result.complete


def test_a_run_without_callbacks_is_few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slices grow until they take a fraction of a second."""
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    assert drawn(monkeypatch, 3, 200) == [16, 128, 56]
    monkeypatch.setattr(time, "monotonic", lambda: clock.append(clock[-1] + 1e6) or clock[-1])  # type: ignore[func-returns-value]
    assert drawn(monkeypatch, 3, 20) == [16, 1, 1, 1, 1]


def test_in_another_thread() -> None:
    """Where no signal can be handled."""
    results: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: results.append(losses()))
    thread.start()
    thread.join()
    assert torch.equal(results[0], losses())


@pytest.mark.parametrize(("name", "rate"), [("adam", 1e-3), ("rmsprop", 1e-2)])
def test_torchs_own_learning_rate(name: str, rate: float) -> None:
    rates: list[dict[str, Any]] = [{}, {"lr": rate}]
    results = [run(model(), X, Y, steps=3, optimizer=name, **lr) for lr in rates]
    assert [result.optimizer.param_groups[0]["lr"] for result in results] == [rate, rate]
    pairs = zip(*(result.model.parameters() for result in results), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


# ---- errors --------------------------------------------------------------------------------------


def test_what_lies_on_the_border_is_taken() -> None:
    rows = torch.tensor([[0, 20]])
    for change in (
        {"lr": 0}, {"project": 1}, {"project": math.inf}, {"batch_indices": rows}, {"batch_size": 1},
        {"record_every": 5},
    ):  # fmt: skip
        assert len(losses(steps=1, **change)) == 1
    assert losses(steps=1, model=model(k=2), batch_size=3).shape == (1, 2)


@needs_library
def test_a_call_walks_through_the_modules_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for the checks, once for the obstacles: a walk takes as long as a step's kernels."""
    model, x = nn.Sequential(NPU(2, 3), NAU(3, 1)), torch.rand(20, 2)
    optimizer, calls = torch.optim.Adam(model.parameters()), list[nn.Module]()
    walk = nn.Module.named_modules

    def counted(module: nn.Module, *arguments: Any, **options: Any) -> Any:
        if module is model:
            calls.append(module)
        return walk(module, *arguments, **options)

    monkeypatch.setattr(nn.Module, "named_modules", counted)
    result = run(model, x, x[:, :1], steps=1, optimizer=optimizer, penalties={"l1": 1e-5})
    assert result.fused
    assert len(calls) == 2
