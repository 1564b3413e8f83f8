"""Values against mpmath and against the eager formulas."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor

from npu_kernels import functional, reference
from tests.support.samples import (
    RECORDS,
    Sample,
    error_bound,
    fill_uninitialized_with_nan,
    with_layout,
)
from tools.certify.matrix import FUSED, Column, Unavailable, check, equal, model_of, require


def _exact_npu(
    x: list[float], re: list[float], im: list[float], gate: list[float], eps: float
) -> tuple[Any, Any]:
    """(y, exp P) of one output of one row with 50 digits, as a product of complex powers."""
    from mpmath import mp, mpf

    total = mp.mpc(0)
    for value, a, b, g in zip(x, re, im, gate, strict=True):
        clipped = min(max(mpf(g), mpf(0)), mpf(1))
        r = clipped * (abs(mpf(value)) + mpf(eps)) + 1 - clipped
        total += mp.mpc(a, b) * mp.mpc(mp.log(r), mp.pi * clipped if value < 0 else 0)
    power = mp.exp(total)
    return mp.re(power), abs(power)


def _ulp(column: Column, dtype: torch.dtype) -> str:
    try:
        from mpmath import mp
    except ImportError:
        raise Unavailable("mpmath is not installed") from None
    sample = RECORDS["npu"].sample(12, 9, 5, dtype=dtype, device=column.device)
    eps = torch.finfo(dtype).eps
    outputs = [sample.call(f) for f in (functional.npu, reference.npu)]
    actual, eager, *tensors = (t.double().cpu().tolist() for t in (*outputs, *sample.leaves()))
    ours = theirs = 0.0
    with mp.workdps(50):
        for b, row in enumerate(tensors[0]):
            for o in range(5):
                y, size = _exact_npu(row, tensors[1][o], tensors[2][o], tensors[3], eps)
                ours = max(ours, float(abs(actual[b][o] - y) / size) / eps)
                theirs = max(theirs, float(abs(eager[b][o] - y) / size) / eps)
    bound = error_bound(theirs * eps, dtype) / eps
    require(ours <= bound, f"{ours:.1f} ulp of exp(P), eager {theirs:.1f}")
    return f"{ours:.1f} ulp (eager {theirs:.1f})"


for _dtype in (torch.float32, torch.float64):
    _name = str(_dtype).removeprefix("torch.")
    check(f"error of the NPU, {_name}, against mpmath")(functools.partial(_ulp, dtype=_dtype))


@check("all sizes, layouts and models against the eager formula, memory filled with nan")
def _parity(column: Column) -> str | None:
    stride = 4 if column.interpreted else 1  # the interpreter is slow
    for name in FUSED:
        record = RECORDS[name]
        if column.quick:
            options: dict[str, Any] = {"device": column.device}
            samples = [record.sample(17, 5, 3, num_models=k, **options) for k in (None, 2)]
        else:
            samples = list(record.samples(torch.float64, column.device))[::stride]
        for sample in samples:
            leaves = sample.map(lambda t: t.detach().requires_grad_())
            before = [leaf.detach().clone() for leaf in leaves.leaves()]
            expected = leaves.call(record.reference)
            upstream = with_layout(torch.ones_like(expected), "expanded")
            expected_grads = torch.autograd.grad(expected, leaves.leaves(), upstream)
            # The written-out derivative against autograd's:
            if column.backend == "reference" and name in ("npu", "nmu"):
                y, grads = _written_out(name, sample, upstream)
            else:
                with fill_uninitialized_with_nan():
                    y = leaves.call(record.function)
                    grads = torch.autograd.grad(y, leaves.leaves(), upstream)
            for actual, want in zip((y, *grads), (expected, *expected_grads), strict=True):
                equal(actual, want, 5e-13, sample.name)
            for leaf, old in zip(leaves.leaves(), before, strict=True):
                require(torch.equal(leaf, old), f"{sample.name} changed an input")
    if column.quick:
        return "ok (one size)"
    return f"ok (every {stride}th of them)" if stride > 1 else None


def _written_out(name: str, sample: Sample, upstream: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    tensors = list(sample.tensors.values())
    if name == "nmu":
        weight = tensors[0]
        assert weight is not None
        clip = sample.options.get("clip", True)
        used = weight.clamp(0, 1) if clip else weight
        grad_x, grad_weight = reference.nmu_backward(upstream, sample.x, used)
        grad_weight = grad_weight.where(used == weight, 0)
        return reference.nmu_forward(sample.x, used), (grad_x, grad_weight)
    eps = sample.options.get("eps", torch.finfo(sample.x.dtype).eps)
    straight = sample.options["gate_gradient"] == "straight_through"
    re, im, gate = tensors
    assert re is not None
    y, s = reference.npu_forward(sample.x, re, im, gate, eps, True)
    four = reference.npu_backward(upstream, sample.x, re, im, gate, y, s, eps, straight)
    present = (True, True, im is not None, gate is not None)
    return y, tuple(grad for grad, is_present in zip(four, present, strict=True) if is_present)


@check("special values: 0, -0, subnormal, huge, inf, nan")
def _special(column: Column) -> None:
    values = [0.0, -0.0, 1e-45, -1e-40, 1e-38, 1e38, -1e38, 1.0, -1.0]
    values += [math.inf, -math.inf, math.nan]
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.float64, 1e-11)):
        factory: Any = {"dtype": dtype, "device": column.device}
        special = torch.tensor(values, **factory)
        x = torch.stack([special, torch.full_like(special, 0.7), torch.full_like(special, -1.3)], 1)
        re = torch.tensor([[0.5, 0.25, -0.5], [-0.3, 0.5, 0.75]], **factory)
        im = torch.tensor([[0.125, -0.3, 0.2], [0.2, 0.1, -0.25]], **factory)
        for gate in (None, torch.full_like(re[0], 0.5), torch.zeros_like(re[0])):
            for value, row in zip(values, x.split(1), strict=True):  # each measured by its own size
                actual, expected = (f(row, re, im, gate) for f in (functional.npu, reference.npu))
                equal(actual, expected, tolerance, f"{dtype} x = {value}")
        for value, row in zip(values, x.split(1), strict=True):
            actual, expected = (f(row, re.clamp(0, 1)) for f in (functional.nmu, reference.nmu))
            equal(actual, expected, tolerance, f"nmu {dtype} x = {value}")


@check("an empty batch")
def _empty(column: Column) -> None:
    model = model_of(column)
    model(torch.empty(0, 3, device=column.device)).sum().backward()
    zero = all(p.grad is not None and not p.grad.any() for p in model.parameters())
    require(zero, "gradients are not zero")
