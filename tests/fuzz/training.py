"""Losses, and histories of an optimizer, as small values that print as what makes them."""

import copy
import math
from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from npu_kernels.optim import Adam
from npu_kernels.training import mse_loss
from tests.fuzz.layers import SEEDS, SPECIAL, Printed, below, pick, size_table, special_in
from tests.fuzz.memory import DTYPES, LAYOUTS, Memory
from tests.fuzz.problem import Problem, Tensors, computed_by


@dataclass(frozen=True, repr=False)
class Loss(Printed):
    """One `mse_loss`; models says that the first size is their number."""

    shape: tuple[int, ...] = (1,)
    models: bool = False
    shared: bool = False
    dtype: str = "float64"
    layouts: tuple[str, ...] = ("contiguous",) * 2
    special: tuple[tuple[str, str], ...] = ()
    needs: tuple[str, ...] = ("y",)
    route: str = "fast"
    threads: int = 1
    seed: int = 0

    def problem(self) -> Problem:
        memory = Memory(self.dtype, self.seed, self.special)
        y = memory.tensor("y", self.shape, self.layouts[0], -2, 2)
        target = memory.tensor(
            "target", self.shape[1:] if self.shared else self.shape, self.layouts[1], -2, 2
        )
        upstream = memory.tensor(
            "upstream", self.shape[:1] if self.models else (), "contiguous", -1, 1
        )
        num_models = self.shape[0] if self.models else None

        def function(leaves: Tensors) -> tuple[Tensor, ...]:
            return (mse_loss(leaves["y"], leaves["target"], num_models=num_models),)

        def formula(leaves: Tensors) -> tuple[Tensor, ...]:
            difference = leaves["y"] - leaves["target"]
            if not self.models:
                return (difference.square().mean(),)
            return (difference.square().reshape(self.shape[0], math.prod(self.shape[1:])).mean(1),)

        tensors = {"y": y, "target": target}
        run = (False, self.route, None, self.threads)
        return Problem(
            function, formula, formula, tensors, [upstream], memory.storages, self.needs, y.dtype,
            *run,
        )  # fmt: skip


def losses() -> st.SearchStrategy[Loss]:
    forms = [(False, False), (True, False), (True, True)]
    needs = [("y",), (), ("y", "target"), ("target",)]
    runs = (("fast", "operators", "reference"), (1, 2, 3, 4))
    table = size_table(300)

    def make(
        form: int,
        dtype: str,
        sizes: list[int],
        layout: int,
        special: tuple[int, ...],
        run: int,
        seed: int,
    ) -> Loss:
        (models, shared), need = pick(form, forms, needs)
        if models and not sizes:
            models = shared = False
        shape: tuple[int, ...] = ()
        for size in sizes:
            shape += (min(table[size], max(1, 100_000 // max(1, math.prod(shape)))),)
        route, threads = pick(run, *runs)
        values = special_in(("y", "target", "upstream"), special)
        return Loss(
            shape, models, shared, dtype, tuple(pick(layout, LAYOUTS, LAYOUTS)), values, need,
            route, threads, seed,
        )  # fmt: skip

    return st.builds(
        make,
        below(forms, needs),
        st.sampled_from(DTYPES),
        st.lists(st.integers(0, len(table) - 1), max_size=4),
        below(LAYOUTS, LAYOUTS),
        SPECIAL,
        below(*runs),
        SEEDS,
    )


# ---- Adam -----------------------------------------------------------------------------------

OPTIONS: tuple[dict[str, Any], ...] = (
    {}, {"betas": (0.5, 0.9), "eps": 1e-6}, {"weight_decay": 0.1},
    {"weight_decay": 0.1, "decoupled_weight_decay": True}, {"maximize": True}, {"maximize": 1},
    {"amsgrad": True}, {"amsgrad": 1}, {"lr": 1}, {"lr": 0.0}, {"betas": (0.0, 0.0)},
    {"foreach": False},
)  # fmt: skip
# What happens at a step: gradients of some kind, or something else.
GRADIENTS = (
    "plain", "missing", "permuted", "expanded", "negated", "zero", "tiny", "huge", "infinite",
    "nan",
)  # fmt: skip
EVENTS = (
    "exchange", "copy", "rate", "hook", "closure", "operators", "reference", "zero_grad", "threads",
    "freeze",
)  # fmt: skip


@dataclass(frozen=True, repr=False)
class History(Printed):
    """Steps of Adam over parameters of some shapes and layouts: ours, where `exchange` hands over
    to torch's and back.

    steps: of each the number of the parameter that is special, its gradient's kind, and an event.
    """

    shapes: tuple[tuple[int, ...], ...] = ((1,),)
    layouts: tuple[str, ...] = ("contiguous",)
    groups: int = 1
    options: dict[str, Any] = field(default_factory=dict)
    dtype: str = "float64"
    steps: tuple[tuple[int, str, str], ...] = ()
    seed: int = 0

    def run(
        self, kind: type[torch.optim.Optimizer]
    ) -> tuple[list[Tensor], list[tuple[Tensor, float]], float]:
        """Parameters and states at the end, with the sizes of their terms; the sum of the rates."""
        memory = Memory(self.dtype, self.seed)
        parameters = [
            memory.tensor("p", shape, layout, -1, 1).requires_grad_()
            for shape, layout in zip(self.shapes, self.layouts, strict=True)
        ]
        options = {"lr": 1e-2, **self.options}
        groups = [{"params": parameters[n :: self.groups]} for n in range(self.groups)]
        optimizer = kind([g for g in groups if g["params"]], **options)  # type: ignore[call-arg]
        length = 0.0
        for special, gradient_kind, event in self.steps:
            optimizer, parameters = self._event(event, kind, optimizer, parameters, options)
            optimizer.zero_grad(set_to_none=event != "zero_grad")
            for n, p in enumerate(parameters):
                p.grad = self._gradient(
                    memory, p, gradient_kind if n == special % len(parameters) else "plain", event
                )
            length += float(optimizer.param_groups[0]["lr"])
            self._step(optimizer, event)
        state = [optimizer.state[p] for p in parameters]
        moments = [
            (s[name], largest(s[name]) + (name == "exp_avg") * largest(s["exp_avg_sq"]) ** 0.5)
            for s in state
            for name in ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
            if name in s
        ]  # the terms of a mean of gradients may cancel, those of a mean of squares do not
        return [p.detach() for p in parameters], moments, length

    def _event(
        self,
        event: str,
        kind: type,
        optimizer: Any,
        parameters: list[Tensor],
        options: dict[str, Any],
    ) -> tuple[Any, list[Tensor]]:
        if event == "exchange" and kind is Adam:
            other = torch.optim.Adam if type(optimizer) is Adam else Adam
            state = copy.deepcopy(optimizer.state_dict())
            optimizer = other(
                [{"params": g["params"]} for g in optimizer.param_groups], **{**options, "lr": 1.0}
            )
            optimizer.load_state_dict(state)
        elif event == "copy":
            optimizer, parameters = copy.deepcopy((optimizer, parameters))
        elif event == "rate":
            optimizer.param_groups[0]["lr"] *= 0.5
        elif event == "freeze":
            parameters[0].requires_grad_(not parameters[0].requires_grad)
        return optimizer, parameters

    def _gradient(self, memory: Memory, p: Tensor, kind: str, event: str) -> Tensor | None:
        if kind == "missing":
            return p.grad if event == "zero_grad" else None
        layout = kind if kind in LAYOUTS else "contiguous"
        memory.special = [("g", kind)] if kind in ("tiny", "huge", "infinite", "nan") else []
        grad = memory.tensor("g", tuple(p.shape), layout, -1, 1)
        return 0 * grad if kind == "zero" else grad

    def _step(self, optimizer: Any, event: str) -> None:
        handle = optimizer.register_step_pre_hook(lambda *_: None) if event == "hook" else None
        route = event if event in ("operators", "reference") else "fast"
        with computed_by(route, None, 3 if event == "threads" else 1):
            if event == "closure":
                optimizer.step(lambda: 1.0)
            else:
                optimizer.step()
        if handle is not None:
            handle.remove()


def largest(t: Tensor) -> float:
    """The size of the largest finite element, 0 without one."""
    return t[t.isfinite()].abs().max().item() if t.isfinite().any() else 0.0


def check_history(history: History) -> None:
    """Ours beside torch's: within rounding, with the same inf and nan."""
    info = torch.finfo(getattr(torch, history.dtype))
    ours, our_moments, length = history.run(Adam)
    theirs, their_moments, _ = history.run(torch.optim.Adam)
    near = {"rtol": 64 * info.eps, "equal_nan": True}
    torch.testing.assert_close(ours, theirs, atol=64 * info.eps * (length + 1), **near)
    for (our_moment, _), (want, size) in zip(our_moments, their_moments, strict=True):
        torch.testing.assert_close(
            our_moment, want, atol=64 * (info.eps * size + info.smallest_normal), **near
        )


def histories() -> st.SearchStrategy[History]:
    table = size_table(300)

    def make(
        shapes: list[int],
        layouts: int,
        groups: int,
        option: int,
        dtype: str,
        steps: list[int],
        seed: int,
    ) -> History:
        sizes = tuple(
            (table[n // 7],) if n % 7 < 4 else (table[n // 7 % 40], n % 7) for n in shapes
        )
        kinds = [
            pick(layouts >> (3 * n) & 7, (*LAYOUTS[:4], *["contiguous"] * 4))[0]
            for n in range(len(sizes))
        ]
        done = tuple(tuple(pick(n, (0, 1, 2), GRADIENTS, (*["none"] * 10, *EVENTS))) for n in steps)
        return History(sizes, tuple(kinds), groups, OPTIONS[option], dtype, done, seed)

    return st.builds(
        make,
        st.lists(st.integers(0, 7 * len(table) - 1), min_size=1, max_size=4),
        st.integers(0, 8**4 - 1),
        st.integers(1, 2),
        below(OPTIONS),
        st.sampled_from(("float64", "float32")),
        st.lists(st.integers(0, 3 * len(GRADIENTS) * 20 - 1), min_size=1, max_size=10),
        SEEDS,
    )
