"""Equations with coefficients of each group's own and the exponents of all: `groups` of `fit`."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

import sklearn
from sklearn.base import clone
from sklearn.model_selection import cross_val_score

from npu_kernels.equations import EquationWarning, NPURegressor
from tests.support.compare import report_of
from tests.support.equations import RNG

LABELS = np.array(["ash", "elm", "fir", "oak"])


def model(**options):
    return NPURegressor(random_state=0, **options)


def table(seed: int, rows: int = 240, groups: int = 4):
    """Inputs, and the index of each row's group."""
    draw = RNG(seed)
    return draw, draw.uniform(0.5, 3, (rows, 3)), draw.integers(groups, size=rows)


def two_terms(seed: int, error: float = 0.0, groups: int = 4):
    draw, X, index = table(seed, groups=groups)
    c = draw.uniform(0.5, 3, (2, groups)) * draw.choice([-1, 1], (2, groups))
    y = c[0, index] * X[:, 0] * np.sqrt(X[:, 1]) / X[:, 2] + c[1, index] * X[:, 1] ** 2
    y += error * np.sqrt(np.mean(y**2)) * draw.standard_normal(len(y))
    return X, y, index, c


def exponents_of(equation) -> list[tuple[float, ...]]:
    return sorted(map(tuple, (equation.exponents.round(9) + 0.0).tolist()))


# ---- the equation -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [2, 3])  # without noise, and with it
def test_one_group_is_no_group(seed):
    X, y, _, _ = two_terms(seed, 0.01 * (seed > 2), groups=1)
    plain, grouped = model().fit(X, y), model().fit(X, y, groups=["site"] * len(y))
    best, equation = plain.best_equation_, grouped.best_equation_.for_group("site")
    assert best.text() == equation.text()
    assert grouped.best_equation_.labels == ("site",)
    np.testing.assert_allclose(best.coef, equation.coef, rtol=1e-9)
    if not best.exact:
        np.testing.assert_allclose(best.coef_stderr, equation.coef_stderr, rtol=1e-6)
        assert best.bic == pytest.approx(equation.bic, abs=1e-6)
        assert best.holdout_nrmse == pytest.approx(equation.holdout_nrmse, rel=1e-6)


def test_the_order_of_the_rows_does_not_matter():
    X, y, index, _ = two_terms(1, 0.01)
    order = RNG(0).permutation(len(y))
    first = model().fit(X, y, groups=LABELS[index])
    second = model().fit(X[order], y[order], groups=LABELS[index][order])
    np.testing.assert_array_equal(first.coef_, second.coef_)


def test_few_rows_and_many_of_a_group():
    draw, X, _ = table(3, 3000)
    index = np.append(np.repeat([1, 2], 6), np.zeros(2988, dtype=int))
    c = np.array([2.0, -3, 0.5])
    y = c[index] * X[:, 0] ** 2 / X[:, 1] + 0.01 * draw.standard_normal(3000)
    best = model().fit(X, y, groups=index).best_equation_
    assert exponents_of(best) == [(2, -1, 0)]
    np.testing.assert_allclose(best.coef[:, 0], c, rtol=0.02)
    size = (X[:, 0] ** 2 / X[:, 1]) ** 2
    errors = 0.01 / np.sqrt([size[index == g].sum() for g in range(3)])
    np.testing.assert_allclose(best.coef_stderr[:, 0], errors, rtol=0.1)


def test_errors_of_one_group_are_larger():
    draw, X, index = table(5, 120, 3)
    for sizes in ([0.02, 0.02, 0.6], [0.3, 0.3, 0.3]):
        errors = np.array(sizes)[index] * draw.standard_normal(120)
        y = np.array([2.0, 3, 5])[index] * X[:, 0] ** 2 + errors
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fitted = model(max_terms=1, target_powers=(1,)).fit(X[:, :1], y, groups=LABELS[index])
        said = [note for note in fitted.equations_.notes if "as large in group fir" in note]
        assert len(said) == (sizes[0] < sizes[2])


def test_equal_rows_of_several_groups():
    """Rows count as equal only within a group; a weight of 0 leaves a row out."""
    X = np.repeat(RNG(0).uniform(0.5, 3, (40, 2)), 2, 0)
    index = np.arange(80) % 2
    y = np.array([2.0, 2.0])[index] * X[:, 0] / X[:, 1]
    X, y, index = np.vstack([X, X[:1]]), np.append(y, 99.0), np.append(index, 1)
    weight = np.append(np.ones(80), 0.0)
    fitted = model().fit(X, y, weight, groups=index)
    np.testing.assert_allclose(fitted.coef_, [[2], [2]])


@pytest.mark.filterwarnings("ignore:NPURegressor. constant columns .in each group.")
def test_a_column_that_tells_the_group():
    draw, X, index = table(4)
    X[:, 2] = np.array([1.0, 2, 3, 4])[index]
    y = np.array([1.0, 2, -3, 4])[index] * X[:, 0] ** 2 + 0.02 * draw.standard_normal(240)
    best = model().fit(X, y, groups=index).best_equation_
    assert exponents_of(best) == [(2, 0, 0)]
    with pytest.warns(EquationWarning, match=r"constant columns \(in each group\).*: x2$"):
        model(max_terms=1, target_powers=(1,)).fit(X, y, groups=index)


def test_a_row_of_great_leverage_is_not_wild():
    draw, X, index = table(204, 200, 12)
    y = POSITIVE[0, index % 4] * np.sqrt(X[:, 0]) + POSITIVE[1, index % 4] / X[:, 1] ** 2
    y += 0.03 * draw.standard_normal(200)
    fitted = model(noise="additive").fit(X, y, groups=index)
    assert fitted.equations_.outliers == ()
    assert exponents_of(fitted.best_equation_) == [(0, -2, 0), (0.5, 0, 0)]


def test_a_group_keeps_its_rows():
    """Rows that are held out or seem wild leave each group more rows than terms."""
    draw, X, _ = table(6, 60)
    index = np.append(np.zeros(50, dtype=int), np.repeat([1, 2], 5))
    y = np.array([1.0, 2, 3])[index] * X[:, 0] + 0.01 * draw.standard_normal(60)
    y[55] += 30
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = model(max_terms=4, noise="additive").fit(X, y, groups=index)
    assert fitted.best_equation_.n_held_out == 10
    assert fitted.equations_.outliers == ()


# ---- other arguments -----------------------------------------------------------------------------


def check_forms(fitted, X, groups, **options):
    """Prediction, sympy and torch module agree, for each group."""
    sympy = pytest.importorskip("sympy", reason="sympy is not installed")
    predicted = fitted.predict(X, groups=groups)
    for label in fitted.best_equation_.labels:
        rows, equation = groups == label, fitted.best_equation_.for_group(label)
        symbols = sympy.symbols(equation.functions.inputs)
        free = {str(s): s for s in fitted.sympy(group=label).free_symbols}
        write = sympy.lambdify(
            [free.get(str(s), s) for s in symbols], fitted.sympy(group=label), "numpy"
        )
        values = np.broadcast_to(write(*X[rows].T), rows.sum())
        np.testing.assert_allclose(values, predicted[rows], rtol=1e-9, atol=1e-9)
        values = fitted.torch_module(group=label)(torch.from_numpy(X[rows])).detach().numpy()
        np.testing.assert_allclose(values[:, 0], predicted[rows], rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(equation.predict(X[rows]), predicted[rows])


def combined(c, X, index):
    return c[0][index] * X[:, 0] ** 2 + c[1][index] * X[:, 1]


POSITIVE = np.array([[1.0, 2, 3, 4], [2.0, 1, 0.5, 3]])


@pytest.mark.filterwarnings("ignore:NPURegressor. The residuals are .* as large as noise")
@pytest.mark.parametrize(
    ("options", "equation", "text"),
    [
        ({}, lambda X, s: np.sqrt(s), "y = (c1[group]*x0**2 + c2[group]*x1)**(1/2)"),
        ({}, lambda X, s: 1 / s, "y = (c1[group]*x0**2 + c2[group]*x1)**(-1)"),
        ({"noise": "proportional"}, lambda X, s: s, "y = c1[group]*x0**2 + c2[group]*x1"),
        ({"noise": 0.05}, lambda X, s: s, "y = c1[group]*x0**2 + c2[group]*x1"),
        ({"loss": "huber"}, lambda X, s: s, "y = c1[group]*x0**2 + c2[group]*x1"),
        (
            {"target_transforms": ("log",)},
            lambda X, s: np.exp(s / 5),
            "y = exp(c1[group]*x0**2 + c2[group]*x1)",
        ),
        (
            {"known_part": "x0*x2"},
            lambda X, s: s + X[:, 0] * X[:, 2],
            "y = x0*x2 + c1[group]*x0**2 + c2[group]*x1",
        ),
        (
            {"required_terms": ["x1"], "signs": "nonnegative"},
            lambda X, s: s,
            "y = c1[group]*x1 + c2[group]*x0**2",
        ),
        ({"integer_exponents": True}, lambda X, s: s, "y = c1[group]*x0**2 + c2[group]*x1"),
    ],
    ids=["root", "reciprocal", "relative", "known", "huber", "log", "part", "terms", "whole"],
)
def test_forms(options, equation, text):
    draw, X, index = table(7)
    y = equation(X, combined(POSITIVE, X, index)) * (1 + 0.002 * draw.standard_normal(240))
    fitted = model(**options).fit(X, y, groups=LABELS[index])
    assert fitted.best_equation_.text() == text
    check_forms(fitted, X, LABELS[index])


def test_functions_and_errors_that_are_factors():
    draw, X, index = table(8)
    c = np.array([1.0, 2, 30, 4])
    y = c[index] * X[:, 0] ** 2 * np.exp(0.3 * X[:, 1] + 0.2 * draw.standard_normal(240))
    options = {"functions": {"x1": ["exp"]}, "target_powers": (1,), "max_terms": 1}
    fitted = model(noise="multiplicative", **options).fit(X, y, groups=LABELS[index])
    assert fitted.best_equation_.noise == "multiplicative"
    assert fitted.best_equation_.exponents[0, 0] == 2
    np.testing.assert_allclose(fitted.best_equation_.coef[:, 0], c, rtol=0.25)
    check_forms(fitted, X, LABELS[index])


def test_zeros_and_both_signs():
    draw, X, index = table(9)
    X = np.where(draw.random(X.shape) < 0.1, 0.0, draw.normal(size=X.shape))
    y = POSITIVE[0, index] * X[:, 0] * X[:, 1] - POSITIVE[1, index] * X[:, 2] ** 2
    fitted = model().fit(X, y, groups=LABELS[index])
    assert exponents_of(fitted.best_equation_) == [(0, 0, 2), (1, 1, 0)]
    check_forms(fitted, X, LABELS[index])


def test_a_coefficient_is_at_its_bound_in_one_group():
    draw, X, index = table(10)
    c = np.array([[1.0, 2, 0, 4], [3.0, 2, 1, 0.5]])
    y = combined(c, X, index) + 0.05 * draw.standard_normal(240)
    best = model(signs="nonnegative").fit(X, y, groups=index).best_equation_
    assert exponents_of(best) == [(0, 1, 0), (2, 0, 0)]
    column = best.coef[:, best.exponents[:, 0] == 2][:, 0]
    assert (best.coef >= 0).all()
    assert column == pytest.approx(c[0], abs=0.02)


def test_units_and_the_name_of_a_column():
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    pytest.importorskip("pint", reason="pint is not installed")
    draw, X, index = table(11)
    rows = pandas.DataFrame(X, columns=["v", "t", "s"]).assign(site=LABELS[index])
    y = POSITIVE[0, index] * rows.v * rows.t + POSITIVE[1, index] * rows.s
    y += 0.02 * draw.standard_normal(240)
    fitted = model(X_units={"v": "m/s", "t": "s", "s": "m"}, y_units="m")
    fitted.fit(rows, y, groups="site")
    assert fitted.best_equation_.names == ("v", "t", "s")
    assert fitted.n_features_in_ == 3
    np.testing.assert_array_equal(fitted.predict(rows), fitted.predict(rows, groups="site"))
    other = rows.drop(columns="site")
    np.testing.assert_array_equal(fitted.predict(rows), fitted.predict(other, groups=rows.site))
    assert fitted.score(rows, y) > 0.99
    assert "4 groups: coefficients" in report_of(fitted)
    assert "coefficient c1[ash] = " in report_of(fitted)
    assert r"{c_{1}}_{\mathrm{group}}" in fitted.latex()
    fitted.plot(rows, y)


def test_several_outputs_processes_and_copies():
    _, X, index = table(12)
    Y = np.column_stack([POSITIVE[0, index] * X[:, 0], POSITIVE[1, index] / X[:, 1]])
    fitted = model(n_jobs=2).fit(X, Y, groups=index)
    repeated = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_allclose(repeated.predict(X, groups=index), Y)
    assert [coef.shape for coef in fitted.coef_] == [(4, 1), (4, 1)]
    assert not hasattr(clone(fitted), "best_equation_")


def test_intervals_and_drawn_rows():
    draw, X, index = table(13)
    y = POSITIVE[0, index] * X[:, 0] ** 1.137 * X[:, 1] + POSITIVE[1, index]
    y += 0.01 * draw.standard_normal(240)
    fitted = model().fit(X, y, groups=LABELS[index])
    names = [interval.name for interval in fitted.confidence_intervals()]
    exponent = next(
        interval for interval in fitted.confidence_intervals() if "exponent" in interval.name
    )
    assert exponent.low < 1.137 < exponent.high
    assert names[:4] == [f"coefficient c1[{label}]" for label in LABELS]
    assert len(names) == 9
    drawn = fitted.bootstrap(X, y, n_resamples=60, groups=LABELS[index])
    assert [interval.name for interval in drawn] == names
    for first, second in zip(fitted.confidence_intervals(), drawn, strict=True):
        assert first.value == second.value
        assert 0.6 < second.stderr / first.stderr < 1.6


@pytest.mark.filterwarnings("ignore:NPURegressor. Errors are .* as large where x1 is small")
@pytest.mark.filterwarnings("ignore:NPURegressor. Errors are .* as large in group c")
def test_refit_to_other_groups():
    X, y, index, c = two_terms(14, 0.01)
    fitted = model().fit(X, y, groups=LABELS[index])
    for scale, options in ((1.0, {}), (1e6, {"sample_weight": np.ones(100)})):
        X, y, index, c = two_terms(15, 0.001, groups=3)
        names = np.array(["a", "b", "c"])[index]
        other = fitted.refit(X[:100], scale * y[:100], groups=names[:100], **options)
        assert other.best_equation_.labels == ("a", "b", "c")
        assert exponents_of(other.best_equation_) == exponents_of(fitted.best_equation_)
        first = int(np.flatnonzero(other.best_equation_.exponents[:, 1] == 2)[0])
        np.testing.assert_allclose(other.best_equation_.coef[:, first], scale * c[1], rtol=0.05)
        other.predict(X, groups=names)
    relative = model(noise="proportional", max_terms=2).fit(X, y, groups=names)
    repeated = relative.refit(X, y, groups=names)
    np.testing.assert_allclose(
        repeated.best_equation_.coef, relative.best_equation_.coef, rtol=1e-3
    )


def test_a_refit_may_name_the_column_of_its_labels():
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    X, y, index, _ = two_terms(19, 0.01)
    rows = pandas.DataFrame(X, columns=["a", "b", "c"])
    fitted = model(max_terms=2).fit(rows, y, groups=LABELS[index])
    other = rows.assign(tree=LABELS[index])
    renewed = fitted.refit(other, y, groups="tree")
    predicted = renewed.predict(rows, groups=LABELS[index])
    np.testing.assert_array_equal(renewed.predict(other), predicted)
    assert renewed.refit(other, y).score(other, y) > 0.99


def test_metadata_routing():
    X, y, index, _ = two_terms(17)
    with sklearn.config_context(enable_metadata_routing=True):
        router = model(max_terms=2).set_fit_request(groups=True).set_score_request(groups=True)
        scores = cross_val_score(router, X, y, params={"groups": index}, cv=2)
    assert scores.min() > 0.999


# ---- bad input -----------------------------------------------------------------------------------


def test_labels_of_a_list_stay_what_they_are():
    """NumPy would make one number of both."""
    _, X, index = table(0, rows=40, groups=2)
    of_numbers, of_numpy = [2**53 + 1, 2.0**53], [np.int64(3), 4]
    for labels in (of_numbers, of_numpy):
        chosen = [labels[k] for k in index]
        fitted = model(max_terms=1).fit(X, X[:, 0] * (1 + index), groups=chosen)
        assert fitted.best_equation_.labels == tuple(sorted(labels))
        assert {type(label) for label in fitted.best_equation_.labels} <= {int, float}
        np.testing.assert_allclose(fitted.predict(X, chosen), X[:, 0] * (1 + index))


def test_labels_of_a_tensor(monkeypatch):
    """Tensors may have a gradient, or be on a device from which they are copied."""
    copied, plain = [], torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda t: copied.append(1) or plain(t))
    _, X, index = table(0, 60, 2)
    fitted = model(max_terms=1, n_init=4)
    for labels, expected in (
        (torch.tensor([2.5, 1.0]), "(1.0, 2.5)"),
        (torch.tensor([3, 4]), "(3, 4)"),
    ):
        labels = labels[torch.from_numpy(index)].requires_grad_(labels.is_floating_point())
        y = labels.detach().numpy() * X[:, 0]
        fitted.fit(X, y, groups=labels)
        assert str(fitted.best_equation_.labels) == expected
        assert len(copied) >= 1
        copied.clear()
        np.testing.assert_allclose(fitted.predict(X, groups=labels), y)


def test_rows_of_weight_0_are_as_if_absent():
    """Their labels may be of no group, missing, or of another type."""
    draw, X, index = table(0, rows=60, groups=2)
    y = X[:, 0] * (1 + index) + 0.01 * draw.standard_normal(60)
    labels, weight = np.array(["u", "v"], dtype=object)[index], np.ones(60)
    labels[:3], weight[:3] = ["w", None, 1], 0
    y[:3] = 1e3
    options = {"max_terms": 2, "loss": "squared"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted = model(**options).fit(X, y, weight, groups=labels)
    expected = model(**options).fit(X[3:], y[3:], groups=labels[3:])
    assert fitted.best_equation_.labels == ("u", "v")
    assert fitted.best_equation_.text() == expected.best_equation_.text()
    np.testing.assert_array_equal(fitted.best_equation_.coef, expected.best_equation_.coef)
    drawn = fitted.bootstrap(X, y, 10, sample_weight=weight, groups=labels)
    assert drawn == expected.bootstrap(X[3:], y[3:], 10, groups=labels[3:])
    refitted = fitted.refit(X, y, weight, groups=labels).best_equation_
    np.testing.assert_allclose(refitted.coef, expected.best_equation_.coef, rtol=1e-6)


def test_warnings_do_not_count_rows_of_weight_0():
    _, X, _ = table(0, rows=60)
    weight = np.where(np.arange(60) < 30, 1, 0)
    X[:30, 2] = 1
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model(max_terms=1).fit(X, X[:, 0], weight)
    messages = " ".join(str(warning.message) for warning in caught)
    assert "30 rows are too few" in messages
    assert "constant columns carry no information and are ignored: x2" in messages


def test_missing_labels_of_pandas():
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    X = RNG(0).uniform(1, 2, (40, 2))
    for kind in ("string", "Int64"):
        groups = pandas.array([1] * 39 + [pandas.NA]).astype(kind)
        with pytest.raises(ValueError, match="must have no missing label, got one in row 39"):
            model().fit(X, X[:, 0], groups=groups)


def test_torch_code_is_that_of_one_group():
    pytest.importorskip("sympy")
    _, X, index = table(20)
    fitted = model(max_terms=1, target_powers=(1,)).fit(X, (1 + index) * X[:, 0], groups=index)
    x = torch.from_numpy(X)
    with pytest.raises(
        ValueError, match=r"formula: the equation must be of one group, see for_group.label"
    ):
        fitted.best_equation_.formula()(x)
    of_second = fitted.best_equation_.for_group(1).formula()(x)
    torch.testing.assert_close(of_second[:, 0], 2 * x[:, 0])
