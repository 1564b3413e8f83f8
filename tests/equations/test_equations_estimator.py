"""`NPURegressor` as a scikit-learn estimator, and its answers to bad data and parameters."""

import os
import pickle
import warnings

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

import joblib
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import check_estimator

from npu_kernels.equations import EquationWarning, Interval, NPURegressor
from tests.support.compare import report_of
from tests.support.equations import (
    RNG,
    approximate,
    check,
    few_rows,
    fitted_to_noise,
    noise,
    terms,
    uniform,
)
from tests.support.moments import at_call, at_line, calls_of


@pytest.fixture(scope="module")
def noisy():
    return fitted_to_noise()


# ---- scikit-learn --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensors(dtype, monkeypatch):
    """Of any dtype, with a gradient, or on a device from which they are copied."""
    X = torch.from_numpy(uniform(2, 60)).to(dtype).requires_grad_()
    y, weight = 3 * X[:, 0].double() / X[:, 1].double(), torch.ones(60, dtype=dtype)
    copied, plain = [], torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda t: copied.append(t.shape) or plain(t))
    model = NPURegressor(random_state=0, max_terms=1, n_init=4, target_powers=(1,)).fit(
        X, y, weight
    )
    assert str(model.best_equation_) == "y = 3*x0/x1"
    assert model.predict(X) == pytest.approx(y.detach().numpy())
    assert model.score(X, y, weight) == pytest.approx(1)
    assert {(60, 2), (60,)} == set(map(tuple, copied))
    with pytest.raises(ValueError, match="Complex data not supported"):
        model.predict(torch.ones(3, 2, dtype=torch.complex64))


long = pytest.mark.skipif(
    "NPU_KERNELS_LONG" not in os.environ, reason="a minute and a half: NPU_KERNELS_LONG=1 runs it"
)


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(NPURegressor(1, (1,), n_init=4, noise="additive"), id="quick"),
        pytest.param(
            NPURegressor(1, (1,), n_init=4, functions=("sin",), ratios="auto", loss="squared"),
            id="other forms",
        ),
        pytest.param(NPURegressor(), id="default", marks=long),
    ],
)
def test_check_estimator(model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(model, on_skip=None)
    assert len(results) > 40
    failed = {r["check_name"] for r in results if r["status"] != "passed"}
    assert failed <= {"check_array_api_input"}


@approximate
@few_rows
def test_pipeline_grid_and_pickle():
    X = uniform(2, 60)
    y = X[:, 0] ** 2 + X[:, 1]
    quick = {"random_state": 0, "n_init": 16, "target_powers": (1,)}
    grid = GridSearchCV(NPURegressor(**quick), {"max_terms": [1, 2]}, cv=2).fit(X, y)
    assert grid.best_params_ == {"max_terms": 2}
    assert (cross_val_score(NPURegressor(**quick), X, y, cv=2) > 0.999999).all()
    model = make_pipeline(FunctionTransformer(np.square), NPURegressor(**quick)).fit(X, y)
    copy = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(copy.predict(X), model.predict(X))
    assert str(copy[-1].equations_) == str(model[-1].equations_)


def test_frames_give_names():
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    X = pandas.DataFrame(uniform(2, 60), columns=["mass", "speed"])
    y = (X.mass * X.speed**2 / 2).rename("energy")
    assert (
        str(NPURegressor(random_state=0).fit(X, y).best_equation_) == "energy = 0.5*mass*speed**2"
    )


def test_y_with_the_name_of_a_column():
    """pandas keeps it in sums and products."""
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    X = pandas.DataFrame(uniform(2, 60), columns=["area", "v"])
    model = NPURegressor(random_state=0).fit(X, X.area * 2)
    assert str(model.best_equation_) == "area_ = 2*area"
    model = NPURegressor(random_state=0).fit(X.rename(columns={"v": "y"}), 2 * X.v.to_numpy())
    assert str(model.best_equation_) == "y_ = 2*y"


@pytest.mark.parametrize("name", ["y", "sample_weight", "noise", "groups"])
@pytest.mark.parametrize("labels", ["another order", "others"])
def test_rows_of_other_labels_than_those_of_X(name, labels):
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    X = pandas.DataFrame(uniform(2, 60), columns=["a", "b"], index=range(5, 65))
    data = {"y": 2 * X.a**2 / X.b, "sample_weight": X.a, "noise": X.b / 100}
    data["groups"] = pandas.Series(["u", "v"] * 30, X.index)
    index = X.index[::-1] if labels == "another order" else range(60)
    data[name] = (
        data[name].reindex(index) if labels == "another order" else data[name].set_axis(index)
    )

    def fitted():
        model = NPURegressor(random_state=0, noise=data["noise"], n_init=8)
        return model.fit(X, data["y"], sample_weight=data["sample_weight"], groups=data["groups"])

    with pytest.raises(
        ValueError, match=rf"{name} must have the row labels \(index\) of X"
    ) as error:
        fitted()
    remedy = str(error.value).split("; ")[1].split(" has ")[0].split(" and ")[-1].split(" have ")[0]
    if labels == "others":
        X = X.reset_index(drop=True)
        data = {key: table.reset_index(drop=True) for key, table in data.items()}
    else:
        data[name] = eval(remedy, {"X": X, name: data[name]})
    model = fitted()
    assert terms(model.best_equation_.for_group("u")) == pytest.approx({(2, -1): 2})
    with pytest.raises(ValueError, match="predict: groups must have the row labels"):
        model.predict(X, groups=data["groups"][::-1])
    with pytest.raises(ValueError, match="score: y must have the row labels"):
        model.score(X, data["y"][::-1], groups=data["groups"])


@pytest.mark.parametrize("unit", ["datetime64[ms]", "timedelta64[s]"])
def test_dates_are_no_numbers(unit):
    x = uniform(1, 30)
    y = np.round(1000 * x[:, 0]).astype("int64").astype(unit)
    for X, times, name in ((x, y, "y"), (np.stack([y, y], 1), y, "X")):
        with pytest.raises(
            TypeError, match=f"NPURegressor: {name} must be numbers, got d"
        ) as error:
            NPURegressor().fit(X, times)
        line = str(error.value).partition("they are ")[2]
        days = eval(line, {"np": np, "numpy": np, name: X if name == "X" else y})
        step = 86400 * (1000 if "ms" in unit else 1)
        counts = (X if name == "X" else y).astype("int64")
        origin = counts[0] if unit.startswith("date") else 0
        np.testing.assert_allclose(days, (counts - origin) / step, rtol=1e-12)


@pytest.mark.parametrize("name", ["X", "y", "sample_weight"])
def test_masked_entries_are_missing(name):
    X = uniform(2, 60)
    data = {"X": X, "y": 2 * X[:, 0] ** 2 / X[:, 1], "sample_weight": X[:, 0]}
    mask = np.arange(60) % 3 == 0
    data[name] = np.ma.masked_array(
        data[name], mask=np.stack([mask, mask], 1) if name == "X" else mask
    )
    with pytest.raises(
        ValueError, match=f"{name} must have no masked entries, got {20 + 20 * (name == 'X')};"
    ):
        NPURegressor(random_state=0).fit(**data)
    whole = {key: np.ma.masked_array(part)[~mask] for key, part in data.items()}
    assert terms(NPURegressor(random_state=0).fit(**whole).best_equation_) == pytest.approx(
        {(2, -1): 2}
    )


def test_two_outputs_at_once():
    X = uniform(2, 60)
    y = np.c_[X[:, 0] * X[:, 1], X[:, 0] - 2 * X[:, 1]]
    model = NPURegressor(random_state=0, n_jobs=1).fit(X, y)
    assert [terms(e) for e in model.best_equation_] == [
        pytest.approx({(1, 1): 1.0}),
        pytest.approx({(1, 0): 1.0, (0, 1): -2.0}),
    ]
    np.testing.assert_allclose(model.predict(X), y, rtol=1e-9)
    assert len(model.coef_) == len(model.latex()) == len(model.confidence_intervals()) == 2
    with joblib.parallel_config("threading"):
        parallel = NPURegressor(random_state=0, n_jobs=2).fit(X, y)
    np.testing.assert_array_equal(parallel.predict(X), model.predict(X))


def test_same_seed_same_numbers_whatever_the_order_of_rows(noisy):
    X, y, model = noisy
    order = RNG(3).permutation(len(y))
    reordered = NPURegressor(random_state=0, target_powers=(1,)).fit(X[order], y[order])
    np.testing.assert_array_equal(reordered.coef_, model.coef_)


@pytest.mark.filterwarnings("ignore:NPURegressor. 36 rows are too few")
def test_weights_are_repetitions():
    X = uniform(2, 50)
    y = X[:, 0] / X[:, 1] + 0.1 * noise(50)
    weight = RNG(0).integers(0, 4, 50)
    quick = {"random_state": 0, "n_init": 8, "max_terms": 2, "target_powers": (1,)}
    weighted = NPURegressor(**quick).fit(X, y, weight)
    repeated = NPURegressor(**quick).fit(X.repeat(weight, 0), y.repeat(weight))
    np.testing.assert_array_equal(weighted.coef_, repeated.coef_)


# ---- bad data, bad parameters --------------------------------------------------------------------


def test_constant_columns_are_left_out():
    X = np.c_[uniform(2, 60), np.full(60, 7.0)]
    with pytest.warns(
        EquationWarning, match="constant columns carry no information and are ignored: x2"
    ):
        model = NPURegressor(random_state=0).fit(X, X[:, 0] / X[:, 1])
    check(model, {(1, -1, 0): 1.0})


def test_few_rows_are_said():
    X = uniform(3, 4)
    with pytest.warns(EquationWarning, match="4 rows are not more than the 4 parameters"):
        NPURegressor(random_state=0, n_init=8).fit(X, X[:, 0])
    X = uniform(1, 20)
    with pytest.warns(EquationWarning, match="20 rows are too few to hold some out"):
        NPURegressor(random_state=0, n_init=8).fit(X, X[:, 0])


def test_zero_with_a_negative_exponent():
    X = uniform(2, 60)
    model = NPURegressor(random_state=0).fit(X, X[:, 0] / X[:, 1])
    with pytest.warns(EquationWarning, match="1 predictions are infinite"):
        assert np.isinf(model.predict(np.array([[1.0, 0.0], [1.0, 1.0]]))[0])
    X[0, 1] = 0
    y = X[:, 0] + X[:, 1] ** 2
    assert (NPURegressor(random_state=0).fit(X, y).exponents_[:, 1] >= 0).all()


def test_constant_and_zero_targets():
    X = uniform(2, 60)
    assert NPURegressor(random_state=0).fit(X, np.full(60, 3.0)).predict(X) == pytest.approx(
        np.full(60, 3.0)
    )
    assert (NPURegressor(random_state=0).fit(X, np.zeros(60)).predict(X) == 0).all()


@pytest.mark.parametrize("line", [2, 5])
def test_interrupt_gives_what_was_found(line):
    """Ctrl-C in the first search, and in the second one, for errors in proportion to y."""
    X = uniform(3, 100)
    y = X[:, 0] * X[:, 1] + X[:, 2] + 0.1 * noise(100)
    with pytest.warns(UserWarning, match="the search was interrupted"), at_line(line):
        model = NPURegressor(random_state=0, n_init=8).fit(X, y)
    assert not model.equations_.complete
    assert model.best_equation_.n_terms == 2
    assert "interrupted" in report_of(model)


@approximate
def test_interrupt_ends_the_search_for_later_outputs_too():
    """They get an equation of one term, and Ctrl-C before a first equation raises."""
    X = uniform(3, 100)
    y = X[:, 0] * X[:, 1] + X[:, 2] + 0.1 * noise(100)
    y, model = np.column_stack([y, 2 * y]), NPURegressor(random_state=0, n_init=8)
    with pytest.warns(UserWarning, match="the search was interrupted"), at_line(2):
        model.fit(X, y)
    assert [table.complete for table in model.equations_] == [False, False]
    assert [equation.n_terms for equation in model.best_equation_] == [2, 1]
    with pytest.raises(KeyboardInterrupt), at_call(0.01 * calls_of(lambda: model.fit(X, y))):
        model.fit(X, y)


def test_steps_are_logged_and_printed_on_request(caplog, capsys):
    X = uniform(2, 60)
    y = X[:, 0] * X[:, 1]
    with caplog.at_level("INFO", "npu_kernels.equations"):
        NPURegressor(random_state=0).fit(X, y)
    assert "1 terms: criterion" in caplog.text
    assert capsys.readouterr().err == ""
    NPURegressor(random_state=0, verbose=1).fit(X, y)
    assert "NPURegressor: " in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:NPURegressor. constant columns")
def test_columns_of_zeros_and_of_all_sizes():
    X = uniform(2, 60)
    y = X[:, 0] * X[:, 1]
    best = NPURegressor(random_state=0, noise="additive").fit(X * 0, y).best_equation_
    assert best.text() == f"y = {y.mean():.4g}"
    wide = 10 ** np.random.default_rng(2).uniform(-100, 0, (60, 1))
    assert np.isfinite(NPURegressor(random_state=0, n_init=16).fit(wide, y).best_equation_.nrmse)


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ((8.30963, 0.0077, 8.29445, 8.32481), "8.3096 ± 0.0077 (8.2944 to 8.3248)"),
        ((5.99997, 0.018, 5.96475, 6.03518), "6.000 ± 0.018 (5.965 to 6.035)"),
        ((12345, 801, 10745, 13945), "12340 ± 800 (10740 to 13940)"),
        ((-1.01325, 27, -8.62023e22, -1.19101e-23), "-1.0 ± 27 (-8.6e+22 to -1.2e-23)"),
        ((-1.195e-20, 3.04e-21, -1.8e-20, -6.04e-21), "-1.19e-20 ± 3e-21 (-1.8e-20 to -6e-21)"),
        ((2.0, 0.5, 1.0, np.inf), "2.00 ± 0.50 (1.00 to inf)"),
        ((2.5, 0.0, 2.5, 2.5), "2.5 ± 0 (2.5 to 2.5)"),
    ],
)
def test_intervals_have_the_digits_that_the_error_supports(numbers, text):
    assert str(Interval("c", *numbers)) == f"c = {text}"
