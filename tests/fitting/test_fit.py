"""`fit`, the training helper: what it finds, what its numbers depend on, and its messages."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from npu_kernels import NALU, NAU, NMRU, NMU, NPU, NaiveNPU, RealNPU, fit
from npu_kernels.fitting import fit_batch
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
    assert result.loss < 1e-12
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
    assert result.loss > 1e-5  # the noise's
    kinds = {candidate.kind for candidate in result.candidates}
    assert kinds == {"raw", "refined", "powers", "rounded"}
    # the score is that of the float32 model
    assert result.candidates[0].loss <= result.loss * (1 + 1e-5)
    assert result.loss <= 1.02 * result.candidates[0].loss * (1 + 1e-5)
    scores = [candidate.loss for candidate in result.candidates]
    assert scores == sorted(scores)


def test_the_score_is_that_of_the_model_that_is_returned() -> None:
    """Products of 1e-30 are 0 in float32: the score says so, and a warning why."""
    x = rows(0.5, 3, 300).double() * 1e-30
    y = x[:, :1] * x[:, 1:] * 1e60
    with pytest.warns(
        UserWarning, match=r"fit: the model's error is .*e-.* in float64 and inf in float32"
    ):
        result = fit(RealNPU(2, 1, num_models=4), x, y, recipe=replace(SHORT, loss="squared"))
    assert result.loss > 0.1
    result = fit(RealNPU(2, 1, num_models=4).double(), x, y, recipe=replace(SHORT, loss="squared"))
    error = (result.model(x).detach() - y) / y.square().mean().sqrt()
    assert result.loss < 1e-20
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
    assert result.loss == pytest.approx(1e-6 / 2, rel=0.6)
    torch.testing.assert_close(result.model(x * of_x) / of_y, y, rtol=0.1, atol=0.02)


def test_a_single_layer_may_have_a_coefficient() -> None:
    x = rows(0.5, 3)
    y = 0.7 * x[:, :1] / x[:, 1:] ** 2
    result = fit(RealNPU(2, 1, num_models=8), x, y)
    assert isinstance(result.model, nn.Sequential)
    assert parameters(result.model)[0].tolist() == [[1, -2]]
    assert result.model[1].weight.item() == pytest.approx(0.7, rel=1e-6)
    torch.testing.assert_close(result.model(x), y)
    scaled = fit_batch(RealNPU(2, 1, num_models=16), torch.stack([x, x]), torch.stack([y, y / 0.7]))
    assert scaled.models[1].weight.flatten().tolist() == pytest.approx([0.7, 1.0], rel=1e-6)
    unscaled = fit_batch(RealNPU(2, 1, num_models=8), x[None], y[None] / 0.7)
    assert isinstance(unscaled.models, RealNPU)


def test_a_sum_of_inputs_in_any_units() -> None:
    x = rows(0.5, 3).double()
    result = fit(
        NAU(2, 1, clip=False, num_models=4).double(),
        x * torch.tensor([1e-9, 1e9], dtype=torch.float64),
        (3.3 * x[:, :1] - x[:, 1:]) * 1e6,
    )
    assert result.model.weight[0].tolist() == pytest.approx([3.3e15, -1e-3], rel=1e-12)


def test_few_held_out_rows() -> None:
    """A fit to pure noise has noise's score, and is said to be cross-validated."""
    for seed in range(2):
        x, y = rows(0.5, 3, 10, seed), rows(-1, 1, 10, 9 + seed)[:, :1]
        with pytest.warns(
            UserWarning,
            match="fit: 10 rows are few: the model was chosen by 2 of them, and the loss is",
        ):
            result = fit(RealNPU(2, 1, num_models=8), x, y, recipe=replace(SHORT, loss="squared"))
        assert result.n_folds == 5
        assert result.loss > 0.3
    x = rows(0.5, 3, 30)
    result = fit(RealNPU(2, 1, num_models=8), x, x[:, :1] / x[:, 1:], recipe=QUICK)
    assert result.n_folds == 5
    assert result.loss < 1e-10
    with pytest.warns(
        UserWarning, match="fit: the loss is of 1 held-out row, which the model was chosen by"
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
    assert from_array.loss == plain.loss


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
    assert result.loss < 1e-12
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
    assert result.loss < (1e-2 if unit is NALU else 1e-12)
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
    assert torch.equal(first.init_losses, second.init_losses)
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
    assert (result.loss, result.n_steps) == (expected.loss, expected.n_steps)


def test_a_problem_does_not_depend_on_the_others() -> None:
    x = torch.stack([rows(1, 2, 90), rows(-2, -1, 90), rows(3, 5, 90)])
    y = torch.stack(
        [x[0].sum(1, keepdim=True), x[1, :, :1] * x[1, :, 1:], x[2, :, :1] - x[2, :, 1:]]
    )
    together = fit_batch(RealNPU(2, 1, num_models=18), x, y, seeds=[4, 5, 4], recipe=SHORT)
    assert together.models(x).shape == (3, 90, 1)
    for p, seed in enumerate([4, 5, 4]):
        single = fit(RealNPU(2, 1, num_models=6), x[p], y[p], seed=seed, recipe=SHORT)
        torch.testing.assert_close(together.models(x)[p], single.model(x[p]))
        torch.testing.assert_close(together.init_losses[p], single.init_losses)
        assert torch.equal(together.n_stages[p], single.n_stages)
        assert together.n_rows[p] == single.n_rows


def test_batches() -> None:
    def draw(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.rand(30, 2, generator=generator) + 1
        return x, x[:, :1] * x[:, 1:]

    model = RealNPU(2, 1, num_models=8)
    first, second = (fit(model, draw, seed=5, rows=100) for _ in range(2))
    assert parameters(first.model)[0].tolist() == [[1, 1]]
    assert torch.equal(first.init_losses, second.init_losses)

    def forever() -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(0)
        while True:
            yield draw(generator)

    assert parameters(fit(model, forever(), rows=100).model)[0].tolist() == [[1, 1]]
    assert parameters(fit(model, [draw(torch.Generator().manual_seed(0))] * 2, rows=1000).model)[
        0
    ].tolist() == [[1, 1]]


# ---- messages ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["x", "y"])
def test_complex_numbers_are_refused(name: str) -> None:
    """Their imaginary parts would be lost."""
    pandas = pytest.importorskip("pandas")
    arrays = {"x": rows(1, 2, 20).numpy(), "y": rows(1, 1, 20).numpy()}
    for table in (arrays[name] + 1j, pandas.DataFrame(arrays[name] + 1j)):
        with pytest.raises(TypeError, match=rf"^fit: {name} must be real, got complex64$"):
            fit(RealNPU(2, 1, num_models=2), *{**arrays, name: table}.values())
