"""Mutants of the Triton kernels, which the interpreter runs."""

from __future__ import annotations

from tests.mutants.mutant import mutants

TRITON_FOLDER = "npu_kernels/_triton/"
KERNELS = "tests/triton/test_kernels.py -k "
SPECIAL = "tests/triton/test_special_values.py -k "
TILES = (KERNELS + "'straight'", KERNELS + "'float64_parity and npu'")
SMALL = (
    KERNELS + "'float64_parity and npu and not tiles'",
    KERNELS + "'straight or needs and npu'",
    KERNELS + "'bitwise and npu and small'",
)
LARGE = ("tests/triton/test_large.py -x",)
LAST_BATCH = ("tests/triton/test_tape.py -k checks",)
NALU = (KERNELS + "'zero_inputs or nalu and float64_parity'",)
ODE = ("tests/triton/test_ode.py -k 'parity or options or alone or many_starts'",)

NPU = [
    *mutants(TRITON_FOLDER + "npu.py", TILES, {
        "triton-forward-shrink-sign": ("split(-w_im * turn, PASSES)", "split(w_im * turn, PASSES)"),
        "triton-forward-phase-without-gate": ("turn = ghat[:, None] * PI", "turn = (1 + 0 * ghat[:, None]) * PI"),
        "triton-backward-sign-of-dq": (
            "acc = add_product(acc, split(-grad_y * s, PASSES)",
            "acc = add_product(acc, split(grad_y * s, PASSES)",
        ),
        "triton-backward-gate-size": ("d_r * (tl.abs(x) + (EPS - 1.0))", "d_r * (tl.abs(x) + EPS)"),
    }),
    *mutants(TRITON_FOLDER + "reduction.py", TILES, {
        "triton-backward-clip-always": ("clip=not straight_through)", "clip=True)"),
        "triton-backward-weight-im-sign": ("acc_sq - acc_mp * (ghat * PI)", "acc_sq + acc_mp * (ghat * PI)"),
    }),
    *mutants(TRITON_FOLDER + "npu_planes.py", LARGE, {
        "triton-planes-phase-sign": ("_store_planes(-w_im * turn", "_store_planes(w_im * turn"),
        "triton-planes-sign-of-dq": ("            sign = -1.0\n", "            sign = 1.0\n"),
        "triton-planes-room-for-pi": ("largest * 4.0 if PHASE", "largest * 1.0 if PHASE"),
        "triton-planes-closed-gates": ("w_re = tl.where(closed, w_re - w_re, w_re)", "w_re = tl.where(closed, w_re, w_re)"),
    }),
    *mutants(TRITON_FOLDER + "npu_large.py", LARGE, {
        "triton-large-repair": ("if bad > 0:", "if bad > 9:"),
    }),
    *mutants(TRITON_FOLDER + "reduction.py", LARGE, {
        "triton-large-clip-always": ("clip=not straight_through)", "clip=True)"),
    }),
    *mutants(TRITON_FOLDER + "npu_small.py", SMALL, {
        "triton-small-shrink-sign": ("p -= angle * w_im", "p += angle * w_im"),
        "triton-small-gate-phase": ("d_angle -= d_p * w_im", "d_angle += d_p * w_im"),
        "triton-small-clip-at-the-ends": ("(gate >= 0) & (gate <= 1)", "(gate > 0) & (gate < 1)"),
        "triton-small-weight-im": (
            "column = tl.sum(d_q * log_r - d_p * angle, axis=0)",
            "column = tl.sum(d_q * log_r, axis=0)",
        ),
        "triton-small-sine-without-size": ("(e * sin_q).to(", "sin_q.to("),
    }),
]  # fmt: skip

SIBLINGS = [
    *mutants(TRITON_FOLDER + "nmu.py", (KERNELS + "'nmu and float64_parity'", SPECIAL + "nmu", KERNELS + "nmu"), {
        "triton-nmu-zero-factors": ("tl.where(zeros == (f == 0).to(tl.int32), cofactor, 0.0)\n        d_f = tl.where(mask, grad_y", "tl.where(zeros == 0, cofactor, 0.0)\n        d_f = tl.where(mask, grad_y"),
        "triton-nmu-exponent-lost": (
            "        mantissa, e = _decompose(mantissa)\n        exponent += e\n",
            "        mantissa, e = _decompose(mantissa)\n",
        ),
        "triton-nmu-x-less-one": ("tl.sum(d_f * (x - 1.0), axis=0)", "tl.sum(d_f * x, axis=0)"),
    }),
    *mutants(TRITON_FOLDER + "nmu.py", (KERNELS + "'nmru and float64_parity'", SPECIAL + "nmru", KERNELS + "nmru"), {
        "triton-nmru-derivative-of-the-reciprocal": ("d_x - d_r * (r * r)", "d_x - d_r * r"),
        "triton-nmru-zero-factors": ("zeros == (g == 0).to(tl.int32)", "zeros == 0"),
        "triton-nmru-clip-mask": ("(weight >= 0) & (weight <= 1)", "(weight >= 0)"),
        "triton-nmru-signs": ("d_r *= signum(r)", "d_r *= signum(x)"),
    }),
    *mutants(TRITON_FOLDER + "reduction.py", (*TILES, *SMALL), {
        "triton-reduction-clip-above": ("(gate >= 0) & (gate <= 1)", "(gate >= 0)"),
        "triton-reduction-clip-at-the-ends": ("(gate >= 0) & (gate <= 1)", "(gate > 0) & (gate < 1)"),
    }),
    *mutants(TRITON_FOLDER + "nalu.py", NALU, {
        "triton-inalu-sign": ("t = tl.where((state & 1) != 0, -t, t)", "t = tl.where((state & 1) != 0, t, t)"),
        "triton-inalu-count-of-zeros": ("tl.minimum(state >> 1, 2) * 2", "tl.minimum(state >> 1, 1) * 2"),
        "triton-inalu-zero-product": ("sigmoid(-h) * product\n", "sigmoid(-h) * t\n"),
        "triton-inalu-factor-of-zeros": ("state, x == 0, 1.0 - tl.abs(w),", "state, x == 0, 1.0 - 2.0 * tl.abs(w),"),
    }),
    *mutants(TRITON_FOLDER + "nalu.py", NALU, {
        "triton-inalu-one-zero": ("tl.where((flags >> 1) == 1, d_product * t, 0.0)", "tl.where((flags >> 1) >= 1, d_product * t, 0.0)"),
        "triton-nalu-derivative-at-zero": ("acc_log * signum(x) / (tl.abs(x) + EPS)", "acc_log / (tl.abs(x) + EPS)"),
        "triton-nalu-gate-derivative": ("d_a * rest * (a - product)", "d_a * (a - product)"),
        "triton-inalu-sign-of-the-weight": ("return FACTOR * signum(w) * tl.where", "return FACTOR * tl.where"),
    }),
    *mutants(TRITON_FOLDER + "nalu.py", KERNELS + "omega", {
        "triton-inalu-gradient-beyond-omega": ("d_e = tl.where((flags & 1) != 0, 0.0, d_t)", "d_e = d_t"),
    }),
]  # fmt: skip

TIME_LOOP = [
    *mutants(TRITON_FOLDER + "ode.py", ODE, {
        "triton-ode-upper-clip": ("tl.where(a > 1, 1.0, a)", "tl.where(a > 9, 1.0, a)"),
        "triton-ode-gate-phase-everywhere": (
            "sum_gate += tl.where(negative, tl.sum(d_turn, axis=1)[:, None, :] * PI, 0.0)",
            "sum_gate += tl.sum(d_turn, axis=1)[:, None, :] * PI",
        ),
        "triton-ode-clip-of-the-gate": ("(gate >= 0) & (gate <= 1)", "(gate >= 0)"),
        "triton-ode-clip-of-the-weight": ("(w >= -1) & (w <= 1)", "(w <= 1)"),
        "triton-ode-coefficients-of-the-adjoint": (
            "dk += (step * TABLEAU[j * (j - 1) // 2 + STAGE]).to(g.dtype)",
            "dk += (step * TABLEAU[j * (j - 1) // 2]).to(g.dtype)",
        ),
        "triton-ode-gradient-of-the-states": (
            "            if grad_trajectory_ptr is not None:\n                g += tl.load(grad_trajectory_ptr + offs_u, mask=mask_u, other=0.0)\n\n        if NEEDS & 1:",
            "        if NEEDS & 1:",
        ),
    }),
]  # fmt: skip

MATH = [
    *mutants(TRITON_FOLDER + "device_math.py", "tests/triton/test_precision.py -k 'exp or sine or planes or schemes'", {
        "triton-exp-low-part": ("        f = tl.fma(n, 2.12194440e-4, f)\n", ""),
        "triton-cos-quadrant": ("tl.where(((quadrant + 1) & 2) != 0, -cos_q, cos_q)", "tl.where((quadrant & 2) != 0, -cos_q, cos_q)"),
        "triton-third-plane": ("lo = round_to_plane(rest - mid.to(tl.float32))", "lo = round_to_plane(rest - rest)"),
    }),
]  # fmt: skip

TRITON = [*NPU, *SIBLINGS, *TIME_LOOP, *MATH]
