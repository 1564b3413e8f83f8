"""Derivatives against finite differences and against float64."""

from __future__ import annotations

from typing import Any

import torch

from npu_kernels._testing.samples import RECORDS
from npu_kernels.certify._checks import Column, check
from npu_kernels.certify._samples import FUSED, equal, leaves_of, require

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
