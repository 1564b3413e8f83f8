"""`fit`, the training helper."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import npu_kernels
from npu_kernels import NALU, NAU, NMRU, NMU, NPU, RealNPU, fit
from npu_kernels.fitting import Recipe, Run, fit_many
from npu_kernels.fitting.data import Data
from npu_kernels.fitting.pool import ranks
from npu_kernels.fitting.search import Search
from npu_kernels.lbfgs import Status

SHORT = Recipe(rungs=((20, 1.0), (10, 0.5)), refine=12, settle=6, rows=(32, 64), denominators=(1, 2))


def _rows(low: float, high: float, count: int = 400, seed: int = 1) -> Tensor:
    return torch.rand(count, 2, generator=torch.Generator().manual_seed(seed)) * (high - low) + low


def _parameters(model: nn.Module) -> list[Tensor]:
    return [p.detach() for p in model.parameters()]


def _same(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(p, q) for p, q in zip(_parameters(a), _parameters(b), strict=True))


# ---- what it finds -----------------------------------------------------------------------------------------------


def test_the_product_of_negative_numbers() -> None:
    """The sign barrier: from a start near 0 the sum of the powers would have to pass -1 = cos(pi)."""
    x = _rows(-2, -1)
    found = fit(RealNPU(2, 1, num_models=64), x, x[:, :1] * x[:, 1:])
    assert isinstance(found.model, RealNPU)
    assert found.model.num_models is None
    assert _parameters(found.model)[0].tolist() == [[1, 1]]
    assert _parameters(found.model)[1].tolist() == [1, 1]
    assert (found.chosen.kind, found.chosen.denominator) == ("rounded", 1)
    assert found.score < 1e-12
    assert found.complete
    far = _rows(-60, -20)
    torch.testing.assert_close(found.model(far), far[:, :1] * far[:, 1:])


def test_complex_weights_and_mixed_signs() -> None:
    """A quotient on [-2, 2] has a heavy tail; the relative loss does not see it."""
    x = _rows(-2, 2)
    found = fit(NPU(2, 1, num_models=48), x, x[:, :1] / x[:, 1:])
    re, im, gate = _parameters(found.model)
    assert re.tolist() == [[1, -1]]
    assert im.tolist() == [[0, 0]]
    assert gate.tolist() == [1, 1]


def test_noise_and_a_root() -> None:
    """Rounded weights are chosen where the data cannot tell them from the fitted ones."""
    x = _rows(0.5, 3, 2000)
    noise = 1 + 0.02 * torch.randn(2000, 1, generator=torch.Generator().manual_seed(3))
    found = fit(RealNPU(2, 1, num_models=16), x, x[:, :1].sqrt() / x[:, 1:] * noise)
    assert _parameters(found.model)[0].tolist() == [[0.5, -1]]
    assert found.score > 1e-5  # the noise's
    kinds = {candidate.kind for candidate in found.candidates}
    assert kinds == {"raw", "refined", "rounded"}
    assert found.candidates[0].score <= found.score * (1 + 1e-5)  # the score is that of the float32 model
    assert found.score <= 1.02 * found.candidates[0].score * (1 + 1e-5)
    scores = [candidate.score for candidate in found.candidates]
    assert scores == sorted(scores)


def test_the_score_is_that_of_the_model_that_is_returned() -> None:
    """In float32, eps is 12 % of inputs of 1e-6."""
    x = _rows(0.5, 3, 300).double() * 1e-6
    y = x[:, :1] / 1e-6
    model = nn.Sequential(RealNPU(2, 1, num_models=4), NAU(1, 1, clip=False, num_models=4))
    found = fit(model, x, y, recipe=replace(SHORT, loss="squared"))
    error = (found.model(x.float()).detach().double() - y) / y.square().mean().sqrt()
    assert float(error.square().mean()) > 1e-12
    assert found.score == pytest.approx(float(error.square().mean()), rel=1.0, abs=1e-12)


def test_few_held_out_rows_are_said() -> None:
    x = _rows(0.5, 3, 10)
    with pytest.warns(UserWarning, match="fit: the score is that of 2 held-out rows, which the model was chosen by"):
        fit(RealNPU(2, 1, num_models=4), x, x[:, :1], recipe=SHORT)


def test_arrays_and_frames() -> None:
    x = _rows(0.5, 3, 60)
    y = x[:, :1] / x[:, 1:]
    model, quick = RealNPU(2, 1, num_models=4), SHORT
    plain = fit(model, x.double(), y.double(), recipe=quick)
    for array in (x.numpy(), x.double().numpy()):
        again = fit(model, array, y.numpy()[:, 0], recipe=quick)
        assert _parameters(again.model)[0].tolist() == _parameters(plain.model)[0].tolist()
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    again = fit(model, pandas.DataFrame(x.numpy()), pandas.Series(y.numpy()[:, 0]), recipe=quick)
    assert again.score == plain.score


def test_a_power_that_is_no_fraction_stays() -> None:
    x = _rows(0.5, 3)
    found = fit(RealNPU(2, 1, num_models=16), x, x[:, :1] ** 0.5714 * x[:, 1:])
    torch.testing.assert_close(_parameters(found.model)[0], torch.tensor([[0.5714, 1]]), rtol=0, atol=1e-4)


@pytest.mark.parametrize("first", ["NPU", "NAU"])
def test_two_layers(first: str) -> None:
    x = _rows(0.5, 2)
    if first == "NPU":
        model: nn.Module = nn.Sequential(RealNPU(2, 3, num_models=12), NAU(3, 1, num_models=12))
        y = x[:, :1] * x[:, 1:] + x[:, :1] / x[:, 1:]
    else:
        model = nn.Sequential(NAU(2, 2, num_models=12), RealNPU(2, 1, num_models=12))
        y = (x[:, :1] + x[:, 1:]).sqrt()
    found = fit(model, x, y)
    assert found.score < 1e-12
    far = _rows(5, 50)
    expected = far[:, :1] * far[:, 1:] + far[:, :1] / far[:, 1:] if first == "NPU" else far.sum(1, keepdim=True).sqrt()
    torch.testing.assert_close(found.model(far), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("unit", [NMU, NMRU, NAU, NALU])
def test_other_units(unit: type[nn.Module]) -> None:
    x = _rows(0.5, 2)
    model = unit(2, 1, num_models=8)  # type: ignore[call-arg]
    y = {NMU: x.prod(1, keepdim=True), NMRU: x[:, :1] / x[:, 1:]}.get(unit, x.sum(1, keepdim=True))
    found = fit(model, x, y)
    assert found.score < (1e-2 if unit is NALU else 1e-12)
    assert (found.chosen.kind == "rounded") == (unit is not NALU)


# ---- what it depends on ------------------------------------------------------------------------------------------


def _hard() -> tuple[Tensor, Tensor]:
    """A sum, which no single power unit is: all stages run."""
    x = _rows(1, 2, 90)
    return x, x.sum(1, keepdim=True)


def test_the_seed_alone_decides() -> None:
    x, y = _hard()
    model = NPU(2, 1, num_models=6)
    before = torch.get_rng_state()
    first = fit(model, x, y, recipe=SHORT)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(77)
    with torch.no_grad():
        model.weight_re.fill_(3)  # a start of the caller's has no influence
    again = fit(model, x, y, recipe=SHORT)
    assert _same(first.model, again.model)
    assert torch.equal(first.scores, again.scores)
    assert first.candidates == again.candidates
    assert not _same(first.model, fit(model, x, y, seed=1, recipe=SHORT).model)
    assert (model.weight_re == 3).all()


def test_a_problem_does_not_depend_on_the_others() -> None:
    x = torch.stack([_rows(1, 2, 90), _rows(-2, -1, 90), _rows(3, 5, 90)])
    y = torch.stack([x[0].sum(1, keepdim=True), x[1, :, :1] * x[1, :, 1:], x[2, :, :1] - x[2, :, 1:]])
    together = fit_many(RealNPU(2, 1, num_models=18), x, y, seeds=[4, 5, 4], recipe=SHORT)
    assert together.models(x).shape == (3, 90, 1)
    for p, seed in enumerate([4, 5, 4]):
        alone = fit(RealNPU(2, 1, num_models=6), x[p], y[p], seed=seed, recipe=SHORT)
        torch.testing.assert_close(together.models.weight_re[p], alone.model.weight_re)
        torch.testing.assert_close(together.scores[p], alone.scores)
        assert torch.equal(together.retired[p], alone.retired)
        assert together.rows[p] == alone.rows


def test_batches() -> None:
    def draw(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.rand(30, 2, generator=generator) + 1
        return x, x[:, :1] * x[:, 1:]

    model = RealNPU(2, 1, num_models=8)
    first, again = (fit(model, draw, seed=5, rows=100) for _ in range(2))
    assert _parameters(first.model)[0].tolist() == [[1, 1]]
    assert torch.equal(first.scores, again.scores)

    def forever() -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(0)
        while True:
            yield draw(generator)

    assert _parameters(fit(model, forever(), rows=100).model)[0].tolist() == [[1, 1]]
    assert _parameters(fit(model, [draw(torch.Generator().manual_seed(0))] * 2, rows=1000).model)[0].tolist() == [
        [1, 1]
    ]


# ---- stages ------------------------------------------------------------------------------------------------------


def test_starts_are_left_behind() -> None:
    x, y = _hard()
    run = Run(RealNPU(2, 1, num_models=20), x[None], y[None], [0], replace(SHORT, finalists=(3, 2)))
    alive = []
    while run.done < run.total:
        alive.append(run.alive)
        run.advance(1)
    assert alive[0] == 20
    assert alive[20] == 10
    assert alive[30] == 3
    found = run.result()
    assert run.alive == 0
    assert torch.bincount(found.retired[0]).tolist() == [0, 10, 7, 1, 0, 2]
    assert found.scores.isfinite().all()
    # 72 training rows, batches of 64; then 32 rows in refine, of models that may end before.
    searched = 64 * (20 * 20 + 10 * 10)
    settled = 2 * 3 * 2 * 6 * 64
    assert searched < found.rows[0] <= searched + 3 * 12 * 32 + settled
    assert [entry["stage"] for entry in found.history] == [1, 2, 3, 4, 5]


def test_starts_that_overflow_are_retired() -> None:
    x, y = _hard()
    recipe = replace(SHORT, wide=(2.0, 2000.0), bound=2000.0)
    found = fit(RealNPU(2, 1, num_models=12), 20 * x, 400 * y, recipe=recipe)
    finite = found.scores.isfinite()
    assert finite[::2].all()
    assert not finite[1::2].all()
    assert (found.retired[~finite] == 1).all()
    assert found.score < 1
    x = 10 ** _rows(-3, 3, 90)
    lost = fit(RealNPU(2, 1, num_models=2), x, y, recipe=replace(recipe, wide=(1e6,), bound=1e6))
    assert lost.score == float("inf")
    assert lost.chosen.kind == "none"
    assert lost.complete


def test_a_model_without_a_number_has_the_greatest_error() -> None:
    """inf and not nan: nan would be neither greater nor less than the others."""
    x, y = _hard()
    run = Run(RealNPU(2, 1, num_models=2), x[None], y[None], [0], SHORT)
    flat = torch.full((2, len(run.template.kind)), 0.5, dtype=torch.float64)
    flat[1] = float("nan")
    held = run.data.held_out
    errors = run.template.errors(flat, held.x, held.y, held.weight, torch.tensor([0, 0]))
    assert errors[0].isfinite()
    assert errors[1] == float("inf")


def test_the_rate_falls_in_a_stretch_and_from_one_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = _hard()
    rates: list[float] = []
    step = Search._adam

    def recorded(search: Search, grads: tuple[Tensor | None, ...], rate: float) -> None:
        rates.append(rate)
        step(search, grads, rate)

    monkeypatch.setattr(Search, "_adam", recorded)
    Run(RealNPU(2, 1, num_models=4), x[None], y[None], [0], SHORT).advance(30)
    assert rates[0] == SHORT.rate
    assert rates[20] == SHORT.rate / 2
    for stretch in (rates[:20], rates[20:]):
        assert sorted(stretch, reverse=True) == stretch
        assert stretch[-1] < stretch[0] / 5


def test_a_gradient_that_is_not_finite_makes_no_step() -> None:
    x, y = _hard()
    search = Run(RealNPU(2, 1, num_models=3), x[None], y[None], [0], SHORT).search
    assert search is not None
    before = search.tensors[0].clone()
    grads = [torch.ones_like(t) for t in search.tensors]
    grads[0][0], grads[0][1] = float("nan"), float("inf")
    search._adam(tuple(grads), 0.1)
    moved = search.tensors[0] != before
    assert moved.flatten(1).all(1).tolist() == [False, False, True]
    assert torch.equal(search.tensors[0][:2], before[:2])


def test_held_out_rows_are_the_seeds() -> None:
    x, y = _hard()

    def held_out(*seeds: int) -> Tensor:
        x_of_all, y_of_all = (t.expand(len(seeds), -1, -1) for t in (x, y))
        return Data.split(x_of_all, y_of_all, seeds, SHORT, torch.device("cpu")).held_out.x

    first, second = held_out(3, 4)
    assert torch.equal(first, held_out(3)[0])
    assert torch.equal(second, held_out(4)[0])
    assert not torch.equal(first, second)


def test_projection() -> None:
    x, y = _hard()
    model = nn.Sequential(NPU(2, 3, num_models=5), NAU(3, 1, num_models=5))
    run = Run(model, x[None], y[None], [0], replace(SHORT, bound=1.5, rate=1.0))
    run.advance(10)
    assert run.search is not None
    re, im, gate, nau = run.search.tensors
    assert re.abs().max() <= 1.5
    assert im.abs().max() <= 1.5
    assert gate.min() >= 0
    assert gate.max() <= 1
    assert nau.abs().max() <= 1


def test_a_deep_power_unit_starts_with_some_of_its_inputs() -> None:
    """The others have gate and weight 0, which have no gradient: they never move."""
    x, y = _hard()
    model = nn.Sequential(NAU(2, 6, num_models=8), NPU(6, 2, num_models=8), NAU(2, 1, num_models=8))
    run = Run(model, x[None], y[None], [0], replace(SHORT, hidden=(2, 1, 0, 4), wide=(1.0,), imaginary=(1.0,)))
    assert run.search is not None
    _, re, im, gate, _ = before = [t.clone() for t in run.search.tensors]
    assert gate.sum(1).tolist() == [2, 1, 6, 4] * 2
    run.advance(10)
    used = gate.bool()
    for now, start in zip(run.search.tensors[1:3], (re, im), strict=True):
        there = used.unsqueeze(1).expand_as(now)
        assert (now[~there] == 0).all()
        assert (now[there] != 0).all()
        assert (now[there] != start[there]).all()
    assert (run.search.tensors[3][~used] == 0).all()
    assert not torch.equal(run.search.tensors[0], before[0])


def test_what_is_rounded() -> None:
    x, y = _hard()
    model = nn.Sequential(NPU(2, 1, num_models=1), NAU(1, 1, num_models=1), NALU(1, 1, num_models=1))
    template = Run(model, x[None], y[None], [0], SHORT).template
    flat = torch.full((1, len(template.kind)), 0.3, dtype=torch.float64)
    rounded = [t.unique().tolist() for t in template.unflatten(template.rounded(flat, 3))]
    third = 1 / 3
    assert rounded[:4] == [[third], [third], [0], [third]]  # real and imaginary powers, gates, the NAU's weight
    assert rounded[4:] == [[0.3]] * 3
    only = template.unflatten(template.rounded(flat, 3, (3,)))
    assert all((t == 0.3).all() for t in only)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch.cuda.is_available() is false")
def test_on_a_gpu() -> None:
    x = _rows(-2, -1).cuda()
    found = fit(RealNPU(2, 1, num_models=64, device="cuda"), x, x[:, :1] * x[:, 1:])
    assert _parameters(found.model)[0].tolist() == [[1, 1]]
    assert found.model(x).is_cuda


def test_held_parameters_stay() -> None:
    x, y = _hard()
    run = Run(nn.Sequential(RealNPU(2, 3, num_models=4), NAU(3, 1, num_models=4)), x[None], y[None], [0], SHORT)
    run.advance(30)
    assert run.refinement is not None
    start = run.refinement.start.clone()
    run.advance(11)
    moved = (run.refinement.flat() != start).any(0)
    kind = run.template.kind
    assert not moved[kind == 0].any()
    assert set(start[:, kind == 0].unique().tolist()) <= {0.0, 1.0}


def test_powers_stay_within_their_bound_when_they_are_refined() -> None:
    x = _rows(0.5, 1.5)[:, :1].double()
    found = fit(RealNPU(1, 1, num_models=4).double(), x, x**9, recipe=replace(SHORT, refine=60))
    assert _parameters(found.model)[0].tolist() == [[SHORT.bound]]


def test_a_dropped_problem_ends() -> None:
    x, y = _hard()
    run = Run(RealNPU(2, 1, num_models=8), x.expand(2, -1, -1), y.expand(2, -1, -1), [0, 1], SHORT)
    run.advance(31)
    assert run.refinement is not None
    run.refinement.drop(torch.tensor([1]))
    assert (run.refinement.solver.status[run.refinement.problem == 1] != Status.RUNNING).all()
    assert run.alive == 4


def test_ranks() -> None:
    problem, score = torch.tensor([1, 0, 1, 0, 1, 3]), torch.tensor([0.5, 2.0, 0.5, 1.0, 0.1, torch.inf])
    assert ranks(problem, score).tolist() == [1, 1, 2, 0, 0, 0]


# ---- interrupted -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [7, 20, 25, 30, 37, 45, 50])
def test_continued_to_the_bit(at: int, tmp_path: Path) -> None:
    x, y = _hard()

    def start() -> Run:
        model = nn.Sequential(NPU(2, 3, num_models=8), NAU(3, 1, num_models=8))
        return Run(model, x.expand(2, -1, -1), y.expand(2, -1, -1), [0, 1], SHORT)

    whole, first, second = start(), start(), start()
    whole.advance(whole.total)
    first.advance(at)
    torch.save(first.state(), tmp_path / "state")
    assert first.result().complete == (first.done == first.total)
    second.restore(torch.load(tmp_path / "state", weights_only=True))
    second.advance(second.total)
    expected, found = whole.result(), second.result()
    assert _same(expected.models, found.models)
    assert expected.candidates == found.candidates
    assert expected.chosen == found.chosen
    for name in ("score", "scores", "retired", "rows"):
        assert torch.equal(getattr(expected, name), getattr(found, name))
    assert expected.history == found.history


def test_ctrl_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = _hard()
    arguments: dict[str, Any] = {"recipe": SHORT, "checkpoint": tmp_path / "fit"}
    whole = fit(RealNPU(2, 1, num_models=6), x, y, recipe=SHORT)
    advance, before = Run.advance, signal.getsignal(signal.SIGINT)

    def interrupted(run: Run, rounds: int) -> None:
        advance(run, 7)
        os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "advance", interrupted)
        part = fit(RealNPU(2, 1, num_models=6), x, y, **arguments)
    assert signal.getsignal(signal.SIGINT) is before
    assert not part.complete
    assert part.rows == 6 * 7 * 64
    assert torch.isfinite(torch.tensor(part.score))
    continued = fit(RealNPU(2, 1, num_models=6), x, y, **arguments)
    assert continued.complete
    assert _same(continued.model, whole.model)
    assert continued.rows == whole.rows
    finished = fit(RealNPU(2, 1, num_models=6), x, y, **arguments)  # nothing is left to do
    assert finished.seconds == continued.seconds


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"seed": 1}, r"other seeds \(\[0\], here \[1\]\)"),
        ({"recipe": replace(SHORT, rate=0.1)}, r"other recipe.rate \(0.05, here 0.1\)$"),
        ({"y": "double"}, r"other dtypes \(x torch.float32, y torch.float32, .* here x torch.float32, y torch.float64"),
        ({"model": NPU(2, 1, num_models=6)}, r"other model$"),
        ({"model": RealNPU(2, 1, num_models=6).double()}, r"other dtypes \("),
        ({"torch": "1.0"}, r"other torch \(.*, here 1.0\)$"),
        ({"npu_kernels": "9"}, r"other npu_kernels \(.*, here 9\)$"),
    ],
    ids=str,
)
def test_a_checkpoint_of_another_fit(
    change: dict[str, Any], what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused, and the message says in what it differs; the file stays as it is."""
    x, y = _hard()
    path = tmp_path / "fit.pt"
    fit(RealNPU(2, 1, num_models=6), x, y, recipe=SHORT, checkpoint=path)
    before = path.read_bytes()
    options: dict[str, Any] = {"model": RealNPU(2, 1, num_models=6), "x": x, "recipe": SHORT, **change}
    options["y"] = y.double() if "y" in change else y
    for module in (torch, npu_kernels):
        if module.__name__ in change:
            monkeypatch.setattr(module, "__version__", options.pop(module.__name__))
    with pytest.raises(
        ValueError, match=rf"^fit: checkpoint must be a new file or one of this same fit, got '.*fit.pt': .*{what}"
    ):
        fit(**options, checkpoint=path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"hello", "half", "state dict", "list"])
def test_a_file_that_is_no_checkpoint(content: bytes | str, tmp_path: Path) -> None:
    x, y = _hard()
    path = tmp_path / "fit.pt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content == "half":
        fit(RealNPU(2, 1, num_models=6), x, y, recipe=SHORT, checkpoint=path)
        path.write_bytes(path.read_bytes()[:-1000])
    else:
        torch.save([1] if content == "list" else NPU(2, 1).state_dict(), path)
    with pytest.raises(
        ValueError, match=r"^fit: checkpoint must be .* got '.*fit.pt': it (is empty|is|holds)"
    ) as caught:
        fit(RealNPU(2, 1, num_models=6), x, y, recipe=SHORT, checkpoint=path)
    assert "weights_only" not in str(caught.value)


def test_a_checkpoint_that_cannot_be_written_is_named_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = _hard()
    monkeypatch.setattr(Run, "advance", lambda run, rounds: pytest.fail("work was done"))
    many = {"x": x[None], "y": y[None], "recipe": SHORT, "checkpoint": tmp_path}
    for path, error in ((tmp_path / "missing" / "fit.pt", FileNotFoundError), ("a\0b", ValueError)):
        with pytest.raises(error, match=r"^fit: checkpoint must be a file that can be written, got '"):
            fit(RealNPU(2, 1, num_models=6), x, y, recipe=SHORT, checkpoint=path)
    with pytest.raises(IsADirectoryError, match=r"^fit_many: checkpoint must be a file .*: it is a folder$"):
        fit_many(RealNPU(2, 1, num_models=6), **many)
    with pytest.raises(TypeError, match=r"^fit: checkpoint must be a path, got int$"):
        fit(RealNPU(2, 1, num_models=6), x, y, recipe=SHORT, checkpoint=3)  # type: ignore[arg-type]


def test_a_folder_that_vanishes_costs_the_checkpoint_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = _hard()
    folder = tmp_path / "folder"
    folder.mkdir()
    whole = fit(RealNPU(2, 1, num_models=6), x, y, recipe=SHORT)
    advance = Run.advance

    def vanishing(run: Run, rounds: int) -> None:
        advance(run, rounds)
        shutil.rmtree(folder, ignore_errors=True)

    monkeypatch.setattr(Run, "advance", vanishing)
    monkeypatch.setitem(fit.__globals__, "CHECKPOINT_SECONDS", 0.0)  # saved after every slice, in vain
    with pytest.warns(RuntimeWarning, match=r"^fit: checkpoint '.*' could not be written \(No such file") as warned:
        found = fit(RealNPU(2, 1, num_models=6), x, y, recipe=SHORT, checkpoint=folder / "fit.pt")
    assert {Path(w.filename).name for w in warned} == {"test_fit.py"}
    assert found.complete
    assert _same(found.model, whole.model)


def test_progress(capfd: pytest.CaptureFixture[str]) -> None:
    x, y = _hard()
    fit(RealNPU(2, 1, num_models=6), x, y, recipe=SHORT)
    assert capfd.readouterr().err == ""
    fit(RealNPU(2, 1, num_models=6), x, y, recipe=SHORT, progress=True)
    shown = capfd.readouterr().err
    assert re.fullmatch(r"fit: 100 %, \d\d:\d\d passed, 00:00 left, 0 models, error \S+\n", shown)


# ---- messages ----------------------------------------------------------------------------------------------------


def _call(model: Any = None, x: Any = None, y: Any = None, **options: Any) -> None:
    fit(RealNPU(2, 1, num_models=4) if model is None else model, torch.ones(9, 2) if x is None else x, y, **options)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: _call(), ValueError, r"^fit: y must be given with an x of rows, got None$"),
        (
            lambda: _call(x=[], y=torch.ones(9, 1)),
            TypeError,
            r"^fit: x must be .* got list; batches bring their own y$",
        ),
        (lambda: _call(x=[]), ValueError, r"^fit: x must give at least one batch$"),
        (lambda: _call(x=3), TypeError, r"^fit: x must be a tensor, batches \(x, y\), or a function .*, got int$"),
        (lambda: _call(x=[1]), TypeError, r"^fit: a batch must be two tensors \(x, y\), got int$"),
        (
            lambda: _call(x=[(torch.ones(3, 2), torch.ones(4, 1))]),
            ValueError,
            r"^fit: a batch must have shapes \(B, I\) and \(B, O\) with B of at least 1, got \(3, 2\) and \(4, 1\)$",
        ),
        (lambda: _call(y=torch.ones(9)), ValueError, r"^fit: y must have shape \(N, out_features\), got shape \(9,\)$"),
        (lambda: _call(y=torch.ones(8, 1)), ValueError, r"^fit: x and y must have the same rows, got shapes"),
        (
            lambda: _call(y=torch.ones(9, 2)),
            ValueError,
            r"^fit: y must have last dimension 1, as the model's, got 2$",
        ),
        (lambda: _call(x=torch.ones(1, 2), y=torch.ones(1, 1)), ValueError, r"x must have at least 2 rows .*, got 1$"),
        (lambda: _call(y=torch.full((9, 1), torch.nan)), ValueError, r"^fit: y must be finite, got 9 that are not$"),
        (
            lambda: _call(y=torch.ones(9, 1).half()),
            TypeError,
            r"^fit: y must be float32 or float64, got torch.float16$",
        ),
        (
            lambda: _call(y=torch.ones(9, 1), seed=-1),
            ValueError,
            r"^fit: seed must be an integer of at least 0, got -1$",
        ),
        (lambda: _call(model=3, y=torch.ones(9, 1)), TypeError, r"^fit: model must be a torch.nn.Module, got int$"),
        (
            lambda: _call(model=RealNPU(2, 1), y=torch.ones(9, 1)),
            ValueError,
            r"^fit: every unit of model must have the same num_models \(the number of starts\), got \[None\]$",
        ),
        (
            lambda: _call(model=nn.Sequential(NAU(2, 2, num_models=3), nn.Linear(2, 1)), y=torch.ones(9, 1)),
            ValueError,
            r"^fit: every parameter of model must belong to a unit of npu_kernels, got 1.weight$",
        ),
        (
            lambda: _call(model=nn.Tanh(), y=torch.ones(9, 1)),
            ValueError,
            r"^fit: model must have units of npu_kernels, got Tanh without any$",
        ),
        (
            lambda: _call(model=NAU(2, 1, num_models=3, dtype=torch.bfloat16), y=torch.ones(9, 1)),
            TypeError,
            r"^fit: model must be float32 or float64, got torch.bfloat16$",
        ),
        (
            lambda: fit_many(NAU(2, 1, num_models=5), torch.ones(2, 9, 2), torch.ones(2, 9, 1)),
            ValueError,
            r"^fit_many: num_models must be a multiple of the number of problems, 2, got 5$",
        ),
        (
            lambda: fit_many(NAU(2, 1, num_models=4), torch.ones(2, 9, 2), torch.ones(2, 9, 1), seeds=[1]),
            ValueError,
            r"^fit_many: seeds must be 2 integers of at least 0, one per problem, got \[1\]$",
        ),
        (lambda: Recipe(batch=0), ValueError, r"^Recipe: batch must be an integer of at least 1, got 0$"),
        (lambda: Recipe(rate=0.0), ValueError, r"^Recipe: rate must be finite and greater than 0, got 0.0$"),
        (lambda: Recipe(gates=(2.0,)), ValueError, r"^Recipe: gates must be numbers from 0 to 1, got \(2.0,\)$"),
        (lambda: Recipe(wide=()), ValueError, r"^Recipe: wide must be finite numbers of at least 0, got \(\)$"),
        (lambda: Recipe(loss="l1"), ValueError, r"^Recipe: loss must be 'relative' or 'squared', got 'l1'$"),
        (lambda: Recipe(holdout=1.0), ValueError, r"^Recipe: holdout must lie between 0 and 1, got 1.0$"),
        (lambda: Recipe(rungs=((5, 0.5),)), ValueError, r"^Recipe: rungs must be pairs .* the shares falling from 1"),
        (lambda: Recipe(finalists=(1, 0)), ValueError, r"^Recipe: finalists must be two integers of at least 1"),
        (lambda: Recipe(denominators=(2, 1)), ValueError, r"^Recipe: denominators must be increasing integers"),
        (lambda: Recipe(refine=-1), ValueError, r"^Recipe: refine must be an integer of at least 0, got -1$"),
        (lambda: Recipe(slack=-1), ValueError, r"^Recipe: slack must be finite and at least 0, got -1$"),
    ],
)
def test_errors(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
