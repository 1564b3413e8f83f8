"""`training.run`: many steps in one call of C++ make the numbers of the ordinary loop; rows,
losses, checkpoints."""

import copy
import math
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune

from npu_kernels import NAU, NMRU, NMU, NPU, NaiveNPU, RealNPU, iNALU
from npu_kernels.optim import Adam
from npu_kernels.training import SteppedSchedule, TrainingResult, run
from tests.conftest import needs_library
from tests.support.compare import assert_equal
from tests.support.loops import NOTICE, new_notices
from tests.support.samples import CountCalls

STEPS, ROWS = 50, 21

Make = Callable[[int | None, torch.dtype], nn.Module]


def _chain(*units: Callable[..., nn.Module]) -> Make:
    return lambda k, dtype: nn.Sequential(*(unit(num_models=k, dtype=dtype) for unit in units))


def of(unit: Any, *sizes: int, **options: Any) -> Callable[..., nn.Module]:
    return lambda **more: unit(*sizes, **options, **more)


MODELS: dict[str, Make] = {
    "npu nau": _chain(of(NPU, 2, 6, init_im="uniform"), of(NAU, 6, 3)),
    "real npu alone": lambda k, dtype: RealNPU(
        2, 3, num_models=k, dtype=dtype, gate_gradient="straight_through"
    ),
    "naive npu nmu": _chain(of(NaiveNPU, 2, 4, eps=1e-3), of(NMU, 4, 3, clip=False)),
    "deep": _chain(of(NAU, 2, 5, clip=False), of(RealNPU, 5, 4), of(NMU, 4, 17), of(NAU, 17, 3)),
    "nmru": _chain(of(NMRU, 2, 3, sign="separate")),
}


def data(k: int | None, dtype: torch.dtype, per_model: bool = False) -> tuple[Tensor, Tensor]:
    """Rows with signs, their products and quotients, for each model or shared by all."""
    generator = torch.Generator().manual_seed(1)
    shape = (k, ROWS) if per_model and k is not None else (ROWS,)
    x = torch.rand(*shape, 2, generator=generator, dtype=torch.float64) + 0.5
    x *= torch.where(torch.rand(x.shape, generator=generator) < 0.3, -1, 1)
    y = torch.stack([x[..., 0] * x[..., 1], x[..., 0] / x[..., 1], x[..., 0]], -1)
    return x.to(dtype), y.to(dtype)


def both(
    make: Make, k: int | None, dtype: torch.dtype, per_model: bool = False, **settings: Any
) -> list[TrainingResult]:
    """The run in one call, and by the ordinary loop: a hook keeps it from being fused."""
    model = make(k, dtype)
    twin = copy.deepcopy(model)
    twin.register_forward_hook(lambda *_: None)
    x, y = data(k, dtype, per_model)
    results = []
    for trained in (model, twin):
        # What has a state begins anew for each; a function as optimizer makes one.
        arguments = {name: copy.deepcopy(value) for name, value in settings.items()}
        if callable(arguments.get("optimizer")):
            arguments["optimizer"] = arguments["optimizer"](trained.parameters())
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", f".*{NOTICE}")
            results.append(run(trained, x, y, steps=STEPS, **{"lr": 0.01, **arguments}))
    assert [trained.fused for trained in results] == [True, False]
    return results


def assert_same(fused: TrainingResult, ordinary: TrainingResult, within: float) -> None:
    """Losses, parameters and the optimizer's state."""
    torch.testing.assert_close(fused.losses, ordinary.losses, rtol=within, atol=within)
    for ours, theirs in zip(fused.model.parameters(), ordinary.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=within, atol=within)
        state, expected = fused.optimizer.state[ours], ordinary.optimizer.state[theirs]
        assert state.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(state[name], value, rtol=within, atol=within)


@needs_library
@pytest.mark.parametrize("k", [None, 3])
@pytest.mark.parametrize("name", MODELS)
def test_as_the_ordinary_loop(name: str, k: int | None) -> None:
    fused, ordinary = both(MODELS[name], k, torch.float64, per_model=True)
    assert_same(fused, ordinary, 1e-11)
    assert fused.losses.shape == (STEPS, *([] if k is None else [k]))
    assert fused.complete
    assert fused.n_steps == STEPS


OPTIMIZERS: dict[str, Any] = {
    "rmsprop": {
        "optimizer": "rmsprop",
        "lr": 1e-3,
    },  # larger, rounding errors grow a thousandfold in a few steps
    "rmsprop with all": {
        "optimizer": lambda p: torch.optim.RMSprop(
            p, alpha=0.9, momentum=0.5, centered=True, weight_decay=0.1
        ),
        "lr": None,
    },
    "adam with weight decay": {
        "optimizer": lambda p: Adam(p, betas=(0.5, 0.9), eps=1e-4, weight_decay=0.1, maximize=True),
        "lr": 1e-3,
    },
    "adamw": {"optimizer": lambda p: torch.optim.AdamW(p, weight_decay=0.5)},
    "a rate for each step": {"lr": lambda step: 0.01 / step},
}
PENALTIES: dict[str, Any] = {
    "l1": SteppedSchedule(1e-3, 1.0, step=7),
    "frobenius": lambda step: step / 100,
    "madsen": 0.1,
    "paper": 0.2,
    "integer": lambda step: step / 500,
}


@needs_library
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name: str) -> None:
    fused, ordinary = both(MODELS["npu nau"], 2, torch.float64, **OPTIMIZERS[name])
    assert_same(fused, ordinary, 1e-10)
    assert fused.optimizer.param_groups[0]["lr"] == ordinary.optimizer.param_groups[0]["lr"]


@needs_library
@pytest.mark.parametrize("project", [False, True, 0.4])
@pytest.mark.parametrize("penalty", PENALTIES)
def test_penalties_and_projection(penalty: str, project: bool | float) -> None:
    settings = {"penalties": {penalty: PENALTIES[penalty]}, "project": project}
    fused, ordinary = both(MODELS["deep"], 2, torch.float64, **settings)
    assert_same(fused, ordinary, 1e-8)
    gate = fused.model[1].gate
    assert project is False or not ((gate < 0) | (gate > 1)).any()
    assert project != 0.4 or fused.model[1].weight_re.abs().max() <= 0.4


@needs_library
@pytest.mark.parametrize("size", [1.0, 0.0])
def test_penalties_at_their_kinks(size: float) -> None:
    """The derivatives are torch's at 0, 1/2 and 1, and where all is 0, which has no direction."""
    weight = size * torch.tensor(
        [[-1.5, -1, -0.5], [-0.2, 0, 0.2], [0.5, 1, 1.5]], dtype=torch.float64
    )
    for penalty in PENALTIES:
        models = [NAU(3, 3, dtype=torch.float64, clip=False) for _ in range(2)]
        models[1].register_forward_hook(lambda *_: None)
        for model in models:
            with torch.no_grad():
                model.weight.copy_(weight)
            x = torch.zeros(2, 3, dtype=torch.float64)  # no data term
            sgd_like = torch.optim.RMSprop(model.parameters(), lr=0.1, alpha=0.0, eps=1.0)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", f".*{NOTICE}")
                run(
                    model, x, x, steps=1, optimizer=sgd_like, penalties={penalty: 1.0},
                    project=False,
                )  # fmt: skip
        torch.testing.assert_close(models[0].weight, models[1].weight, rtol=1e-14, atol=1e-15)
        assert torch.equal(models[0].weight, weight) is (size == 0)


@needs_library
def test_instruction_sets(isa: str) -> None:
    for dtype, within in ((torch.float32, 2e-4), (torch.float64, 1e-11)):
        fused, ordinary = both(MODELS["npu nau"], 3, dtype)
        assert_same(fused, ordinary, within)


@needs_library
@pytest.mark.parametrize("k", [None, 3, 40])
@pytest.mark.parametrize("per_model", [False, True])
@pytest.mark.parametrize("name", ["npu nau", "real npu alone"])
def test_rows_that_follow_one_another(k: int | None, per_model: bool, name: str) -> None:
    """Fresh rows follow one another; every third step's do not, some of them up to the last."""
    rows = torch.stack([(5 * step) % (ROWS - 8) + torch.arange(8) for step in range(STEPS)])
    rows[::3] = torch.randint(ROWS, rows[::3].shape, generator=torch.Generator().manual_seed(2))
    rows[3::6] = torch.arange(8)
    rows[3::6, -1] = ROWS - 1
    fused, ordinary = both(MODELS[name], k, torch.float64, per_model=per_model, batch_indices=rows)
    assert_same(fused, ordinary, 1e-11)


SMALL: dict[str, Make] = {
    "npu": lambda k, dtype: NPU(2, 1, num_models=k, dtype=dtype, init_im="uniform"),
    "real npu": lambda k, dtype: RealNPU(1, 2, num_models=k, dtype=dtype, eps=1e-3),
    "naive npu": lambda k, dtype: NaiveNPU(2, 2, num_models=k, dtype=dtype),
    "straight through": lambda k, dtype: NPU(
        2, 2, num_models=k, dtype=dtype, gate_gradient="straight_through"
    ),
}


@needs_library
@pytest.mark.parametrize("per_model", [False, True])
@pytest.mark.parametrize("batch", [40, 128, 300, 1100])
@pytest.mark.parametrize("name", SMALL)
def test_small_power_units_alone(name: str, batch: int, per_model: bool, isa: str) -> None:
    """One kernel has losses and gradients, of rows that follow one another and of others."""
    model = SMALL[name](7, torch.float64)
    generator = torch.Generator().manual_seed(3)
    if model.gate is not None:
        with torch.no_grad():
            model.gate.copy_(
                torch.rand(model.gate.shape, generator=generator, dtype=torch.float64) * 1.6 - 0.3
            )
    count = 2 * batch + 11
    shape = (7, count) if per_model else (count,)
    x = torch.rand(*shape, model.in_features, generator=generator, dtype=torch.float64) + 0.5
    x *= torch.where(torch.rand(x.shape, generator=generator) < 0.3, -1, 1)
    y = torch.rand(*shape, model.out_features, generator=generator, dtype=torch.float64)
    rows = torch.stack([7 * step + torch.arange(batch) for step in range(6)])
    rows[1::2] = torch.randint(count, rows[1::2].shape, generator=generator)
    twin = copy.deepcopy(model)
    twin.register_forward_hook(lambda *_: None)
    settings = {"steps": 6, "batch_indices": rows, "lr": 0.01, "record_every": 2, "progress": False}
    fused = run(model, x, y, **settings)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", f".*{NOTICE}")
        ordinary = run(twin, x, y, **settings)
    assert [fused.fused, ordinary.fused] == [True, False]
    assert_same(fused, ordinary, 1e-11)


@needs_library
@pytest.mark.parametrize("kind", [NPU, RealNPU])
def test_rows_behind_the_last_count_nowhere(kind: Any, isa: str) -> None:
    """Registers are filled up with rows of 0, of which these powers are infinite."""
    model = kind(2, 1, dtype=torch.float64)
    with torch.no_grad():
        model.gate.fill_(1)
        model.weight_re.fill_(-30)
    x = 0.9 + 0.2 * torch.rand(37, 2, dtype=torch.float64)
    twin = copy.deepcopy(model)
    twin.register_forward_hook(lambda *_: None)
    fused = run(model, x, x[:, :1], steps=3, lr=1e-3)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", f".*{NOTICE}")
        assert_same(fused, run(twin, x, x[:, :1], steps=3, lr=1e-3), 1e-10)
    assert fused.fused


@needs_library
@pytest.mark.parametrize("k", [None, 3, 40])
@pytest.mark.parametrize("per_model", [False, True])
@pytest.mark.parametrize("name", ["npu nau", "real npu alone"])
def test_weights_of_errors(name: str, k: int | None, per_model: bool) -> None:
    """Weights are those of the rows that a step takes; losses are weighted too."""
    _, y = data(k, torch.float64, per_model)
    rows = torch.randint(ROWS, (STEPS, 8), generator=torch.Generator().manual_seed(2))
    for settings in ({}, {"batch_indices": rows}):
        weighted = {"sample_weight": y.abs() + 0.1, **settings}
        fused, ordinary = both(MODELS[name], k, torch.float64, per_model=per_model, **weighted)
        assert_same(fused, ordinary, 1e-10)


@needs_library
def test_gradients_that_are_not_finite() -> None:
    """The model with a bad gradient stays where it is, or not; the others are trained."""
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.rand(2, ROWS, size, generator=generator, dtype=torch.float64) for size in (2, 3))
    y[0] = math.inf
    for nonfinite in ("zero", "keep"):
        model = MODELS["npu nau"](2, torch.float64)
        twin, before = copy.deepcopy(model), [p.detach().clone() for p in model.parameters()]
        twin.register_forward_hook(lambda *_: None)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", f".*{NOTICE}")
            results = [run(m, x, y, steps=5, lr=0.01, nonfinite=nonfinite) for m in (model, twin)]
        assert [result.fused for result in results] == [True, False]
        for ours, theirs, old in zip(model.parameters(), twin.parameters(), before, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11, equal_nan=True)
            assert torch.equal(ours[0], old[0]) is (nonfinite == "zero")
            assert ours[1].isfinite().all()
            assert not torch.equal(ours[1], old[1])


@needs_library
def test_same_bits_with_threads_and_in_stretches(one_thread: None) -> None:
    x, y = data(20, torch.float32)
    start = MODELS["npu nau"](20, torch.float32)
    runs = []
    for threads, callback_every in ((1, None), (2, None), (1, 7)):
        torch.set_num_threads(threads)
        model = copy.deepcopy(start)
        generator, calls = torch.Generator().manual_seed(4), list[int]()
        result = run(
            model, x, y, steps=400, lr=0.01, batch_size=16, generator=generator, callback_every=callback_every, record_every=3,
            callbacks=None if callback_every is None else lambda part, calls=calls: calls.append(part.n_steps),
        )  # fmt: skip
        assert result.losses.shape == (134, 20)
        assert result.fused
        assert calls == ([] if callback_every is None else [*range(7, 400, 7), 400])
        runs.append([result.losses, *(p.detach() for p in model.parameters())])
    for other in runs[1:]:
        assert_equal(runs[0], other)


@needs_library
def test_torch_continues_with_the_state() -> None:
    """An optimizer that has made steps before makes more here, and more by itself afterwards."""
    settings: dict[str, Any] = {"lr": 0.01, "steps": 5}
    x, y = data(None, torch.float64)
    models = [MODELS["npu nau"](None, torch.float64)]
    models.append(copy.deepcopy(models[0]))
    models[1].register_forward_hook(lambda *_: None)
    for model in models:
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", f".*{NOTICE}")
            for _ in range(2):
                run(model, x, y, optimizer=optimizer, **settings)
                optimizer.zero_grad()
                nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()
        assert optimizer.state[next(model.parameters())]["step"] == 12
    for ours, theirs in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("fused", [pytest.param(True, marks=needs_library), False])
@pytest.mark.filterwarnings(f"ignore:.*{NOTICE}")
def test_checkpoint(fused: bool, tmp_path: Path) -> None:
    """A run that is ended and continued makes the same bits as one that is not."""
    x, y = data(2, torch.float32)
    start = MODELS["npu nau"](2, torch.float32)
    if not fused:
        start.append(nn.Identity())
    path = tmp_path / "run"

    def train(
        checkpoint: Path | None, end_at: int | None = None, steps: int = 60
    ) -> TrainingResult:
        torch.manual_seed(len(str(checkpoint)))  # the checkpoint brings the generator's state
        return run(
            copy.deepcopy(start), x, y, steps=steps, lr=0.01, batch_size=8, checkpoint=checkpoint, callback_every=10,
            generator=torch.Generator().manual_seed(3), penalties={"l1": SteppedSchedule(1e-3, 1.0, step=15)},
            callbacks=lambda part: part.n_steps == end_at,
        )  # fmt: skip

    uninterrupted, part = train(None), train(path, 20)
    assert part.fused is fused
    assert (part.n_steps, part.complete, len(part.losses)) == (20, False, 20)
    rest = train(path)
    assert (rest.n_steps, rest.complete) == (60, True)
    assert torch.equal(uninterrupted.losses, rest.losses)
    assert_equal(uninterrupted.model.parameters(), rest.model.parameters())
    # a finished one has nothing left to do
    assert torch.equal(train(path).losses, uninterrupted.losses)
    with pytest.raises(
        ValueError,
        match=r"run: checkpoint must be .* of this same run, .*other steps \(60, here 61\)",
    ):
        train(path, steps=61)
    path.write_bytes(b"no checkpoint")
    with pytest.raises(
        ValueError, match=r"run: checkpoint must be .*: it is no file that npu_kernels saved"
    ):
        train(path)
    with pytest.raises(
        FileNotFoundError, match="run: checkpoint must be a file that can be written"
    ):
        train(tmp_path / "nowhere" / "run")


@needs_library
def test_ctrl_c() -> None:
    x, y = data(None, torch.float32)

    def press(part: TrainingResult) -> None:
        if part.n_steps == 20:
            signal.raise_signal(signal.SIGINT)

    result = run(
        MODELS["npu nau"](None, torch.float32), x, y, steps=100, lr=0.01, callbacks=[press],
        callback_every=10,
    )  # fmt: skip
    assert (result.n_steps, result.complete, result.losses.shape) == (20, False, (20,))


@pytest.mark.parametrize(("change", "reason"), [
    (lambda model: model.append(nn.Tanh()), "Tanh has no place in a chain"),
    (lambda model: model.append(iNALU(3, 3)), "iNALU has no place in a chain"),
    (lambda model: model[0].register_forward_hook(lambda *_: None), "a module has hooks"),
    (lambda model: model[0].gate.register_hook(lambda grad: grad), "a parameter of NPU has hooks"),
    (lambda model: parametrize.register_parametrization(model[1], "weight", nn.Identity()),
     "ParametrizedNAU has no place"),
    (lambda model: prune.l1_unstructured(model[1], "weight", 1), "hooks"),
])  # fmt: skip
@needs_library
def test_ordinary_loop(change: Callable[[nn.Sequential], Any], reason: str) -> None:
    """What cannot be fused makes ordinary steps, and says why once."""
    model = MODELS["npu nau"](None, torch.float32)
    change(model)  # type: ignore[arg-type]
    x, y = data(None, torch.float32)
    before = [p.detach().clone() for p in model.parameters()]
    with new_notices():
        with pytest.warns(UserWarning, match=f"{NOTICE}, because .*{reason}"):
            result = run(model, x, y, steps=2, lr=0.01)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            run(model, x, y, steps=1, lr=0.01)
    assert not result.fused
    assert not all(map(torch.equal, before, model.parameters()))


@needs_library
def test_a_short_training_is_one_call() -> None:
    """A call costs more than the steps of a small model."""
    x = torch.rand(20, 2)
    with CountCalls() as count:
        run(NPU(2, 1), x, x[:, :1], steps=16, lr=0.01, progress=False)
    assert count.calls["train"] == 1
