"""`NPURegressor.fit` interrupted: it continues from its checkpoint to the same bits."""

import shutil
import signal

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from npu_kernels._laws.table import output, rounding, search
from npu_kernels._laws.table.kept_results import Work
from npu_kernels._laws.table.varpro import Points
from npu_kernels.equations import NPURegressor
from tests.support.laws import approximate, noise, uniform

X = uniform(3, 100)
Y = X[:, 0] * X[:, 1] + X[:, 2] + 0.1 * noise(100)
OPTIONS = {"max_terms": 2, "starts": 16, "output_powers": (1, 2)}


@pytest.fixture(autouse=True)
def _ctrl_c():
    """A process in the background ignores the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Counted:
    """Fits, whose costly steps are counted; `call` is called in step `at`."""

    def __init__(self, monkeypatch):
        self.at, self.call, self.made = 0, lambda: signal.raise_signal(signal.SIGINT), 0
        for owner, name in ((search, "_fitted"), (rounding, "simplified"), (output, "_refitted")):
            monkeypatch.setattr(owner, name, self._counting(getattr(owner, name)))

    def _counting(self, plain):
        def step(*arguments):
            self.made += 1
            if self.made == self.at:
                self.call()
            return plain(*arguments)

        return step

    def fit(self, y=Y, random_state=0, **options):
        self.made = 0
        model = NPURegressor(random_state=random_state, **OPTIONS).fit(X, y, **options)
        return model, self.made


def numbers(model):
    """Everything that a fit estimates, to the bit."""
    tables = model.equations_ if isinstance(model.best_, list) else [model.equations_]
    values = [
        [e.coef, e.coef_std, e.exponents, e.error, e.bic, e.rms] for table in tables for e in table
    ]
    return [np.asarray(part).tobytes() for parts in values for part in parts]


@pytest.mark.parametrize("step", [1, 8, -1])
def test_an_interrupted_fit_continues_to_the_same_bits(step, tmp_path, monkeypatch):
    """Interrupted before anything was found, in a search, and in the fit to all rows."""
    counted, path = Counted(monkeypatch), tmp_path / "law.pt"
    expected, steps = counted.fit()
    counted.at = steps if step == -1 else step
    if step in (1, -1):
        with pytest.raises(KeyboardInterrupt):
            counted.fit(checkpoint=path)
    else:
        with pytest.warns(UserWarning, match="the search was interrupted"):
            interrupted, _ = counted.fit(checkpoint=path)
        assert not interrupted.equations_.complete
    counted.at = 0
    continued, more = counted.fit(checkpoint=path)
    assert continued.equations_.complete
    assert more < steps or step == 1
    assert numbers(continued) == numbers(expected)
    resumed, none = counted.fit(checkpoint=path)
    assert none == 0
    assert numbers(resumed) == numbers(expected)


def test_sigterm_loses_nothing(tmp_path, monkeypatch):
    """All steps until the signal are in the file when the process ends."""
    counted, path = Counted(monkeypatch), tmp_path / "law.pt"
    expected, steps = counted.fit()
    counted.at, counted.call = 8, lambda: signal.raise_signal(signal.SIGTERM)
    before = signal.signal(signal.SIGTERM, lambda *_: path.rename(tmp_path / "then.pt"))
    try:
        counted.fit(checkpoint=path)
    finally:
        signal.signal(signal.SIGTERM, before)
    counted.at = 0
    continued, more = counted.fit(checkpoint=tmp_path / "then.pt")
    assert more < steps
    assert numbers(continued) == numbers(expected)


@pytest.mark.parametrize("step", [3, 7])
def test_the_draws_of_starts_continue_too(step, tmp_path, monkeypatch):
    """Interrupted before the starts with two terms, in the first two searches. The last bits of
    free exponents tell from which starts they were found."""
    monkeypatch.setitem(OPTIONS, "exponents", "real")
    counted, path = Counted(monkeypatch), tmp_path / "law.pt"
    expected, _ = counted.fit()
    counted.at = step
    with pytest.warns(UserWarning, match="the search was interrupted"):
        interrupted, _ = counted.fit(checkpoint=path)
    assert not interrupted.equations_.complete
    counted.at = 0
    continued, _ = counted.fit(checkpoint=path)
    assert numbers(continued) == numbers(expected)


def test_the_generator_of_a_step_that_was_kept_is_as_after_it():
    """The next step draws the same numbers."""

    def points(draw):
        return Points(
            *(torch.from_numpy(draw.random(size)) for size in ((4, 3, 2), (4, 3, 2), (4, 3), 4))
        )

    def refuse():
        pytest.fail("made again")

    first, second = Work(0, False, {}), Work(0, False, {})
    generator, other_generator = np.random.default_rng(1), np.random.default_rng(1)
    computed = first.steps(0).points(generator, 3, 2, lambda: points(generator))
    second.restore(first.state())
    restored = second.steps(0).points(other_generator, 3, 2, refuse)
    assert torch.equal(restored.u, computed.u)
    assert generator.random() == other_generator.random()


def test_a_killed_fit_continues_and_several_outputs_do(tmp_path, monkeypatch):
    """The file is written while the fit runs, also without Ctrl-C."""
    monkeypatch.setattr("npu_kernels._jobs.checkpoint.CHECKPOINT_SECONDS", 0.0)
    counted, path, earlier = Counted(monkeypatch), tmp_path / "law.pt", tmp_path / "earlier.pt"
    y = np.column_stack([Y, 3 * X[:, 0]])
    expected, steps = counted.fit(y)
    counted.at, counted.call = steps - 3, lambda: shutil.copyfile(path, earlier)
    counted.fit(y, checkpoint=path)
    counted.at = 0
    continued, more = counted.fit(y, checkpoint=earlier)
    assert 0 < more < 6
    assert numbers(continued) == numbers(expected)


def test_outputs_after_ctrl_c_are_searched_when_a_fit_continues(tmp_path, monkeypatch):
    counted, path = Counted(monkeypatch), tmp_path / "law.pt"
    y = np.column_stack([Y, Y[::-1]])
    expected, _ = counted.fit(y)
    counted.at = 8
    with pytest.warns(UserWarning, match="the search was interrupted"):
        interrupted, _ = counted.fit(y, checkpoint=path)
    assert not any(table.complete for table in interrupted.equations_)
    counted.at = 0
    continued, _ = counted.fit(y, checkpoint=path)
    assert numbers(continued) == numbers(expected)


def test_without_a_random_state_the_seed_is_kept(tmp_path, monkeypatch):
    counted, path = Counted(monkeypatch), tmp_path / "law.pt"
    begun, _ = counted.fit(random_state=None, checkpoint=path)
    continued, more = counted.fit(random_state=None, checkpoint=path)
    assert more == 0
    assert numbers(begun) == numbers(continued)


@approximate
def test_a_checkpoint_of_another_fit_is_refused(tmp_path):
    path = tmp_path / "law.pt"
    options = {"random_state": 0, "max_terms": 1, "output_powers": (1,), "starts": 4}
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
        NPURegressor(**options).fit(X, Y, checkpoint=tmp_path / "absent" / "law.pt")
