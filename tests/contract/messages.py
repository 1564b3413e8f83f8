"""What wrong arguments of public functions say: the calls of `bad_arguments.txt`, and their errors.

A line of the file is a call, in the names of `names`. The indented line below it is its error.
"""

import functools
import math
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils import prune

import npu_kernels
from npu_kernels import NAU, NPU, RealNPU, equations, fitting, iNALU, layers, ode, training
from npu_kernels.optim import lbfgs as minimiser

FILE = Path(__file__).with_name("bad_arguments.txt")
LENGTH = 500  # of a message that is compared
TABLE = np.random.default_rng(0).uniform(1, 3, (60, 2))
TIMES = torch.linspace(0, 10, 25, dtype=torch.float64)


def chain() -> nn.Sequential:
    return nn.Sequential(NPU(2, 3), NAU(3, 2))


def model_of(exponents: Any, coefficients: Any) -> nn.Sequential:
    """The model of u' = coefficients prod(u**exponents)."""
    power, nau = RealNPU(2, len(exponents)), NAU(len(exponents), 2, clip=False)
    model = nn.Sequential(power, nau).double()
    with torch.no_grad():
        power.weight_re.copy_(torch.tensor(exponents))
        power.gate.fill_(1)
        nau.weight.copy_(torch.tensor(coefficients))
    return model


def filled(layer: nn.Module, value: float) -> nn.Module:
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.fill_(value)
    return layer


def inverse_of_zero() -> nn.Sequential:
    """The constant 0 to the power of -1."""
    inverse = iNALU(1, 1)
    inverse.weight_mul.data.fill_(-20)
    inverse.mask_mul.data.fill_(20)
    return nn.Sequential(filled(NAU(1, 1), 0.0), inverse)


def power_of_zero() -> nn.Sequential:
    """The constant 0 to the power of -1/2."""
    power = filled(RealNPU(1, 1), 1.0)
    power.weight_re.data.fill_(-0.5)  # type: ignore[operator, union-attr]
    return nn.Sequential(filled(NAU(1, 1), 0.0), power)


def pruned() -> nn.Sequential:
    model = chain()
    prune.l1_unstructured(model[0], "weight_re", amount=2)
    return model


def hooked(layer: nn.Module) -> nn.Module:
    layer.register_forward_hook(lambda *_: None)
    return layer


def series(**options: Any) -> Any:
    settings = {"model": chain_of(2, 2), "t": TIMES, "u": torch.ones(25, 2).double(), **options}
    return ode.fit(**settings)


def chain_of(states: int, terms: int, inputs: int = 0, **options: Any) -> nn.Sequential:
    """A model of states and inputs."""
    power = RealNPU(states + inputs, terms, **options)
    return nn.Sequential(power, NAU(terms, states, **options)).double()


def rollout(**options: Any) -> Any:
    return ode.rollout(chain_of(1, 1), torch.ones(1).double(), **options)


def run(**options: Any) -> Any:
    settings = {
        "model": chain(),
        "x": torch.ones(5, 2),
        "y": torch.ones(5, 2),
        "steps": 1,
        "lr": 0.1,
    }
    return training.run(**settings | options)


def regressor(**options: Any) -> Any:
    return equations.NPURegressor(**{"random_state": 0, "n_init": 8, **options})


def table(y: Any = TABLE[:, 0], x: Any = TABLE, /, **options: Any) -> Any:
    """A fit of `NPURegressor(**options)`; `weight` and `groups` are arguments of the fit."""
    fit = {name: options.pop(name) for name in ("sample_weight", "groups") if name in options}
    return regressor(**options).fit(x, y, **fit)


@functools.cache
def fitted(groups: bool = False, **options: Any) -> Any:
    labels = {"groups": ["oak", "ash"] * 30} if groups else {}
    return table(3 * TABLE[:, 0], max_terms=1, target_powers=(1,), **labels, **options)


@functools.cache
def fitted_series() -> Any:
    model, times = model_of([[1.0, 0.0], [0.0, 1.0]], [[-1.0, 0.0], [0.0, -2.0]]), TIMES / 10
    states = torch.stack([(-times).exp(), (-2 * times).exp()], 1)
    return ode.fit(model, times, states, init="model", simplify=False)


def names() -> dict[str, Any]:
    """What calls may use: what the package exports, and the functions above."""
    import datetime

    import pandas

    exported = {name: getattr(npu_kernels, name) for name in npu_kernels.__all__}  # type: ignore[attr-defined]
    generator = torch.Generator().manual_seed(0)
    tensors = {
        "x": torch.rand(9, 2, generator=generator) + 1,
        "y": torch.rand(9, 1, generator=generator),
        "W": torch.ones(3, 2), "V": torch.ones(2, 3), "G": torch.ones(2), "u": torch.ones(3),
    }  # fmt: skip
    ours = {name: value for name, value in globals().items() if callable(value)}
    return {
        **{name: getattr(layers, name) for name in layers.__all__},  # type: ignore[attr-defined]
        **{name: getattr(training, name) for name in ("l1", "project_", "regularizer")},
        **ours, **exported, **tensors,
        "np": np, "torch": torch, "nn": nn, "math": math, "datetime": datetime, "pandas": pandas,
        "equations": equations, "fitting": fitting, "TABLE": TABLE, "TIMES": TIMES, "lbfgs": minimiser.lbfgs,
        "starts": lambda units=2: RealNPU(units, 1, num_models=4),
    }  # fmt: skip


def read() -> list[tuple[str, str]]:
    """The calls and their errors, in the order of the file."""
    entries: list[tuple[str, str]] = []
    for line in FILE.read_text(encoding="utf-8").splitlines():
        if line.startswith("  "):
            entries[-1] = (entries[-1][0], line.strip())
        elif line and not line.startswith("#"):
            entries.append((line, ""))
    return entries


def error_of(call: str) -> str:
    """The type and the first line of what a call raises, without addresses in memory."""
    torch.manual_seed(0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            eval(call, names())
    except Exception as error:
        said = f"{type(error).__name__}: {error}".splitlines()[0].strip()
        return re.sub(r" at 0x[0-9A-Fa-f]+", "", said)[:LENGTH]
    return "no error"


def write() -> list[str]:
    """Write all messages anew; return a line for each that differs."""
    lines, changes = [], []
    old = dict(read())
    for line in FILE.read_text(encoding="utf-8").splitlines():
        if line.startswith("  "):
            continue
        lines.append(line)
        if line and not line.startswith("#"):
            said = error_of(line)
            lines.append(f"  {said}")
            if said != old[line]:
                changes.append(f"{line} says now: {said}")
    FILE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return changes
