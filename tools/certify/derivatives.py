"""Derivatives against finite differences and float64, and the transforms of torch.func."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from npu_kernels import NMU, NPU
from tests.support.samples import RECORDS, CountCalls
from tools.certify.matrix import FUSED, ROUNDING, Column, check, equal, inputs, leaves_of, require

# torch's own defaults let an error of one part in a thousand pass.
TIGHT: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-7}


def _tight(column: Column) -> dict[str, Any]:
    return {**TIGHT, "fast_mode": column.quick}


@check("gradcheck, batched and undefined upstream gradients")
def _gradcheck(column: Column) -> None:
    for name in FUSED:
        f, leaves, options = RECORDS[name].function, leaves_of(name, column), _tight(column)
        require(torch.autograd.gradcheck(f, leaves, check_batched_grad=True, **options), name)


@check("gradgradcheck")
def _gradgradcheck(column: Column) -> None:
    for name in FUSED:
        f, leaves = RECORDS[name].function, leaves_of(name, column)
        require(torch.autograd.gradgradcheck(f, leaves, **_tight(column)), name)


@check("forward-mode AD, and over reverse")
def _forward_mode(column: Column) -> None:
    for name in FUSED:
        f, leaves = RECORDS[name].function, leaves_of(name, column, rows=2)
        only: dict[str, Any] = {"check_forward_ad": True, "check_backward_ad": False}
        require(torch.autograd.gradcheck(f, leaves, **only, **_tight(column)), name)
        over: dict[str, Any] = {"check_fwd_over_rev": True, "check_rev_over_rev": False}
        over |= {"check_undefined_grad": False, **_tight(column)}
        require(torch.autograd.gradgradcheck(f, leaves, **over), name)


@check("float32 gradients")
def _gradients32(column: Column) -> str:
    worst = 0.0
    for name in FUSED:
        samples = leaves_of(name, column, rows=9)
        leaves = [leaf.detach().float().requires_grad_() for leaf in samples]
        doubles = [leaf.detach().double().requires_grad_() for leaf in leaves]
        grads = torch.autograd.grad(RECORDS[name].function(*leaves).sum(), leaves)
        exact = torch.autograd.grad(RECORDS[name].reference(*doubles).sum(), doubles)
        worst = max(worst, *(equal(a, e, 1e-5, name) for a, e in zip(grads, exact, strict=True)))
    return f"{worst:.0e}"


# ---- the transforms of torch.func ----


@check("torch.func: grad, vjp, jvp, jacrev, jacfwd, hessian")
def _func(column: Column) -> None:
    for name in FUSED:
        leaves = [leaf.detach() for leaf in leaves_of(name, column)]
        tangents = tuple(torch.ones_like(leaf) for leaf in leaves)
        record, indices = RECORDS[name], tuple(range(len(leaves)))

        def results(
            f: Callable[..., Tensor],
            leaves: list[Tensor] = leaves,
            tangents: tuple[Tensor, ...] = tangents,
            indices: tuple[int, ...] = indices,
        ) -> list[Tensor]:
            def loss(*a: Tensor) -> Tensor:
                return f(*a).square().sum()

            result: Any = torch.func.vjp(f, *leaves)
            values = [*torch.func.grad(loss, indices)(*leaves)]
            values += result[1](torch.ones_like(result[0]))
            values += torch.func.jvp(f, tuple(leaves), tangents)
            values += torch.func.jacrev(f, indices)(*leaves)
            values += torch.func.jacfwd(f, indices)(*leaves)
            return [*values, torch.func.hessian(loss, 1)(*leaves)]

        pairs = zip(results(record.function), results(record.reference), strict=True)
        for actual, expected in pairs:
            equal(actual, expected, ROUNDING, name)


@check("torch.func: vmap(grad), per-sample gradients")
def _per_sample(column: Column) -> None:
    for name in FUSED:
        x, weight, *rest = (leaf.detach() for leaf in leaves_of(name, column))
        gradients = []
        for f in (RECORDS[name].function, RECORDS[name].reference):

            def loss(w: Tensor, row: Tensor, f: Any = f, rest: list[Tensor] = rest) -> Tensor:
                return f(row, w, *rest).square().sum()

            gradients.append(torch.func.vmap(torch.func.grad(loss), (None, 0))(weight, x))
        equal(gradients[0], gradients[1], ROUNDING, name)


@check("torch.func: vmap over stacked modules is one call")
def _stacked(column: Column) -> str | None:
    options: Any = {"dtype": torch.float64, "device": column.device}
    modules: Any = []
    for _ in range(4):
        modules.append(nn.Sequential(NPU(3, 4, init_im=0.3, **options), NMU(4, 2, **options)))
    state, _ = torch.func.stack_module_state(modules)
    x = inputs(column, 5, 3, dtype=torch.float64)

    def loss(s: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(modules[0], s, x).square().sum()

    frozen = {name: value.detach() for name, value in state.items()}
    with CountCalls() as inside:
        first = torch.func.vmap(torch.func.grad(loss))(frozen)
    with CountCalls() as outside:
        second = torch.func.grad(lambda s: torch.func.vmap(loss)(s).sum())(frozen)
    with CountCalls() as plain:
        torch.func.vmap(loss)(state).sum().backward()
    for name, value in state.items():
        parameters = [dict(m.named_parameters())[name] for m in modules]
        losses = (m(x).square().sum() for m in modules)
        grads = [torch.autograd.grad(v, p)[0] for v, p in zip(losses, parameters, strict=True)]
        expected = torch.stack(grads)
        for actual in (first[name], second[name], value.grad):
            equal(actual, expected, ROUNDING, name)
    if column.backend == "reference":
        return "batched formula"
    one_each = dict.fromkeys(("npu_forward", "npu_backward", "nmu_forward", "nmu_backward"), 1)
    for calls in (inside.calls, outside.calls, plain.calls):
        require(calls == one_each, f"operator calls {dict(calls)}")
    return None
