"""The pass "rollout": a neural ODE u' = NAU(NPU(u)) by Euler steps, both ways, in float64.

A case's size is steps x D x h x models. Ours is one call of `npu_kernels.ode.rollout` and one of
its adjoint; eager is the reference formulas step by step under autograd; compile is the same loop
over a compiled step, compile-chunks that over `CHUNK` steps compiled as one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.throughput import cases
from benchmarks.throughput.cases import Case, Operands, Workload
from npu_kernels import NAU, NPU, ode, reference

CHUNK = 20


def model_of(case: Case, operands: Operands) -> nn.Module:
    """Our layers with the operands' parameters."""
    size = case.size
    models = None if size.models == 1 else size.models
    model = nn.Sequential(
        NPU(size.inputs, size.outputs, num_models=models, dtype=torch.float64, eps=cases.EPS),
        NAU(size.outputs, size.inputs, num_models=models, dtype=torch.float64),
    )
    return cases.filled(model, operands.parameters)


def ours(case: Case, operands: Operands) -> Workload:
    model = model_of(case, operands)
    u0 = cases.leaf(operands.x)

    def forward() -> Tensor:
        path = ode.rollout(model, u0, steps=case.size.rows, dt=cases.ROLLOUT_DT)
        assert isinstance(path, Tensor)
        return path

    return cases.both_ways(forward, [u0, *model.parameters()], operands.grad_y)


def _step(u: Tensor, weight_re: Tensor, weight_im: Tensor, gate: Tensor, weight: Tensor) -> Tensor:
    du_dt = reference.nau(reference.npu(u, weight_re, weight_im, gate, eps=cases.EPS), weight)
    return u + cases.ROLLOUT_DT * du_dt


def eager(case: Case, operands: Operands, compiled_steps: int = 0) -> Workload:
    """The loop over eager steps; over compiled calls of so many steps each, if not 0."""
    leaves = [cases.leaf(t) for t in (operands.x, *operands.parameters)]
    u0, *parameters = leaves
    steps = max(compiled_steps, 1)
    if case.size.rows % steps:
        raise ValueError(f"eager: compiled_steps must divide {case.size.rows}, got {steps}")

    def several(u: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
        states = [u]
        for _ in range(steps):
            states.append(_step(states[-1], *parameters))
        return tuple(states[1:])

    advance: Any = torch.compile(several, dynamic=False) if compiled_steps else several

    def forward() -> Tensor:
        states = [u0.unsqueeze(-2)]  # one row for each model
        for _ in range(0, case.size.rows, steps):
            states.extend(advance(states[-1], *parameters))
        return torch.cat(states, -2)

    return cases.both_ways(forward, leaves, operands.grad_y)
