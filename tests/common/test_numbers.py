"""One rule for numbers at each public door: NumPy's count as Python's do, a bool is none."""

import math
import re
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import npu_kernels
from npu_kernels import (
    NALU,
    NAU,
    NMRU,
    NPU,
    NaiveNPU,
    RealNPU,
    fit,
    formula,
    functional,
    iNALU,
    interop,
    ode,
    training,
)
from npu_kernels.equations import NPURegressor
from npu_kernels.fitting import Recipe, fit_batch
from npu_kernels.optim import lbfgs as minimiser
from npu_kernels.training import SteppedSchedule, l1, mse_loss, project_, regularizer

X = torch.rand(60, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 1
Y = X[:, :1] * X[:, 1:]
TIMES = torch.linspace(0, 2, 12, dtype=torch.float64)
QUICK = Recipe(rungs=((2, 1.0),), refine=2, settle=1, denominators=(1,))
LAYERS = [
    getattr(npu_kernels, name)
    for name in ("NAC", "NALU", "NAU", "NMRU", "NMU", "NPU", "NaiveNPU", "RealNPU", "iNALU")
]

Door = Callable[[Any], Any]


def _model(count: int | None = None) -> nn.Sequential:
    return nn.Sequential(RealNPU(2, 2, num_models=count), NAU(2, 2, num_models=count)).double()


def _rollout(**options: Any) -> Any:
    return ode.rollout(_model(), X[0], nonfinite="keep", **options)


def _adaptive(**options: Any) -> Any:
    return _rollout(t=[0.0, 0.1], method="dopri5", **options)


def _run(**options: Any) -> Any:
    return training.run(_model(), X, X, **{"steps": 2, "lr": 0.01, "progress": False, **options})


def _regressor(**options: Any) -> NPURegressor:
    settings = {"max_terms": 1, "n_init": 4, "random_state": 0, "target_powers": [1], **options}
    return NPURegressor(**settings).fit(X.numpy(), Y.numpy()[:, 0])


def _series(**options: Any) -> Any:
    model = nn.Sequential(RealNPU(1, 1, num_models=2), NAU(1, 1, num_models=2))
    return ode.fit(model, TIMES, 1 / (1 + TIMES / 2), progress=False, **options)


def _fit(**options: Any) -> Any:
    return fit(
        RealNPU(2, 1, num_models=2).double(), X, Y, progress=False, **{"recipe": QUICK, **options}
    )


def _lbfgs(**options: Any) -> Any:
    return minimiser.lbfgs(
        lambda x, active: (x.square().sum(1), 2 * x), torch.ones(1, 2), **options
    )


# function and argument, as messages name them -> a valid number and the call
WHOLE: dict[str, tuple[int, Door]] = {
    **{f"{kind.__name__}: in_features": (2, lambda n, kind=kind: kind(n, 3)) for kind in LAYERS},
    **{f"{kind.__name__}: out_features": (2, lambda n, kind=kind: kind(3, n)) for kind in LAYERS},
    **{f"{kind.__name__}: num_models": (2, lambda n, kind=kind: kind(3, 2, num_models=n)) for kind in LAYERS},
    "l1: num_models": (1, lambda n: l1(torch.ones(1, 2), num_models=n)),
    "regularizer: num_models": (1, lambda n: regularizer(torch.ones(1, 2), num_models=n)),
    "mse_loss: num_models": (1, lambda n: mse_loss(torch.ones(1, 2), torch.ones(1, 2), num_models=n)),
    "SteppedSchedule: step": (2, lambda n: SteppedSchedule(0, 1, n)),
    "run: steps": (2, lambda n: _run(steps=n)),
    "run: record_every": (2, lambda n: _run(record_every=n)),
    "run: callback_every": (2, lambda n: _run(callback_every=n, callbacks=[lambda run: None])),
    "run: batch_size": (2, lambda n: _run(batch_size=n)),
    "rollout: steps": (2, lambda n: _rollout(steps=n, dt=0.1)),
    "integrate: steps": (2, lambda n: ode.integrate(X[0], X[:2], None, None, X[:2], steps=n, dt=0.1)),
    "rollout: max_steps": (90, lambda n: _adaptive(max_steps=n)),
    "fit: rows": (2, lambda n: _fit(rows=n)),
    "fit: seed": (2, lambda n: _fit(seed=n)),
    "Recipe: batch_size": (2, lambda n: _fit(recipe=Recipe(rungs=((2, 1.0),), refine=2, settle=1, batch_size=n))),
    "Recipe: refine": (2, lambda n: Recipe(refine=n)),
    "Recipe: settle": (2, lambda n: Recipe(settle=n)),
    "NPURegressor: max_terms": (1, lambda n: _regressor(max_terms=n)),
    "NPURegressor: max_denominator": (2, lambda n: _regressor(max_denominator=n)),
    "NPURegressor: n_init": (4, lambda n: _regressor(n_init=n)),
    "bootstrap: n_resamples": (10, lambda n: _regressor().bootstrap(X.numpy(), Y.numpy()[:, 0], n_resamples=n)),
    "as_fraction: max_denominator": (2, lambda n: formula.as_fraction(X, n)),
    "simplify: max_denominator": (2, lambda n: formula.simplify(_model(), X, max_denominator=n)),
    "simplify: refit": (2, lambda n: formula.simplify(_model(), X, refit=n)),
    "extract: max_denominator": (2, lambda n: formula.extract(_model(), max_denominator=n)),
    "text: digits": (2, lambda n: formula.extract(_model()).text(n)),
    "latex: digits": (2, lambda n: formula.extract(_model()).latex(n)),
    "ode.fit: max_denominator": (2, lambda n: _series(max_denominator=n)),
    "ode.fit: seed": (2, lambda n: _series(seed=n)),
    "lbfgs: history_size": (2, lambda n: _lbfgs(history_size=n)),
    "lbfgs: max_iterations": (2, lambda n: _lbfgs(max_iterations=n)),
    "lbfgs: max_evaluations": (2, lambda n: _lbfgs(max_evaluations=n)),
    "lbfgs: max_line_search": (2, lambda n: _lbfgs(max_line_search=n)),
}  # fmt: skip

REAL: dict[str, tuple[float, Door]] = {
    **{f"{kind.__name__}: eps": (0.25, lambda v, kind=kind: kind(2, 3, eps=v)(X.float()))
       for kind in (NPU, RealNPU, NaiveNPU, NALU, iNALU, NMRU)},
    "NPU: init_im": (0.25, lambda v: NPU(2, 3, init_im=v)),
    "NaiveNPU: init_im": (0.25, lambda v: NaiveNPU(2, 3, init_im=v)),
    "iNALU: omega": (0.25, lambda v: iNALU(2, 3, omega=v)(X.float())),
    "npu: eps": (0.25, lambda v: functional.npu(X, X[:3], eps=v)),
    "nmru: eps": (0.25, lambda v: functional.nmru(X, X[:3].repeat(1, 2), eps=v)),
    "nalu: eps": (0.25, lambda v: functional.nalu(X, X[:3], X[:3], X[:3], eps=v)),
    "inalu: eps": (0.25, lambda v: functional.inalu(X, X[:3], X[:3], X[:3], X[:3], X[:3], eps=v)),
    "inalu: omega": (0.25, lambda v: functional.inalu(X, X[:3], X[:3], X[:3], X[:3], X[:3], omega=v)),
    "integrate: eps": (0.25, lambda v: ode.integrate(X[0], X[:2], None, None, X[:2], steps=2, dt=0.1, eps=v)),
    "rollout: dt": (0.25, lambda v: _rollout(steps=2, dt=v)),
    "interpolate: dt": (0.25, lambda v: ode.interpolate(X, [0.25, 0.5], dt=v)),
    "rollout: rtol": (0.25, lambda v: _adaptive(rtol=v)),
    "rollout: atol": (0.25, lambda v: _adaptive(atol=v)),
    "l1: beta": (0.25, lambda v: l1(X, v)),
    "SteppedSchedule: start": (0.25, lambda v: SteppedSchedule(v, 1, 2)),
    "SteppedSchedule: end": (0.25, lambda v: SteppedSchedule(0, v, 2)),
    "SteppedSchedule: growth": (2.5, lambda v: SteppedSchedule(0, 1, 2, v)),
    "project_: weight_bound": (0.25, lambda v: project_(_model(), weight_bound=v)),
    "run: lr": (0.25, lambda v: _run(lr=v)),
    "Recipe: lr": (0.25, lambda v: Recipe(lr=v)),
    "Recipe: weight_bound": (0.25, lambda v: Recipe(weight_bound=v)),
    "Recipe: slack": (0.25, lambda v: Recipe(slack=v)),
    "simplify: tolerance": (0.25, lambda v: formula.simplify(_model(), X, tolerance=v)),
    "simplify: threshold": (0.25, lambda v: formula.simplify(_model(), X, threshold=v)),
    "swap: eps": (0.25, lambda v: interop.swap(_model(), eps=v)),
    "lbfgs: gradient_tolerance": (0.25, lambda v: _lbfgs(gradient_tolerance=v)),
    "lbfgs: x_tolerance": (0.25, lambda v: _lbfgs(x_tolerance=v)),
    "lbfgs: f_tolerance": (0.25, lambda v: _lbfgs(f_tolerance=v)),
}  # fmt: skip

# The rest of the message is the door's own: it takes several numbers, or other things too. True:
# what is refused.
OTHERS: dict[str, tuple[float, Door]] = {
    "run: the weight of penalty 'l1'": (0.25, lambda v: _run(penalties={"l1": v})),
    "NPURegressor: noise": (0.25, lambda v: _regressor(noise=v)),
    "NPURegressor: target_powers": (1, lambda v: _regressor(target_powers=[v])),
    "NPURegressor: index": (0, lambda n: _regressor().latex(n)),
    "confidence_intervals: level": (0.5, lambda v: _regressor().confidence_intervals(v)),
    "bootstrap: level": (0.5, lambda v: _regressor().bootstrap(X.numpy(), Y.numpy()[:, 0], n_resamples=10, level=v)),
    "ode.fit: observed": (0, lambda n: _series(observed=[n])),
    "fit_batch: seeds": (3, lambda n: fit_batch(RealNPU(2, 1, num_models=2).double(), X[None], Y[None], seeds=[n],
                                              recipe=QUICK, progress=False)),
    "extract: model_index": (1, lambda n: formula.extract(_model(2), model_index=n)),
    "Recipe: wide": (0.25, lambda v: Recipe(wide=(v,))),
    "Recipe: imaginary": (0.25, lambda v: Recipe(imaginary=(v,))),
    "Recipe: gates": (0.25, lambda v: Recipe(gates=(v,))),
    "Recipe: holdout": (0.25, lambda v: Recipe(holdout=v)),
    "Recipe: hidden": (2, lambda n: Recipe(hidden=(n,))),
    "Recipe: finalists": (2, lambda n: Recipe(finalists=(n, 1))),
    "Recipe: rows": (2, lambda n: Recipe(rows=(n, 1))),
    "Recipe: denominators": (2, lambda n: Recipe(denominators=[n])),
    "Recipe: rungs": (2, lambda n: Recipe(rungs=((n, 1.0),))),
}  # fmt: skip


@pytest.mark.parametrize("door", WHOLE)
def test_integers(door: str) -> None:
    number, call = WHOLE[door]
    for kind in (int, np.int64, np.int32):
        call(kind(number))
    for wrong in (True, np.True_, number + 0.5, str(number), torch.tensor(number)):
        message = rf"{door} must be (a function, or )?an integer of at least \d+, got "
        with pytest.raises(ValueError, match=f"^{message}{re.escape(repr(wrong))}$"):
            call(wrong)


@pytest.mark.parametrize("door", REAL)
def test_real_numbers(door: str) -> None:
    number, call = REAL[door]
    for kind in (float, np.float64, np.float32, np.float16, Fraction):
        call(kind(number))
    call(math.ceil(number))
    call(np.int32(math.ceil(number)))
    for wrong in (True, np.True_, math.nan, np.float32("nan"), str(number)):
        rule = r"(.*, or )?(finite|at least 0|greater than 0)( and .*)?"
        with pytest.raises(
            ValueError, match=f"^{door} must be {rule}, got {re.escape(repr(wrong))}$"
        ):
            call(wrong)


@pytest.mark.parametrize("door", OTHERS)
def test_other_doors(door: str) -> None:
    number, call = OTHERS[door]
    kinds = (np.int64, np.int32) if isinstance(number, int) else (np.float64, np.float32)
    for kind in (type(number), *kinds):
        call(kind(number))
    for wrong in (True, np.True_):
        with pytest.raises(
            (TypeError, ValueError), match=f"^{re.escape(door)} must .*, got .*(True|bool)"
        ):
            call(wrong)


def test_a_project_that_is_a_number_and_no_bool() -> None:
    """True is an answer there, and no number."""
    for bound in (0.5, np.float32(0.5)):
        assert float(_run(project=bound).model[0].weight_re.detach().abs().max()) <= 0.5


def test_what_is_stored_and_computed_is_pythons() -> None:
    """No number of NumPy's goes into state dicts, checkpoints, compiled graphs or the fast path."""
    layer = NPU(
        np.int64(2),
        np.int32(3),
        num_models=np.int64(2),
        eps=np.float32(0.25),
        init_im=np.float32(0.5),
    )
    assert [type(v) for v in (layer.in_features, layer.out_features, layer.num_models)] == [int] * 3
    assert (type(layer.eps), type(layer.init_im)) == (float, float)
    schedule = SteppedSchedule(np.float32(0.25), np.float64(2), np.int64(1))
    schedule.step()
    assert repr(schedule) == "SteppedSchedule(beta=2.0, end=2.0, step=1, growth=10.0)"
    assert (type(schedule.beta), type(schedule.iteration)) == (float, int)
    recipe = Recipe(
        batch_size=np.int64(64),
        lr=np.float64(0.05),
        denominators=(np.int64(1), 2),
        rungs=[[np.int64(9), 1]],
    )
    assert repr(recipe) == repr(Recipe(rungs=[[9, 1]], denominators=(1, 2)))
    run = _run(
        steps=np.int64(3), batch_size=np.int32(2), lr=np.float32(0.25), record_every=np.int64(1)
    )
    assert type(run.n_steps) is int
    assert run.losses.shape == (3,)


def test_a_number_counts_as_python_s_own_does() -> None:
    single = np.float32(1e-3)
    for layer in ("npu", "nalu"):
        weights = [X[:3]] * (1 if layer == "npu" else 3)
        function = getattr(functional, layer)
        assert torch.equal(
            function(X, *weights, eps=single), function(X, *weights, eps=float(single))
        )
    model = _model()
    assert torch.equal(
        ode.rollout(model, X[0], steps=np.int64(4), dt=single),
        ode.rollout(model, X[0], steps=4, dt=float(single)),
    )
    noisy = Y.numpy()[:, 0] * (1 + 0.01 * np.random.default_rng(0).standard_normal(len(Y)))
    stated = [
        NPURegressor(1, [1], n_init=4, random_state=0, noise=v).fit(X.numpy(), noisy)
        for v in (0.015625, np.float32(0.015625))
    ]
    assert [model.equations_.noise for model in stated] == ["known", "known"]
    assert stated[0].best_equation_.text() == stated[1].best_equation_.text()


UNBOUNDED = ("fit: seed", "ode.fit: seed")  # of which a digest is made


@pytest.mark.parametrize(
    "door", [door for door in WHOLE if door not in UNBOUNDED and "Recipe" not in door]
)
def test_integers_that_torch_has_none_of(door: str) -> None:
    _, call = WHOLE[door]
    for wrong in (2**63, 10**30, 10**400):
        limit = r"(below 2\*\*63|at most \d+)"
        message = rf"{door} must be (a function, or )?an integer of at least \d+ and {limit}"
        with pytest.raises(ValueError, match=f"^{message}, got {wrong}$"):
            call(wrong)


def test_a_seed_may_be_any_integer() -> None:
    for door in UNBOUNDED:
        WHOLE[door][1](2**63)


@pytest.mark.parametrize("wrong", ["3", True, Decimal("0.5"), math.nan, None, 1j, [3]])
def test_what_functions_of_a_step_return(wrong: Any) -> None:
    def from_second(step: int) -> Any:
        return wrong if step == 2 else 0.25

    got = re.escape(repr(wrong))
    with pytest.raises(ValueError, match=f"^run: lr at step 2 must be finite.* got {got}$"):
        _run(lr=from_second)
    with pytest.raises(ValueError, match=f"^run: lr at step 1 must be finite.* got {got}$"):
        _run(lr=lambda step: wrong)
    title = "the weight of penalty 'l1' at step 2"
    with pytest.raises(ValueError, match=f"^run: {title} must be a number, got {got}$"):
        _run(penalties={"l1": from_second})


def test_functions_of_a_step_may_return_numbers_of_any_library() -> None:
    for number in (1, np.float32(0.25), np.int64(1), Fraction(1, 4), torch.tensor([0.25])):
        _run(lr=lambda step, number=number: number, penalties={"l1": lambda step, n=number: n})
