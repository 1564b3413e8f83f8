"""The time loop: one rollout as a small value that prints as what makes it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

from npu_kernels import ode, reference
from tests.fuzz.layers import SEEDS, SPECIAL, Printed, below, pick, special_in
from tests.fuzz.memory import LAYOUTS, Memory
from tests.fuzz.problem import ISAS, Problem, Tensors

D = (1, 2, 3, 4, 5, 7, 8, 9, 16, 17)
H = (1, 2, 3, 5, 8, 9, 15, 16, 17, 20, 33, 40)


def solve(
    f: Callable[[Tensor], Tensor], u: Tensor, tableau: Sequence[float], steps: int, dt: float
) -> tuple[list[Tensor], list[Tensor]]:
    """Runge-Kutta steps: the states from u on, and f at each of them."""

    def moved(k: list[Tensor]) -> Tensor:
        first = len(k) * (len(k) - 1) // 2
        v = u
        for coefficient, derivative in zip(tableau[first:], k, strict=False):
            v = v + (dt * coefficient) * derivative if coefficient else v
        return v

    states, derivatives, stages = [u], [f(u)], math.isqrt(2 * len(tableau))
    for _ in range(steps):
        k = derivatives[-1:]
        while len(k) < stages:
            k.append(f(moved(k)))
        u = moved(k)
        states.append(u)
        derivatives.append(f(u))
    return states, derivatives


@dataclass(frozen=True, repr=False)
class Rollout(Printed):
    """starts: None is none; models None is none; of_each: u0 has a dimension of models."""

    d: int = 1
    h: int = 1
    models: int | None = None
    starts: int | None = None
    of_each: bool = False
    without: tuple[str, ...] = ()
    steps: int = 1
    dt: float = 0.01
    method: str = "euler"
    memory: str = "full"
    derivatives: bool = False
    straight: bool = False
    clip: bool = True
    dtype: str = "float64"
    layouts: tuple[str, ...] = ("contiguous",) * 3
    special: tuple[tuple[str, str], ...] = ()
    needs: int = 31
    route: str = "fast"
    isa: str | None = None
    threads: int = 1
    seed: int = 0

    def _tensors(self, memory: Memory) -> dict[str, Tensor | None]:
        """The starts and the model's tensors; None for one that this call leaves out."""
        models = () if self.models is None else (self.models,)
        starts = () if self.starts is None else (self.starts,)
        lead = (self.models if self.of_each else 1,) if self.models is not None and starts else ()
        if self.models is not None and not starts and self.of_each:
            lead = models
        start = memory.tensor("u0", (*lead, *starts, self.d), self.layouts[0], 0.5, 2)
        tensors: dict[str, Tensor | None] = {"u0": start}
        bound = 0.6 / max(1.0, self.d / 3)
        for name, shape, low, high in (
            ("weight_re", (self.h, self.d), -bound, bound),
            ("weight_im", (self.h, self.d), -bound / 4, bound / 4),
            ("gate", (self.d,), -0.2, 1.2),
            ("weight", (self.d, self.h), -1.3 / self.h**0.5, 1.3 / self.h**0.5),
        ):
            drawn = memory.tensor(name, (*models, *shape), self.layouts[1], low, high)
            tensors[name] = None if name in self.without else drawn
        return tensors

    def problem(self) -> Problem:
        memory = Memory(self.dtype, self.seed, self.special)
        models = () if self.models is None else (self.models,)
        starts = () if self.starts is None else (self.starts,)
        tensors = self._tensors(memory)
        shape = (*models, *starts, self.steps + 1, self.d)
        count = 1 + self.derivatives
        upstream = [memory.tensor("upstream", shape, self.layouts[2], -1, 1) for _ in range(count)]
        gate_gradient = reference.STRAIGHT_THROUGH if self.straight else reference.CLIP
        dtype = getattr(torch, self.dtype)
        eps = torch.finfo(dtype).eps

        def function(leaves: Tensors) -> tuple[Tensor, ...]:
            out = ode.integrate(
                *(leaves.get(name) for name in tensors), steps=self.steps, dt=self.dt,
                method=self.method, memory=self.memory, nonfinite="keep",
                return_derivatives=self.derivatives, gate_gradient=gate_gradient, clip=self.clip,
            )  # fmt: skip
            return out if isinstance(out, tuple) else (out,)

        def formula(leaves: Tensors) -> tuple[Tensor, ...]:
            u0, weight_re, weight_im, gate, weight = (leaves.get(name) for name in tensors)

            def f(u: Tensor) -> Tensor:
                # where a state is 0, its gradient is that from the right
                u = torch.where(u == 0, u + torch.finfo(u.dtype).tiny, u)
                y = reference.npu(
                    u, weight_re, weight_im, gate, eps=eps, gate_gradient=gate_gradient
                )
                return reference.nau(y, weight, clip=self.clip)

            rows = u0 if starts else u0.unsqueeze(-2)
            rows = rows.expand(*models, *(starts or (1,)), self.d)
            tableau = ode.METHODS[self.method]
            states, derivatives = solve(f, rows, tableau, self.steps, self.dt)
            parts = [states, derivatives] if self.derivatives else [states]
            return tuple(torch.stack(part, -2).reshape(shape) for part in parts)

        present = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        needs = tuple(name for bit, name in enumerate(present) if self.needs >> bit & 1)
        run = (True, self.route, self.isa, self.threads)
        return Problem(
            function, formula, formula, present, upstream, memory.storages, needs, dtype, *run,
            trajectories=True,
        )  # fmt: skip


def rollouts(
    routes: tuple[str, ...] = ("fast", "operators"),
    isas: tuple[str | None, ...] = ISAS,
    max_steps: int = 9,
) -> st.SearchStrategy[Rollout]:
    """Rollouts of at most `max_steps` steps, forward and backward in time."""
    models, starts = (None, 1, 2, 5, 19, 0), (None, 1, 2, 9, 40, 0)
    absent = ((), ("weight_im",), ("gate",), ("weight_im", "gate"))
    switches = (
        tuple(ode.METHODS), ("full", "checkpointed"), (False, True), (False, True), (True, False),
        absent,
    )  # fmt: skip
    grids = (range(1, max_steps + 1), (0.01, -0.01, 0.1))
    runs = (routes, isas, (1, 2, 3, 4))
    yes_no = (False, True)

    def make(
        size: int, grid: int, switch: int, dtype: str, layout: int, special: tuple[int, ...], needs: int, run: int,
        seed: int,
    ) -> Rollout:  # fmt: skip
        d, h, k, b, of_each = pick(size, D, H, models, starts, yes_no)
        steps, dt = pick(grid, *grids)
        method, memory, derivatives, straight, clip, without = pick(switch, *switches)
        route, isa, threads = pick(run, *runs)
        names = ("u0", "upstream", "weight_re", "weight_im", "gate", "weight")
        return Rollout(
            d, h, k, b, of_each, without, steps, dt, method, memory, derivatives, straight, clip,
            dtype, tuple(pick(layout, *[LAYOUTS] * 3)), special_in(names, special), 31 - needs,
            route, isa, threads, seed,
        )  # fmt: skip

    return st.builds(
        make, below(D, H, models, starts, yes_no), below(*grids), below(*switches),
        st.sampled_from(("float64", "float32")), below(*[LAYOUTS] * 3), SPECIAL,
        st.just(0) | st.integers(0, 31), below(*runs), SEEDS,
    )  # fmt: skip
