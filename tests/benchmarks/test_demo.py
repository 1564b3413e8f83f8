"""The demonstration: its data, its formulas, and what each part prints."""

import math
import sys

import pytest
import torch

from benchmarks.demo import __main__ as demo
from benchmarks.demo import arithmetic, kepler, law, speed
from benchmarks.paper.simple import task as simple
from benchmarks.throughput.cases import Size

GAUSSIAN_YEAR = (
    365.2568983  # days: the period at 1 au of a body without mass, from the Sun's gravity
)


pytestmark = pytest.mark.usefixtures("one_thread")  # what they run sets another number


# ---- (a) -----------------------------------------------------------------------------------------


def test_every_orbit_obeys_the_law_within_a_fraction_of_a_percent():
    bodies = kepler.read_bodies()
    assert len(bodies) == len({b.name for b in bodies}) == 34
    assert [b.name for b in bodies if b.kind == "planet"] == [
        "Mercury", "Venus", "Earth", "Mars", "Jupiter", "Saturn", "Uranus", "Neptune",
    ]  # fmt: skip
    for body in bodies:
        assert body.axis**3 / body.period**2 == pytest.approx(1, abs=2e-3), body.name


def test_computed_periods_are_right_to_the_last_digit():
    # The database computes them from the axis, so a mistyped digit in either column shows.
    bodies = [b for b in kepler.read_bodies() if not b.measured]
    assert len(bodies) == 25
    for body in bodies:
        days = GAUSSIAN_YEAR * body.axis**1.5
        rounding = 0.005 + 1.5 * days / body.axis * 0.5e-8
        assert abs(body.period * kepler.YEAR - days) < rounding * 1.01, body.name


def test_the_table_names_its_sources():
    head = [line for line in kepler.DATA.read_text().splitlines() if line.startswith("#")]
    assert any("NASA Planetary Fact Sheets" in line for line in head)
    assert any("JPL Small-Body Database" in line for line in head)


def test_the_law_is_learnt(capsys):
    law = kepler.run(steps=600)
    exponent, constant = kepler.least_squares([b for b in kepler.read_bodies() if b.measured])
    assert law.gate == 1
    assert law.exponent == pytest.approx(1.5, abs=5e-4)
    assert law.exponent == pytest.approx(exponent, abs=1e-4)
    assert law.constant == pytest.approx(constant, abs=1e-4)
    printed = capsys.readouterr().out
    assert f"exponent {law.exponent:.6f}, {abs(law.exponent - 1.5):.1e} from 3/2" in printed
    assert "gate 1: the layer sees the axis itself" in printed
    assert "period = axis**(3/2)" in printed


def test_a_gate_that_is_not_1_is_said(capsys):
    law = kepler.run(steps=1)
    assert 0 < law.gate < 1
    assert "so the exponent is NOT one of the axis itself" in capsys.readouterr().out


# ---- (b) -----------------------------------------------------------------------------------------


def test_grids_are_those_of_the_paper():
    signed, root = simple.grid("mul"), simple.grid("sqrt")
    assert signed.shape == (1681, 2)
    assert root.shape == (1600, 2)
    assert signed.min().item() == pytest.approx(-4.1)
    assert signed.max().item() == pytest.approx(3.9)
    assert signed.abs().min() > 0.09
    assert (root.min().item(), root.max().item()) == pytest.approx((0.1, 4.0))


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
    for operation in arithmetic.OPERATIONS:
        assert any(line.startswith(f"      {operation} = ") for line in printed.splitlines())
    deviation = next(line for line in printed.splitlines() if "this formula deviates" in line)
    assert float(deviation.split()[-1].rstrip(".")) < 0.05  # what was pruned is small
    # On inputs without a sign nothing moves the imaginary weights.
    assert (trained.model[0].weight_im == 0).all()


def test_picture(tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    arithmetic.run(tmp_path, steps=2, seeds=2)
    assert (tmp_path / "arithmetic_error.png").read_bytes().startswith(b"\x89PNG")
    assert "arithmetic_error.png" in capsys.readouterr().out


def test_without_sympy_it_says_so(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "sympy", None)
    arithmetic.run(tmp_path, steps=2, seeds=2)
    kepler.run(steps=1)
    assert capsys.readouterr().out.count("pip install 'npu_kernels[formula]'") == 2


def test_without_matplotlib_it_says_so(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    arithmetic.run(tmp_path, steps=2, seeds=2)
    assert "No picture of the errors: matplotlib is not installed" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


# ---- (c) -----------------------------------------------------------------------------------------


def test_speed_prints_its_rows(capsys):
    rows = speed.run(sizes=[Size(8, 3, 2), Size(8, 3, 2, 4)], seconds=0.01, skip_compile=True)
    printed = capsys.readouterr().out
    assert [row["rival"] for row in rows] == ["ours", "eager", "linear"] * 2
    assert "without torch.compile: on request" in printed
    assert "8, 3, 2, 4" in printed
    assert f"{rows[0]['median_us']:.1f} us" in printed


def test_unsteady_ratios_are_marked():
    row = {
        "rows": 8, "inputs": 3, "outputs": 2, "models": 1, "rival": "ours", "median_us": 10.0,
        "error": 1e-7,
    }  # fmt: skip
    row |= {"ratio": 1.0, "ratio_p20": 1.0, "ratio_p80": 1.0}
    eager = {**row, "rival": "eager", "ratio": 5.0, "ratio_p20": 2.0, "ratio_p80": 9.0}
    text = speed.line([row, eager, {**row, "rival": "linear", "ratio": 0.5}])
    assert text.split()[4:9] == ["10.0", "us", "5.00x?", "-", "2.00x"]


def test_beside_other_work_there_is_no_verdict(capsys, monkeypatch):
    """Steady ratios of thousands, all of them from waiting for a core."""

    def measure(case, names, threads, seconds):
        steady = {
            "ratio": 6765.0,
            "ratio_p20": 6700.0,
            "ratio_p80": 6800.0,
            "median_us": 10.0,
            "waited": 0.97,
        }
        row = {**case.to_dict(), "threads": threads, "error": 1e-7, **steady}
        return [
            {**row, "rival": name, **({"ratio": 1.0} if name == "ours" else {})}
            for name in ("ours", *names)
        ]

    monkeypatch.setattr(speed.suite, "measure", measure)
    speed.run(sizes=[Size(8, 3, 2)], skip_compile=True)
    printed = capsys.readouterr().out
    assert "6765.00x?" in printed
    assert "10.0 us?" in printed
    assert "No verdict: 1 of 1 ratios are marked with ?" in printed
    assert "was faster" not in printed


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


def test_interruption_ends_cleanly(tmp_path, capsys, monkeypatch):
    def interrupt(**options):
        raise KeyboardInterrupt

    threads = torch.get_num_threads()
    monkeypatch.setattr(kepler, "run", interrupt)
    assert demo.main(["--out", str(tmp_path)]) == 130
    assert "interrupted" in capsys.readouterr().err
    assert torch.get_num_threads() == threads


def test_the_whole_demonstration_runs(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(arithmetic, "SEEDS", 2)
    parts = {"kepler": kepler.run, "arithmetic": arithmetic.run, "speed": speed.run}
    monkeypatch.setattr(kepler, "run", lambda steps: parts["kepler"](steps=3, starts=2))
    monkeypatch.setattr(
        arithmetic, "run", lambda folder, steps: parts["arithmetic"](folder, steps=3, seeds=2)
    )
    monkeypatch.setattr(law, "run", lambda: print("(d) a law"))
    monkeypatch.setattr(
        speed, "run", lambda **o: parts["speed"](**o, sizes=[Size(4, 3, 2)], seconds=0.01)
    )
    assert demo.main(["--quick", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    for part in ("(a) Kepler", "(b) the paper's arithmetic", "(c) speed", "(d) a law", "Done in"):
        assert part in printed


def test_the_law_of_thrown_stones(capsys):
    for name in ("sklearn", "pandas", "pint"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    model = law.run()
    terms = {
        tuple(w): c for w, c in zip(model.exponents_.tolist(), model.coef_.tolist(), strict=True)
    }
    assert terms == {
        (1, 0, 1): pytest.approx(1, abs=0.01),
        (0, 1, 2): pytest.approx(-0.5, abs=0.01),
    }
    assert "coefficient of speed*time = " in capsys.readouterr().out


def test_a_seed_that_went_to_nan_is_not_the_best():
    errors = torch.tensor([[math.nan, 0, 0, 0], [1, 1, 1, 1], [0.5, 1, 1, 1]])
    assert arithmetic.Trained(torch.nn.Sequential(), torch.empty(0), errors).best == 2
