"""The formulas in scalar arithmetic with 50 digits, nothing shared with the package."""

from collections.abc import Sequence

from mpmath import mp, mpf

mp.dps = 50


def _clip(value: mpf) -> mpf:
    return min(max(value, mpf(0)), mpf(1))


def npu(
    x: Sequence[float],
    weight_re: Sequence[float],
    weight_im: Sequence[float] | None,
    gate: Sequence[float] | None,
    eps: float,
) -> mpf:
    """One output of one row, as Re exp(sum w log z) with z = r e^(i pi k)."""
    total = mp.mpc(0)
    for i, value in enumerate(x):
        g = mpf(1) if gate is None else _clip(mpf(gate[i]))
        w = mp.mpc(weight_re[i], 0 if weight_im is None else weight_im[i])
        r = g * (abs(mpf(value)) + mpf(eps)) + (1 - g)
        k = g if value < 0 else mpf(0)
        total += w * mp.mpc(mp.log(r), mp.pi * k)
    return mp.re(mp.exp(total))


def nmu(x: Sequence[float], weight: Sequence[float], clip: bool = True) -> mpf:
    """One output of one row."""
    product = mpf(1)
    for value, w in zip(x, weight, strict=True):
        m = _clip(mpf(w)) if clip else mpf(w)
        product *= m * mpf(value) + 1 - m
    return product


def nmru(x: Sequence[float], weight: Sequence[float]) -> mpf:
    """One output of one row, signs as products, no eps."""
    return nmu([*map(mpf, x), *(1 / mpf(value) for value in x)], weight)


def _sigmoid(value: mpf) -> mpf:
    return 1 / (1 + mp.exp(-value))


def _dot(a: Sequence[mpf], b: Sequence[mpf]) -> mpf:
    return mp.fsum(mpf(u) * mpf(v) for u, v in zip(a, b, strict=True))


def _nac_weight(weight: Sequence[float], mask: Sequence[float]) -> list[mpf]:
    return [mp.tanh(mpf(w)) * _sigmoid(mpf(m)) for w, m in zip(weight, mask, strict=True)]


def nac(x: Sequence[float], weight: Sequence[float], mask: Sequence[float]) -> mpf:
    """One output of one row."""
    return _dot(x, _nac_weight(weight, mask))


def nalu(
    x: Sequence[float],
    weight: Sequence[float],
    mask: Sequence[float],
    gate_weight: Sequence[float],
    gate_bias: float | None,
    eps: float = 1e-8,
) -> mpf:
    """One output of one row."""
    w = _nac_weight(weight, mask)
    m = mp.exp(_dot([mp.log(abs(mpf(value)) + mpf(eps)) for value in x], w))
    g = _sigmoid(_dot(x, gate_weight) + mpf(gate_bias or 0))
    return g * _dot(x, w) + (1 - g) * m


def inalu(
    x: Sequence[float],
    weight_add: Sequence[float],
    mask_add: Sequence[float],
    weight_mul: Sequence[float],
    mask_mul: Sequence[float],
    gate_weight: Sequence[float],
    eps: float = 1e-7,
    omega: float = 20.0,
) -> mpf:
    """One output of one row."""
    w = _nac_weight(weight_mul, mask_mul)
    exponent = _dot([mp.log(max(abs(mpf(value)), mpf(eps))) for value in x], w)
    m = mp.exp(min(exponent, mpf(omega)))
    s = mpf(1)
    for value, weight in zip(x, w, strict=True):
        s *= mp.sign(mpf(value)) * abs(weight) + 1 - abs(weight)
    g = _sigmoid(_dot(x, gate_weight))
    return g * nac(x, weight_add, mask_add) + (1 - g) * m * s
