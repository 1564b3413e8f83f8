"""Functional forms of the layers: the weights are arguments.

All functions take any leading batch shape and any strides. With weights that have a leading model
dimension K they compute K independent layers in one call: ``x [K, ..., I]`` gives every model its
own rows, a two-dimensional ``x [B, I]`` is shared by all models, and the result is ``[K, ..., O]``.

Dtypes: float32 and float64 are computed as they are; float16 and bfloat16 tensors are computed in
float32 and the result is cast back (on a GPU within the kernels). All tensors of a call have one
dtype and one device. Under `torch.autocast` float16, bfloat16 and float32 tensors may be mixed;
they are computed in float32 and the result is float32, as autocast does for ``log``, ``exp`` and
``prod``. Autocast does not cast float64, so float64 tensors cannot be mixed with the others.

Errors: ValueError for shapes, devices and values, TypeError for dtypes, RuntimeError for a backend
that cannot run.

The fused kernels are used under `torch.func.vmap` (a vmap over weights is one call with a model
dimension) and under one level of `torch.func.grad`, `grad_and_value` or `vjp`. The eager
implementation is used under deeper levels, under other `torch.func` transforms and in forward-mode
differentiation. Forward mode has one exception: on the CPU a kernel computes the NPU's tangents,
unless these must be differentiable. `torch.jit.trace` records the eager implementation, which has
derivatives wherever the traced module runs. `torch.fx.symbolic_trace` records each function as one
call.
"""

from __future__ import annotations

import torch
from torch import Tensor

from npu_kernels import reference
from npu_kernels._common.checks import check_choice
from npu_kernels._operators import autograd, compute, dispatch, fast_path, ops
from npu_kernels._operators.dispatch import by_fast_path
from npu_kernels._operators.operands import call, check_positive, record, stands_in
from npu_kernels.reference import CLIP

__all__ = ["inalu", "nac", "nalu", "nau", "nmru", "nmu", "npu"]

fast_path.load()
if fast_path.reason:
    dispatch.without_fast_path(fast_path.reason)
for _name in ops.LAYERS:
    fast_path.set_backward(_name, autograd.DERIVATIVES[_name].gradients)
fast_path.set_backward("nmu", autograd.nmu_gradients)
fast_path.set_backward(ops.SECOND, autograd.npu_second)
fast_path.set_backward("nau", autograd.nau_gradients)
fast_path.set_backward("nac", autograd.nac_gradients)


def npu(
    x: Tensor,
    weight_re: Tensor,
    weight_im: Tensor | None = None,
    gate: Tensor | None = None,
    *,
    eps: float | None = None,
    gate_gradient: str = CLIP,
) -> Tensor:
    """Neural Power Unit, a layer: products of powers of real x of any sign.

    With gates of 1, y is the real part of ``prod_i x_i ** w_oi`` with ``w = Wr + i Wi``, up to the
    effect of eps. In general:

        r = g (|x| + eps) + (1 - g)      g = min(max(gate, 0), 1)
        k = g where x < 0, else 0        (-0.0 is not negative)
        y = exp(Wr log r - pi Wi k) cos(Wi log r + pi Wr k)

    Wr is `weight_re`, Wi is `weight_im`.

    Args:
        x: ``[..., I]``; with models ``[K, ..., I]`` or a shared ``[B, I]``.
        weight_re: ``[O, I]`` or ``[K, O, I]``, real part of the exponents.
        weight_im: the same shape, imaginary part. None: the RealNPU.
        gate: ``[I]`` or ``[K, I]``, relevance of the inputs. None: all are relevant, the NaiveNPU.
        eps: added to ``|x|``; by default the machine epsilon of the compute dtype.
        gate_gradient: "clip" (the paper: no gradient where the gate is outside [0, 1]) or
            "straight_through" (it gets the gradient of its clipped value).

    Returns:
        ``[..., O]`` or ``[K, ..., O]``.

    Special values: the results for inf and nan in x are those of the formula, with one difference.
    For a nonnegative input the kernels skip the terms with k, instead of multiplying them by 0. So
    they may return a number or inf where the formula gives ``0 * inf = nan``: in the output if a
    weight is infinite, in a gradient if an output is infinite.

    Precision: float32 results on the CPU are as accurate as the eager implementation's, unless the
    float32 matmul precision (`torch.set_float32_matmul_precision`,
    ``torch.backends.mkldnn.matmul.fp32_precision``) allows bfloat16 products. In that case layers
    with at least about 32 inputs and 64 rows use bfloat16 products, if the processor supports them.
    The setting is read each time a forward or backward kernel runs, also in functions that were
    compiled earlier.

    Derivatives of every order are those of the formula, to the precision above. On the CPU
    autograd's backward and double backward are fused, and so are the directional derivatives
    (tangents) of forward mode. On a GPU the backward is fused, and the double backward consists of
    eager operations. Other derivatives are eager. For derivatives by `torch.func` see the docstring
    of this module. torch does not support a double backward through a function that `torch.compile`
    compiled. Instead compile a function that computes the first derivative, for example with
    `torch.func.grad`.

    Source: Heim, Pevny, Smidl, "Neural Power Units", NeurIPS 2020, definitions 3 and 4.

        >>> import torch
        >>> from npu_kernels.functional import npu
        >>> x = torch.tensor([[3.0, -2.0]], dtype=torch.float64)
        >>> powers = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
        >>> npu(x, powers).round(decimals=6)  # 3 ** 1 * (-2) ** 2
        tensor([[12.]], dtype=torch.float64)
    """
    y = by_fast_path(fast_path.npu, x, weight_re, weight_im, gate, eps, gate_gradient)
    if y is not NotImplemented:  # the general way below handles errors and special cases
        return y
    weights = weight_re, weight_im, gate
    if stands_in(x, weight_re):
        return record(npu, x, weights, eps=eps, gate_gradient=gate_gradient)
    return call("npu", compute.npu, x, weights, eps=eps, gate_gradient=gate_gradient, fused=True)


def nau(x: Tensor, weight: Tensor, *, clip: bool = True) -> Tensor:
    """Neural Addition Unit, a layer: ``y = A x``, with ``A = min(max(weight, -1), 1)``.

    Args:
        x: ``[..., I]``; with models ``[K, ..., I]`` or a shared ``[B, I]``.
        weight: ``[O, I]`` or ``[K, O, I]``.
        clip: clip the weight to [-1, 1], as "Neural Power Units" defines; the code of its authors
            does not clip. False: A is the weight.

    Returns ``[..., O]`` or ``[K, ..., O]``, computed by torch's matmul, or by kernels for small
    layers on the CPU.

    Source: Heim, Pevny, Smidl, "Neural Power Units", NeurIPS 2020, definition 2; Madsen, Johansen,
    ICLR 2020.
    """
    y = by_fast_path(fast_path.nau, x, weight, clip)
    if y is not NotImplemented:
        return y
    if stands_in(x, weight):
        return record(nau, x, (weight,), clip=clip)
    return call("nau", reference.nau, x, (weight,), clip=clip)


def nmu(x: Tensor, weight: Tensor, *, clip: bool = True) -> Tensor:
    """Neural Multiplication Unit, a layer: ``y_o = prod_i (M_oi x_i + 1 - M_oi)``.

    M is the clipped weight, ``min(max(weight, 0), 1)``, or with ``clip=False`` the weight itself.

    Args:
        x: ``[..., I]``; with models ``[K, ..., I]`` or a shared ``[B, I]``.
        weight: ``[O, I]`` or ``[K, O, I]``.
        clip: clip the weight to [0, 1], as "Neural Power Units" defines.

    Returns ``[..., O]`` or ``[K, ..., O]``.

    Gradients are right where a factor is 0: they are products of the other factors, not quotients.

    Source: Heim, Pevny, Smidl, "Neural Power Units", NeurIPS 2020, definition 2; Madsen, Johansen,
    ICLR 2020.
    """
    y = by_fast_path(fast_path.nmu, x, weight, clip)
    if y is not NotImplemented:
        return y
    if stands_in(x, weight):
        return record(nmu, x, (weight,), clip=clip)
    return call("nmu", compute.nmu_clipped if clip else compute.nmu, x, (weight,), fused=True)


def nmru(
    x: Tensor, weight: Tensor, *, eps: float = 0.0, clip: bool = True, sign: str = "product"
) -> Tensor:
    """Neural Multiplicative Reciprocal Unit, a layer that also divides.

    It multiplies the entries of ``x' = [x, 1 / (x + eps)]``. The argument `sign` selects one of two
    formulas, of which the first is the `nmu` of x':

        "product"    y_o = prod_i (M_oi x'_i + 1 - M_oi)
        "separate"   y_o = prod_i (M_oi |x'_i| + 1 - M_oi) cos(pi sum_i n_i weight_oi)
                     n_i = 1 where x'_i < 0, else 0

    Args:
        x: ``[..., I]``; with models ``[K, ..., I]`` or a shared ``[B, I]``.
        weight: ``[O, 2 I]`` or ``[K, O, 2 I]``: first the columns of x, then those of its
            reciprocals.
        eps: added to x in the reciprocals. 0 is ``1 / x``, as published for evaluation; in training
            the published code adds float32's machine epsilon, and so does `NMRU`.
        clip: ``M = min(max(weight, 0), 1)``; false uses the weight as it is. The cosine always uses
            the unclipped weight.
        sign: how the sign of y is computed: "product" of the signs of the factors, or "separate",
            by the cosine of the formula.

    Returns ``[..., O]`` or ``[K, ..., O]``. x' and the factors are never stored.

    Gradients are right where a factor is 0. At ``x + eps = 0`` the reciprocal is infinite, and
    every output and gradient that uses it is infinite or nan, as in the formula. With "separate"
    the derivative of ``|x'|`` is 0 at 0.

    Raises ValueError for an eps that is neither 0 nor finite and positive, and for other `sign`.

    Source: Mistry, Farrahi, Hare, "Exploring the Learning Mechanisms of Neural Division Modules",
    TMLR 2022, and its code.

        >>> import torch
        >>> from npu_kernels.functional import nmru
        >>> x = torch.tensor([[3.0, -2.0]], dtype=torch.float64)
        >>> nmru(x, torch.tensor([[1.0, 0.0, 0.0, 1.0]], dtype=torch.float64))  # 3 / -2
        tensor([[-1.5000]], dtype=torch.float64)
    """
    y = by_fast_path(fast_path.nmru, x, weight, eps, clip, sign)
    if y is not NotImplemented:
        return y
    if stands_in(x, weight):
        return record(nmru, x, (weight,), eps=eps, clip=clip, sign=sign)
    eps = check_positive("nmru", "eps", eps, getattr(x, "dtype", torch.float32))
    if sign != "product" and sign != "separate":  # quicker than a call
        check_choice("nmru", "sign", sign, ("product", "separate"))
    return call("nmru", compute.nmru, x, (weight,), eps=eps, clip=clip, sign=sign, fused=True)


def nac(x: Tensor, weight: Tensor, mask: Tensor) -> Tensor:
    """Neural Accumulator, a layer, the additive path of the NALU.

        y = (tanh(weight) * sigmoid(mask)) x

    Args:
        x: ``[..., I]``; with models ``[K, ..., I]`` or a shared ``[B, I]``.
        weight, mask: ``[O, I]`` or ``[K, O, I]``.

    Returns ``[..., O]`` or ``[K, ..., O]``. On the CPU a kernel computes ``tanh(weight) *
    sigmoid(mask)`` and its gradients. torch's matmul computes the product with x, except that small
    layers on the CPU have kernels for it.

    Source: Trask et al., "Neural Arithmetic Logic Units", NeurIPS 2018; equation 1 of "Neural Power
    Units".
    """
    y = by_fast_path(fast_path.nac, x, weight, mask)
    if y is not NotImplemented:
        return y
    if stands_in(x, weight):
        return record(nac, x, (weight, mask))
    return call("nac", reference.nac, x, (weight, mask))


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

        a = nac(x)      m = exp(nac(log(|x| + eps)))      g = sigmoid(gate_weight x + gate_bias)
        y = g a + (1 - g) m

    Both `nac` have the same weight and mask.

    Args:
        x: ``[..., I]``; with models ``[K, ..., I]`` or a shared ``[B, I]``.
        weight, mask, gate_weight: ``[O, I]`` or ``[K, O, I]``.
        gate_bias: ``[O]`` or ``[K, O]``. "Neural Power Units" has none; the code of its authors
            has one.
        eps: added to ``|x|``, as published.

    Returns ``[..., O]`` or ``[K, ..., O]``. Fused on the CPU and on a GPU; the kernels compute
    ``1 - g`` without cancellation. m does not depend on the sign of x. Its values easily overflow
    float32: the authors computed this layer in float64.

    Source: Trask et al., "Neural Arithmetic Logic Units", NeurIPS 2018; definition 1 of "Neural
    Power Units".
    """
    y = by_fast_path(fast_path.nalu, x, weight, mask, gate_weight, gate_bias, eps)
    if y is not NotImplemented:
        return y
    weights = weight, mask, gate_weight, gate_bias
    if stands_in(x, weight):
        return record(nalu, x, weights, eps=eps)
    eps = check_positive("nalu", "eps", eps, getattr(x, "dtype", torch.float32))
    return call("nalu", compute.nalu, x, weights, eps=eps, fused=True)


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
        s_o = prod_i (sign(x_i) |W_oi| + 1 - |W_oi|)   g = sigmoid(gate_weight x)
        y = g a + (1 - g) m s

    `nac` is the Neural Accumulator of this module.

    Args:
        x: ``[..., I]``; with models ``[K, ..., I]`` or a shared ``[B, I]``.
        weight_add, mask_add, weight_mul, mask_mul, gate_weight: ``[O, I]`` or ``[K, O, I]``.
        eps: the smallest ``|x|`` in the logarithm.
        omega: largest argument of exp.

    Returns ``[..., O]`` or ``[K, ..., O]``. Fused on the CPU and on a GPU, without the ``[B, O,
    I]`` factors of its sign product.

    Source: Schloer, Ring, Hotho, "iNALU: Improved Neural Arithmetic Logic Unit", Frontiers in AI
    2020, in the form that the authors of "Neural Power Units" ran.
    """
    y = by_fast_path(
        fast_path.inalu, x, weight_add, mask_add, weight_mul, mask_mul, gate_weight, eps, omega
    )
    if y is not NotImplemented:
        return y
    weights = weight_add, mask_add, weight_mul, mask_mul, gate_weight
    if stands_in(x, weight_add):
        return record(inalu, x, weights, eps=eps, omega=omega)
    dtype = getattr(x, "dtype", torch.float32)
    eps = check_positive("inalu", "eps", eps, dtype)
    omega = check_positive("inalu", "omega", omega, dtype)
    return call("inalu", compute.inalu, x, weights, eps=eps, omega=omega, fused=True)
