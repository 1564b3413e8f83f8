"""Arithmetic that the Triton kernels share; tanh, sigmoid and logarithm of NALU and iNALU too.

The helpers run inside a kernel, on tiles in registers. An ``if`` on a compile-time constant keeps
its ``else``, and each helper has one return: the compiler visits whatever follows a ``return``,
whichever way the constant went.

``PASSES`` is the precision scheme of a matrix product, chosen at compile time:

====== ======================================================================== ================
PASSES product                                                                  error
====== ======================================================================== ================
0      IEEE multiply-adds in the tile's type (float64: on tensor cores, if any) ``2**-24`` class
6      operands as sums of three bfloat16 planes, the six largest of nine terms ``2**-24`` class
3      two planes, the three largest of the four terms                          ``2**-16`` class
1      one plane                                                                ``2**-9`` class
====== ======================================================================== ================

Tensor cores truncate when they add to their accumulator, and a long sum in it would drift by half a
unit per step. So with 6 and 3 passes every step of the loop fills a fresh accumulator, smallest
terms first. Ordinary float32 additions, which round to nearest, add it to the running sum.

A mask is exactly 0 or 1 and needs one plane.

Inside Triton's interpreter bfloat16 products and casts are wrong. There planes are rounded by
integer arithmetic and stay float32: the same values flow through the same products, exactly.

An infinite value leaves ``inf - inf`` in a plane. So the split schemes give NaN wherever an
infinity enters a sum, where IEEE arithmetic may give an infinity. The forward kernels compute such
tiles a second time, with one plane.
"""

import triton
import triton.language as tl

INTERPRET = tl.constexpr(bool(triton.knobs.runtime.interpret))

PI = tl.constexpr(3.141592653589793)


@triton.jit
def loop_end(n):
    """A run-time size as the end of a loop.

    Triton 3.6's interpreter cannot loop over a tensor under NumPy >= 2.4, and makes tensors of what
    is assigned to a variable.
    """
    return n.handle.data.item() if INTERPRET else n


@triton.jit
def round_to_plane(v):
    """Round float32 to bfloat16, ties to even (in the interpreter: to that value, in float32)."""
    if INTERPRET:
        bits = v.to(tl.int32, bitcast=True)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536
        # the carry must not turn a NaN into something else
        plane = tl.where(v == v, rounded, bits).to(tl.float32, bitcast=True)
    else:
        plane = v.to(tl.bfloat16)
    return plane


@triton.jit
def split(v, PASSES: tl.constexpr):
    """A tile as an operand: itself (0 passes), or 1, 2 or 3 bfloat16 planes whose sum it is."""
    if PASSES == 0:
        planes = (v,)
    else:
        hi = round_to_plane(v)
        if PASSES == 1:
            planes = (hi,)
        else:
            rest = v - hi.to(tl.float32)
            mid = round_to_plane(rest)
            if PASSES == 3:
                planes = (hi, mid)  # type: ignore[assignment]
            else:
                lo = round_to_plane(rest - mid.to(tl.float32))
                planes = (hi, mid, lo)  # type: ignore[assignment]
    return planes


@triton.jit
def exact_plane(mask, ACC: tl.constexpr, PASSES: tl.constexpr):
    """A boolean tile as an operand of zeros and ones; one plane holds it exactly."""
    if PASSES == 0:
        plane = mask.to(ACC)
    elif INTERPRET:
        plane = mask.to(tl.float32)
    else:
        plane = mask.to(tl.bfloat16)
    return plane


@triton.jit
def add_product(
    acc, a, b, PASSES: tl.constexpr, MASK_A: tl.constexpr = False, MASK_B: tl.constexpr = False
):
    """``acc + a @ b`` from the planes of :func:`split`, smallest terms first.

    With MASK_A the only plane of a is an :func:`exact_plane`, with MASK_B that of b.
    """
    if PASSES == 0:
        acc = tl.dot(a[0], b[0], acc, input_precision="ieee", out_dtype=acc.dtype)
    elif PASSES == 1:
        acc = tl.dot(a[0], b[0], acc)
    else:
        step = tl.zeros_like(acc)
        if PASSES == 6:
            if not MASK_A:
                step = tl.dot(a[2], b[0], step)
            if not MASK_B:
                step = tl.dot(a[0], b[2], step)
            if not MASK_A and not MASK_B:
                step = tl.dot(a[1], b[1], step)
        if not MASK_A:
            step = tl.dot(a[1], b[0], step)
        if not MASK_B:
            step = tl.dot(a[0], b[1], step)
        acc += tl.dot(a[0], b[0], step)
    return acc


@triton.jit
def clamp_gate(gate):
    """``min(max(gate, 0), 1)``; NaN stays NaN."""
    return tl.where(gate < 0, 0.0, tl.where(gate > 1, 1.0, gate))


@triton.jit
def magnitude(x, ghat, EPS: tl.constexpr):
    """``r = ghat (|x| + eps) + (1 - ghat)``."""
    return ghat * (tl.abs(x) + EPS) + (1.0 - ghat)


@triton.jit
def signum(x):
    """The sign of x: -1, 0 or 1."""
    return tl.where(x > 0, 1.0, tl.where(x < 0, -1.0, 0.0)).to(x.dtype)


@triton.jit
def exp_accurate(v):
    """exp(v), at most 2 ulp over the whole float32 range.

    The plain lowering multiplies by log2(e) and loses |v| ulp. ``v = n ln 2 + f``,
    ``|f| <= ln(2) / 2``, ``exp(v) = 2**n 2**(f log2 e)``; the power of two goes in by two exact
    factors, so results down to the smallest subnormal are right.
    """
    if v.dtype == tl.float64:
        result = tl.exp(v)
    else:
        # beyond these the result is inf or 0; a NaN compares false and stays
        v = tl.where(v > 100.0, 100.0, tl.where(v < -120.0, -120.0, v))
        n = tl.floor(v * 1.4426950408889634 + 0.5)
        f = tl.fma(n, -0.693359375, v)
        f = tl.fma(n, 2.12194440e-4, f)
        power = n.to(tl.int32)
        half = power >> 1
        first = ((half + 127) << 23).to(tl.float32, bitcast=True)
        second = ((power - half + 127) << 23).to(tl.float32, bitcast=True)
        result = tl.exp2(f * 1.4426950408889634) * first * second
    return result


@triton.jit
def sincos_reduced(t, quadrant):
    """sin and cos of ``t + quadrant pi / 2`` for ``|t| <= pi / 4``, float32."""
    z = t * t
    sin_poly = tl.fma(z, tl.fma(z, 2.718121e-06, -1.98390673e-04), 8.33332818e-03)
    sin_poly = tl.fma(z, sin_poly, -1.66666657e-01)
    sin_t = tl.fma(t * z, sin_poly, t)
    cos_poly = tl.fma(z, tl.fma(z, 2.43904487e-05, -1.38873616e-03), 4.16666418e-02)
    cos_poly = tl.fma(z, cos_poly, -0.5)
    cos_t = tl.fma(z, cos_poly, 1.0)
    swap = (quadrant & 1) != 0
    sin_q = tl.where(swap, cos_t, sin_t)
    cos_q = tl.where(swap, sin_t, cos_t)
    sin_q = tl.where((quadrant & 2) != 0, -sin_q, sin_q)
    cos_q = tl.where(((quadrant + 1) & 2) != 0, -cos_q, cos_q)
    return sin_q, cos_q


@triton.jit
def sincos(q):
    """sin(q) and cos(q); in float32 absolute error below 1.2e-7 for ``|q| <= 2**28``.

    The constants have so few bits that three products are exact up to 8192, fused or not (Cody and
    Waite); a tile with a larger value reduces in float64. Beyond ``2**28``, where neighbouring
    float32 values are 16 or more apart, the results lie in [-1, 1] and mean nothing; infinite and
    NaN arguments give NaN. float64 uses the library's sine and cosine.
    """
    if q.dtype == tl.float64:
        sin_q = tl.sin(q)
        cos_q = tl.cos(q)
    else:
        n = tl.floor(q * 0.6366197723675814 + 0.5)
        t = tl.fma(n, -1.5703125, q)
        t = tl.fma(n, -0.0004837512969970703, t)
        t = tl.fma(n, -7.549533620476723e-08, t)
        t = tl.fma(n, -2.5633440682570896e-12, t)
        quadrant = n.to(tl.int32)
        if tl.max(tl.where(tl.abs(q) > 8192.0, 1, 0)) > 0:
            wide = q.to(tl.float64)
            turns = tl.floor(wide * 0.6366197723675814 + 0.5)
            # no tl.fma: Triton 3.6 rounds its literals to float32
            rest = (wide - turns * 1.5707963267341256) - turns * 6.077100506506192e-11
            usable = tl.abs(q) <= 268435456.0
            # q - q is 0, or NaN where q is infinite or NaN
            t = tl.where(usable, rest.to(tl.float32), q - q)
            quadrant = tl.where(usable, turns, 0.0).to(tl.int32)
        sin_q, cos_q = sincos_reduced(t, quadrant)
    return sin_q, cos_q


# ---- NALU and iNALU: weights are ``tanh(weight) sigmoid(mask)``, and both take a logarithm ----


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
