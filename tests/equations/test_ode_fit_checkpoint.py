"""`ode.fit` that is interrupted, killed, and continued."""

import io
import itertools
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from npu_kernels import ode
from npu_kernels.optim import least_squares
from tests.support.compare import report_of
from tests.support.time_series import T, equations_of, known, model, noise, predators

pytest.importorskip("scipy.optimize", reason="scipy is not installed")
pytest.importorskip("scipy.stats")


def bits(result: ode.SeriesFitResult) -> list[Any]:
    """All numbers of an equation, the exponents that became fractions among them."""
    parts = *result.weights(), result.u0
    return [*(part.tolist() for part in parts), result.estimates, result.bic]


class Terminal(io.StringIO):
    """Presses Ctrl-C as soon as the progress is shown."""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if not self.tell():
            os.kill(os.getpid(), signal.SIGINT)
        return super().write(text)


def test_ctrl_c_before_there_is_an_equation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no fault of the series, and the same call goes on from the checkpoint."""
    starts, u, path = model(2, 3, 4), noise(predators(T), 0.01), tmp_path / "equation.pt"
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", Terminal())
        with pytest.raises(
            KeyboardInterrupt, match=r"ode\.fit: interrupted before there were equations"
        ):
            ode.fit(starts, T, u, checkpoint=path, progress=True)
    assert path.exists()
    state = torch.get_rng_state()
    continued = ode.fit(starts, T, u, checkpoint=path)
    assert torch.equal(torch.get_rng_state(), state)
    assert bits(continued) == bits(ode.fit(starts, T, u))


class Counted:
    """`least_squares.damped_step` that counts, and calls something before one of the steps."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.step, self.made, self.at, self.call = least_squares.damped_step, 0, 0, lambda: None
        patch.setattr(least_squares, "damped_step", self)

    def __call__(self, *arguments: Any) -> tuple[Tensor, ...]:
        self.made += 1
        if self.made == self.at:
            self.call()
        return self.step(*arguments)

    def of(self, **options: Any) -> tuple[ode.SeriesFitResult, int]:
        """A fit and how many steps it took."""
        self.made = 0
        equations, u = known((1.0, -0.5, 0.4, -1.0)), noise(predators(T), 0.02)
        return ode.fit(equations, T, u, init="model", **options), self.made


@pytest.mark.parametrize("interrupted_step", [2, 12, 25])
def test_a_checkpoint_loses_nothing(
    interrupted_step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted in a step, and continued: the same bits as without, and no step is made twice."""
    counted = Counted(monkeypatch)
    path = tmp_path / "equation.pt"
    expected, steps = counted.of()
    assert interrupted_step < steps
    counted.at, counted.call = interrupted_step, lambda: os.kill(os.getpid(), signal.SIGINT)
    interrupted, made = counted.of(checkpoint=path)
    assert not interrupted.complete
    assert "interrupted" in report_of(interrupted)
    assert made < interrupted_step + 55  # to the best equation until then
    counted.at = 0
    continued, more = counted.of(checkpoint=path)
    assert continued.complete
    assert interrupted_step + more == steps
    assert bits(continued) == bits(expected)
    assert continued.seconds > interrupted.seconds
    resumed, more = counted.of(checkpoint=path)
    assert more == 0
    assert bits(resumed) == bits(expected)


def test_a_killed_fit_goes_on_from_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is written while the fit runs, also without Ctrl-C."""
    clock = itertools.count(0.0, 60.0)  # a minute between two looks at it
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    path, earlier = tmp_path / "equation.pt", tmp_path / "earlier.pt"
    counted = Counted(monkeypatch)
    counted.at, counted.call = 15, lambda: shutil.copyfile(path, earlier)
    undisturbed, steps = counted.of(checkpoint=path)
    counted.at = 0
    continued, more = counted.of(checkpoint=earlier)
    assert 14 + more == steps
    assert bits(continued) == bits(undisturbed)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"u": 1}, r"it is of another fit: other u$"),
        ({"t": T + 1}, r"fit: other t$"),
        ({"sigma": 0.1}, r"fit: other sigma$"),
        ({"sigma": "proportional"}, r"fit: other sigma \(None, here 'proportional'\)$"),
        ({"u0": [2.0, 1.0]}, r"fit: other u0$"),
        (
            {"names": ["x", "y"]},
            r"fit: other names \(\('x0', 'x1'\), here \('x', 'y'\)\)$",
        ),
        (
            {"exponents": (-2, 2)},
            r"fit: other exponents \(\(\[-6.0, -6.0\], .*, here \(\[-2.0, -2.0\], \[2.0, 2.0\]\)\)$",
        ),
        (
            {"integer_exponents": ["x1"]},
            r"fit: other integer_exponents \(\[False, False\], here \[False, True\]\)$",
        ),
        ({"signs": "model"}, r"fit: other signs \('any', here 'model'\)$"),
        (
            {"stoichiometry": [[1, 0], [0, 1]]},
            r"fit: other stoichiometry \(None, here \[\[1.0, 0.0\], \[0.0, 1.0\]\]\)$",
        ),
        (
            {"init": "search", "required_terms": ["x0*x1"]},
            r"other model, init \('model', here 'search'\), required_terms \(\[\], here \[\[1.0, 1.0\]\]\)$",
        ),
        ({"model": 1}, r"other model$"),
        ({"seed": 4}, r"other seed \(0, here 4\)$"),
        ({"simplify": True}, r"other simplify \(False, here True\)$"),
        ({"init": "search"}, r"other model, init \('model', here 'search'\)$"),
        ({"content": b"nothing"}, r"it is no file that npu_kernels saved$"),
    ],
    ids=str,
)
def test_a_checkpoint_of_another_fit(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = tmp_path / "equation.pt"
    u = predators(T)
    options: dict[str, Any] = {"init": "model", "simplify": False, "checkpoint": path}
    ode.fit(known(), T, u, **options)
    if "content" in change:
        path.write_bytes(change["content"])
    before = path.read_bytes()
    equations = known((1.0, -0.6, 0.5, -0.8)) if "model" in change else known()
    u = u + 1e-9 if "u" in change else u
    t, special = change.get("t", T), ("t", "u", "model", "content")
    options |= {name: value for name, value in change.items() if name not in special}
    with pytest.raises(
        ValueError, match=rf"^ode.fit: checkpoint must be a new file or one of this same .*{said}"
    ):
        ode.fit(equations, t, u, **options)
    assert path.read_bytes() == before


def test_a_checkpoint_of_other_inputs(tmp_path: Path) -> None:
    equations = equations_of([[1, 1]], [[0.01]])
    options: dict[str, Any] = {
        "init": "model",
        "simplify": False,
        "checkpoint": tmp_path / "equations",
    }
    u = T / 10 + 1
    ode.fit(equations, T, u, inputs=(T, T + 1), **options)
    with pytest.raises(ValueError, match=r"it is of another fit: other inputs$"):
        ode.fit(equations, T, u, inputs=(T, T + 2), **options)
