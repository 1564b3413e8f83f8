"""The pass "adaptive": a neural ODE by Dormand and Prince's pair, forward and backward, in float64.

A case's size is times x D x h x models. Every rival gets the same times and tolerances. Ours is
`npu_kernels.ode.rollout`, eager its eager form; torchdiffeq and diffrax differentiate through their
solvers. SciPy's RK45 has no gradient: its time is the trajectory's alone. torchdiffeq takes the
same steps for all models, the others take each model's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.throughput.cases import EPS, Case, Operands, Workload, both_ways, leaf
from benchmarks.throughput.rollouts import model_of
from npu_kernels import ode, reference, use_backend

END, RTOL, ATOL = 20.0, 1e-6, 1e-9


def times(case: Case) -> Tensor:
    return torch.linspace(0, END, case.size.rows, dtype=torch.float64)


def ours(case: Case, operands: Operands, backend: str = "cpu", rtol: float = RTOL) -> Workload:
    model, u0, t = model_of(case, operands), leaf(operands.x), times(case)

    def forward() -> Tensor:
        atol = ATOL / RTOL * rtol
        with use_backend(backend):
            path = ode.rollout(model, u0, t=t, method="dopri5", rtol=rtol, atol=atol)
        assert isinstance(path, Tensor)
        return path

    return both_ways(forward, [u0, *model.parameters()], operands.grad_y)


def torchdiffeq(case: Case, operands: Operands) -> Workload:
    from torchdiffeq import odeint

    leaves, t = [leaf(tensor) for tensor in (operands.x, *operands.parameters)], times(case)
    u0, weight_re, weight_im, gate, weight = leaves

    def f(_: Tensor, u: Tensor) -> Tensor:
        return reference.nau(reference.npu(u, weight_re, weight_im, gate, eps=EPS), weight)

    def forward() -> Tensor:
        path: Tensor = odeint(f, u0.unsqueeze(-2), t, method="dopri5", rtol=RTOL, atol=ATOL)
        return path.squeeze(-2).movedim(0, -2)

    return both_ways(forward, leaves, operands.grad_y)


def _right_side(np: Any, u: Any, weight_re: Any, weight_im: Any, g: Any, a: Any) -> Any:
    """NAU(NPU(u)) by NumPy or by JAX's."""
    log, turn = np.log(g * (np.abs(u) + EPS) + 1 - g), np.pi * g * (u < 0)
    size = np.exp(weight_re @ log - weight_im @ turn)
    return a @ (size * np.cos(weight_im @ log + weight_re @ turn))


def scipy(case: Case, operands: Operands) -> Workload:
    """One model after the other, by a right side in NumPy; the trajectories without gradients."""
    import numpy as np
    from scipy.integrate import solve_ivp

    t, tensors = times(case).numpy(), (operands.x, *operands.parameters)
    stacked = (x.numpy() if case.size.models > 1 else x[None].numpy() for x in tensors)
    models = list(zip(*stacked, strict=True))

    def path(u0: Any, weight_re: Any, weight_im: Any, gate: Any, weight: Any) -> Any:
        g, a = np.clip(gate, 0, 1), np.clip(weight, -1, 1)

        def f(_: float, u: Any) -> Any:
            return _right_side(np, u, weight_re, weight_im, g, a)

        return solve_ivp(f, (t[0], t[-1]), u0, method="RK45", t_eval=t, rtol=RTOL, atol=ATOL).y.T

    def run() -> list[Any]:
        return [path(*model) for model in models]

    shape = operands.grad_y.shape
    return Workload(run, lambda: [torch.from_numpy(np.stack(run())).reshape(shape)])


def diffrax(case: Case, operands: Operands) -> Workload:
    """Compiled as a whole; every model's own steps by `jax.vmap`."""
    import diffrax as dfx
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)  # arrays made of float32 stay so

    def solve(u0: Any, weight_re: Any, weight_im: Any, gate: Any, weight: Any, t: Any) -> Any:
        g, a = jnp.clip(gate, 0, 1), jnp.clip(weight, -1, 1)

        def f(_: Any, u: Any, __: Any) -> Any:
            return _right_side(jnp, u, weight_re, weight_im, g, a)

        return dfx.diffeqsolve(
            dfx.ODETerm(f), dfx.Dopri5(), t[0], t[-1], None, u0, saveat=dfx.SaveAt(ts=t),
            stepsize_controller=dfx.PIDController(rtol=RTOL, atol=ATOL),
        ).ys  # fmt: skip

    inputs = [jnp.asarray(tensor.numpy()) for tensor in (operands.x, *operands.parameters)]
    grad, t = jnp.asarray(operands.grad_y.numpy()), jnp.asarray(times(case).numpy())
    axes = (0, 0, 0, 0, 0, None)
    all_models: Any = solve if case.size.models == 1 else jax.vmap(solve, in_axes=axes)

    @jax.jit
    def step(grad: Any, t: Any, *inputs: Any) -> Any:
        y, vjp = jax.vjp(lambda *leaves: all_models(*leaves, t), *inputs)
        return y, *vjp(grad)

    def run() -> Any:
        return jax.block_until_ready(step(grad, t, *inputs))

    return Workload(run, lambda: [torch.tensor(jax.device_get(x)) for x in run()])


def exact(case: Case, operands: Operands) -> Workload:
    """The eager form with a tolerance 100 times smaller."""
    return ours(case, operands, "reference", RTOL / 100)


PASSES: dict[str, Callable[[Case, Operands], Workload]] = {
    "ours": ours,
    "eager": lambda case, operands: ours(case, operands, "reference"),
    "torchdiffeq": torchdiffeq,
    "scipy": scipy,
    "diffrax": diffrax,
}
