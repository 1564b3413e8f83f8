"""The call of a layer's formula: its operands are checked, cast and flattened, then computed.

Every layer without a shorter way calls `call`. The checks know shapes, dtypes, devices and numbers,
and give the messages of errors. The shapes are those of `ops.WEIGHTS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.jit import is_tracing
from torch.overrides import handle_torch_function, has_torch_function

from npu_kernels._common.checks import as_number, check_tensor
from npu_kernels._operators import ops
from npu_kernels._operators.autograd import HALVES, eager_only, in_float32, outside_of_transforms
from npu_kernels._operators.dispatch import backend_for

_INFO = {dtype: torch.finfo(dtype) for dtype in (torch.float32, torch.float64)}
_MEANING = {"I": "in_features", "J": "2 in_features", "O": "out_features"}
# The default eps of layers that add one: that of the dtype in which they compute.
EPS = {dtype: _INFO.get(dtype, _INFO[torch.float32]).eps for dtype in (*_INFO, *HALVES)}

# Layer -> for each weight its sizes and whether it may be None.
EXPECTED = {
    layer: tuple(
        (letters, layer in ops.LAYERS and name in ops.LAYERS[layer].optional)
        for name, letters in shapes.items()
    )
    for layer, shapes in ops.WEIGHTS.items()
}


def fits(x: Tensor, weights: Sequence[Tensor | None], expected: Sequence[tuple[str, bool]]) -> bool:
    """Whether a call is valid and common, by cheap comparisons; `check` judges the others."""
    if is_tracing():
        return False
    try:
        first: Any = weights[0]
        dtype, shape, rows = first.dtype, first.shape, x.shape
        dims = len(shape)
        on_cpu = x.is_cpu  # cheaper than to compare devices
        device = None if on_cpu else x.device
        if x.dtype is not dtype or dtype not in _INFO or dims not in (2, 3):
            return False
        if not (first.is_cpu if on_cpu else x.is_cuda and first.device == device):
            return False
        if x.layout is not torch.strided or first.layout is not torch.strided:
            return False
        if len(weights) > 1:
            # strict takes longer
            for weight, (letters, may_be_none) in zip(weights[1:], expected[1:]):  # noqa: B905
                if weight is None and may_be_none:
                    continue
                tensor: Any = weight
                if tensor.dtype is not dtype or tensor.layout is not torch.strided:
                    return False
                if not (tensor.is_cpu if on_cpu else tensor.device == device):
                    return False
                if tensor.shape != (shape if len(letters) == 2 else _vector(shape, letters)):
                    return False
        inputs = shape[-1]
        if expected[0][0] == "OJ":
            if inputs % 2:
                return False
            inputs //= 2
        if dims == 2:
            return len(rows) > 0 and rows[-1] == inputs
        return len(rows) > 1 and rows[-1] == inputs and (len(rows) == 2 or rows[0] == shape[0])
    except (AttributeError, RuntimeError):  # not a tensor; a nested one, which has no shape
        return False


def _vector(shape: Sequence[int], letters: str) -> tuple[int, ...]:
    """The shape of a vector of inputs or outputs for a weight ``[(K,) O, I]`` of that shape."""
    size = shape[-1 if letters == "I" else -2]
    return (size,) if len(shape) == 2 else (shape[0], size)


def check(layer: str, x: Any, weights: Sequence[Any], mixed: bool = False) -> None:
    """Raise for the first operand that does not fit.

    The first weight ``[(K,) O, I]`` says what the others and x must be.

    mixed: dtypes may differ.
    """
    shapes, expected = ops.WEIGHTS[layer], EXPECTED[layer]
    named = zip(shapes, weights, expected, strict=True)
    tensors = {name: w for name, w, (_, optional) in named if w is not None or not optional}
    present = {"x": x, **tensors}
    for name, tensor in present.items():
        check_tensor(layer, name, tensor)
        if tensor.dtype not in _INFO and tensor.dtype not in HALVES:
            rule = f"{name} must be float16, bfloat16, float32 or float64"
            raise TypeError(f"{layer}: {rule}, got {tensor.dtype}")
    for attribute, error in (("dtype", TypeError), ("device", ValueError))[mixed:]:
        if any(getattr(tensor, attribute) != getattr(x, attribute) for tensor in present.values()):
            values = ", ".join(f"{n} {getattr(t, attribute)}" for n, t in present.items())
            raise error(f"{layer}: all tensors must have one {attribute}, got {values}")

    first, weight = next(iter(tensors.items()))
    shape, rows = tuple(weight.shape), tuple(x.shape)
    columns = _MEANING[shapes[first][1]]
    if len(shape) not in (2, 3):
        raise ValueError(
            f"{layer}: {first} must have shape (out_features, {columns}) "
            f"or (num_models, out_features, {columns}), got shape {shape}"
        )
    twice = shapes[first] == "OJ"
    if twice and shape[-1] % 2:
        rule = f"{first} must have an even last dimension ({columns})"
        raise ValueError(f"{layer}: {rule}, got shape {shape}")
    inputs = shape[-1] // 2 if twice else shape[-1]
    models = "num_models, " if len(shape) == 3 else ""
    for name, other in tensors.items():
        letters, sizes = shapes[name], tuple(other.shape)
        if len(letters) == 2:
            if sizes != shape:
                rule = f"{name} must have the shape of {first}, {shape}"
                raise ValueError(f"{layer}: {rule}, got shape {sizes}")
            continue
        want = _vector(shape, letters)
        if sizes != want:
            rule = f"{name} must have shape {want} ({models}{_MEANING[letters]})"
            raise ValueError(f"{layer}: {rule}, got shape {sizes}")

    if not rows or rows[-1] != inputs:
        rule = f"x must have last dimension {inputs} (in_features)"
        raise ValueError(f"{layer}: {rule}, got shape {rows}")
    if models and len(rows) != 2 and (len(rows) == 1 or rows[0] != shape[0]):
        raise ValueError(
            f"{layer}: x must have shape ({shape[0]}, ..., {inputs}) "
            f"(num_models, ..., in_features) or (batch, {inputs}) (shared by all models), "
            f"got shape {rows}"
        )


def unrecorded() -> AbstractContextManager[None]:
    """Hide the checks in the block from `torch.jit.trace`.

    Tracing would record the sizes and warn about every comparison.
    """
    return _paused_tracing() if is_tracing() else nullcontext()


@contextmanager
def _paused_tracing() -> Iterator[None]:
    state = torch._C._get_tracing_state()
    pause: Any = torch._C._set_tracing_state  # type: ignore[attr-defined]
    pause(None)
    try:
        yield
    finally:
        pause(state)


def check_positive(layer: str, name: str, value: Any, dtype: torch.dtype) -> float:
    """Return the number as a float; ValueError unless it is finite and greater than 0.

    It is compared with 0 in the dtype of the computation.

    0 is valid where the layer's record says so.
    """
    info = _INFO.get(dtype, _INFO[torch.float32])
    zero = layer in ops.LAYERS and name in ops.LAYERS[layer].may_be_zero
    number = as_number(value)
    if info.smallest_normal <= number <= info.max or (zero and number == 0):
        return number
    rule = "0, or finite and greater than 0" if zero else "finite and greater than 0"
    raise ValueError(f"{layer}: {name} must be {rule} in {info.dtype}, got {value!r}")


# ---- the call ----

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
        with unrecorded():
            check(layer, x, weights, mixed=True)
    return outside_of_transforms((x, *weights)) is None


def stands_in(x: Any, weight: Any) -> bool:
    """Whether an operand stands for a tensor and takes the call over, as `torch.fx`'s proxies do.

    Subclasses of tensors are tensors.
    """
    if isinstance(x, Tensor) and isinstance(weight, Tensor):
        return False
    return has_torch_function((x, weight))


def record(
    function: Callable[..., Tensor], x: Any, weights: Sequence[Any], **options: Any
) -> Tensor:
    """Return what an operand makes of the call that it takes over: a node of a graph."""
    operands = (x, *weights)
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
        with unrecorded():
            check(layer, x, weights)
        half = x.dtype in HALVES
    if (autocast or half) and not (fused and _kernels_read_halves(layer, x, weights, autocast)):
        off = torch.autocast(x.device.type, enabled=False) if autocast else nullcontext()
        with off:
            x_32, *weights_32 = in_float32([x, *weights])
            y = call(layer, formula, x_32, weights_32, **options)
        return y.to(x.dtype) if half else y

    extra = x.dim() - weights[0].dim()  # type: ignore[union-attr]  # the first is never None
    flat = _flatten(x, weights[0], extra) if extra else x  # type: ignore[arg-type]
    y = formula(flat, *weights, **options)
    return y if flat is x else y.reshape(x.shape[:-1] + y.shape[-1:])
