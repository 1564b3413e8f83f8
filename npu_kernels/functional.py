"""Neural Power Unit, a layer, and its siblings as stateless functions: check, flatten, choose, call.

All functions take any leading batch shape and any strides. With weights that have a leading model dimension K they
compute K independent layers in one call: ``x [K, ..., I]`` gives every model its own rows, a two-dimensional
``x [B, I]`` is shared by all models, and the result is ``[K, ..., O]``.

Dtypes: float32 and float64 are computed as they are; float16 and bfloat16 tensors are computed in float32 and the
result is cast back. Under `torch.autocast` everything is computed in float32 and the result is float32, as for
``log``, ``exp`` and ``prod``. All tensors of a call have one dtype (autocast lifts this) and one device.

Errors: ValueError for shapes, devices and values, TypeError for dtypes, RuntimeError for a backend that cannot run.

Under `torch.func.vmap` the fused operators compute, a vmap over weights as one call with a model dimension; under the
other `torch.func` transforms and forward-mode differentiation the eager formulas do, so that every mode is right.
`torch.jit.trace` records the eager formulas too, which have derivatives wherever the traced module runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.compiler import is_compiling
from torch.jit import is_tracing

from npu_kernels import dispatch, ops, reference, transforms
from npu_kernels.autograd import (
    INALUFunction,
    NALUFunction,
    NMUFunction,
    NPUFunction,
    eager_only,
    inalu_backward,
    nmu_backward,
    npu_backward,
)
from npu_kernels.backends import direct
from npu_kernels.checks import check_tensor
from npu_kernels.dispatch import backend_for
from npu_kernels.reference import CLIP, STRAIGHT_THROUGH

__all__ = ["inalu", "nac", "nalu", "nau", "nmu", "npu"]

_Result = TypeVar("_Result")

_INFO = {dtype: torch.finfo(dtype) for dtype in (torch.float32, torch.float64)}
_EPS = {dtype: info.eps for dtype, info in _INFO.items()}
_HALF = (torch.float16, torch.bfloat16)

_any_autocast = torch._C._is_any_autocast_enabled

direct.load()
direct.set_backward("npu", npu_backward)
direct.set_backward("nmu", lambda grad_y, x, weight, clip, needs: nmu_backward(grad_y, x, weight, needs))
direct.set_backward("nau", reference.nau_backward)
direct.set_backward("inalu", inalu_backward)


# ---- checks ---------------------------------------------------------------------------------------------------------


def _fits(x: Tensor, weight: Tensor, *weights: Tensor) -> bool:
    """The common valid case on the CPU, by the cheapest comparisons; what does not fit goes to `_check`."""
    if is_tracing():
        return False
    try:
        dtype, shape, rows = weight.dtype, weight.shape, x.shape
        if not (dtype in _INFO and x.dtype is dtype and x.is_cpu and weight.is_cpu):
            return False
        if not (x.layout is torch.strided and weight.layout is torch.strided):
            return False
        for other in weights:
            if other.layout is not torch.strided or not (
                other.dtype is dtype and other.is_cpu and other.shape == shape
            ):
                return False
        if len(shape) == 2:
            return len(rows) > 0 and rows[-1] == shape[1]
        return len(shape) == 3 and len(rows) > 1 and rows[-1] == shape[2] and (len(rows) == 2 or rows[0] == shape[0])
    except (AttributeError, RuntimeError):  # not a tensor; a nested one, which has no shape
        return False


def _fits_rows(gate: Tensor | None, weight: Tensor) -> bool:
    """Whether a gate belongs to a weight that fits."""
    if gate is None:
        return True
    if not isinstance(gate, Tensor) or gate.dtype is not weight.dtype or not gate.is_cpu or gate.is_nested:
        return False
    if gate.layout is not torch.strided:
        return False
    found, shape = gate.shape, weight.shape
    return len(found) == len(shape) - 1 and found[-1] == shape[-1] and (len(found) == 1 or found[0] == shape[0])


def _check(layer: str, x: Any, weights: dict[str, Any], vectors: dict[str, tuple[Any, int]]) -> None:
    """Raise for the first thing wrong. All weights have one shape; a vector comes with the dimension that it shares."""
    tensors = {"x": x, **weights, **{name: vector for name, (vector, _) in vectors.items()}}
    for name, tensor in tensors.items():
        check_tensor(layer, name, tensor)
        if tensor.dtype not in _INFO and tensor.dtype not in _HALF:
            raise TypeError(f"{layer}: {name} must be float16, bfloat16, float32 or float64, got {tensor.dtype}")
    for what, error in (("dtype", TypeError), ("device", ValueError)):
        if any(getattr(tensor, what) != getattr(x, what) for tensor in tensors.values()):
            found = ", ".join(f"{name} {getattr(tensor, what)}" for name, tensor in tensors.items())
            raise error(f"{layer}: all tensors must have one {what}, got {found}")

    first, weight = next(iter(weights.items()))
    shape, rows = tuple(weight.shape), tuple(x.shape)
    if len(shape) not in (2, 3):
        raise ValueError(
            f"{layer}: {first} must have shape (out_features, in_features) or (num_models, out_features, in_features), "
            f"got shape {shape}"
        )
    for name, other in weights.items():
        if other.shape != weight.shape:
            raise ValueError(f"{layer}: {name} must have the shape of {first}, {shape}, got shape {tuple(other.shape)}")
    models = "num_models, " if len(shape) == 3 else ""
    for name, (vector, dim) in vectors.items():
        expected = (*shape[:-2], shape[dim])
        if tuple(vector.shape) != expected:
            meaning = models + ("in_features" if dim == -1 else "out_features")
            raise ValueError(f"{layer}: {name} must have shape {expected} ({meaning}), got shape {tuple(vector.shape)}")

    if not rows or rows[-1] != shape[-1]:
        raise ValueError(f"{layer}: x must have last dimension {shape[-1]} (in_features), got shape {rows}")
    if models and len(rows) != 2 and (len(rows) == 1 or rows[0] != shape[0]):
        raise ValueError(
            f"{layer}: x must have shape ({shape[0]}, ..., {shape[-1]}) (num_models, ..., in_features) "
            f"or (batch, {shape[-1]}) (shared by all models), got shape {rows}"
        )


def unrecorded(check: Callable[..., _Result], *arguments: Any) -> _Result:
    """What a check answers, without `torch.jit.trace`, which would record the sizes and warn of every comparison."""
    if not is_tracing():
        return check(*arguments)
    state = torch._C._get_tracing_state()
    pause: Any = torch._C._set_tracing_state  # type: ignore[attr-defined]
    pause(None)
    try:
        return check(*arguments)
    finally:
        pause(state)


def _check_positive(layer: str, name: str, value: Any, dtype: torch.dtype) -> None:
    info = _INFO.get(dtype, _INFO[torch.float32])
    if not isinstance(value, (int, float)) or not info.smallest_normal <= value <= info.max:
        raise ValueError(f"{layer}: {name} must be finite and greater than 0 in {info.dtype}, got {value!r}")


# ---- shapes, dtypes, choice -----------------------------------------------------------------------------------------


def _flatten(x: Tensor, weight: Tensor) -> Tensor:
    """x as ``[B, I]``, or as ``[K, B, I]`` where every model has its own rows."""
    extra = x.dim() - weight.dim()
    if extra == 0:
        return x
    if extra > 0:
        return x.flatten(weight.dim() - 2, -2)
    return x if weight.dim() == 3 else x.unsqueeze(0)


def _autocasts(x: Any) -> bool:
    if not _any_autocast() or not isinstance(x, Tensor):
        return False
    device_type = x.device.type
    return torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type)


def _to_float(tensor: Any) -> Any:
    return tensor.float() if isinstance(tensor, Tensor) and tensor.dtype in _HALF else tensor


def _call(
    layer: str,
    formula: Callable[..., Tensor],
    x: Tensor,
    weights: dict[str, Tensor],
    vectors: dict[str, tuple[Tensor, int]] | None = None,
    **options: Any,
) -> Tensor:
    """Check, cast, flatten, and call the formula with ``x [B, I]`` or ``[K, B, I]``, the rest by name."""
    vectors = vectors or {}
    autocast, half = _autocasts(x), False
    if not autocast and (vectors or not _fits(x, *weights.values())):
        unrecorded(_check, layer, x, weights, vectors)
        half = x.dtype in _HALF
    if autocast or half:
        weights = {name: _to_float(weight) for name, weight in weights.items()}
        vectors = {name: (_to_float(vector), dim) for name, (vector, dim) in vectors.items()}
        with torch.autocast(x.device.type, enabled=False):
            y = _call(layer, formula, _to_float(x), weights, vectors, **options)
        return y.to(x.dtype) if half else y

    flat = _flatten(x, next(iter(weights.values())))
    y = formula(flat, **weights, **{name: vector for name, (vector, _) in vectors.items()}, **options)
    return y if flat is x else y.reshape(x.shape[:-1] + y.shape[-1:])


def _npu(
    x: Tensor,
    weight_re: Tensor,
    weight_im: Tensor | None = None,
    gate: Tensor | None = None,
    *,
    eps: float | None,
    gate_gradient: str,
) -> Tensor:
    if eps is None:
        eps = _EPS[x.dtype]
    else:
        _check_positive("npu", "eps", eps, x.dtype)
    if gate_gradient != CLIP and gate_gradient != STRAIGHT_THROUGH:
        raise ValueError(f"npu: gate_gradient must be 'clip' or 'straight_through', got {gate_gradient!r}")
    backend = backend_for(x)
    if backend == "reference":
        return reference.npu(x, weight_re, weight_im, gate, eps=eps, gate_gradient=gate_gradient)
    if eager_only():
        if not transforms.fused(weight_re, weight_im, gate):
            return reference.npu(x, weight_re, weight_im, gate, eps=eps, gate_gradient=gate_gradient)
        straight_through = gate_gradient == STRAIGHT_THROUGH
        return transforms.NPUTransformed.apply(x, weight_re, weight_im, gate, eps, straight_through)[0]
    if torch.is_grad_enabled() and (
        weight_re.requires_grad
        or x.requires_grad
        or (weight_im is not None and weight_im.requires_grad)
        or (gate is not None and gate.requires_grad)
    ):
        return NPUFunction.apply(x, weight_re, weight_im, gate, eps, gate_gradient == STRAIGHT_THROUGH)
    return ops.npu_forward(x, weight_re, weight_im, gate, eps, False)[0]


def _nmu(x: Tensor, weight: Tensor) -> Tensor:
    """Flat operands, the weight used as it is."""
    backend = backend_for(x)
    if backend == "reference":
        return reference.nmu(x, weight, clip=False)
    if eager_only():
        if not transforms.fused(weight):
            return reference.nmu(x, weight, clip=False)
        return transforms.NMUTransformed.apply(x, weight)
    if torch.is_grad_enabled() and (weight.requires_grad or x.requires_grad):
        return NMUFunction.apply(x, weight)
    return ops.nmu_forward(x, weight)


def _direct(function: Callable[..., Any] | None, *arguments: Any) -> Any:
    """What the fast path answers, NotImplemented where it is not taken."""
    if function is None or dispatch.forced not in dispatch.DIRECT or is_compiling():
        return NotImplemented
    return function(*arguments)


def _sign_product(x: Tensor, weight: Tensor) -> Tensor:
    """The product of an iNALU, whose operands are flat."""
    y = _direct(direct.nmu, x, weight, False)
    return _nmu(x, weight) if y is NotImplemented else y


def _nalu(
    x: Tensor, weight: Tensor, mask: Tensor, gate_weight: Tensor, gate_bias: Tensor | None = None, *, eps: float
) -> Tensor:
    backend = backend_for(x)
    inputs = x, weight, mask, gate_weight, gate_bias
    if not dispatch.has_kernel(backend, "nalu_forward"):
        return reference.nalu(*inputs, eps=eps)
    if eager_only():
        if not transforms.fused(*inputs[1:]):
            return reference.nalu(*inputs, eps=eps)
        return transforms.NALUTransformed.apply(*inputs, eps)[0]
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs):
        return NALUFunction.apply(*inputs, eps)
    return ops.nalu_forward(*inputs, eps, False)[0]


def _inalu(
    x: Tensor,
    weight_add: Tensor,
    mask_add: Tensor,
    weight_mul: Tensor,
    mask_mul: Tensor,
    gate_weight: Tensor,
    *,
    eps: float,
    omega: float,
) -> Tensor:
    backend = backend_for(x)
    inputs = x, weight_add, mask_add, weight_mul, mask_mul, gate_weight
    if not dispatch.has_kernel(backend, "inalu_forward"):
        return reference.inalu(*inputs, eps=eps, omega=omega, product=_sign_product)
    if eager_only():
        if not transforms.fused(*inputs[1:]):
            return reference.inalu(*inputs, eps=eps, omega=omega, product=_sign_product)
        return transforms.INALUTransformed.apply(*inputs, eps, omega)[0]
    if torch.is_grad_enabled() and any(t.requires_grad for t in inputs):
        return INALUFunction.apply(*inputs, eps, omega)
    return ops.inalu_forward(*inputs, eps, omega, False)[0]


def _nmu_clipped(x: Tensor, weight: Tensor) -> Tensor:
    return _nmu(x, weight.clamp(0, 1))


# ---- layers ---------------------------------------------------------------------------------------------------------


def npu(
    x: Tensor,
    weight_re: Tensor,
    weight_im: Tensor | None = None,
    gate: Tensor | None = None,
    *,
    eps: float | None = None,
    gate_gradient: str = CLIP,
) -> Tensor:
    """Neural Power Unit, a layer: products of powers, ``y_o = prod_i x_i ** w_oi``, for real x of any sign.

        r = g (|x| + eps) + (1 - g)      g = min(max(gate, 0), 1)
        k = g where x < 0, else 0        (-0.0 is not negative)
        y = exp(Wr log r - pi Wi k) cos(Wi log r + pi Wr k)

    Args:
        x: ``[..., I]``; with models ``[K, ..., I]`` or a shared ``[B, I]``.
        weight_re: ``[O, I]`` or ``[K, O, I]``, real part of the exponents.
        weight_im: the same shape, imaginary part. None: the RealNPU.
        gate: ``[I]`` or ``[K, I]``, relevance of the inputs. None: all are relevant, the NaiveNPU.
        eps: added to ``|x|``; by default the machine epsilon of the compute dtype.
        gate_gradient: "clip" (the paper: no gradient where the gate is outside [0, 1]) or "straight_through".

    Returns:
        ``[..., O]`` or ``[K, ..., O]``.

    Special values: for inf and nan in x the kernels give what the formula gives. They leave out its terms for negative
    inputs where an input is not negative, instead of multiplying them by 0; so with an infinite weight the result, and
    with an infinite result a gradient, may be a number or inf where the formula's ``0 * inf`` is nan.

    Precision: float32 on the CPU is as accurate as the formula, unless the float32 matmul precision
    (`torch.set_float32_matmul_precision`, ``torch.backends.mkldnn.matmul.fp32_precision``) allows less and the
    processor multiplies bfloat16: then layers of whole tiles are made of such products. What is set when a kernel runs
    counts, for the forward and for the backward, on every way to it, such as a graph that was compiled before.

    Derivatives of every order are right; the first is fused, higher ones are eager. torch does not support a double
    backward through a function that `torch.compile` compiled; compile the gradient's computation instead.

    Source: Heim, Pevny, Smidl, "Neural Power Units", NeurIPS 2020, definitions 3 and 4.

        >>> import torch
        >>> from npu_kernels.functional import npu
        >>> x = torch.tensor([[3.0, -2.0]], dtype=torch.float64)
        >>> npu(x, torch.tensor([[1.0, 2.0]], dtype=torch.float64)).round(decimals=6)  # 3 ** 1 * (-2) ** 2
        tensor([[12.]], dtype=torch.float64)
    """
    y = _direct(direct.npu, x, weight_re, weight_im, gate, eps, gate_gradient)
    if y is not NotImplemented:  # errors and all special cases are the general way's
        return y
    if (
        not _any_autocast()
        and (_fits(x, weight_re) if weight_im is None else _fits(x, weight_re, weight_im))
        and _fits_rows(gate, weight_re)
        and x.dim() == weight_re.dim()
    ):  # nothing to cast or flatten
        return _npu(x, weight_re, weight_im, gate, eps=eps, gate_gradient=gate_gradient)
    weights = {"weight_re": weight_re} if weight_im is None else {"weight_re": weight_re, "weight_im": weight_im}
    vectors = None if gate is None else {"gate": (gate, -1)}
    return _call("npu", _npu, x, weights, vectors, eps=eps, gate_gradient=gate_gradient)


def nau(x: Tensor, weight: Tensor, *, clip: bool = True) -> Tensor:
    """Neural Addition Unit, a layer: ``y = A x``, with ``A = min(max(weight, -1), 1)``.

    Args:
        x: ``[..., I]``; with models ``[K, ..., I]`` or a shared ``[B, I]``.
        weight: ``[O, I]`` or ``[K, O, I]``.
        clip: clip the weight to [-1, 1] as the paper defines; false is what its authors ran.

    Returns ``[..., O]`` or ``[K, ..., O]``. A matrix product: plain torch, but on the CPU, where the layer is small,
    kernels at a fraction of the cost of torch's calls.

    Source: Heim, Pevny, Smidl, "Neural Power Units", NeurIPS 2020, definition 2; Madsen, Johansen, ICLR 2020.
    """
    y = _direct(direct.nau, x, weight, clip)
    if y is not NotImplemented:
        return y
    return _call("nau", reference.nau, x, {"weight": weight}, clip=clip)


def nmu(x: Tensor, weight: Tensor, *, clip: bool = True) -> Tensor:
    """Neural Multiplication Unit, a layer: ``y_o = prod_i (M_oi x_i + 1 - M_oi)``, with ``M = min(max(weight, 0), 1)``.

    Args:
        x: ``[..., I]``; with models ``[K, ..., I]`` or a shared ``[B, I]``.
        weight: ``[O, I]`` or ``[K, O, I]``.
        clip: clip the weight to [0, 1] as the paper defines; false uses it as it is.

    Returns ``[..., O]`` or ``[K, ..., O]``.

    Gradients are right where a factor is 0: they are products of the other factors, not quotients.

    Source: Heim, Pevny, Smidl, "Neural Power Units", NeurIPS 2020, definition 2; Madsen, Johansen, ICLR 2020.
    """
    y = _direct(direct.nmu, x, weight, clip)
    if y is not NotImplemented:
        return y
    return _call("nmu", _nmu_clipped if clip else _nmu, x, {"weight": weight})


def nac(x: Tensor, weight: Tensor, mask: Tensor) -> Tensor:
    """Neural Accumulator, a layer, the additive path of the NALU: ``y = (tanh(weight) * sigmoid(mask)) x``.

    Args:
        x: ``[..., I]``; with models ``[K, ..., I]`` or a shared ``[B, I]``.
        weight, mask: ``[O, I]`` or ``[K, O, I]``.

    Returns ``[..., O]`` or ``[K, ..., O]``. Plain torch on every backend: a matrix product.

    Source: Trask et al., "Neural Arithmetic Logic Units", NeurIPS 2018; equation 1 of "Neural Power Units".
    """
    return _call("nac", reference.nac, x, {"weight": weight, "mask": mask})


def nalu(
    x: Tensor,
    weight: Tensor,
    mask: Tensor,
    gate_weight: Tensor,
    gate_bias: Tensor | None = None,
    *,
    eps: float = 1e-8,
) -> Tensor:
    """Neural Arithmetic Logic Unit, a layer.

        a = nac(x)      m = exp(nac(log(|x| + eps)))      g = sigmoid(G x + bias)
        y = g a + (1 - g) m

    Args:
        x: ``[..., I]``; with models ``[K, ..., I]`` or a shared ``[B, I]``.
        weight, mask, gate_weight: ``[O, I]`` or ``[K, O, I]``.
        gate_bias: ``[O]`` or ``[K, O]``. None is the paper's formula; the authors' code has a bias.
        eps: added to ``|x|``, as published.

    Returns ``[..., O]`` or ``[K, ..., O]``. Plain torch on the CPU, matrix products; fused on a GPU, where ``1 - g``
    has no cancellation. The sign of x is lost in m, whose values easily leave float32: the authors computed this layer
    in float64.

    Source: Trask et al., "Neural Arithmetic Logic Units", NeurIPS 2018; definition 1 of "Neural Power Units".
    """
    _check_positive("nalu", "eps", eps, getattr(x, "dtype", torch.float32))
    weights = {"weight": weight, "mask": mask, "gate_weight": gate_weight}
    vectors = None if gate_bias is None else {"gate_bias": (gate_bias, -2)}
    return _call("nalu", _nalu, x, weights, vectors, eps=eps)


def inalu(
    x: Tensor,
    weight_add: Tensor,
    mask_add: Tensor,
    weight_mul: Tensor,
    mask_mul: Tensor,
    gate_weight: Tensor,
    *,
    eps: float = 1e-7,
    omega: float = 20.0,
) -> Tensor:
    """Improved Neural Arithmetic Logic Unit, a layer.

        a = nac(x)                                     with weight_add, mask_add
        W = tanh(weight_mul) * sigmoid(mask_mul)
        m = exp(min(W log(max(|x|, eps)), omega))
        s_o = prod_i (sign(x_i) |W_oi| + 1 - |W_oi|)   g = sigmoid(G x)
        y = g a + (1 - g) m s

    Args:
        x: ``[..., I]``; with models ``[K, ..., I]`` or a shared ``[B, I]``.
        weight_add, mask_add, weight_mul, mask_mul, gate_weight: ``[O, I]`` or ``[K, O, I]``.
        eps: the least ``|x|`` in the logarithm.
        omega: the greatest exponent.

    Returns ``[..., O]`` or ``[K, ..., O]``. Fused on the CPU and on a GPU, without the ``[B, O, I]`` factors of its
    sign product.

    Source: Schloer, Ring, Hotho, "iNALU: Improved Neural Arithmetic Logic Unit", Frontiers in AI 2020, in the form that
    the authors of "Neural Power Units" ran.
    """
    y = _direct(direct.inalu, x, weight_add, mask_add, weight_mul, mask_mul, gate_weight, eps, omega)
    if y is not NotImplemented:
        return y
    dtype = getattr(x, "dtype", torch.float32)
    _check_positive("inalu", "eps", eps, dtype)
    _check_positive("inalu", "omega", omega, dtype)
    weights = {
        "weight_add": weight_add,
        "mask_add": mask_add,
        "weight_mul": weight_mul,
        "mask_mul": mask_mul,
        "gate_weight": gate_weight,
    }
    return _call("inalu", _inalu, x, weights, eps=eps, omega=omega)
