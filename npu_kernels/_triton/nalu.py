"""The operators of NALU and iNALU, siblings of the Neural Power Unit layer.

Formulas and kernels are in `nalu_forward_kernels` and `nalu_backward_kernels`. x is ``[B, I]`` or
``[K, B, I]``, weights and masks ``[O, I]`` or ``[K, O, I]``, gate_bias ``[O]`` or ``[K, O]``, all
else ``[B, O]`` or ``[K, B, O]``; any strides. At most four launches for forward and backward, three
where rows are not split, models do not share x and weights are float32 or float64, in small layers
and medium NALUs.
"""

from typing import Any, NamedTuple

import torch

from npu_kernels._triton import launch, tuning
from npu_kernels._triton.nalu_backward_kernels import (
    nalu_backward_w_kernel,
    nalu_backward_x_kernel,
)
from npu_kernels._triton.nalu_forward_kernels import nalu_forward_kernel
from npu_kernels._triton.reduction import sum_partials
from npu_kernels._triton.tape import start

Tensor = torch.Tensor

SMALL_WARPS = 4  # of a program of a small layer; others have more


class _Weights(NamedTuple):
    """The weights of a layer, or their gradients, of which those not needed are None."""

    add: Tensor | None  # weight and mask of A
    add_mask: Tensor | None
    mul: Tensor | None  # weight and mask of W; None in the NALU, whose W is A
    mul_mask: Tensor | None
    gate: Tensor | None  # G


def _arrange(tensors: list[Any]) -> _Weights:
    """The three or five weights in their operators' order."""
    if len(tensors) == 5:
        return _Weights(*tensors)
    weight, mask, gate = tensors
    return _Weights(weight, mask, None, None, gate)


def _forward(
    name: str, x: Tensor, weights: dict[str, Tensor], bias: Tensor | None,
    eps: float, omega: float, save: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """``(y, h, a, t, flags)``; all but y are empty without `save`."""
    weight = next(iter(weights.values()))
    K, B, I, O, shared_x = launch.model_sizes(name, x, weight)
    operands = {label: (tensor, tuple(weight.shape)) for label, tensor in weights.items()}
    launch.check_operands(name, x, **operands, gate_bias=(bias, tuple(weight.shape[:-1])))
    acc = launch.accumulator(x.dtype)
    shape = (*weight.shape[:-2], B, O)
    saved_shape = shape if save else (0,)
    result_type = launch.result_type(x, weight)
    y = launch.empty(x, shape, result_type)
    h, a, t = (launch.empty(x, saved_shape, result_type) for _ in range(3))
    flags = x.new_empty(saved_shape, dtype=torch.int32)
    if y.numel() == 0:
        return y, h, a, t, flags
    x, bias, *tensors = launch.contiguous(x, bias, *weights.values())
    arranged = _arrange(tensors)
    with launch.device_of(x):
        options = tuning.lookup("nalu_forward", x, I, O, K).options
        grid = K * -(-B // options["BLOCK_B"]) * -(-O // options["BLOCK_O"])
        start(
            nalu_forward_kernel, grid, options, x, *arranged, bias, y, h, a, t, flags, B, O, I,
            eps, omega, arranged.mul is not None, bias is not None, shared_x, save, acc,
        )  # fmt: skip
    return y, h, a, t, flags


def nalu_forward(
    x: Tensor, weight: Tensor, mask: Tensor, gate_weight: Tensor, gate_bias: Tensor | None,
    eps: float, save: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """``(y, h, a, t)``; all but y are empty without `save`. One launch."""
    weights = {"weight": weight, "mask": mask, "gate_weight": gate_weight}
    return _forward("nalu_forward", x, weights, gate_bias, eps, 0.0, save)[:4]


def _inalu_weights(*tensors: Tensor) -> dict[str, Tensor]:
    names = ("weight_add", "mask_add", "weight_mul", "mask_mul", "gate_weight")
    return dict(zip(names, tensors, strict=True))


def inalu_forward(
    x: Tensor, weight_add: Tensor, mask_add: Tensor, weight_mul: Tensor, mask_mul: Tensor,
    gate_weight: Tensor, eps: float, omega: float, save: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """``(y, h, a, t, flags)``; all but y are empty without `save`. One launch."""
    weights = _inalu_weights(weight_add, mask_add, weight_mul, mask_mul, gate_weight)
    return _forward("inalu_forward", x, weights, None, eps, omega, save)


def _check_backward(
    name: str, grad_y: Tensor, x: Tensor, weights: dict[str, Tensor], bias: Tensor | None,
    saved: dict[str, Tensor], flags: Tensor | None, shape: tuple[int, ...],
) -> None:  # fmt: skip
    """Raise for operands that do not belong together; shape: of the result."""
    weight_shape = tuple(next(iter(weights.values())).shape)
    operands = {"grad_y": (grad_y, shape)}
    operands |= {label: (weight, weight_shape) for label, weight in weights.items()}
    operands |= {label: (tensor, shape) for label, tensor in saved.items()}
    launch.check_operands(name, x, **operands, gate_bias=(bias, weight_shape[:-1]))
    if flags is not None and (
        flags.shape != shape or flags.dtype is not torch.int32 or flags.device != x.device
    ):
        raise ValueError(
            f"{name}: flags must be torch.int32 of shape {shape} on {x.device}, "
            f"got {flags.dtype} of shape {tuple(flags.shape)} on {flags.device}"
        )


def _sums(
    weights: _Weights, parts: _Weights, results: _Weights, part_bias: Tensor | None,
    grad_bias: Tensor | None, final: bool,
) -> dict[str, Any]:  # fmt: skip
    """The arguments of `sum_partials` for the parts; where they are `final`, nothing is added."""
    sums: dict[str, Any] = {}
    if parts.add is not None:
        sums["re"] = parts.add, results.add
        sums["re_nac"] = weights.add, weights.add_mask, results.add_mask
    if parts.mul is not None:
        sums["im"] = parts.mul, results.mul
        sums["im_nac"] = weights.mul, weights.mul_mask, results.mul_mask
    if parts.gate is not None:
        sums["im" if weights.mul is None else "gate"] = parts.gate, results.gate
    if part_bias is not None:
        sums["gate"] = part_bias, grad_bias
    for name in sums.keys() & {"re", "im", "gate"} if final else ():
        sums[name] = None, sums[name][1]
    return sums


def _both_forms(
    options: dict[str, Any], inalu: bool, results: list[Tensor | None], acc: Any
) -> bool:
    """Return whether a kernel writes gradients or partial sums, as the number of rows asks.

    Those of large layers, and of iNALUs beyond small ones, only write partial sums: with both forms
    some spill registers.
    """
    spills = options["PASSES"] > 0 or (inalu and options["num_warps"] > SMALL_WARPS)
    grads = [grad for grad in results if grad is not None]
    return not spills and not any(launch.is_partial(grad, 1, acc) for grad in grads)


def _backward(
    name: str, grad_y: Tensor, x: Tensor, weights: dict[str, Tensor], bias: Tensor | None,
    saved: dict[str, Tensor], flags: Tensor | None, eps: float, needs: int,
) -> list[Tensor]:  # fmt: skip
    """Gradients of x, the weights in their order and the bias; empty where `needs` has no bit."""
    first = next(iter(weights.values()))
    K, B, I, O, shared_x = launch.model_sizes(name, x, first)
    _check_backward(name, grad_y, x, weights, bias, saved, flags, (*first.shape[:-2], B, O))
    acc = launch.accumulator(x.dtype)
    needed = launch.needed(needs, x, *weights.values(), bias)
    grads = launch.gradients(needed, x, *weights.values(), bias)
    if K * B * O == 0:
        return [grad.zero_() for grad in grads]
    if not any(needed):
        return grads

    grad_y, x, *tensors = launch.contiguous(grad_y, x, *weights.values())
    arranged = _arrange(tensors)
    inner = launch.contiguous(*saved.values(), flags)
    results = [grad if need else None for grad, need in zip(grads, needed, strict=True)]
    grad_x, grad_bias, grad_weights = results[0], results[-1], _arrange(results[1:-1])
    need_add = grad_weights.add is not None or grad_weights.add_mask is not None
    need_mul = grad_weights.mul is not None or grad_weights.mul_mask is not None
    need_gate, need_bias = grad_weights.gate is not None, grad_bias is not None
    common = (eps, arranged.mul is not None, shared_x)
    sums: dict[str, Any] = {}
    with launch.device_of(x):
        one_each = grad_x is not None and K > 1 and shared_x  # of the models, which are then summed
        part_x = launch.empty(x, (K, B, I), acc) if one_each else grad_x
        if grad_x is not None and I > 0:
            options = tuning.lookup("nalu_backward_x", x, I, O, K).options
            grid = K * -(-B // options["BLOCK_B"]) * -(-I // options["BLOCK_I"])
            operands = (grad_y, x, *arranged, *inner, part_x)
            start(nalu_backward_x_kernel, grid, options, *operands, K, B, I, O, *common, acc)
        if grad_x is not None and part_x is not grad_x:
            sums["x"] = part_x, grad_x

        options, programs = tuning.lookup("nalu_backward_w", x, I, O, K)
        tiles_i = max(1, -(-I // options["BLOCK_I"]))  # a bias needs no input
        tiles = K * -(-O // options["BLOCK_O"]) * tiles_i
        splits, rows_per_split = launch.row_splits(B, options["BLOCK_B"], tiles, programs)
        both_forms = _both_forms(options, arranged.mul is not None, results[1:], acc)
        final, shape = splits == 1 and both_forms, (splits, K, O, I)

        def part(need: bool, grad: Tensor | None, shape: tuple[int, ...] = shape) -> Tensor | None:
            """What programs write; without a gradient of the weight, one of its mask is needed."""
            return launch.empty(x, shape, acc) if need and (grad is None or not final) else grad

        parts = grad_weights._replace(
            add=part(need_add, grad_weights.add), mul=part(need_mul, grad_weights.mul),
            gate=part(need_gate, grad_weights.gate),
        )  # fmt: skip
        part_bias = part(need_bias, grad_bias, shape[:-1])
        sums |= _sums(arranged, parts, grad_weights, part_bias, grad_bias, final)
        if need_add or need_mul or need_gate or need_bias:
            start(
                nalu_backward_w_kernel, tiles * splits, options,
                grad_y, x, *arranged[:4], *inner, *parts, part_bias,
                K, B, O, I, rows_per_split, *common,
                need_add, need_mul, need_gate, need_bias, both_forms, acc,
            )  # fmt: skip
        sum_partials(acc, **sums)
    return grads


def nalu_backward(
    grad_y: Tensor, x: Tensor, weight: Tensor, mask: Tensor, gate_weight: Tensor,
    gate_bias: Tensor | None, h: Tensor, a: Tensor, t: Tensor, eps: float, needs: int,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Gradients of x, weight, mask, gate_weight, gate_bias; empty without a bit in `needs`."""
    weights = {"weight": weight, "mask": mask, "gate_weight": gate_weight}
    saved = {"h": h, "a": a, "t": t}
    return tuple(_backward("nalu_backward", grad_y, x, weights, gate_bias, saved, None, eps, needs))


def inalu_backward(
    grad_y: Tensor, x: Tensor, weight_add: Tensor, mask_add: Tensor, weight_mul: Tensor,
    mask_mul: Tensor, gate_weight: Tensor, h: Tensor, a: Tensor, t: Tensor, flags: Tensor,
    eps: float, omega: float, needs: int,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Gradients of x and the five weights in their order; empty without a bit in `needs`."""
    weights = _inalu_weights(weight_add, mask_add, weight_mul, mask_mul, gate_weight)
    saved = {"h": h, "a": a, "t": t}
    grads = _backward("inalu_backward", grad_y, x, weights, None, saved, flags, eps, needs)
    return tuple(grads[:-1])
