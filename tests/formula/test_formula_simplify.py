"""Simplifying: what is claimed about every step's cost is measured again here; the model given is
never touched."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from npu_kernels import NAC, NALU, NAU, NMRU, NMU, NPU, NaiveNPU, RealNPU, formula, iNALU
from npu_kernels.formula import simplify

UNITS = (NPU, RealNPU, NaiveNPU, NAU, NMU, NMRU, NAC, NALU, iNALU, nn.Linear)


def data(rows: int = 60, width: int = 3, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = 0.3 + 2 * torch.rand(rows, width, generator=generator, dtype=torch.float64)
    return x * (torch.randint(2, x.shape, generator=generator) * 2 - 1)


def noisy(seed: int = 0, noise: float = 2e-3) -> tuple[nn.Sequential, Tensor, Tensor]:
    """A model of ``y = (x z / 2 - 1/x, sqrt|z| ...)`` with an idle unit, its inputs and outputs."""
    torch.manual_seed(seed)
    model = nn.Sequential(RealNPU(3, 3, dtype=torch.float64), NAU(3, 2, dtype=torch.float64))
    with torch.no_grad():
        model[0].weight_re.copy_(torch.tensor([[1.0, 0.0, 1.0], [-1.0, 0.0, 0.0], [0.0, 0.0, 0.5]]))
        model[0].gate.copy_(torch.tensor([1.0, 0.0, 1.0]))
        model[1].weight.copy_(torch.tensor([[0.5, -1.0, 0.0], [0.0, 0.25, 1.0]]))
        x = data()
        y = model(x)
        for parameter in model.parameters():
            parameter.add_(noise * torch.randn_like(parameter))
    return model, x, y


def error(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """The definition, written out."""
    with torch.no_grad():
        outputs = [
            (((model(x) - y)[:, o] ** 2).mean() / (y[:, o] ** 2).mean()).item()
            for o in range(y.shape[1])
        ]
    return math.sqrt(sum(outputs) / len(outputs))


def test_the_true_weights_are_found():
    model, x, y = noisy()
    result = simplify(model, x, y, tolerance=1e-3)
    assert torch.equal(
        result.module[0].weight_re[:, ::2], torch.tensor([[1, 1], [-1, 0], [0, 0.5]]).double()
    )
    assert result.module[0].gate.tolist() == [1, 0, 1]
    assert result.module[1].weight.tolist() == [[0.5, -1, 0], [0, 0.25, 1]]
    assert error(result.module, x, y) < 1e-12
    assert [step.name for step in result.steps] == ["gates", "prune", "round"]
    assert result.steps[-1].n_parameters == 10  # 4 powers, 2 gates, 4 coefficients


@pytest.mark.parametrize(("noise", "stays"), [(0.0, True), (0.02, False)])
def test_the_default_tolerance_follows_from_the_data(noise, stays):
    """A term of a thousandth of y stays in an exact fit, and goes where the noise hides it."""
    x = data().abs()
    model = nn.Sequential(
        RealNPU(3, 2, dtype=torch.float64, eps=1e-300), NAU(2, 1, clip=False, dtype=torch.float64)
    )
    model[0].weight_re.data = torch.tensor([[1.0, -1.0, 0.0], [0.0, 0.0, 1.0]]).double()
    model[0].gate.data.fill_(1)
    model[1].weight.data = torch.tensor([[70.0, 0.05]]).double()
    y = model(x).detach() * (
        1 + noise * torch.randn(len(x), 1, generator=torch.Generator().manual_seed(0))
    )
    result = simplify(model, x, y, threshold=math.inf)
    assert bool(result.module[1].weight[0, 1] != 0) is stays
    assert result.module[1].weight[0, 0] == 70
    assert result.module[0].weight_re[0].tolist() == [1, -1, 0]
    if stays:
        assert error(result.module, x, y) < 1e-12


@pytest.mark.parametrize("tolerance", [None, 1e-3, 0.0])
@pytest.mark.parametrize("refit", [0, 5])
def test_every_cost_is_what_was_measured(tolerance, refit):
    model, x, y = noisy(seed=1, noise=2e-2)
    given_model = copy.deepcopy(model)
    result = simplify(model, x, y, tolerance=tolerance, refit=refit)
    assert result.error == pytest.approx(error(given_model, x, y), rel=1e-12)
    assert result.steps[-1].after == pytest.approx(error(result.module, x, y), rel=1e-9)
    last = result.error
    replay = formula.select(given_model)
    formula._models.clip_(replay)
    for step in result.steps:
        assert step.before == last
        for change in step.changes:
            if refit:
                continue  # the others moved, too
            weights = replay.get_parameter(change.parameter)
            assert weights[change.index].item() == change.before
            if not change.accepted:
                continue
            with torch.no_grad():
                weights[change.index] = change.after
            assert change.error == pytest.approx(error(replay, x, y), rel=1e-9)
        last = step.accepted[-1].error if step.accepted else step.before
        assert step.after == last
        if tolerance is not None:
            assert step.after <= result.error + tolerance
        else:
            assert len(step.accepted) == len(step.changes)
    for name, parameter in given_model.named_parameters():
        assert torch.equal(parameter, model.get_parameter(name))  # the user's
        if not refit:
            assert torch.equal(replay.get_parameter(name), result.module.get_parameter(name))
    assert all(
        parameter.requires_grad and parameter.grad is None
        for parameter in result.module.parameters()
    )


def test_cost_of_one_change_alone():
    model, x, y = noisy(seed=2)
    step = simplify(model, x, y, steps=("round",), tolerance=None).steps[0]
    assert len(step.changes) > 5
    for change in step.changes:
        changed = copy.deepcopy(model)
        formula._models.clip_(changed)
        with torch.no_grad():
            changed.get_parameter(change.parameter)[change.index] = change.after
        assert change.alone == pytest.approx(error(changed, x, y), rel=1e-9)
    single_costs = [change.alone for change in step.changes]
    assert single_costs == sorted(single_costs)  # the cheapest first


def test_a_refit_makes_room_for_more():
    model, x, y = noisy(seed=3, noise=5e-2)
    plain = simplify(model, x, y, tolerance=1e-2, max_denominator=2)
    refitted = simplify(model, x, y, tolerance=1e-2, max_denominator=2, refit=20)
    assert refitted.steps[-1].after < plain.steps[-1].after
    assert sum(len(step.accepted) for step in refitted.steps if step.name != "unused") >= 12
    for step in refitted.steps:  # what was made simple is simple at the end
        for change in step.accepted:
            assert (
                refitted.module.get_parameter(change.parameter)[change.index].item() == change.after
            )


def test_a_gate_may_go_to_its_farther_end():
    layer = RealNPU(1, 1, dtype=torch.float64)
    with torch.no_grad():
        layer.weight_re.fill_(2.0)
        layer.gate.fill_(0.4)
    x = data(width=1).abs() + 1
    assert simplify(layer, x, x**2, tolerance=None).module.gate.item() == 0.0  # the nearer one
    assert simplify(layer, x, x**2, tolerance=0.0).module.gate.item() == 1.0


def test_simplest_fraction_that_the_tolerance_allows():
    layer = RealNPU(1, 1, dtype=torch.float64)
    with torch.no_grad():
        layer.weight_re.fill_(0.61)
        layer.gate.fill_(1.0)
    x = data(width=1).abs()
    fractions = [
        simplify(layer, x, steps=("round",), max_denominator=5, tolerance=t).module.weight_re.item()
        for t in (0.0, 0.01, 0.1, 10.0)
    ]
    assert fractions == [0.61, 0.6, 0.5, 1.0]


def sum_of(*weights: float) -> tuple[NAU, formula._simplify.Score]:
    """A sum with these weights, and a score: how far they have moved in all."""
    layer = NAU(len(weights), 1, dtype=torch.float64)
    layer.weight.data = torch.tensor([weights], dtype=torch.float64)
    return layer, lambda model: (model.weight - layer.weight).abs().sum()


def test_no_change_takes_anothers_share_of_the_tolerance():
    layer, score = sum_of(0.34, 0.34)
    result = simplify(layer, loss=score, steps=("round",), max_denominator=3, tolerance=0.4)
    assert result.module.weight.tolist() == [[0.5, 0.5]]  # 0 and 1/3 would be within it, too


def test_a_refit_that_makes_it_worse_is_undone():
    def worse(module, fixed):
        module.weight.data[~fixed["weight"]] += 0.25

    layer, score = sum_of(0.34, 0.52)
    result = simplify(layer, loss=score, steps=("round",), max_denominator=3, refit=worse)
    assert result.module.weight.tolist() == [[1 / 3, 0.5]]


def test_a_refit_leaves_what_is_simple_and_moves_what_was_refused():
    fixed = []
    layer, score = sum_of(0.5, 0.34, 0.3)
    options = {"steps": ("round",), "max_denominator": 2, "tolerance": 0.0}
    simplify(
        layer,
        loss=score,
        refit=lambda module, held: fixed.append(held["weight"][0].tolist()),
        **options,
    )
    assert sorted({tuple(held) for held in fixed}) == [(True, False, True), (True, True, False)]


def test_a_score_of_ones_own_and_a_refit_of_ones_own():
    model, x, y = noisy(seed=4)
    seen = []

    def score(module: nn.Module) -> float:
        assert not torch.is_grad_enabled()
        value = error(module, x, y)
        seen.append(value)
        return value

    calls = []
    result = simplify(
        model, loss=score, steps=("prune",), refit=lambda module, fixed: calls.append(fixed)
    )
    assert result.error == seen[0]
    assert len(calls) == sum(len(step.changes) for step in result.steps if step.name == "prune")
    assert set(calls[0]) == {"0.weight_re", "0.gate", "1.weight"}
    nothing = simplify(model, loss=lambda module: math.nan, tolerance=1.0)
    assert nothing.error == math.inf


def test_a_batch_of_models_and_the_models_own_output():
    models = nn.Sequential(RealNPU(3, 4, num_models=5), NAU(4, 1, num_models=5))
    x = data().float()
    result = simplify(models, x, model_index=2, tolerance=0.05)
    assert result.error == pytest.approx(0, abs=1e-6)
    assert result.module[0].num_models is None
    assert error(result.module, x, models(x)[2].detach()) <= 0.05 + 1e-6


def unused(model: nn.Module, x: Tensor) -> tuple[nn.Module, set[tuple[str, tuple[int, ...]]]]:
    """The model without the entries on which no output depends, and these."""
    result = simplify(model, x, steps=("prune",), threshold=1e-300, tolerance=None)
    changes = [change for step in result.steps if step.name == "unused" for change in step.changes]
    return result.module, {(change.parameter, change.index) for change in changes}


@settings(max_examples=60)
@given(st.lists(st.sampled_from(UNITS), min_size=1, max_size=3), st.integers(0, 2**31))
def test_what_has_no_effect_has_none(units, seed):
    generator = torch.Generator().manual_seed(seed)
    sizes = [3, *torch.randint(1, 4, (len(units),), generator=generator).tolist()]
    layers = [
        u(a, b, dtype=torch.float64) for u, a, b in zip(units, sizes, sizes[1:], strict=False)
    ]
    model = nn.Sequential(*layers)
    for parameter in model.parameters():  # sparse
        sparse = torch.rand(parameter.shape, generator=generator) < 0.5
        parameter.data.copy_(
            torch.rand(parameter.shape, generator=generator).masked_fill(sparse, 0)
        )
    x = data(20, 3, seed % 1000)
    before = model(x).detach()
    model, dead = unused(model, x)
    with torch.no_grad():
        torch.testing.assert_close(model(x), before, rtol=1e-9, atol=1e-9)  # 0, together
        for name, index in dead:  # and anything, alone
            model.get_parameter(name)[index] = torch.rand(
                (), generator=generator, dtype=torch.float64
            )
            torch.testing.assert_close(model(x), before, rtol=1e-9, atol=1e-9)
            model.get_parameter(name)[index] = 0.0


def test_rows_behind_a_closed_gate_have_no_effect():
    model = nn.Sequential(NAU(2, 3, dtype=torch.float64), RealNPU(3, 1, dtype=torch.float64))
    with torch.no_grad():
        model[0].weight.fill_(0.5)
        model[1].weight_re.fill_(1.0)
        model[1].gate.copy_(torch.tensor([1.0, 0.0, 1.0]))
        model[1].weight_re[0, 2] = 0.0  # whose gate has none either
    without_effect_on_y = {("1.weight_re", (0, 1)), ("1.gate", (2,))}
    without_effect_on_y |= {("0.weight", (row, column)) for row in (1, 2) for column in (0, 1)}
    assert unused(model, data(width=2))[1] == without_effect_on_y


def test_unused_parts_are_taken_out_and_counted():
    model = nn.Sequential(RealNPU(2, 3, dtype=torch.float64), NAU(3, 1, dtype=torch.float64))
    with torch.no_grad():
        model[0].gate.copy_(torch.tensor([1.0, 0.0]))
        model[0].weight_re.fill_(1.0)
        model[1].weight.copy_(torch.tensor([[1.0, 1e-4, 0.5]]))
    result = simplify(model, data(width=2), steps=("prune",))
    prune, unused = result.steps
    assert [change.parameter for change in prune.changes] == ["1.weight"]
    assert {(change.parameter, change.index) for change in unused.changes} == {
        ("0.weight_re", (1, 0)), ("0.weight_re", (0, 1)), ("0.weight_re", (1, 1)), ("0.weight_re", (2, 1)),
    }  # fmt: skip
    assert unused.after == unused.before > 0
    assert unused.n_parameters == 5


def test_table_and_details():
    model, x, y = noisy()
    result = simplify(model, x, y, tolerance=None)
    lines = str(result).splitlines()
    assert lines[0].split() == [
        "step",
        "parameters",
        "changed",
        "rejected",
        "error",
        "cost",
        "largest",
    ]
    assert lines[1].split() == ["given", "17", f"{result.error:.3e}"]
    for line, step in zip(lines[2:], result.steps, strict=True):
        cells = line.split()
        assert cells[:4] == [step.name, str(step.n_parameters), str(len(step.changes)), "0"]
        assert cells[4] == f"{step.after:.3e}"
    assert len(result.details().splitlines()) == sum(1 + len(step.changes) for step in result.steps)
    assert "1.weight[1, 1]" in result.details()


def test_a_measured_constant_becomes_no_fraction():
    x, constants = data(400).abs() + 0.5, [3.707, -12.5, 1e-4]
    equation = nn.Sequential(
        RealNPU(3, 3, dtype=torch.float64), NAU(3, 1, clip=False, dtype=torch.float64)
    )
    with torch.no_grad():
        equation[0].gate.fill_(1.0)
        equation[0].weight_re.copy_(torch.tensor([[2.0, -1, 0], [0, 0, 1], [1, 0, 0]]))
        equation[1].weight.copy_(torch.tensor([constants], dtype=torch.float64))
        y = equation(x)
    module = simplify(equation, x, y, threshold=math.inf).module
    assert module[1].weight.tolist() == [constants]
    noise = (
        0.05
        * y.square().mean().sqrt()
        * torch.randn(y.shape, generator=torch.Generator().manual_seed(0)).double()
    )
    with torch.no_grad():
        equation[0].weight_re.add_(1e-3)
    refitted = simplify(equation, x, y + noise, threshold=math.inf, refit=5).module
    assert refitted[1].weight[0, 2] == 0
    assert refitted[0].weight_re[:2].tolist() == [[2, -1, 0], [0, 0, 1]]
    constant = refitted[1].weight[0, 0].item()
    assert constant == pytest.approx(3.707, rel=0.02)
    assert constant not in (3.5, 3.75, 11 / 3, 4.0)  # no fraction of a measured constant


def test_a_constant_that_is_exactly_a_fraction_becomes_one():
    layer = NAU(2, 1, clip=False, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[2.5 + 1e-13, -0.25]]))
    x = data(50, 2)
    assert simplify(layer, x, 2.5 * x[:, :1] - 0.25 * x[:, 1:]).module.weight.tolist() == [
        [2.5, -0.25]
    ]
