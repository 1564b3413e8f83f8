"""`fit` interrupted: checkpoints, Ctrl-C, progress."""

import os
import re
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import npu_kernels
from npu_kernels import NAU, NPU, RealNPU, fit
from npu_kernels.fitting import FitJob, fit_batch
from tests.support import checkpoints
from tests.support.fits import SHORT, hard, parameters, rows, same

# ---- interrupted ---------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [7, 20, 25, 30, 37, 45, 50])
def test_continued_to_the_bit(steps: int, tmp_path: Path) -> None:
    x, y = hard()

    def start() -> FitJob:
        model = nn.Sequential(NPU(2, 3, num_models=8), NAU(3, 1, num_models=8))
        return FitJob(model, x.expand(2, -1, -1), y.expand(2, -1, -1), [0, 1], SHORT)

    undisturbed, first, second = start(), start(), start()
    undisturbed.advance(undisturbed.total)
    first.advance(steps)
    torch.save(first.state(), tmp_path / "state")
    assert first.result().complete == (first.done == first.total)
    second.restore(torch.load(tmp_path / "state", weights_only=True))
    second.advance(second.total)
    expected, actual = undisturbed.result(), second.result()
    assert same(expected.models, actual.models)
    assert expected.candidates == actual.candidates
    assert expected.chosen == actual.chosen
    for name in ("losses", "init_losses", "n_stages", "n_rows"):
        assert torch.equal(getattr(expected, name), getattr(actual, name))
    assert expected.history == actual.history


def test_ctrl_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = hard()
    arguments: dict[str, Any] = {"recipe": SHORT, "checkpoint": tmp_path / "fit"}
    undisturbed = fit(RealNPU(2, 1, num_models=6), x, y, recipe=SHORT)
    advance, before = FitJob.advance, signal.getsignal(signal.SIGINT)

    def interrupted(run: FitJob, rounds: int) -> None:
        advance(run, 7)
        os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(FitJob, "advance", interrupted)
        part = fit(RealNPU(2, 1, num_models=6), x, y, **arguments)
    assert signal.getsignal(signal.SIGINT) is before
    assert not part.complete
    assert part.n_rows == 6 * 7 * 64
    assert torch.isfinite(torch.tensor(part.loss))
    continued = fit(RealNPU(2, 1, num_models=6), x, y, **arguments)
    assert continued.complete
    assert same(continued.model, undisturbed.model)
    assert continued.n_rows == undisturbed.n_rows
    finished = fit(RealNPU(2, 1, num_models=6), x, y, **arguments)  # nothing is left to do
    assert finished.seconds == continued.seconds


def test_the_cross_validation_is_in_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Interrupted it is continued to the bit, and once finished it is not made again."""
    x = rows(1, 2, 30)
    model, y = RealNPU(2, 1, num_models=4), x.sum(1, keepdim=True)
    path = tmp_path / "fit"
    undisturbed = fit(model, x, y, recipe=SHORT, progress=True)
    assert undisturbed.n_folds == 5
    assert "fit, cross-validation: 100 %" in capfd.readouterr().err
    advance, reached, rounds_made = FitJob.advance, list[int](), list[int]()

    def interrupted(run: FitJob, rounds: int) -> None:
        advance(run, min(rounds, 7))
        if run.problems > 1 and run.done > 5:  # a part is a problem
            reached.append(run.done)
            os.kill(os.getpid(), signal.SIGINT)

    def counted(run: FitJob, rounds: int) -> None:
        before = run.done
        advance(run, rounds)
        rounds_made.append(run.done - before)

    with monkeypatch.context() as patch:
        patch.setattr(FitJob, "advance", interrupted)
        part = fit(model, x, y, recipe=SHORT, checkpoint=path)
    assert (part.n_folds, part.complete) == (0, False)
    assert same(part.model, undisturbed.model)
    assert part.loss == float(fit_batch(model, x[None], y[None], recipe=SHORT).losses)
    monkeypatch.setattr(FitJob, "advance", counted)
    continued = fit(model, x, y, recipe=SHORT, checkpoint=path)
    total = FitJob(model, x[None], y[None], [0], SHORT).total
    assert sum(rounds_made) == total - reached[0]
    assert (continued.loss, continued.n_folds) == (undisturbed.loss, 5)
    assert same(continued.model, undisturbed.model)
    assert continued.complete
    rounds_made.clear()
    finished = fit(model, x, y, recipe=SHORT, checkpoint=path)
    assert not rounds_made
    assert (finished.loss, finished.n_folds) == (undisturbed.loss, 5)
    assert finished.seconds == continued.seconds > part.seconds > 0


@pytest.mark.parametrize("count", [200, 30])  # few rows have a cross-validation too
def test_ctrl_c_in_the_fit_of_signs(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = rows(-2, 2, count).double()
    model, y = RealNPU(2, 1, num_models=24).double(), x[:, :1] ** 2 * x[:, 1:] ** 3
    undisturbed = fit(model, x, y)
    assert parameters(undisturbed.model)[0].tolist() == [[2, 3]]
    advance, functions = FitJob.advance, list[str]()

    def interrupted(run: FitJob, rounds: int) -> None:
        advance(run, min(rounds, 7))
        if run.function == "fit, signs":
            os.kill(os.getpid(), signal.SIGINT)

    def noted(run: FitJob, rounds: int) -> None:
        functions.append(run.function)
        advance(run, rounds)

    with monkeypatch.context() as patch:
        patch.setattr(FitJob, "advance", interrupted)
        part = fit(model, x, y, checkpoint=tmp_path / "fit")
    assert not part.complete
    assert parameters(part.model)[0].shape == (1, 2)
    monkeypatch.setattr(FitJob, "advance", noted)
    continued = fit(model, x, y, checkpoint=tmp_path / "fit")
    assert "fit" not in functions
    assert same(continued.model, undisturbed.model)
    assert (continued.loss, continued.n_folds) == (undisturbed.loss, undisturbed.n_folds)
    functions.clear()
    assert same(fit(model, x, y, checkpoint=tmp_path / "fit").model, undisturbed.model)
    assert not functions


def test_a_crafted_cross_validation_is_refused(tmp_path: Path) -> None:
    x = rows(1, 2, 30)
    model, y = RealNPU(2, 1, num_models=4), x.sum(1, keepdim=True)
    path = tmp_path / "fit"
    fit(model, x, y, recipe=SHORT, checkpoint=path)
    state = checkpoints.load(path, ["fingerprint"])
    for wrong, said in (
        (3, "it is no state of a fit: without fingerprint"),
        ({}, "it is no state of a fit: without fingerprint"),
        ({**state["validation"], "done": "1"}, "its content, done must be of type int, got str"),
    ):
        checkpoints.save(path, {**state, "validation": wrong})
        with pytest.raises(ValueError, match=rf"^fit: checkpoint must be .*: {said}"):
            fit(model, x, y, recipe=SHORT, checkpoint=path)


@pytest.mark.parametrize(("change", "difference"), [
    ({"seed": 1}, r"other seeds \(\[0\], here \[1\]\)"),
    ({"recipe": replace(SHORT, lr=0.1)}, r"other recipe.lr \(0.05, here 0.1\)$"),
    ({"y": "double"},
     r"other dtypes \(x torch.float32, y torch.float32, .* here x torch.float32, y torch.float64"),
    ({"model": NPU(2, 1, num_models=6)}, r"other model$"),
    ({"model": RealNPU(2, 1, num_models=6).double()}, r"other dtypes \("),
    ({"torch": "1.0"}, r"other torch \(.*, here 1.0\)$"),
    ({"npu_kernels": "9"}, r"other npu_kernels \(.*, here 9\)$"),
], ids=str)  # fmt: skip
def test_a_checkpoint_of_another_fit(
    change: dict[str, Any], difference: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused, and the message says in what it differs; the file stays as it is."""
    x, y = hard()
    path = tmp_path / "fit.pt"
    fit(RealNPU(2, 1, num_models=6), x, y, recipe=SHORT, checkpoint=path)
    before = path.read_bytes()
    options: dict[str, Any] = {
        "model": RealNPU(2, 1, num_models=6),
        "x": x,
        "recipe": SHORT,
        **change,
    }
    options["y"] = y.double() if "y" in change else y
    for module in (torch, npu_kernels):
        if module.__name__ in change:
            monkeypatch.setattr(module, "__version__", options.pop(module.__name__))
    with pytest.raises(
        ValueError,
        match=rf"^fit: checkpoint must be a new file or one of this same fit, got '.*fit.pt': .*{difference}",
    ):
        fit(**options, checkpoint=path)
    assert path.read_bytes() == before


def test_a_checkpoint_that_cannot_be_written_is_named_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = hard()
    monkeypatch.setattr(FitJob, "advance", lambda run, rounds: pytest.fail("work was done"))
    arguments = {"x": x[None], "y": y[None], "recipe": SHORT, "checkpoint": tmp_path}
    for path, error in ((tmp_path / "missing" / "fit.pt", FileNotFoundError), ("a\0b", ValueError)):
        with pytest.raises(
            error, match=r"^fit: checkpoint must be a file that can be written, got '"
        ):
            fit(RealNPU(2, 1, num_models=6), x, y, recipe=SHORT, checkpoint=path)
    with pytest.raises(
        IsADirectoryError, match=r"^fit_batch: checkpoint must be a file .*: it is a folder$"
    ):
        fit_batch(RealNPU(2, 1, num_models=6), **arguments)
    with pytest.raises(TypeError, match=r"^fit: checkpoint must be a path, got int$"):
        fit(RealNPU(2, 1, num_models=6), x, y, recipe=SHORT, checkpoint=3)  # type: ignore[arg-type]


def test_progress(capfd: pytest.CaptureFixture[str]) -> None:
    x, y = hard()
    fit(RealNPU(2, 1, num_models=6), x, y, recipe=SHORT)
    assert capfd.readouterr().err == ""
    fit(RealNPU(2, 1, num_models=6), x, y, recipe=SHORT, progress=True)
    shown = capfd.readouterr().err
    assert re.fullmatch(r"fit: 100 %, \d\d:\d\d passed, 00:00 left, 0 models, error \S+\n", shown)
