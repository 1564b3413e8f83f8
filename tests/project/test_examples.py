"""The example scripts do what they say. `train_distributed.py` is tested in test_distributed.py."""

import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

from npu_kernels import ode
from tests.conftest import needs_library

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
pytestmark = needs_library


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Runs a script in a folder of its own; gives what it printed."""

    def script(name: str, *words: str) -> str:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [name, *words])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return script


@pytest.mark.filterwarnings(
    "ignore:.*should not be instantiated:DeprecationWarning"
)  # torch._dynamo's own
def test_drop_in_goes_on_from_its_checkpoint(run):
    words = ("--backend", "aot_eager", "--steps", "100")
    first, second = run("train_drop_in.py", *words), run("train_drop_in.py", *words)
    assert first.startswith("100 steps: error ")
    assert second.startswith("200 steps: error ")
    assert float(second.split()[-1]) < min(0.02, float(first.split()[-1]))
    torch._dynamo.reset()


def test_neural_ode(run):
    (error,) = re.findall(r"greatest error on the series ([\d.]+)$", run("neural_ode.py"))
    assert float(error) < 0.2


@pytest.mark.parametrize("name", ["train_drop_in.py", "neural_ode.py"])
def test_the_device_is_the_named_one(run, name):
    with pytest.raises(RuntimeError, match="device type at start of device string: gpu"):
        run(name, "--device", "gpu")


def test_law_of_a_time_series(run, tmp_path):
    for name in ("scipy", "pandas", "sympy", "matplotlib"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    said = run("law_of_a_time_series.py", "--plot", "picture.png")
    assert re.search(r"^hare' = -0.027\d*\*hare\*lynx \+ 0.5[34]\d*\*hare$", said, re.M)
    assert (tmp_path / "picture.png").stat().st_size > 1000
    said = run("law_of_a_time_series.py", "--influenza", "--plot", "in_bed.png")
    first, second = said.splitlines()[:2]
    assert (first, second[:14]) == ("S' = -0.002339*I*S", "I' = 0.002339*")  # one rate
    assert "Diagnostics: The equations explain the series" in said
    assert (tmp_path / "in_bed.png").stat().st_size > 1000
    times = [0.1 * k for k in range(20)]
    lines = ["# a comment", "t,c", *(f"{t},{2 / (1 + t)}" for t in times), "3.0,"]
    (tmp_path / "data.csv").write_text("\n".join(lines) + "\n")
    assert run(
        "law_of_a_time_series.py", "data.csv", "--max-terms", "1", "--n-init", "4"
    ).startswith("c' = -0.5*c**2\n")


def test_a_real_series_that_no_equation_of_one_state_explains(run):
    for name in ("scipy", "pandas", "sympy"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    with pytest.warns(ode.PoorFitWarning, match="the equations miss"):
        said = run("law_of_a_time_series.py", str(EXAMPLES / "sunspots.csv"), "--n-init", "4")
    assert "The equations explain less than half of the series' variation" in " ".join(said.split())
