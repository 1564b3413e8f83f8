"""The models of the rows: the choice, as layers of the package, and their equations as text."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import vector_to_parameters

from benchmarks.paper.experiment import Results
from benchmarks.paper.fsir import task as fsir
from benchmarks.paper.summary import number
from npu_kernels import NAU, NPU, RealNPU
from npu_kernels._jobs import files

FEW = 20  # parameters; what counts as a very sparse model


def module(model: str, h: int, parameters: Tensor) -> nn.Sequential:
    """A power model's parameters ``[N]`` as the package's layers."""
    kind = NPU if model == "NPU" else RealNPU
    power, nau = kind(3, h, dtype=torch.float64), NAU(h, 3, dtype=torch.float64, clip=False)
    layers = nn.Sequential(power, nau)
    vector_to_parameters(parameters.detach().double(), layers.parameters())
    return layers


def equations(model: str, h: int, parameters: Tensor) -> list[str]:
    """dS/dt, dI/dt, dR/dt of a power model as text, for states of at least 0; [] without sympy."""
    try:
        from npu_kernels.formula import extract

        pruned = torch.where(parameters.abs() > fsir.NON_ZERO, parameters, 0.0)
        names = [f"d{name}/dt" for name in fsir.NAMES]
        formula = extract(
            module(model, h, pruned), list(fsir.NAMES), outputs=names, nonnegative=True
        )
    except ImportError:
        return []
    return formula.text().splitlines()


def keep_best(results: Results, path: Path) -> None:
    """Write the parameters of each model's best run, and of the best sparse RealNPU."""
    chosen: dict[str, dict[str, Any]] = {}
    for batch, result in results:
        for row, parameters in zip(result["rows"], result["tensors"]["parameters"], strict=True):
            names = [row["model"]]
            if row["model"] == "RealNPU" and row["n_params"] <= FEW:
                names.append("sparse RealNPU")
            more = {
                "integrator": batch.settings["integrator"], "parameters": parameters.tolist()
            }  # fmt: skip
            for name in names:
                if row["mse"] < chosen.get(name, {"mse": math.inf})["mse"]:
                    chosen[name] = {**row, **more}
    files.write(path, json.dumps(chosen, indent=1))


def section(path: Path) -> str:
    """The equation of the best RealNPU that one can read, beside the true one."""
    best = json.loads(path.read_text()).get("sparse RealNPU")
    if best is None:
        return ""
    parameters = torch.tensor(best["parameters"], dtype=torch.float64)
    lines = equations("RealNPU", best["h"], parameters)
    if not lines:  # without sympy
        return ""
    facts = f"h {best['h']}, beta {best['beta']:g}, error {number(best['mse'])}"
    facts += f", {best['n_params']} parameters"
    title = f"The best RealNPU with at most {FEW} parameters ({facts})"
    fitted, true = (
        "\n".join(f"    {line}" for line in of)
        for of in (lines, equations("RealNPU", 3, fsir.truth()[0]))
    )
    return f"{title}:\n\n{fitted}\n\nThe true equation:\n\n{true}\n"
