"""The documentation's examples print what it says that they print."""

from __future__ import annotations

import contextlib
import csv
import doctest
import io
import re
import statistics
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
NUMBER = re.compile(r"[-+]?\d+\.\d+e[-+]\d+")


def test_examples_of_choosing_a_layer():
    pytest.importorskip("sympy", reason="sympy is not installed")
    result = doctest.testfile(str(ROOT / "docs" / "choosing-a-layer.md"), module_relative=False)
    assert result.attempted > 30
    assert not result.failed


def test_table_of_choosing_a_layer_is_that_of_the_results():
    text = (ROOT / "docs" / "choosing-a-layer.md").read_text()
    lines = (ROOT / "benchmarks" / "results" / "paper" / "simple.csv").read_text().splitlines()
    runs = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    for label, model in {"RealNPU → NAU": "RealNPU", "NMU → NAU": "NMU", "dense network": "Dense"}.items():
        (row,) = re.findall(rf"^\| {label} \|(.*)\|$", text, re.M)
        said = [float(cell.replace("*", "").split()[0]) for cell in row.split("|")]
        found = [
            statistics.median(float(run[op]) for run in runs if run["model"] == model)
            for op in ("add", "mul", "div", "sqrt")
        ]
        assert said == pytest.approx(found, rel=5e-3)


@pytest.mark.parametrize("heading", ["Reading the formula"])
def test_readme_example_prints_what_it_says(heading):
    pytest.importorskip("sympy", reason="sympy is not installed")
    section = (ROOT / "README.md").read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.S)
    (said,) = re.findall(r"```text\n(.*?)```", section, re.S)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {})
    # The same words; errors in scientific notation to 20 %, as another processor's training may end in other digits.
    assert NUMBER.sub("#", printed.getvalue()).split() == NUMBER.sub("#", said).split()
    found, expected = (torch.tensor([float(n) for n in NUMBER.findall(text)]) for text in (printed.getvalue(), said))
    torch.testing.assert_close(found, expected, rtol=0.2, atol=1e-5)
