"""The demonstration: its data, its formulas, and what each part prints."""

import sys

import pytest
import torch

from benchmarks.demo import __main__ as demo
from benchmarks.demo import arithmetic, equation, kepler, speed
from benchmarks.paper.simple import task as simple
from benchmarks.throughput.cases import Size

pytestmark = pytest.mark.usefixtures("one_thread")  # what they run sets another number


# ---- (a) -----------------------------------------------------------------------------------------


def test_every_orbit_obeys_the_equation_within_a_fraction_of_a_percent():
    bodies = kepler.read_bodies()
    assert len(bodies) == len({b.name for b in bodies}) == 34
    assert [b.name for b in bodies if b.kind == "planet"] == [
        "Mercury", "Venus", "Earth", "Mars", "Jupiter", "Saturn", "Uranus", "Neptune",
    ]  # fmt: skip
    for body in bodies:
        assert body.axis**3 / body.period**2 == pytest.approx(1, abs=2e-3), body.name


# ---- (b) -----------------------------------------------------------------------------------------


def test_arithmetic_runs_and_prints_what_it_measured(tmp_path, capsys):
    trained = arithmetic.run(tmp_path, steps=40, seeds=3)
    printed = capsys.readouterr().out
    assert trained.errors.shape == (3, 4)
    x = simple.grid("mul")
    with torch.no_grad():
        off = trained.model(x)[2, :, 1] - x.prod(1)
    assert trained.errors[2, 1].item() == pytest.approx(off.abs().mean().item())
    row = next(line for line in printed.splitlines() if "best seed (" in line)
    assert [float(word) for word in row.split()[-4:]] == pytest.approx(
        trained.errors[trained.best].tolist(), rel=5e-3
    )
    assert "0.37 +- 0.23" in printed
    assert "not comparable" in printed
    # On inputs without a sign nothing moves the imaginary weights.
    assert (trained.model[0].weight_im == 0).all()


def test_without_sympy_it_says_so(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "sympy", None)
    kepler.run(steps=1)
    assert capsys.readouterr().out.count("pip install 'npu_kernels[formula]'") == 1


# ---- the frame -----------------------------------------------------------------------------------


def test_a_folder_that_cannot_be_written_is_named_before_any_work(tmp_path, capsys):
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(SystemExit) as stop:
        demo.main(["--out", str(file)])
    assert stop.value.code == 2
    error = capsys.readouterr()
    assert f"cannot write into {file}" in error.err
    assert "Kepler" not in error.out


def test_the_whole_demonstration_runs(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(arithmetic, "DEMO_SEEDS", 2)
    parts = {"kepler": kepler.run, "arithmetic": arithmetic.run, "speed": speed.run}
    monkeypatch.setattr(kepler, "run", lambda steps: parts["kepler"](steps=3, starts=2))
    monkeypatch.setattr(
        arithmetic, "run", lambda folder, steps: parts["arithmetic"](folder, steps=3, seeds=2)
    )
    monkeypatch.setattr(equation, "run", lambda: print("(d) an equation"))
    monkeypatch.setattr(
        speed, "run", lambda **o: parts["speed"](**o, sizes=[Size(4, 3, 2)], seconds=0.01)
    )
    assert demo.main(["--quick", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    for part in (
        "(a) Kepler",
        "(b) the paper's arithmetic",
        "(c) speed",
        "(d) an equation",
        "Done in",
    ):
        assert part in printed


def test_the_equation_of_thrown_stones(capsys):
    for name in ("sklearn", "pandas", "pint"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    model = equation.run()
    terms = {
        tuple(w): c for w, c in zip(model.exponents_.tolist(), model.coef_.tolist(), strict=True)
    }
    assert terms == {
        (1, 0, 1): pytest.approx(1, abs=0.01),
        (0, 1, 2): pytest.approx(-0.5, abs=0.01),
    }
    assert "coefficient of speed*time = " in capsys.readouterr().out
