"""`NPURegressor.fit` interrupted: it continues from its checkpoint to the same bits."""

import itertools
import shutil

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from npu_kernels.equations import NPURegressor
from tests.support.equations import approximate, noise, uniform
from tests.support.moments import at_call, at_line

X = uniform(3, 60)
Y = X[:, 0] * X[:, 1] + np.sqrt(X[:, 1]) + 0.1 * noise(60)
OPTIONS = {"max_terms": 2, "n_init": 8, "target_powers": (1, 2), "ratios": False}


def fitted(y=Y, random_state=0, path=None, **options):
    return NPURegressor(random_state=random_state, **OPTIONS, **options).fit(X, y, checkpoint=path)


def numbers(model):
    """Everything that a fit estimates, to the bit."""
    tables = model.equations_ if isinstance(model.best_equation_, list) else [model.equations_]
    values = [
        [e.coef, e.coef_stderr, e.exponents, e.holdout_nrmse, e.bic, e.nrmse]
        for table in tables
        for e in table
    ]
    return [np.asarray(part).tobytes() for parts in values for part in parts]


def test_a_killed_fit_continues_and_several_outputs_do(tmp_path, monkeypatch):
    """The file is written every half a minute, also without Ctrl-C: here of a clock that runs."""
    ticks = itertools.count(0.0, 40.0)
    monkeypatch.setattr("time.monotonic", lambda: next(ticks))
    path, earlier = tmp_path / "equation.pt", tmp_path / "earlier.pt"
    y = np.column_stack([Y, 3 * X[:, 0]])
    with at_call(0) as calls:
        expected = fitted(y)
    with at_call(0.95 * calls[0], lambda: shutil.copyfile(path, earlier)):
        fitted(y, path=path)
    with at_call(0) as more:
        continued = fitted(y, path=earlier)
    assert more[0] < 0.9 * calls[0]
    assert numbers(continued) == numbers(expected)


def test_outputs_after_ctrl_c_are_searched_when_a_fit_continues(tmp_path):
    path, y = tmp_path / "equation.pt", np.column_stack([Y, 3 * X[:, 0]])
    with pytest.warns(UserWarning, match="the search was interrupted"), at_line(2):
        interrupted = fitted(y, path=path)
    assert not any(table.complete for table in interrupted.equations_)
    assert numbers(fitted(y, path=path)) == numbers(fitted(y))


def test_without_a_random_state_the_seed_is_kept(tmp_path):
    path = tmp_path / "equation.pt"
    first, second = (fitted(random_state=None, path=path, exponents="real") for _ in range(2))
    assert numbers(first) == numbers(second) != numbers(fitted(exponents="real"))


@approximate
def test_a_checkpoint_of_another_fit_is_refused(tmp_path):
    path = tmp_path / "equation.pt"
    options = {"random_state": 0, "max_terms": 1, "target_powers": (1,), "n_init": 4}
    NPURegressor(**options).fit(X, Y, checkpoint=path)
    before = path.read_bytes()
    for change, y, said in (
        ({}, Y + 1e-9, "other data$"),
        ({"max_terms": 2}, Y, r"other max_terms \(1, here 2\)$"),
        ({"random_state": 1}, Y, "other random_state"),
    ):
        with pytest.raises(
            ValueError, match=f"checkpoint must be a new file or one of this same .*{said}"
        ):
            NPURegressor(**(options | change)).fit(X, y, checkpoint=path)
    assert path.read_bytes() == before
    with pytest.raises(
        FileNotFoundError, match=r"NPURegressor.fit: checkpoint must be a file that can be written"
    ):
        NPURegressor(**options).fit(X, Y, checkpoint=tmp_path / "absent" / "equation.pt")
