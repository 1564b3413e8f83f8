"""The formulas of the paper in eager torch.

This file is the specification and the oracle. Every function is plain tensor algebra: any floating
dtype, any device, differentiable to any order and in every mode (``torch.func``, forward mode,
``torch.compile``).

Source: Heim, Pevny, Smidl, "Neural Power Units", NeurIPS 2020 (numbers of equations and definitions
are the paper's).

Shapes, for all layers: weights ``[O, I]`` with ``x [..., I]`` give ``[..., O]``; weights with a
leading model dimension ``[K, O, I]`` take ``x [K, B, I]``, or ``x [B, I]`` shared by all models,
and give ``[K, B, O]``.

The functions at the end have the signatures of the registered operators, so that this module can be
the backend "reference".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.compiler import is_exporting
from torch.nn.functional import linear

__all__ = ["inalu", "nac", "nalu", "nau", "nmru", "nmu", "npu"]

CLIP, STRAIGHT_THROUGH = "clip", "straight_through"


def clip_gate(gate: Tensor, gate_gradient: str = CLIP) -> Tensor:
    """Return ``min(max(gate, 0), 1)``.

    The gradient passes where 0 <= gate <= 1 ("clip", as that of ``torch.clamp``) or everywhere
    ("straight_through").
    """
    clipped = gate.clamp(0.0, 1.0)
    if gate_gradient == CLIP:
        return clipped
    return clipped.detach() + (gate - gate.detach())  # adds an exact zero that carries the gradient


def constant(value: float, x: Tensor) -> float | Tensor:
    """Return the number, while `torch.export` records as a tensor ``[1]`` of x's dtype.

    Exporters to ONNX drop a scalar up to 1e-8 that is added, and round numbers to float32. So the
    tensor is a sum of numbers that float32 holds. (onnxruntime drops terms below 1e-45.)
    """
    if not is_exporting():
        return value
    total: float | Tensor = 0.0
    for _ in range(1 if x.dtype is torch.float32 else 3):
        scaled = value * (2**29 + 1)  # Dekker's split: the first 24 bits
        part = scaled - (scaled - value)
        total, value = total + x.new_full((1,), part), value - part
    return total


def _rows(vector: Tensor) -> Tensor:
    """Return a vector ``[I]`` or ``[K, I]`` that broadcasts over rows, ``[I]`` or ``[K, 1, I]``."""
    return vector if vector.dim() == 1 else vector.unsqueeze(-2)


def _apply(x: Tensor, weight: Tensor) -> Tensor:
    """Return ``x W'`` for one weight matrix or one per model."""
    return linear(x, weight) if weight.dim() == 2 else x @ weight.transpose(-2, -1)


def _for_shared(grad_x: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of x: summed over the models if they share x."""
    return grad_x.sum(0) if grad_x.dim() > x.dim() else grad_x


def exponents(
    x: Tensor, weight_re: Tensor, weight_im: Tensor | None, g: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return ``(P, Q, r, log r, m)`` for an already clipped gate; m is 1 where x < 0, else 0."""
    r, m, pi = x.abs() + constant(eps, x), (x < 0).to(x.dtype), constant(math.pi, x)
    k = m
    if g is not None:
        g = _rows(g)
        r, k = g * r + (1 - g), g * m
    log_r = r.log()
    p, q = _apply(log_r, weight_re), pi * _apply(k, weight_re)
    if weight_im is not None:
        p, q = p - pi * _apply(k, weight_im), q + _apply(log_r, weight_im)
    return p, q, r, log_r, m


def npu(
    x: Tensor,
    weight_re: Tensor,
    weight_im: Tensor | None = None,
    gate: Tensor | None = None,
    *,
    eps: float | None = None,
    gate_gradient: str = CLIP,
) -> Tensor:
    """NPU (definition 4); RealNPU without `weight_im`, NaiveNPU (definition 3) without `gate`.

        r = g (|x| + eps) + (1 - g)      g = min(max(gate, 0), 1)
        k = g where x < 0, else 0        (-0.0 is not negative)
        y = exp(Wr log r - pi Wi k) cos(Wi log r + pi Wr k)

    weight_re, weight_im: real and imaginary part of the exponents. gate: relevance of the inputs.
    eps: the machine epsilon of the dtype unless given. gate_gradient: "clip" or "straight_through".
    """
    g = None if gate is None else clip_gate(gate, gate_gradient)
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    p, q, *_ = exponents(x, weight_re, weight_im, g, eps)
    return p.exp() * q.cos()


def nau(x: Tensor, weight: Tensor, *, clip: bool = True) -> Tensor:
    """Neural Addition Unit (equation 5): ``y = A x``.

    ``A = min(max(weight, -1), 1)`` when `clip` is true, as in the paper; else ``A = weight``, as in
    the authors' code.
    """
    return _apply(x, weight.clamp(-1.0, 1.0) if clip else weight)


def nmu(x: Tensor, weight: Tensor, *, clip: bool = True) -> Tensor:
    """Neural Multiplication Unit (equation 4): ``y_o = prod_i (M_oi x_i + 1 - M_oi)``.

    ``M = min(max(weight, 0), 1)`` when `clip` is true. Each factor is computed as ``M x + (1 -
    M)``: ``1 - M`` is exact for M in [1/2, 1], and no digits of a small x are lost.
    """
    m = weight.clamp(0.0, 1.0) if clip else weight
    if m.dim() > 2:
        m = m.unsqueeze(-3)  # [K, 1, O, I]
    return (m * x.unsqueeze(-2) + (1 - m)).prod(-1)


def _with_reciprocals(x: Tensor, eps: float) -> Tensor:
    """Return ``[x, 1 / (x + eps)]``; with eps 0, ``1 / x``, so that 1 / -0 is -inf."""
    return torch.cat([x, (x + constant(eps, x) if eps else x).reciprocal()], -1)


def nmru(
    x: Tensor, weight: Tensor, *, eps: float = 0.0, clip: bool = True, sign: str = "product"
) -> Tensor:
    """Neural Multiplicative Reciprocal Unit: the NMU of ``x' = [x, 1 / (x + eps)]``.

        "product"    y_o = prod_i (M_oi x'_i + 1 - M_oi)
        "separate"   y_o = prod_i (M_oi |x'_i| + 1 - M_oi) cos(pi sum_i n_i weight_oi)
                     n_i = 1 where x'_i < 0, else 0

    weight: ``[O, 2 I]`` or ``[K, O, 2 I]``. ``M = min(max(weight, 0), 1)`` when `clip` is true; the
    cosine has the unclipped weight. sign: "product" or "separate". (Mistry, Farrahi, Hare 2022.)
    """
    both = _with_reciprocals(x, eps)
    if sign == "product":
        return nmu(both, weight, clip=clip)
    product = nmu(both.abs(), weight, clip=clip)
    return product * (constant(math.pi, x) * _apply((both < 0).to(x.dtype), weight)).cos()


def nac_weight(weight: Tensor, mask: Tensor) -> Tensor:
    """Return ``W = tanh(weight) * sigmoid(mask)``, the weight of a NAC and of NALUs."""
    return weight.tanh() * mask.sigmoid()


def nac(x: Tensor, weight: Tensor, mask: Tensor) -> Tensor:
    """Neural Accumulator, the additive path of the NALU (equation 1).

    ``y = (tanh(weight) * sigmoid(mask)) x``
    """
    return _apply(x, nac_weight(weight, mask))


def nalu(
    x: Tensor,
    weight: Tensor,
    mask: Tensor,
    gate_weight: Tensor,
    gate_bias: Tensor | None = None,
    *,
    eps: float = 1e-8,
) -> Tensor:
    """Neural Arithmetic Logic Unit (definition 1).

        a = nac(x)      m = exp(nac(log(|x| + eps)))      g = sigmoid(G x + bias)
        y = g a + (1 - g) m

    weight, mask: of both `nac`, ``[O, I]``. gate_weight, gate_bias: G and bias; the paper's gate
    has no bias, the authors' code has one.
    """
    gate = _apply(x, gate_weight)
    if gate_bias is not None:
        gate = gate + _rows(gate_bias)
    g = gate.sigmoid()
    w = nac_weight(weight, mask)
    log_x = (x.abs() + constant(eps, x)).log()
    return g * _apply(x, w) + (1 - g) * _apply(log_x, w).exp()


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
    product: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Tensor:
    """Improved NALU (Schloer, Ring, Hotho 2020) as the authors of the paper ran it.

        a = nac(x)                                     with weight_add, mask_add
        W = tanh(weight_mul) * sigmoid(mask_mul)
        m = exp(min(W log(max(|x|, eps)), omega))
        s_o = prod_i (sign(x_i) |W_oi| + 1 - |W_oi|)   g = sigmoid(G x)
        y = g a + (1 - g) m s

    gate_weight: G. Weight and gradient clipping, regularisation and re-initialisation belong to the
    training loop. `product` computes ``prod_i (w_oi x_i + 1 - w_oi)``, `nmu_forward` unless given.
    """
    w = nac_weight(weight_mul, mask_mul)
    log_x = x.abs().clamp(min=constant(eps, x)).log()
    m = _apply(log_x, w).clamp(max=constant(omega, x)).exp()
    s = (product or nmu_forward)(x.detach().sign(), w.abs())
    g = _apply(x, gate_weight).sigmoid()
    return g * nac(x, weight_add, mask_add) + (1 - g) * m * s


# ---- the operators' signatures -------------------------------------------------------------------


def npu_forward(
    x: Tensor,
    weight_re: Tensor,
    weight_im: Tensor | None,
    gate: Tensor | None,
    eps: float,
    save_sin: bool,
) -> tuple[Tensor, Tensor]:
    """Return ``y = exp(P) cos(Q)`` and ``s = exp(P) sin(Q)``, empty unless `save_sin` is true."""
    g = None if gate is None else gate.clamp(0.0, 1.0)
    p, q, *_ = exponents(x, weight_re, weight_im, g, eps)
    return p.exp() * q.cos(), p.exp() * q.sin() if save_sin else x.new_empty(0)


def npu_backward(
    grad_y: Tensor,
    x: Tensor,
    weight_re: Tensor,
    weight_im: Tensor | None,
    gate: Tensor | None,
    y: Tensor | None,
    s: Tensor | None,
    eps: float,
    straight_through: bool,
    needs: int = 15,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of ``(x, weight_re, weight_im, gate)``, x ``[B, I]`` or ``[K, B, I]``.

    They are differentiable when y and s are None. With saved y and s the exponentials are not
    recomputed. `needs` is a bit mask (1, 2, 4, 8); a gradient that is not needed, or whose tensor
    is absent, is an empty tensor.

        dP = grad_y y             dQ = -grad_y s
        dWr = dP' L + pi dQ' k    dWi = dQ' L - pi dP' k
        dL = dP Wr + dQ Wi        dr = dL / r           dx = dr g sign(x)
        dg = sum_b dr (|x| + eps - 1) + pi sum_o (Wr dQ'm - Wi dP'm)
    """
    g = None if gate is None else clip_gate(gate, STRAIGHT_THROUGH if straight_through else CLIP)
    p, q, r, log_r, m = exponents(x, weight_re, weight_im, g, eps)
    d_p = grad_y * (p.exp() * q.cos() if y is None else y)  # [K, B, O]
    d_q = -grad_y * (p.exp() * q.sin() if s is None else s)
    grads: list[Tensor | None] = [None] * 4
    phase_re, phase_im = d_q.mT @ m, d_p.mT @ m  # [K, O, I]
    scale = math.pi if g is None else math.pi * _rows(g)
    if needs & 2:
        grads[1] = d_p.mT @ log_r + scale * phase_re
    if needs & 4 and weight_im is not None:
        grads[2] = d_q.mT @ log_r - scale * phase_im
    if needs & 9:
        d_log = d_p @ weight_re
        if weight_im is not None:
            d_log = d_log + d_q @ weight_im
        d_r = d_log / r  # [K, B, I]
        grads[0] = _for_shared((d_r if g is None else d_r * _rows(g)) * x.sign(), x)
        if needs & 8 and gate is not None:
            phase = weight_re * phase_re
            if weight_im is not None:
                phase = phase - weight_im * phase_im
            grad_gate = (d_r * (x.abs() + (eps - 1))).sum(-2) + math.pi * phase.sum(-2)
            if not straight_through:
                grad_gate = grad_gate.where((gate >= 0) & (gate <= 1), 0)
            grads[3] = grad_gate
    return _needed(grads, needs, x)  # type: ignore[return-value]


def nmu_forward(x: Tensor, weight: Tensor) -> Tensor:
    """Return ``y_o = prod_i (weight_oi x_i + (1 - weight_oi))`` for the unclipped weight."""
    return nmu(x, weight, clip=False)


def nmu_backward(
    grad_y: Tensor, x: Tensor, weight: Tensor, needs: int = 3
) -> tuple[Tensor, Tensor]:
    """Return the gradients of x (bit 1 of `needs`) and weight (bit 2), differentiable.

    f = weight x + (1 - weight)      e_i = prod_{j != i} f_j     (right where a factor is 0)
    dx_i = sum_o grad_y_o e_oi weight_oi       dweight_oi = sum_b grad_y_o e_oi (x_i - 1)
    """
    m = weight.unsqueeze(-3)  # [K, 1, O, I]
    rows = x.unsqueeze(-2)  # [K, B, 1, I]
    f = m * rows + (1 - m)  # [K, B, O, I]
    ones = torch.ones_like(f[..., :1])
    before = torch.cat([ones, f[..., :-1]], -1).cumprod(-1)
    after = torch.cat([f[..., 1:], ones], -1).flip(-1).cumprod(-1).flip(-1)
    d_f = grad_y.unsqueeze(-1) * before * after
    grad_x = _for_shared((d_f * m).sum(-2), x) if needs & 1 else x.new_empty(0)
    return grad_x, (d_f * (rows - 1)).sum(-3) if needs & 2 else x.new_empty(0)


def nmru_forward(x: Tensor, weight: Tensor, eps: float, clip: bool, separate: bool) -> Tensor:
    """Return `nmru`; separate: whether its `sign` is "separate"."""
    return nmru(x, weight, eps=eps, clip=clip, sign="separate" if separate else "product")


def nmru_backward(
    grad_y: Tensor,
    x: Tensor,
    weight: Tensor,
    eps: float,
    clip: bool,
    separate: bool,
    needs: int = 3,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of x (bit 1 of `needs`) and weight (bit 2), differentiable.

    With the gradients of `nmu_backward` for x' and M, and m its product, r the reciprocals:

        dx_i = dx'_i - r_i**2 dx'_{I + i}      dweight_oi = dM_oi, 0 where the clip bounds

    Separate signs: dx' and dM follow from ``grad_y cos(pi q)`` and ``|x'|``, whose derivative is
    sign(x'), with q the sum in the cosine; ``-pi sum_b grad_y_o m_o sin(pi q_o) n_i`` adds to
    ``dweight_oi``.
    """
    m, both = weight.clamp(0.0, 1.0) if clip else weight, _with_reciprocals(x, eps)
    sizes, upstream, by_signs = both, grad_y, None
    if separate:
        sizes, minus = both.abs(), (both < 0).to(x.dtype)
        turns = math.pi * _apply(minus, weight)
        by_signs = (-math.pi * grad_y * nmu_forward(sizes, m) * turns.sin()).mT @ minus
        upstream = grad_y * turns.cos()
    d_both, grad_weight = nmu_backward(upstream, sizes, m)
    if clip:
        grad_weight = grad_weight.where((weight >= 0) & (weight <= 1), 0)
    if by_signs is not None:
        d_both, grad_weight = d_both * both.sign(), grad_weight + by_signs
    d_x, d_r = d_both.chunk(2, -1)
    grad_x = d_x - d_r * both.chunk(2, -1)[1].square()
    return _needed([grad_x, grad_weight], needs, x)  # type: ignore[return-value]


def nalu_forward(
    x: Tensor,
    weight: Tensor,
    mask: Tensor,
    gate_weight: Tensor,
    gate_bias: Tensor | None,
    eps: float,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return ``(y, h, a, t)``; all but y are empty when `save` is false.

    h = G x + bias      a = nac(x)      t = exp(nac(log(|x| + eps)))
    g = sigmoid(h)      y = g a + (1 - g) t
    """
    h = _apply(x, gate_weight)
    if gate_bias is not None:
        h = h + _rows(gate_bias)
    log_x = (x.abs() + constant(eps, x)).log()
    a, t = nac(x, weight, mask), nac(log_x, weight, mask).exp()
    y = h.sigmoid() * a + (-h).sigmoid() * t
    return (y, h, a, t) if save else (y, x.new_empty(0), x.new_empty(0), x.new_empty(0))


def nalu_backward(
    grad_y: Tensor,
    x: Tensor,
    weight: Tensor,
    mask: Tensor,
    gate_weight: Tensor,
    gate_bias: Tensor | None,
    h: Tensor | None,
    a: Tensor | None,
    t: Tensor | None,
    eps: float,
    needs: int = 31,
) -> tuple[Tensor, ...]:
    """Return the gradients of ``(x, weight, mask, gate_weight, gate_bias)``.

    They are differentiable when h, a and t are None. `needs` is a bit mask (1, 2, 4, 8, 16); a
    gradient that is not needed, or whose tensor is absent, is an empty tensor.

        da = grad_y g      dt = grad_y (1 - g) t      dh = grad_y g (1 - g) (a - t)
        dW = da' x + dt' L      dG = dh' x      dx = da W + dh G + dt W sign(x) / (|x| + eps)
    """
    if h is None or a is None or t is None:
        _, h, a, t = nalu_forward(x, weight, mask, gate_weight, gate_bias, eps, True)
    g, rest = h.sigmoid(), (-h).sigmoid()
    d_a, d_t, d_h = grad_y * g, grad_y * rest * t, grad_y * g * rest * (a - t)
    log_x = (x.abs() + eps).log()
    w = nac_weight(weight, mask)
    d_w = d_a.mT @ x + d_t.mT @ log_x
    grad_x = d_a @ w + d_h @ gate_weight + d_t @ w * (x.sign() / (x.abs() + eps))
    grads = [_for_shared(grad_x, x), *nac_weight_gradients(d_w, weight, mask), d_h.mT @ x]
    return _needed([*grads, None if gate_bias is None else d_h.sum(-2)], needs, x)


def nac_weight_gradients(d_w: Tensor, weight: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of weight and mask, from that of `nac_weight`."""
    turn, share = weight.tanh(), mask.sigmoid()
    return d_w * share * (1 - turn * turn), d_w * turn * share * (1 - share)


def _needed(grads: Sequence[Tensor | None], needs: int, x: Tensor) -> tuple[Tensor, ...]:
    """Return the gradients; for each that is None or not in `needs` a fresh empty tensor."""
    needed = (g if needs >> bit & 1 else None for bit, g in enumerate(grads))
    return tuple(x.new_empty(0) if g is None else g for g in needed)


def inalu_forward(
    x: Tensor,
    weight_add: Tensor,
    mask_add: Tensor,
    weight_mul: Tensor,
    mask_mul: Tensor,
    gate_weight: Tensor,
    eps: float,
    omega: float,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return ``(y, h, a, t, flags)``; all but y are empty when `save` is false.

    ``h = G x``, ``a = nac(x)``, and t is the product m s of `inalu` without factors that are 0.
    flags (int32): 1 where omega bounds the exponent, plus twice the number of factors of s that are
    0, with 2 for more. ``y = g a + (1 - g) t`` where that number is 0, else ``g a``.
    """
    w = nac_weight(weight_mul, mask_mul)
    e = _apply(x.abs().clamp(min=constant(eps, x)).log(), w)
    sizes = w.abs() if w.dim() == 2 else w.abs().unsqueeze(-3)  # [K, 1, O, I]
    factors = sizes * x.sign().unsqueeze(-2) + (1 - sizes)  # [K, B, O, I]
    zero = factors == 0
    t = e.clamp(max=constant(omega, x)).exp() * factors.masked_fill(zero, 1).prod(-1)
    zeros = zero.sum(-1).clamp(max=2)
    h, a = _apply(x, gate_weight), nac(x, weight_add, mask_add)
    y = h.sigmoid() * a + (-h).sigmoid() * t.masked_fill(zeros > 0, 0)
    if save:
        return y, h, a, t, (2 * zeros + (e > omega)).to(torch.int32)
    return y, x.new_empty(0), x.new_empty(0), x.new_empty(0), x.new_empty(0, dtype=torch.int32)


def inalu_backward(
    grad_y: Tensor,
    x: Tensor,
    weight_add: Tensor,
    mask_add: Tensor,
    weight_mul: Tensor,
    mask_mul: Tensor,
    gate_weight: Tensor,
    h: Tensor | None,
    a: Tensor | None,
    t: Tensor | None,
    flags: Tensor | None,
    eps: float,
    omega: float,
    needs: int = 63,
) -> tuple[Tensor, ...]:
    """Return the gradients of x and the five weights in their order, differentiable.

    h, a, t and flags are computed again. `needs` is a bit mask (1, 2, 4, 8, 16, 32); a gradient
    that is not needed is an empty tensor. In the notation of `inalu`, with L the logarithm, and s
    of a sign that has no gradient:

        da = grad_y g            dm = grad_y (1 - g) m s
        ds = grad_y (1 - g) m    dh = grad_y g (1 - g) (a - m s)
        dWa = da' x    dWm = dm' L (0 where omega bounds) + sign(W) ds/d|W|    dG = dh' x
        dx = da Wa + dh G + dm Wm / x (the last where |x| >= eps)
    """
    w_add, w = nac_weight(weight_add, mask_add), nac_weight(weight_mul, mask_mul)
    log_x = x.abs().clamp(min=eps).log()
    e = _apply(log_x, w)
    m, signs = e.clamp(max=omega).exp(), x.detach().sign()
    product = m * nmu_forward(signs, w.abs())
    h, a = _apply(x, gate_weight), _apply(x, w_add)
    g, rest = h.sigmoid(), (-h).sigmoid()
    d_a, d_h = grad_y * g, grad_y * g * rest * (a - product)
    d_e = (grad_y * rest * product).masked_fill(e > omega, 0)
    d_w = d_e.mT @ log_x + w.sign() * nmu_backward(grad_y * rest * m, signs, w.abs(), 2)[1]
    derivative = torch.where(x.abs() >= eps, x.sign() / x.abs().clamp(min=eps), 0)
    grad_x = d_a @ w_add + d_h @ gate_weight + d_e @ w * derivative
    of_add = nac_weight_gradients(d_a.mT @ x, weight_add, mask_add)
    of_mul = nac_weight_gradients(d_w, weight_mul, mask_mul)
    return _needed([_for_shared(grad_x, x), *of_add, *of_mul, d_h.mT @ x], needs, x)
