"""A neural ODE learnt from a time series, sixteen starts at once.

    python examples/neural_ode.py [--steps 600] [--device cuda]

It takes a GPU if there is one. The series is of a predator and its prey (Lotka and Volterra):
x' = x - x y and y' = x y - y, every 0.1 units of time. Every model's trajectory and its gradient
are one call each.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

from npu_kernels import NAU, RealNPU, ode
from npu_kernels.optim import Adam
from npu_kernels.training import mse_loss, project_

DT, POINTS, MODELS = 0.1, 40, 16


def series() -> Tensor:
    """The measured states ``[POINTS + 1, 2]``, by many small Runge-Kutta steps."""
    weights = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], dtype=torch.float64)  # x, y, x y
    rates = torch.tensor([[1.0, 0.0, -1.0], [0.0, -1.0, 1.0]], dtype=torch.float64)
    start, gate = torch.tensor([1.0, 0.5], dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    path = ode.integrate(
        start, weights, None, gate, rates, steps=10 * POINTS, dt=DT / 10, method="rk4"
    )
    assert isinstance(path, Tensor)
    return path[::10]


def main() -> None:
    """Train on growing parts of the series, and print the best model's error on the whole."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=600)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=device, help="default: %(default)s")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    measured = series().to(arguments.device)
    models = nn.Sequential(RealNPU(2, 4, num_models=MODELS), NAU(4, 2, num_models=MODELS))
    models.to(arguments.device, torch.float64)
    optimizer = Adam(models.parameters(), 0.01)
    for step in range(arguments.steps):
        length = min(
            POINTS, 5 + POINTS * step // (arguments.steps // 2 + 1)
        )  # a long start is hard to learn
        optimizer.zero_grad()
        path = ode.rollout(models, measured[0], steps=length, dt=DT, method="rk4", nonfinite="keep")
        losses = mse_loss(path, measured[: length + 1], num_models=MODELS)
        losses[losses.isfinite()].sum().backward()  # a model that has diverged gets no gradient
        nn.utils.clip_grad_norm_(models.parameters(), 10.0)
        optimizer.step()
        project_(models)

    path = ode.rollout(models, measured[0], steps=POINTS, dt=DT, method="rk4", nonfinite="keep")
    errors = (path - measured).abs().amax((1, 2)).nan_to_num(float("inf"))
    best = int(errors.argmin())
    error = errors[best].item()
    print(f"best of {MODELS} models: number {best}, greatest error on the series {error:.3f}")


if __name__ == "__main__":
    main()
