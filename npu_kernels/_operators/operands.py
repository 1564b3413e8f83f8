"""The call of a layer's formula: its operands are checked, cast and flattened, then computed.

Every layer without a shorter way calls `call`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from npu_kernels._operators.autograd import HALVES, eager_only, in_float32, outside_of_transforms
from npu_kernels._operators.checks import EXPECTED, check, fits, unrecorded
from npu_kernels._operators.dispatch import backend_for

_any_autocast = torch._C._is_any_autocast_enabled


def _flatten(x: Tensor, weight: Tensor, extra: int) -> Tensor:
    """Return x, with `extra` more dimensions than the weight, as ``[B, I]`` or ``[K, B, I]``."""
    if extra > 0:
        return x.flatten(weight.dim() - 2, -2)
    return x if weight.dim() == 3 else x.unsqueeze(0)


def _autocasts(x: Any) -> bool:
    if not isinstance(x, Tensor):
        return False
    device_type = x.device.type
    return torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type)


def _kernels_read_halves(layer: str, x: Tensor, weights: Sequence[Any], autocast: bool) -> bool:
    """Whether the kernels read these float16 or bfloat16 operands without a cast.

    They then give what a cast to float32 before them would. Triton's kernels can, outside of
    autocast for operands of one dtype. Under autocast x or the first weight must be of float32, and
    any other operand of float32, float16 or bfloat16. Where all are of float32 no cast is needed.
    Under saved-tensor hooks every backend gets the cast, so that all save the same dtypes.
    """
    if eager_only() or backend_for(x) != "triton":
        return False
    if autocast:
        dtypes = [getattr(tensor, "dtype", None) for tensor in (x, *weights) if tensor is not None]
        if any(dtype not in HALVES and dtype is not torch.float32 for dtype in dtypes):
            return False
        if set(dtypes) == {torch.float32} or (dtypes[0] in HALVES and dtypes[1] in HALVES):
            return False
        unrecorded(check, layer, x, weights, True)
    return outside_of_transforms((x, *weights)) is None


def stands_in(x: Any, weight: Any) -> bool:
    """Whether an operand stands for a tensor and takes the call over, as `torch.fx`'s proxies do.

    Subclasses of tensors are tensors.
    """
    if isinstance(x, Tensor) and isinstance(weight, Tensor):
        return False
    return has_torch_function((x, weight))


def record(function: Callable[..., Tensor], *operands: Any, **options: Any) -> Tensor:
    """Return what an operand makes of the call that it takes over: a node of a graph."""
    result: Tensor = handle_torch_function(function, operands, *operands, **options)
    return result


def call(
    layer: str,
    formula: Callable[..., Tensor],
    x: Tensor,
    weights: Sequence[Tensor | None],
    *,
    fused: bool = False,
    **options: Any,
) -> Tensor:
    """Check, cast, flatten, and call ``formula(x, *weights, **options)``.

    The formula gets ``x [B, I]`` or ``[K, B, I]``.

    weights: in the order of ``ops.WEIGHTS[layer]``; None for an absent one. fused: the formula asks
    the backends' kernels first.
    """
    autocast, half = _any_autocast() and _autocasts(x), False
    if not autocast and not fits(x, weights, EXPECTED[layer]):
        unrecorded(check, layer, x, weights)
        half = x.dtype in HALVES
    if (autocast or half) and not (fused and _kernels_read_halves(layer, x, weights, autocast)):
        off = torch.autocast(x.device.type, enabled=False) if autocast else nullcontext()
        with off:
            x_32, *weights_32 = in_float32([x, *weights])
            y = call(layer, formula, x_32, weights_32, **options)
        return y.to(x.dtype) if half else y

    extra = x.dim() - weights[0].dim()  # type: ignore[union-attr]  # the first is never None
    if extra == 0:
        return formula(x, *weights, **options)
    flat = _flatten(x, weights[0], extra)  # type: ignore[arg-type]
    y = formula(flat, *weights, **options)
    return y if flat is x else y.reshape(x.shape[:-1] + y.shape[-1:])
