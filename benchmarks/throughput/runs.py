"""The pass "run": `RUN_STEPS` steps of a training from its start, in one call if possible.

Ours is `npu_kernels.training.run`, JAX's a `jax.lax.scan` over steps of the formula, its gradient
and Adam; the others repeat a training step. The parameters after all steps are compared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.throughput.cases import EPS, LEARNING_RATE, RUN_STEPS, Operands, Workload
from npu_kernels import optim, training


def ours(make: Callable[[], nn.Module], operands: Operands) -> Workload:
    """make: a new module with the first parameters."""

    def trained(module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        training.run(
            module, operands.x, operands.grad_y, optimizer=optimizer, steps=RUN_STEPS,
            record_every=RUN_STEPS, project=False, progress=False,
        )  # fmt: skip

    def results() -> list[Tensor]:
        fresh = make()
        trained(fresh, optim.Adam(fresh.parameters(), LEARNING_RATE))
        return [p.detach() for p in fresh.parameters()]

    module = make()
    optimizer = optim.Adam(module.parameters(), LEARNING_RATE)
    return Workload(lambda: trained(module, optimizer), results)


def repeated(
    make: Callable[[], nn.Module], step_of: Callable[[nn.Module], Callable[[], object]],
    compare: bool = True,
) -> Workload:  # fmt: skip
    """step_of: what makes one step of a module."""

    def repeat(step: Callable[[], object]) -> None:
        for _ in range(RUN_STEPS):
            step()

    def results() -> list[Tensor]:
        fresh = make()
        repeat(step_of(fresh))
        return [p.detach() for p in fresh.parameters()]

    step = step_of(make())
    return Workload(lambda: repeat(step), results if compare else None)


def npu(np: Any, x: Any, weight_re: Any, weight_im: Any | None, gate: Any) -> Any:
    """The formula by JAX's NumPy; a RealNPU has no `weight_im`."""
    g = np.expand_dims(np.clip(gate, 0, 1), -2)
    log_r, k = np.log(g * (np.abs(x) + EPS) + (1 - g)), np.pi * g * (x < 0)
    p, q = log_r @ weight_re.mT, k @ weight_re.mT
    if weight_im is not None:
        p, q = p - k @ weight_im.mT, q + log_r @ weight_im.mT
    return np.exp(p) * np.cos(q)


def jax(operands: Operands) -> Workload:
    """NPU and NAU, of one model or K."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    def loss(parameters: Any) -> Any:
        y = npu(jnp, x, *parameters[:3]) @ parameters[3].mT
        return jnp.mean((y - target) ** 2, (-2, -1)).sum()

    def step(carry: Any, _: None) -> Any:
        parameters, means, squares, number = carry
        number = number + 1
        grads = jax.grad(loss)(parameters)
        means = [0.9 * m + 0.1 * g for m, g in zip(means, grads, strict=True)]
        squares = [0.999 * v + 0.001 * g * g for v, g in zip(squares, grads, strict=True)]
        size, scale = LEARNING_RATE / (1 - 0.9**number), jnp.sqrt(1 - 0.999**number)
        moved = zip(parameters, means, squares, strict=True)
        parameters = [p - size * m / (jnp.sqrt(v) / scale + 1e-8) for p, m, v in moved]
        return (parameters, means, squares, number), None

    x, target = jnp.asarray(operands.x.numpy()), jnp.asarray(operands.grad_y.numpy())
    parameters = [jnp.asarray(p.numpy()) for p in operands.parameters]
    zeros = [jnp.zeros_like(p) for p in parameters]
    start = (parameters, zeros, zeros, jnp.float32(0))
    scan = jax.jit(lambda carry: jax.lax.scan(step, carry, None, length=RUN_STEPS)[0])
    run = lambda: jax.block_until_ready(scan(start))  # noqa: E731
    return Workload(run, lambda: [torch.from_numpy(np.array(p)) for p in run()[0]])
