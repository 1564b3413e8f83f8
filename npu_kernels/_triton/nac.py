"""Helpers inside the kernels of the NALU and the iNALU, siblings of the Neural Power Unit layer.

Their weights are ``tanh(weight) sigmoid(mask)``, and both take a logarithm.
"""

import triton
import triton.language as tl

from npu_kernels._triton.device_math import exp_accurate


@triton.jit
def sigmoid(v):
    """``1 / (1 + exp(-v))``; ``1 - sigmoid(v)`` is ``sigmoid(-v)``, without cancellation."""
    return 1.0 / (1.0 + exp_accurate(-v))


@triton.jit
def tanh(v):
    """tanh(v), at most 3 ulp, with the coefficients of Cephes' tanhf and tanh.

    A polynomial (float64: a rational function) up to 0.625, exponentials beyond.
    """
    a = tl.abs(v)
    z = v * v
    if v.dtype == tl.float64:
        p = -9.64399179425052238628e-1 * z - 9.92877231001918586564e1
        p = p * z - 1.61468768441708447952e3
        q = (z + 1.12811678491632931402e2) * z + 2.23548839060100448583e3
        q = q * z + 4.84406305325125486048e3
        near = p / q
    else:
        near = -5.70498872745e-3 * z + 2.06390887954e-2
        near = near * z - 5.37397155531e-2
        near = near * z + 1.33314422036e-1
        near = near * z - 3.33332819422e-1
    far = 1.0 - 2.0 / (exp_accurate(2.0 * a) + 1.0)
    # a NaN compares false and takes the exponentials
    return tl.where(a < 0.625, v + v * (z * near), tl.where(v < 0, -far, far))


@triton.jit
def nac(w_ptr, m_ptr, offs, mask, ACC: tl.constexpr):
    """``tanh(w) sigmoid(m)``, 0 beyond the last input or output."""
    turn = tanh(tl.load(w_ptr + offs, mask=mask, other=0.0).to(ACC))
    return turn * sigmoid(tl.load(m_ptr + offs, mask=mask, other=0.0).to(ACC))


@triton.jit
def store_nac_gradients(total, w_ptr, m_ptr, grad_w_ptr, grad_m_ptr, offs, mask, ACC: tl.constexpr):
    """Store the gradients of weight and mask from `total`, that of ``tanh(weight) sigmoid(mask)``.

    Either may be absent.
    """
    turn = tanh(tl.load(w_ptr + offs, mask=mask, other=0.0).to(ACC))
    m = tl.load(m_ptr + offs, mask=mask, other=0.0).to(ACC)
    share = sigmoid(m)
    if grad_w_ptr is not None:
        grad_w = total * share * ((1.0 - turn) * (1.0 + turn))
        tl.store(grad_w_ptr + offs, grad_w.to(grad_w_ptr.dtype.element_ty), mask=mask)
    if grad_m_ptr is not None:
        grad_m = total * turn * (share * sigmoid(-m))
        tl.store(grad_m_ptr + offs, grad_m.to(grad_m_ptr.dtype.element_ty), mask=mask)


@triton.jit
def logarithm(x, EPS: tl.constexpr, INALU: tl.constexpr):
    """The logarithm L of the layer; NaN for NaN."""
    if INALU:  # noqa: SIM108 (on a compile-time constant)
        clamped = tl.where(tl.abs(x) < EPS, EPS, tl.abs(x)).to(x.dtype)
    else:
        clamped = tl.abs(x) + EPS
    return tl.log(clamped)
