"""`fit`, the training helper: what it finds, what its numbers depend on, and its messages."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from npu_kernels import NALU, NAU, NMRU, NMU, NPU, NaiveNPU, RealNPU, fit
from npu_kernels.fitting import Recipe, fit_many
from tests.support.fits import QUICK, SHORT, hard, parameters, rows, same
from tests.support.modes import MODES

# ---- what it finds -------------------------------------------------------------------------------


def test_the_product_of_negative_numbers() -> None:
    """The sum of the powers, near 0 at the start, would have to pass the barrier -1 = cos(pi)."""
    x = rows(-2, -1)
    result = fit(RealNPU(2, 1, num_models=64), x, x[:, :1] * x[:, 1:])
    assert isinstance(result.model, RealNPU)
    assert result.model.num_models is None
    assert parameters(result.model)[0].tolist() == [[1, 1]]
    assert parameters(result.model)[1].tolist() == [1, 1]
    assert (result.chosen.kind, result.chosen.denominator) == ("rounded", 1)
    assert result.score < 1e-12
    assert result.complete
    far = rows(-60, -20)
    torch.testing.assert_close(result.model(far), far[:, :1] * far[:, 1:])


def test_complex_weights_and_mixed_signs() -> None:
    """A quotient on [-2, 2] has a heavy tail; the relative loss does not see it."""
    x = rows(-2, 2)
    result = fit(NPU(2, 1, num_models=48), x, x[:, :1] / x[:, 1:])
    re, im, gate = parameters(result.model)
    assert re.tolist() == [[1, -1]]
    assert im.tolist() == [[0, 0]]
    assert gate.tolist() == [1, 1]


@pytest.mark.parametrize("noise", [0.0, 0.01])
@pytest.mark.parametrize("exponents", [[[3.0, -2.0]], [[2.0, 3.0]], [[1.0, 0.0], [2.0, 3.0]]])
def test_powers_of_inputs_of_both_signs(exponents: list[list[float]], noise: float) -> None:
    """Between them the cosine of negative inputs passes 0."""
    x = rows(0.1, 2, seed=3).double() * torch.tensor(
        [[1.0, 1.0], [-1, 1], [1, -1], [-1, -1]]
    ).repeat(100, 1)
    powers = torch.tensor(exponents, dtype=torch.float64)
    y = 2 * (x.unsqueeze(1) ** powers).prod(2).sum(1, keepdim=True)
    generator = torch.Generator().manual_seed(3)
    y = y * (1 + noise * torch.randn(y.shape, generator=generator, dtype=torch.float64))
    model = nn.Sequential(
        RealNPU(2, len(powers), num_models=48), NAU(len(powers), 1, clip=False, num_models=48)
    )
    result = fit(model.double(), x, y)
    unit, total = result.model.children()
    assert sorted((unit.weight_re * unit.gate).tolist()) == sorted(exponents)
    torch.testing.assert_close(total.weight, torch.full_like(total.weight, 2), rtol=0.02, atol=0)
    assert unit.in_features == 2


def test_noise_and_a_root() -> None:
    """Rounded weights are chosen where the data cannot tell them from the fitted ones."""
    x = rows(0.5, 3, 2000)
    noise = 1 + 0.02 * torch.randn(2000, 1, generator=torch.Generator().manual_seed(3))
    result = fit(RealNPU(2, 1, num_models=16), x, x[:, :1].sqrt() / x[:, 1:] * noise)
    assert parameters(result.model)[0].tolist() == [[0.5, -1]]
    assert result.score > 1e-5  # the noise's
    kinds = {candidate.kind for candidate in result.candidates}
    assert kinds == {"raw", "refined", "powers", "rounded"}
    # the score is that of the float32 model
    assert result.candidates[0].score <= result.score * (1 + 1e-5)
    assert result.score <= 1.02 * result.candidates[0].score * (1 + 1e-5)
    scores = [candidate.score for candidate in result.candidates]
    assert scores == sorted(scores)


def test_the_score_is_that_of_the_model_that_is_returned() -> None:
    """Products of 1e-30 are 0 in float32: the score says so, and a warning why."""
    x = rows(0.5, 3, 300).double() * 1e-30
    y = x[:, :1] * x[:, 1:] * 1e60
    with pytest.warns(
        UserWarning, match=r"fit: the model's error is .*e-.* in float64 and inf in its own float32"
    ):
        result = fit(RealNPU(2, 1, num_models=4), x, y, recipe=replace(SHORT, loss="squared"))
    assert result.score > 0.1
    result = fit(RealNPU(2, 1, num_models=4).double(), x, y, recipe=replace(SHORT, loss="squared"))
    error = (result.model(x).detach() - y) / y.square().mean().sqrt()
    assert result.score < 1e-20
    assert float(error.square().mean()) < 1e-20


def sums(starts: int, wide: int = 3) -> nn.Module:
    return nn.Sequential(
        RealNPU(3, wide, num_models=starts), NAU(wide, 1, clip=False, num_models=starts)
    ).double()


@pytest.mark.parametrize(("of_x", "of_y"), [(1, 1e-6), (1e-30, 1e30), (1e30, 1e-30)])
def test_units_do_not_matter_and_coefficients_are_no_fractions(of_x: float, of_y: float) -> None:
    """The constant 3.707 has been 11/3, and y in other units has not been found at all."""
    x = (
        torch.rand(300, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 2.5
        + 0.5
    )
    noise = torch.randn(300, 1, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    y = (3.707 * x[:, :1] ** 2 / x[:, 1:2] - 12.5 * x[:, 2:]) * (1 + 1e-3 * noise)
    result = fit(sums(8), x * of_x, y * of_y, recipe=QUICK)
    first, last = result.model[0], result.model[1]
    terms = {
        tuple(w): c
        for w, c in zip(
            (first.weight_re * first.gate).tolist(), last.weight[0].tolist(), strict=True
        )
        if c
    }
    assert set(terms) == {(2, -1, 0), (0, 0, 1)}  # the third unit has left
    assert terms[2, -1, 0] * of_x / of_y == pytest.approx(3.707, rel=2e-3)
    assert terms[0, 0, 1] * of_x / of_y == pytest.approx(-12.5, rel=2e-3)
    assert result.score == pytest.approx(1e-6 / 2, rel=0.6)
    torch.testing.assert_close(result.model(x * of_x) / of_y, y, rtol=0.1, atol=0.02)


def test_a_single_layer_may_have_a_coefficient() -> None:
    x = rows(0.5, 3)
    y = 0.7 * x[:, :1] / x[:, 1:] ** 2
    result = fit(RealNPU(2, 1, num_models=8), x, y)
    assert isinstance(result.model, nn.Sequential)
    assert parameters(result.model)[0].tolist() == [[1, -2]]
    assert result.model[1].weight.item() == pytest.approx(0.7, rel=1e-6)
    torch.testing.assert_close(result.model(x), y)
    scaled = fit_many(RealNPU(2, 1, num_models=16), torch.stack([x, x]), torch.stack([y, y / 0.7]))
    assert scaled.models[1].weight.flatten().tolist() == pytest.approx([0.7, 1.0], rel=1e-6)
    unscaled = fit_many(RealNPU(2, 1, num_models=8), x[None], y[None] / 0.7)
    assert isinstance(unscaled.models, RealNPU)


def test_a_sum_of_inputs_in_any_units() -> None:
    x = rows(0.5, 3).double()
    result = fit(
        NAU(2, 1, clip=False, num_models=4).double(),
        x * torch.tensor([1e-9, 1e9], dtype=torch.float64),
        (3.3 * x[:, :1] - x[:, 1:]) * 1e6,
    )
    assert result.model.weight[0].tolist() == pytest.approx([3.3e15, -1e-3], rel=1e-12)


@pytest.mark.parametrize("law", ["product", "quotient"])
def test_noise_of_one_per_cent_leaves_simple_powers(law: str) -> None:
    """The least held-out error of several is often that of a model that is not rounded."""
    for seed in range(2):
        x = rows(*((1, 2) if law == "product" else (-2, -1)), seed=seed)
        noise = 1 + 0.01 * torch.randn(
            len(x), 1, generator=torch.Generator().manual_seed(50 + seed)
        )
        y = (x[:, :1] * x[:, 1:] if law == "product" else x[:, :1] / x[:, 1:]) * noise
        result = fit(RealNPU(2, 1, num_models=8), x, y, seed=seed, recipe=QUICK)
        assert parameters(result.model)[0].tolist() == [[1, 1 if law == "product" else -1]]


def test_few_held_out_rows() -> None:
    """A fit to pure noise has noise's score, and is said to be cross-validated."""
    for seed in range(2):
        x, y = rows(0.5, 3, 10, seed), rows(-1, 1, 10, 9 + seed)[:, :1]
        with pytest.warns(
            UserWarning,
            match="fit: 10 rows are few: the model was chosen by 2 of them, and the score is",
        ):
            result = fit(RealNPU(2, 1, num_models=8), x, y, recipe=replace(SHORT, loss="squared"))
        assert result.folds == 5
        assert result.score > 0.3
    x = rows(0.5, 3, 30)
    result = fit(RealNPU(2, 1, num_models=8), x, x[:, :1] / x[:, 1:], recipe=QUICK)
    assert result.folds == 5
    assert result.score < 1e-10
    with pytest.warns(
        UserWarning, match="fit: the score is that of 1 held-out row, which the model was chosen by"
    ):
        fit(RealNPU(2, 1, num_models=2), x[:3], x[:3, :1], recipe=replace(SHORT))


def test_arrays_and_frames() -> None:
    x = rows(0.5, 3, 60)
    y = x[:, :1] / x[:, 1:]
    model, quick = RealNPU(2, 1, num_models=4), SHORT
    plain = fit(model, x.double(), y.double(), recipe=quick)
    for array in (x.numpy(), x.double().numpy()):
        from_array = fit(model, array, y.numpy()[:, 0], recipe=quick)
        assert parameters(from_array.model)[0].tolist() == parameters(plain.model)[0].tolist()
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    from_array = fit(
        model, pandas.DataFrame(x.numpy()), pandas.Series(y.numpy()[:, 0]), recipe=quick
    )
    assert from_array.score == plain.score


def test_a_power_that_is_no_fraction_stays() -> None:
    x = rows(0.5, 3)
    result = fit(RealNPU(2, 1, num_models=16), x, x[:, :1] ** 0.5714 * x[:, 1:])
    torch.testing.assert_close(
        parameters(result.model)[0], torch.tensor([[0.5714, 1]]), rtol=0, atol=1e-4
    )


@pytest.mark.parametrize("first", ["NPU", "NAU"])
def test_two_layers(first: str) -> None:
    x = rows(0.5, 2)
    if first == "NPU":
        model: nn.Module = nn.Sequential(RealNPU(2, 3, num_models=12), NAU(3, 1, num_models=12))
        y = x[:, :1] * x[:, 1:] + x[:, :1] / x[:, 1:]
    else:
        model = nn.Sequential(NAU(2, 2, num_models=12), RealNPU(2, 1, num_models=12))
        y = (x[:, :1] + x[:, 1:]).sqrt()
    result = fit(model, x, y)
    assert result.score < 1e-12
    far = rows(5, 50)
    expected = (
        far[:, :1] * far[:, 1:] + far[:, :1] / far[:, 1:]
        if first == "NPU"
        else far.sum(1, keepdim=True).sqrt()
    )
    torch.testing.assert_close(result.model(far), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("unit", [NMU, NMRU, NAU, NALU])
def test_other_units(unit: type[nn.Module]) -> None:
    x = rows(0.5, 2)
    model = unit(2, 1, num_models=8)  # type: ignore[call-arg]
    y = {NMU: x.prod(1, keepdim=True), NMRU: x[:, :1] / x[:, 1:]}.get(unit, x.sum(1, keepdim=True))
    result = fit(model, x, y)
    assert result.score < (1e-2 if unit is NALU else 1e-12)
    assert (result.chosen.kind == "rounded") == (unit is not NALU)


# ---- what it depends on --------------------------------------------------------------------------


def test_the_seed_alone_decides() -> None:
    x, y = hard()
    model = NPU(2, 1, num_models=6)
    before = torch.get_rng_state()
    first = fit(model, x, y, recipe=SHORT)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(77)
    with torch.no_grad():
        model.weight_re.fill_(3)  # a start of the caller's has no influence
    second = fit(model, x, y, recipe=SHORT)
    assert same(first.model, second.model)
    assert torch.equal(first.scores, second.scores)
    assert first.candidates == second.candidates
    assert not same(first.model, fit(model, x, y, seed=1, recipe=SHORT).model)
    assert (model.weight_re == 3).all()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("units", [(RealNPU, NAU), (NALU, NMU), (NMRU, NaiveNPU)])
def test_the_modes_of_the_caller_do_not_matter(units: Any, mode: Any) -> None:
    x, y = hard()
    y = y + 0.01 * torch.sin(40 * x[:, :1])  # noise
    model = nn.Sequential(units[0](2, 2, num_models=4), units[1](2, 1, num_models=4))
    expected = fit(model, x, y, recipe=SHORT)
    with mode():
        result = fit(model, x, y, recipe=SHORT)
    assert same(result.model, expected.model)
    assert (result.score, result.steps) == (expected.score, expected.steps)


def test_a_problem_does_not_depend_on_the_others() -> None:
    x = torch.stack([rows(1, 2, 90), rows(-2, -1, 90), rows(3, 5, 90)])
    y = torch.stack(
        [x[0].sum(1, keepdim=True), x[1, :, :1] * x[1, :, 1:], x[2, :, :1] - x[2, :, 1:]]
    )
    together = fit_many(RealNPU(2, 1, num_models=18), x, y, seeds=[4, 5, 4], recipe=SHORT)
    assert together.models(x).shape == (3, 90, 1)
    for p, seed in enumerate([4, 5, 4]):
        single = fit(RealNPU(2, 1, num_models=6), x[p], y[p], seed=seed, recipe=SHORT)
        torch.testing.assert_close(together.models(x)[p], single.model(x[p]))
        torch.testing.assert_close(together.scores[p], single.scores)
        assert torch.equal(together.retired[p], single.retired)
        assert together.rows[p] == single.rows


def test_batches() -> None:
    def draw(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.rand(30, 2, generator=generator) + 1
        return x, x[:, :1] * x[:, 1:]

    model = RealNPU(2, 1, num_models=8)
    first, second = (fit(model, draw, seed=5, rows=100) for _ in range(2))
    assert parameters(first.model)[0].tolist() == [[1, 1]]
    assert torch.equal(first.scores, second.scores)

    def forever() -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(0)
        while True:
            yield draw(generator)

    assert parameters(fit(model, forever(), rows=100).model)[0].tolist() == [[1, 1]]
    assert parameters(fit(model, [draw(torch.Generator().manual_seed(0))] * 2, rows=1000).model)[
        0
    ].tolist() == [[1, 1]]


# ---- messages ------------------------------------------------------------------------------------


def _call(model: Any = None, x: Any = None, y: Any = None, **options: Any) -> None:
    fit(
        RealNPU(2, 1, num_models=4) if model is None else model,
        torch.ones(9, 2) if x is None else x,
        y,
        **options,
    )


@pytest.mark.parametrize(("call", "error", "message"), [
    (lambda: _call(), ValueError, r"^fit: y must be given with an x of rows, got None$"),
    (lambda: _call(x=[], y=torch.ones(9, 1)), TypeError,
     r"^fit: x must be .* got list; batches bring their own y$"),
    (lambda: _call(x=[]), ValueError, r"^fit: x must give at least one batch$"),
    (lambda: _call(x=3), TypeError,
     r"^fit: x must be a tensor, batches \(x, y\), or a function .*, got int$"),
    (lambda: _call(x=[1]), TypeError, r"^fit: a batch must be two tensors \(x, y\), got int$"),
    (lambda: _call(x=[(torch.ones(3, 2), torch.ones(4, 1))]), ValueError,
     r"^fit: a batch must have shapes \(B, I\) and \(B, O\) with B of at least 1, got \(3, 2\) and "
     r"\(4, 1\)$"),
    (lambda: _call(y=torch.ones(9)), ValueError,
     r"^fit: y must have shape \(N, out_features\), got shape \(9,\)$"),
    (lambda: _call(y=torch.ones(8, 1)), ValueError,
     r"^fit: x and y must have the same rows, got shapes"),
    (lambda: _call(y=torch.ones(9, 2)), ValueError,
     r"^fit: y must have last dimension 1, as the model's, got 2$"),
    (lambda: _call(x=torch.ones(1, 2), y=torch.ones(1, 1)), ValueError,
     r"x must have at least 2 rows .*, got 1$"),
    (lambda: _call(y=torch.full((9, 1), torch.nan)), ValueError,
     r"^fit: y must be finite, got 9 that are not$"),
    (lambda: _call(y=torch.ones(9, 1).half()), TypeError,
     r"^fit: y must be float32 or float64, got torch.float16$"),
    (lambda: _call(y=torch.ones(9, 1), seed=-1), ValueError,
     r"^fit: seed must be an integer of at least 0, got -1$"),
    (lambda: _call(model=3, y=torch.ones(9, 1)), TypeError,
     r"^fit: model must be a torch.nn.Module, got int$"),
    (lambda: _call(model=RealNPU(2, 1), y=torch.ones(9, 1)), ValueError,
     r"^fit: every unit of model must have the same num_models \(the number of starts\), got "
     r"\[None\]$"),
    (lambda: _call(model=nn.Sequential(NAU(2, 2, num_models=3), nn.Linear(2, 1)),
                   y=torch.ones(9, 1)), ValueError,
     r"^fit: every parameter of model must belong to a unit of npu_kernels, got 1.weight$"),
    (lambda: _call(model=nn.Tanh(), y=torch.ones(9, 1)), ValueError,
     r"^fit: model must have units of npu_kernels, got Tanh without any$"),
    (lambda: _call(model=NAU(2, 1, num_models=3, dtype=torch.bfloat16), y=torch.ones(9, 1)),
     TypeError, r"^fit: model must be float32 or float64, got torch.bfloat16$"),
    (lambda: fit_many(NAU(2, 1, num_models=5), torch.ones(2, 9, 2), torch.ones(2, 9, 1)),
     ValueError, r"^fit_many: num_models must be a multiple of the number of problems, 2, got 5$"),
    (lambda: fit_many(NAU(2, 1, num_models=4), torch.ones(2, 9, 2), torch.ones(2, 9, 1), seeds=[1]),
     ValueError, r"^fit_many: seeds must be 2 integers of at least 0, one per problem, got \[1\]$"),
    (lambda: Recipe(batch=0), ValueError,
     r"^Recipe: batch must be an integer of at least 1, got 0$"),
    (lambda: Recipe(rate=0.0), ValueError,
     r"^Recipe: rate must be finite and greater than 0, got 0.0$"),
    (lambda: Recipe(gates=(2.0,)), ValueError,
     r"^Recipe: gates must be numbers from 0 to 1, got \(2.0,\)$"),
    (lambda: Recipe(wide=()), ValueError,
     r"^Recipe: wide must be finite numbers of at least 0, got \(\)$"),
    (lambda: Recipe(loss="l1"), ValueError,
     r"^Recipe: loss must be one of 'relative', 'squared', got 'l1'$"),
    (lambda: Recipe(holdout=1.0), ValueError,
     r"^Recipe: holdout must lie between 0 and 1, got 1.0$"),
    (lambda: Recipe(rungs=((5, 0.5),)), ValueError,
     r"^Recipe: rungs must be pairs .* the shares falling from 1"),
    (lambda: Recipe(finalists=(1, 0)), ValueError,
     r"^Recipe: finalists must be two integers of at least 1"),
    (lambda: Recipe(denominators=(2, 1)), ValueError,
     r"^Recipe: denominators must be increasing integers"),
    (lambda: Recipe(refine=-1), ValueError,
     r"^Recipe: refine must be an integer of at least 0, got -1$"),
    (lambda: Recipe(slack=-1), ValueError,
     r"^Recipe: slack must be finite and at least 0, got -1$"),
])  # fmt: skip
def test_errors(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("name", ["x", "y"])
def test_complex_numbers_are_refused(name: str) -> None:
    """Their imaginary parts would be lost."""
    pandas = pytest.importorskip("pandas")
    arrays = {"x": rows(1, 2, 20).numpy(), "y": rows(1, 1, 20).numpy()}
    for table in (arrays[name] + 1j, pandas.DataFrame(arrays[name] + 1j)):
        with pytest.raises(TypeError, match=rf"^fit: {name} must be real, got complex64$"):
            fit(RealNPU(2, 1, num_models=2), *{**arrays, name: table}.values())
