"""NALU and iNALU, siblings of the Neural Power Unit layer: their operators; formulas and kernels are in
`nalu_forward_kernels` and `nalu_backward_kernels`.

x is ``[B, I]`` or ``[K, B, I]``, weights and masks ``[O, I]`` or ``[K, O, I]``, gate_bias ``[O]`` or ``[K, O]``, all
else ``[B, O]`` or ``[K, B, O]``; any strides. At most four launches for forward and backward, three where rows are not
split and models do not share x.
"""

from typing import Any, NamedTuple

import torch

from npu_kernels._backends.triton import tuning
from npu_kernels._backends.triton.launch import (
    accumulator,
    check_operands,
    device_of,
    empty,
    gradients,
    model_sizes,
    result_type,
    row_splits,
)
from npu_kernels._backends.triton.nalu_backward_kernels import (
    nalu_backward_w_kernel,
    nalu_backward_x_kernel,
)
from npu_kernels._backends.triton.nalu_forward_kernels import nalu_forward_kernel
from npu_kernels._backends.triton.reduction import sum_partials
from npu_kernels._backends.triton.tape import start

Tensor = torch.Tensor


class _Weights(NamedTuple):
    """The pairs of A and W (absent in the NALU, whose W is A), and G; or their gradients, absent where not wanted."""

    add: Tensor | None
    add_mask: Tensor | None
    mul: Tensor | None
    mul_mask: Tensor | None
    gate: Tensor | None


def _arrange(tensors: list[Any]) -> _Weights:
    """The three or five weights in their operators' order."""
    return (
        _Weights(*tensors)
        if len(tensors) == 5
        else _Weights(tensors[0], tensors[1], None, None, tensors[2])
    )


def _contiguous(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.contiguous()


def _forward(
    name: str,
    x: Tensor,
    weights: dict[str, Tensor],
    bias: Tensor | None,
    eps: float,
    omega: float,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    first = next(iter(weights.values()))
    K, B, I, O, shared_x = model_sizes(name, x, first)
    operands = {label: (weight, tuple(first.shape)) for label, weight in weights.items()}
    check_operands(name, x, **operands, gate_bias=(bias, tuple(first.shape[:-1])))
    acc = accumulator(x.dtype)
    shape = (*first.shape[:-2], B, O)
    own_type = result_type(x, first)
    y = empty(x, shape, own_type)
    h, a, t = (empty(x, shape if save else (0,), own_type) for _ in range(3))
    flags = x.new_empty(shape if save else (0,), dtype=torch.int32)
    if y.numel() == 0:
        return y, h, a, t, flags
    x = x.contiguous()
    own = _arrange([weight.contiguous() for weight in weights.values()])
    with device_of(x):
        options = tuning.lookup("nalu_forward", x, I, O, K).options
        grid = K * -(-B // options["BLOCK_B"]) * -(-O // options["BLOCK_O"])
        start(
            nalu_forward_kernel, grid, options, x, *own, _contiguous(bias), y, h, a, t, flags, B, O, I,
            eps, omega, own.mul is not None, bias is not None, shared_x, save, acc,
        )  # fmt: skip
    return y, h, a, t, flags


def nalu_forward(
    x: Tensor,
    weight: Tensor,
    mask: Tensor,
    gate_weight: Tensor,
    gate_bias: Tensor | None,
    eps: float,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``(y, h, a, t)``; all but y are empty without `save`. One launch."""
    weights = {"weight": weight, "mask": mask, "gate_weight": gate_weight}
    return _forward("nalu_forward", x, weights, gate_bias, eps, 0.0, save)[:4]


def inalu_forward(
    x: Tensor, weight_add: Tensor, mask_add: Tensor, weight_mul: Tensor, mask_mul: Tensor, gate_weight: Tensor,
    eps: float, omega: float, save: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """``(y, h, a, t, flags)``; all but y are empty without `save`. One launch."""
    weights = {
        "weight_add": weight_add,
        "mask_add": mask_add,
        "weight_mul": weight_mul,
        "mask_mul": mask_mul,
    }
    return _forward(
        "inalu_forward", x, weights | {"gate_weight": gate_weight}, None, eps, omega, save
    )


def _check_backward(
    name: str, grad_y: Tensor, x: Tensor, weights: dict[str, Tensor], bias: Tensor | None,
    saved: dict[str, Tensor], flags: Tensor | None, shape: tuple[int, ...],
) -> None:  # fmt: skip
    """ValueError or TypeError for operands that do not belong together; shape: of the result."""
    first = next(iter(weights.values()))
    operands = {"grad_y": (grad_y, shape)} | {
        label: (weight, tuple(first.shape)) for label, weight in weights.items()
    }
    operands |= {label: (tensor, shape) for label, tensor in saved.items()}
    check_operands(name, x, **operands, gate_bias=(bias, tuple(first.shape[:-1])))
    if flags is not None and (
        flags.shape != shape or flags.dtype is not torch.int32 or flags.device != x.device
    ):
        raise ValueError(
            f"{name}: flags must be torch.int32 of shape {shape} on {x.device}, got {flags.dtype} of shape "
            f"{tuple(flags.shape)} on {flags.device}"
        )


def _backward(
    name: str, grad_y: Tensor, x: Tensor, weights: dict[str, Tensor], bias: Tensor | None,
    saved: dict[str, Tensor], flags: Tensor | None, eps: float, needs: int,
) -> list[Tensor]:  # fmt: skip
    """Gradients of x, the weights in their order and the bias; empty where `needs` has no bit."""
    first = next(iter(weights.values()))
    K, B, I, O, shared_x = model_sizes(name, x, first)
    _check_backward(name, grad_y, x, weights, bias, saved, flags, (*first.shape[:-2], B, O))
    acc = accumulator(x.dtype)
    wanted = [bool(needs >> bit & 1) for bit in range(len(weights) + 2)]
    wanted[-1] = wanted[-1] and bias is not None
    grads = list(gradients(x, tuple(zip((x, *weights.values(), bias), wanted, strict=True))))
    if K * B * O == 0:
        return [grad.zero_() for grad in grads]
    if not any(wanted):
        return grads

    grad_y, x = grad_y.contiguous(), x.contiguous()
    own = _arrange([weight.contiguous() for weight in weights.values()])
    inner = (*(tensor.contiguous() for tensor in saved.values()), _contiguous(flags))
    into_x, *into_weights, into_bias = (
        grad if there else None for grad, there in zip(grads, wanted, strict=True)
    )
    into = _arrange(into_weights)
    need_add = into.add is not None or into.add_mask is not None
    need_mul = into.mul is not None or into.mul_mask is not None
    need_gate, need_bias = into.gate is not None, into_bias is not None
    common = (eps, own.mul is not None, shared_x)
    with device_of(x):
        part_x = empty(x, (K, B, I), acc) if K > 1 and shared_x else into_x
        if into_x is not None and I > 0:
            options = tuning.lookup("nalu_backward_x", x, I, O, K).options
            grid = K * -(-B // options["BLOCK_B"]) * -(-I // options["BLOCK_I"])
            operands = (grad_y, x, *own, *inner, part_x)
            start(nalu_backward_x_kernel, grid, options, *operands, K, B, I, O, *common, acc)

        options, programs = tuning.lookup("nalu_backward_w", x, I, O, K)
        tiles = (
            K * -(-O // options["BLOCK_O"]) * max(1, -(-I // options["BLOCK_I"]))
        )  # a bias needs no input
        splits, rows_per_split = row_splits(B, options["BLOCK_B"], tiles, programs)
        part, part_bias = into, into_bias
        if splits > 1:
            there = (need_add, False, need_mul, False, need_gate)
            part = _Weights(
                *(empty(x, (splits, K, O, I), acc) if needed else None for needed in there)
            )
            part_bias = empty(x, (splits, K, O), acc) if need_bias else None
        if need_add or need_mul or need_gate or need_bias:
            start(
                nalu_backward_w_kernel, tiles * splits, options,
                grad_y, x, *own[:4], *inner, *part, part_bias, K, B, O, I, rows_per_split,
                *common, need_add, need_mul, need_gate, need_bias, splits == 1, acc,
            )  # fmt: skip
        sums: dict[str, Any] = {}
        if into_x is not None and part_x is not into_x:
            sums["x"] = part_x, into_x
        if splits > 1:
            if need_add:
                sums |= {
                    "re": (part.add, into.add),
                    "re_nac": (own.add, own.add_mask, into.add_mask),
                }
            if need_mul:
                sums |= {
                    "im": (part.mul, into.mul),
                    "im_nac": (own.mul, own.mul_mask, into.mul_mask),
                }
            if need_gate:
                sums["im" if own.mul is None else "gate"] = part.gate, into.gate
            if need_bias:
                sums["gate"] = part_bias, into_bias
        sum_partials(acc, **sums)
    return grads


def nalu_backward(
    grad_y: Tensor, x: Tensor, weight: Tensor, mask: Tensor, gate_weight: Tensor, gate_bias: Tensor | None,
    h: Tensor, a: Tensor, t: Tensor, eps: float, needs: int,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Gradients of ``(x, weight, mask, gate_weight, gate_bias)``, those in `needs` (1, 2, 4, 8, 16), else empty."""
    weights = {"weight": weight, "mask": mask, "gate_weight": gate_weight}
    saved = {"h": h, "a": a, "t": t}
    return tuple(_backward("nalu_backward", grad_y, x, weights, gate_bias, saved, None, eps, needs))


def inalu_backward(
    grad_y: Tensor, x: Tensor, weight_add: Tensor, mask_add: Tensor, weight_mul: Tensor, mask_mul: Tensor,
    gate_weight: Tensor, h: Tensor, a: Tensor, t: Tensor, flags: Tensor, eps: float, omega: float, needs: int,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Gradients of x and the five weights in their order, those in `needs` (1, 2, 4, 8, 16, 32), else empty."""
    weights = {
        "weight_add": weight_add,
        "mask_add": mask_add,
        "weight_mul": weight_mul,
        "mask_mul": mask_mul,
    }
    weights |= {"gate_weight": gate_weight}
    saved = {"h": h, "a": a, "t": t}
    return tuple(
        _backward("inalu_backward", grad_y, x, weights, None, saved, flags, eps, needs)[:-1]
    )
