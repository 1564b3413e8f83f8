"""Series with known equations, for the tests of `ode.fit`."""

from typing import Any

import torch
from torch import Tensor, nn

from npu_kernels import NAU, RealNPU, ode

T = torch.linspace(0, 6, 25, dtype=torch.float64)


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def model(states: int, terms: int, starts: int | None = None) -> nn.Sequential:
    return nn.Sequential(
        RealNPU(states, terms, num_models=starts), NAU(terms, states, num_models=starts)
    )


def solution(
    exponents: list[list[float]], rates: list[list[float]], u0: list[float], t: Tensor
) -> Tensor:
    """The states at irregular times, by many small steps."""
    weights = torch.tensor(exponents, dtype=torch.float64), torch.tensor(rates, dtype=torch.float64)
    dt = float(t.max()) / 2000
    path, derivatives = ode.integrate(
        numbers(*u0), weights[0], None, None, weights[1], steps=2001, dt=dt, method="rk4",
        return_derivatives=True, clip=False,
    )  # fmt: skip
    return ode.interpolate(path, t, dt=dt, method="hermite", derivatives=derivatives)


def noise(u: Tensor, share: float, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return u + share * u.square().mean(0).sqrt() * torch.randn(
        u.shape, generator=generator, dtype=torch.float64
    )


def predators(t: Tensor, u0: tuple[float, float] = (2.0, 1.0)) -> Tensor:
    """x' = 1.2 x - 0.6 x y, y' = 0.5 x y - 0.8 y."""
    return solution([[1, 0], [1, 1], [0, 1]], [[1.2, -0.6, 0], [0, 0.5, -0.8]], list(u0), t)


def equations_of(powers: Any, rates: Any, gate: Any = 1.0, fixed: bool = False) -> nn.Sequential:
    """A model of these exponents and coefficients; with one dimension more, of starts.

    fixed: whether the exponents stay.
    """
    powers, rates, gate = (
        torch.as_tensor(part, dtype=torch.float64) for part in (powers, rates, gate)
    )
    starts = len(powers) if powers.dim() == 3 else None
    equations = nn.Sequential(
        RealNPU(powers.shape[-1], powers.shape[-2], num_models=starts),
        NAU(powers.shape[-2], rates.shape[-2], num_models=starts, clip=False),
    ).double()
    with torch.no_grad():
        equations[0].weight_re.copy_(powers)
        equations[0].gate.copy_(gate.expand_as(equations[0].gate))
        equations[1].weight.copy_(rates)
    equations[0].requires_grad_(not fixed)
    return equations


def known(data: tuple[float, ...] = (1.2, -0.6, 0.5, -0.8)) -> nn.Sequential:
    """A model of that form with these coefficients, whose exponents stay."""
    a, b, c, d = data
    rates = torch.tensor([[a, b, 0], [0, c, d]])  # of float32: tests/contract has its results
    return equations_of([[1, 0], [1, 1], [0, 1]], rates, fixed=True)
