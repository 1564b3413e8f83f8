"""Ratios of sums: they are found without and with noise, where no sum is the equation, and mean the same
in every form; sums stay sums."""

import pickle
import warnings

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from benchmarks.equations.known_equations import drawn_ratio
from npu_kernels.equations import EquationWarning, NPURegressor
from tests.support.equations import RNG, check, few_rows, noise, standard_errors, uniform

V, K = 2.0, 0.5  # of an enzyme


def doses(rows: int = 300, zeros: int = 0, seed: int = 0) -> np.ndarray:
    X = 10 ** RNG(seed).uniform(-1.3, 1.3, (rows, 1))
    X[:zeros] = 0
    return X


def noisy(y, share=0.01, seed=1):
    return y + share * np.sqrt(np.mean(y**2)) * noise(len(y), seed)


def pade(X):
    return (1 + 2 * X[:, 0]) / (3 + X[:, 0] ** 2)


def written(equation):
    """The exponents above and below, without a factor of both."""
    above, below = np.split(equation.exponents, [equation.n_terms - equation.n_denominator_terms])
    below = np.vstack([np.zeros(above.shape[1]), below])
    lowest = np.vstack([above, below]).min(0)
    return [sorted((part - lowest).round(9).tolist()) for part in (above, below)]


def velocities(X):
    return (X[:, 0] + X[:, 1]) / (1 + X[:, 0] * X[:, 1])


def resistors(X):
    return X[:, 0] + X[:, 1] * X[:, 2] / (X[:, 1] + X[:, 2])


def doppler(X):
    return X[:, 0] * np.sqrt((1 - X[:, 1]) / (1 + X[:, 1]))


def centre(X):
    return (X[:, 0] * X[:, 1] + X[:, 2] * X[:, 3]) / (X[:, 0] + X[:, 2])


def gas(X):
    return 8.314 * X[:, 0] / (X[:, 1] - 0.2) - 0.4 / X[:, 1] ** 2


EQUATIONS = {
    "pade": (pade, uniform(1, low=0.1, high=5)),
    "velocities": (velocities, uniform(2, low=-0.9, high=0.9)),
    "resistors": (resistors, 10 ** uniform(3, low=1, high=2)),
    "doppler": (doppler, uniform(2, low=0.05, high=0.9)),
    "centre of mass": (centre, uniform(4)),
    "van der Waals": (gas, uniform(2)),
}


@pytest.mark.parametrize("name", EQUATIONS)
def test_a_ratio_without_noise_is_found_exactly(name):
    equation, X = EQUATIONS[name]
    best = NPURegressor(random_state=0).fit(X, equation(X)).best_equation_
    assert best.exact
    assert best.n_denominator_terms == 1
    assert not best.free.any()
    other = RNG(5).permutation(X.ravel()).reshape(X.shape)[:20]
    if name in ("doppler", "van der Waals"):
        other = X[:20] * 1.05
    np.testing.assert_allclose(best.predict(other), equation(other), rtol=1e-9, atol=1e-9)


def test_ratios_of_functions():
    """A relative humidity's form, with a sine below and an exponential above."""
    X = np.column_stack([uniform(1)[:, 0], RNG(1).uniform(0, 3, 300)])
    y = 2 * X[:, 0] / (1 + 0.5 * np.sin(X[:, 1]))
    functions = {"x1": ["sin", "cos"]}
    model = NPURegressor(functions=functions, ratios=True, random_state=0).fit(X, noisy(y))
    best = model.best_equation_
    assert "sin(x1)" in str(best)
    assert "cos(x1)" not in str(best)
    np.testing.assert_allclose(model.predict(X), y, atol=0.02 * np.abs(y).max())
    module = model.torch_module()(torch.from_numpy(X)).detach().numpy()[:, 0]
    np.testing.assert_allclose(module, model.predict(X), rtol=1e-9)


@pytest.mark.parametrize("name", ["pade", "velocities", "centre of mass"])
def test_a_ratio_is_found_at_one_per_cent(name):
    equation, X = EQUATIONS[name]
    exact = NPURegressor(random_state=0).fit(X, equation(X)).best_equation_
    model = NPURegressor(random_state=0).fit(X, noisy(equation(X)))
    best = model.best_equation_
    assert model.equations_.noise == "additive"
    assert best.n_denominator_terms == exact.n_denominator_terms
    assert best.n_terms == exact.n_terms
    assert written(best) == written(exact)
    errors = best.predict(X) - equation(X)
    assert np.mean(errors**2) < 0.003**2 * np.mean(equation(X) ** 2)


def test_zeros_of_a_saturating_equation():
    """A dose of 0 has the effect 0, though the exponent, which is free, stands below only."""
    X = doses(zeros=30)
    y = V * X[:, 0] ** 2.3 / (K + X[:, 0] ** 2.3)
    model = NPURegressor(random_state=0).fit(X, noisy(y))
    best = model.best_equation_
    assert best.n_denominator_terms == best.n_terms - 1 == 1
    assert best.exponents[1, 0] == pytest.approx(-2.3, abs=0.05)
    zero = np.zeros((1, 1))
    assert model.predict(zero)[0] == 0
    assert model.torch_module()(torch.from_numpy(zero)).item() == 0
    assert best.nrmse * y.std() == pytest.approx(0.01 * np.sqrt(np.mean(y**2)), rel=0.2)
    name = "exponent of x0 in term 2 less that in the denominator's first term"
    assert model.confidence_intervals()[-1].name == name


def test_every_form_of_a_ratio_is_the_same_function():
    sympy = pytest.importorskip("sympy")
    for name in ("resistors", "doppler", "van der Waals"):
        equation, X = EQUATIONS[name]
        model = NPURegressor(random_state=0).fit(X, equation(X))
        best, expected = model.best_equation_, equation(X)
        symbols = sympy.symbols([f"x{i}" for i in range(X.shape[1])])
        names = {str(s): x for s, x in zip(symbols, X.T, strict=True)}
        formula = best.formula()
        values = [
            best.predict(X),
            eval(best.text(17).partition(" = ")[2], {}, names),
            sympy.lambdify(formula.symbols, model.sympy())(*X.T),
            model.torch_module()(torch.from_numpy(X)).detach().numpy()[:, 0],
            pickle.loads(pickle.dumps(model)).predict(X),
        ]
        for value in values:
            np.testing.assert_allclose(value, expected, rtol=1e-9)
        assert r"\frac" in model.latex()


def test_how_a_ratio_is_written():
    X = uniform(2)
    y = (5 * X[:, 0] - X[:, 1]) / (1 + X[:, 0] * X[:, 1])
    model = NPURegressor(random_state=0).fit(X, y)
    assert str(model.best_equation_) == "y = (5*x0 - x1)/(1 + x0*x1)"
    y = 3 * X[:, 0] ** 2 / (X[:, 0] ** 2 + 2)
    model = NPURegressor(random_state=0, target_powers=(1,)).fit(X, y)
    assert str(model.best_equation_) == "y = 3*x0**2/(x0**2 + 2)"


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("kind", ["additive", "multiplicative"])
def test_standard_errors_of_a_ratio(power, kind):
    X = uniform(2, 60)
    X[:5, 1] = 0
    y = (2 * X[:, 0] / (1 + 0.3 * X[:, 0] + X[:, 1])) ** (1 / power)
    y = y * np.exp(0.02 * noise(60)) if kind == "multiplicative" else y + 0.005 * noise(60)
    options = {"max_terms": 3, "n_init": 8, "exponents": "real", "loss": "squared"}
    model = NPURegressor(random_state=0, ratios=True, target_powers=(power,), noise=kind, **options)
    best = model.fit(X, y).best_equation_
    assert (best.n_terms, best.n_denominator_terms) == (3, 2)

    def equation(parameters):
        u = best.exponents.copy()
        u[best.free] = parameters[3:]
        products = (X[:, None] ** u).prod(2) * parameters[:3]
        values = (products[:, 0] / (1 + products[:, 1] + products[:, 2])) ** (1 / power)
        return np.log(values) if kind == "multiplicative" else values

    parameters = np.append(best.coef, best.exponents[best.free])
    expected = standard_errors(equation, parameters, np.log(y) if kind == "multiplicative" else y)
    errors = np.append(best.coef_stderr, best.exponents_stderr[best.free])
    np.testing.assert_allclose(errors, expected, rtol=1e-3)


def test_units_of_a_ratio():
    """Terms of the numerator have y's unit, those below none."""
    pytest.importorskip("pint")
    X = uniform(3, low=1, high=4)
    X[:, 2] += 5
    y = (X[:, 0] + X[:, 1]) / (1 + X[:, 0] * X[:, 1] / X[:, 2] ** 2)
    options = {"X_units": ["m/s"] * 3, "y_units": "m/s", "random_state": 0}
    best = NPURegressor(**options).fit(X, noisy(y, 1e-3)).best_equation_
    assert best.n_denominator_terms == 1
    assert best.exponents.sum(1).tolist() == [1, 1, 0]
    np.testing.assert_allclose(best.coef, 1, rtol=0.02)


def test_sums_stay_sums():
    """A search for ratios takes none where a sum is the equation."""
    for seed, noise_of_y in ((0, 0.01), (1, 0.1), (2, 0.0)):
        X = uniform(2, seed=seed)
        y = 3 * X[:, 0] ** 2 / X[:, 1] - 2 * X[:, 1]
        model = NPURegressor(random_state=0, ratios=True).fit(X, noisy(y, noise_of_y))
        assert model.best_equation_.n_denominator_terms == 0
        check(model, {(2, -1): 3, (0, 1): -2}, rel=0.1)


def test_the_reciprocal_of_a_sum_is_no_ratio():
    X = uniform(2)
    best = NPURegressor(random_state=0).fit(X, X[:, 0] * X[:, 1] / X.sum(1)).best_equation_
    assert str(best) == "y = (1/x1 + 1/x0)**(-1)"


def test_ratios_are_only_looked_for_where_no_sum_seems_an_equation(caplog):
    caplog.set_level("INFO", "npu_kernels.equations")
    X = uniform(2)
    y = noisy(3 * X[:, 0] ** 2 / X[:, 1] - 2 * X[:, 1])
    NPURegressor(random_state=0, target_powers=(1,), n_init=16).fit(X, y)
    assert "terms: criterion" in caplog.text
    X = EQUATIONS["pade"][1]
    model = NPURegressor(random_state=0, ratios=False, max_terms=2, target_powers=(1,))
    with pytest.warns(EquationWarning, match="nearly cancel|approximation only"):
        assert model.fit(X, pade(X)).best_equation_.n_denominator_terms == 0
    assert "ratios" not in caplog.text


def test_intervals_of_a_ratio():
    """Intervals of the linearised model and of resampled rows have the equation's constants."""
    X = EQUATIONS["pade"][1]
    y = noisy(pade(X))
    model = NPURegressor(random_state=0).fit(X, y)
    names = ["coefficient of x0", "constant", "coefficient of x0**2 in the denominator"]
    truth = dict(zip(names, (2 / 3, 1 / 3, 1 / 3), strict=True))
    for intervals in (
        model.confidence_intervals(0.999),
        model.bootstrap(X, y, n_resamples=40, level=0.99),
    ):
        assert sorted(interval.name for interval in intervals) == sorted(names)
        for interval in intervals:
            assert interval.low < truth[interval.name] < interval.high
            assert interval.high - interval.low < 0.05
    deviations = [interval.stderr for interval in model.confidence_intervals()]
    resampled = [interval.stderr for interval in model.bootstrap(X, y, n_resamples=100)]
    np.testing.assert_allclose(resampled, deviations, rtol=0.4)


@pytest.mark.parametrize("exponent", [-300, 200])
def test_sizes_do_not_matter_to_a_ratio(exponent):
    X = EQUATIONS["pade"][1]
    y = noisy(pade(X)) * 10.0**exponent
    model = NPURegressor(random_state=0).fit(X, y)
    assert model.best_equation_.n_denominator_terms == 1
    assert model.best_equation_.n_terms == 3
    values = model.torch_module()(torch.from_numpy(X)).detach().numpy()[:, 0]
    np.testing.assert_allclose(
        values / 10.0**exponent, model.predict(X) / 10.0**exponent, rtol=1e-9
    )


def test_errors_in_proportion_and_wild_rows_of_a_ratio():
    X = doses()
    y = (0.2 + 3 * X[:, 0] ** 2) / (1.7 + X[:, 0] ** 2) * (1 + 0.03 * noise())
    assert (model := NPURegressor(random_state=0).fit(X, y)).equations_.noise == "proportional"
    assert model.best_equation_.n_denominator_terms == 1
    assert model.best_equation_.n_terms == 3
    equation, X = EQUATIONS["velocities"]
    y = noisy(equation(X))
    y[[5, 77]] += 10
    with pytest.warns(EquationWarning, match="2 rows are far"):
        model = NPURegressor(random_state=0).fit(X, y)
    assert model.equations_.outliers == (5, 77)
    assert model.best_equation_.n_denominator_terms == 1


@pytest.mark.filterwarnings("ignore:NPURegressor")
@pytest.mark.parametrize("middle", [1.9, 2.05])
def test_a_pole_between_rows_is_refused(middle):
    """One divisor is positive everywhere, the other one negative between 0.8 and 1.25."""
    x = np.concatenate([uniform(1, 60, low=0.1, high=0.5), uniform(1, 60, low=2, high=4)])
    y = ((1 + 2 * x) / (1 - middle * x + x**2))[:, 0]
    options = {"n_init": 4, "ratios": True, "target_powers": (1,), "noise": "additive"}
    model = NPURegressor(random_state=0, **options).fit(x, y)
    assert model.best_equation_.exact == (middle < 2)
    grid = np.linspace(0.1, 4, 1000)[:, None]
    for equation in [*model.equations_, *model.equations_.alternatives]:
        below = slice(equation.n_terms - equation.n_denominator_terms, None)
        products = (grid[:, None] ** equation.exponents[below]).prod(2)
        assert (1 + products @ equation.coef[below] > 0).all()


def test_a_pole_within_the_ranges_of_the_inputs_is_said():
    X = uniform(2, low=1, high=5)
    X = X[X[:, 0] < X[:, 1] - 0.5]
    y = (X[:, 0] + 2 * X[:, 1] ** 2) / (X[:, 1] - X[:, 0])
    with pytest.warns(EquationWarning, match="The denominator is 0 for some inputs"):
        model = NPURegressor(random_state=0).fit(X, noisy(y, seed=2))
    assert model.best_equation_.n_denominator_terms == 1


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("middle", [1.9, 2.05])
def test_a_pole_between_rows_is_said(middle, power):
    """1 - 2.05 x + x**2 has the roots 0.80 and 1.25, and 1 - 1.9 x + x**2 has none."""
    x = np.concatenate([uniform(1, 60, low=0.1, high=0.5), uniform(1, 60, low=2, high=4)])
    y = noisy((1 - middle * x + x**2)[:, 0] ** (-1 / power), seed=4)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = NPURegressor(random_state=0).fit(x, y)
    assert model.best_equation_.target_power == -power
    messages = [str(warning.message) for warning in caught]
    assert any("The denominator is 0 for some inputs" in m for m in messages) == (middle > 2)


def test_a_reciprocal_of_both_signs_has_its_pole_in_the_rows():
    x = uniform(1, 120, low=0.1, high=2)
    y = 1 / (1 - x[:, 0])
    y += 0.01 * np.random.default_rng(3).standard_normal(120)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = NPURegressor(random_state=0).fit(x, y)
    assert model.predict([[1.5]])[0] == pytest.approx(-2, rel=0.02)


@few_rows
@pytest.mark.parametrize("rows", [8, 20])
def test_few_rows(rows):
    X = uniform(2, rows)
    model = NPURegressor(random_state=0, ratios=True).fit(X, noisy(velocities(X), 0.1))
    assert np.isfinite(model.predict(X)).all()


def test_exponents_of_ratios_obey_the_rules():
    X = EQUATIONS["pade"][1]
    y = noisy(pade(X), 1e-4)
    integers = NPURegressor(random_state=0, exponents="integer").fit(X, y).best_equation_
    assert integers.n_denominator_terms
    assert (integers.exponents % 1 == 0).all()
    real = NPURegressor(random_state=0, exponents="real", max_terms=2).fit(X, y).best_equation_
    assert real.n_denominator_terms
    assert (real.free == (real.exponents != 0)).all()


def test_no_ratio_without_an_input():
    X = np.column_stack([np.full(60, 2.0)])
    with pytest.warns(EquationWarning, match="constant columns"):
        model = NPURegressor(random_state=0, ratios=True).fit(X, 3 + 0.1 * noise(60))
    assert model.best_equation_.n_denominator_terms == 0


def test_an_exact_ratio_has_no_term_that_is_rounding():
    equation = drawn_ratio(1001)
    X = equation.draw(300, RNG([0, len(equation.name), *equation.name.encode()]))
    best = NPURegressor(random_state=0, target_powers=(1,)).fit(X, equation(X)).best_equation_
    assert best.exact
    assert best.n_terms == len(equation.terms) + len(equation.below) - 1


@pytest.mark.parametrize("seed", [0, 3])
def test_rounding_near_a_pole_decides_nothing(seed):
    generator = RNG(seed)
    x = generator.uniform(1, 2, 300)  # down to 3e-4 from the pole
    v, A = (10 ** generator.uniform(*ends, 300) for ends in ((2, 4), (-21, -19)))
    X, y = np.stack([x, v, A], 1), 1.380649e-23 / (x - 1) * v / A
    for share in (0.0, 1e-13):
        rounded = y * (1 + share * generator.standard_normal(300))
        best = NPURegressor(random_state=0).fit(X, rounded).best_equation_
        assert best.exact
        assert (best.target_power, best.n_terms, best.n_denominator_terms) == (-1, 2, 0)
