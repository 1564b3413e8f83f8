"""Mutants of the Triton kernels, which the interpreter runs."""

from __future__ import annotations

from tests.mutants.mutant import mutants

TRITON_FOLDER = "npu_kernels/_triton/"
KERNELS = "tests/triton/test_kernels.py -k "
SPECIAL = "tests/triton/test_special_values.py -k "
TILES = (KERNELS + "'on_tiles or straight'", KERNELS + "'float64_parity and npu'")
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
        "triton-forward-negatives-skipped": (
            "any_negative = tl.max(negative.to(tl.int32)) > 0\n        mask = (exact_plane(negative, ACC, PASSES),)\n        acc_p",
            "any_negative = tl.max(negative.to(tl.int32)) > 1\n        mask = (exact_plane(negative, ACC, PASSES),)\n        acc_p",
        ),
        "triton-forward-model-of-the-gate": ("        gate_ptr += k * I\n", "        gate_ptr += 0 * k * I\n"),
        "triton-forward-weights-of-a-tile": (
            "    wre_ptr += (k * O + first_o) * I\n",
            "    wre_ptr += k * O * I + first_o\n",
        ),
        "triton-backward-sign-of-dq": (
            "acc = add_product(acc, split(-grad_y * s, PASSES)",
            "acc = add_product(acc, split(grad_y * s, PASSES)",
        ),
        "triton-backward-gate-size": ("d_r * (tl.abs(x) + (EPS - 1.0))", "d_r * (tl.abs(x) + EPS)"),
        "triton-backward-stride-of-the-weights": ("        start_w += BLOCK_O * I\n", "        start_w += BLOCK_O\n"),
        "triton-backward-rows-of-a-split": (
            "rows = tl.minimum(B - first_b, rows_per_split).to(tl.int32)\n\n    ghat",
            "rows = (B - first_b).to(tl.int32)\n\n    ghat",
        ),
        "triton-backward-gate-partials-of-models": (
            "((gate_row + pid_s * tiles_o + pid_o) * K + k) * I",
            "((gate_row + pid_s * tiles_o + pid_o) * K) * I",
        ),
    }),
    *mutants(TRITON_FOLDER + "reduction.py", TILES, {
        "triton-backward-clip-always": ("clip=not straight_through)", "clip=True)"),
        "triton-backward-weight-im-sign": ("acc_sq - acc_mp * (ghat * PI)", "acc_sq + acc_mp * (ghat * PI)"),
    }),
    *mutants(TRITON_FOLDER + "npu_planes.py", LARGE, {
        "triton-planes-rest-of-a-plane": ("rest = v - hi.to(tl.float32)", "rest = 0 * v"),
        "triton-planes-phase-sign": ("_store_planes(-w_im * turn", "_store_planes(w_im * turn"),
        "triton-planes-sign-of-dq": ("            sign = -1.0\n", "            sign = 1.0\n"),
        "triton-planes-room-for-pi": ("largest * 4.0 if PHASE", "largest * 1.0 if PHASE"),
        "triton-planes-closed-gates": ("w_re = tl.where(closed, w_re - w_re, w_re)", "w_re = tl.where(closed, w_re, w_re)"),
        "triton-planes-uneven-inputs": ("uneven = (smallest * scale < 1.0) & (largest > 0)", "uneven = largest < 0"),
        "triton-planes-imaginary-weights": ("size = tl.where(closed[None, :], finite_size(w_re), size)", "pass"),
        "triton-planes-even-inputs": ("uneven = (smallest * scale < 1.0) & (largest > 0)", "uneven = largest > 0"),
        "triton-planes-inputs-without-a-weight": ("uneven = (smallest * scale < 1.0) & (largest > 0)", "uneven = smallest * scale < 1.0"),
        "triton-planes-all-steps-of-weights": ("largest = tl.maximum(largest, tl.max(size, axis=AXIS))", "largest = tl.max(size, axis=AXIS)"),
        "triton-planes-scale-of-infinity": ("return tl.where(size <= 3.4028234663852886e38, size, 0.0)", "return size"),
        "triton-planes-logs-of-models": ("models_x = 1 if sizes.shared_x and not gated else sizes.K", "models_x = 1 if sizes.shared_x else sizes.K"),
    }),
    *mutants(TRITON_FOLDER + "npu_large.py", "tests/triton/test_large.py -k sooner", {
        "triton-large-captured": ("sizes.K, for_graph.active())", "sizes.K, False)"),
    }),
    *mutants(TRITON_FOLDER + "tape.py", "tests/triton/test_tape.py -k memory", {
        "triton-tape-lives-that-meet": ("first <= other_last and other_first <= last", "first < other_last and other_first < last"),
        "triton-tape-room-that-is-too-small": ("default=0)\n\n\nclass Tape", "default=0) // 2\n\n\nclass Tape"),
    }),
    *mutants(TRITON_FOLDER + "tape.py", "tests/triton/test_tape.py", {
        "triton-tape-alignment": ("if functools.reduce(or_, addresses) & _UNALIGNED:", "if False:"),
        "triton-tape-hooks-of-a-kernel": ("            if hooks:\n", "            if False:\n"),
        "triton-tape-device": ("if active is not self.driver or active.get_current_device() != device:", "if active is not self.driver:"),
        "triton-tape-precision": ("if not names.issubset(_ANY_PRECISION):", "if False:"),
        "triton-tape-other-launches": ("self.launches and self.seen == len(self.launches)", "self.launches"),
        "triton-tape-a-tensor-twice": ("if len(set(map(id, tensors))) < len(tensors):", "if False:"),
        "triton-tape-address-of-one-call": ("return not any(tensor.data_ptr() & _UNALIGNED for tensor in tensors)", "return True"),
        "triton-tape-device-of-one-call": ("if devices and devices != {driver.active.get_current_device()}:", "if False:"),
    }),
    *mutants(TRITON_FOLDER + "npu_small.py", LAST_BATCH, {
        "triton-last-batch-clip": ("clip = not straight_through ", "clip = not straight_through and splits == 1 "),
    }),
    *mutants(TRITON_FOLDER + "nmu.py", LAST_BATCH, {
        "triton-last-batch-nmu": ("grad_w) if need_w else None", "grad_w) if part_w is not grad_w else None"),
    }),
    *mutants(TRITON_FOLDER + "nalu.py", LAST_BATCH, {
        "triton-last-batch-nalu": ("need_bias, both_forms, acc)", "need_bias, final, acc)"),
        "triton-last-batch-nalu-shared-x": ("        sums[name] = None, sums[name][1]\n", "        del sums[name]\n"),
    }),
    *mutants(TRITON_FOLDER + "nalu.py", KERNELS + "nobody_needs", {
        "triton-nalu-x-that-nobody-needs": ("one_each = grad_x is not None and K > 1", "one_each = K > 1"),
    }),
    *mutants(TRITON_FOLDER + "launch.py", LAST_BATCH, {
        "triton-last-batch-half": ("return splits > 1 or result.dtype is not TORCH_DTYPE[acc]", "return splits > 1"),
    }),
    *mutants(TRITON_FOLDER + "npu.py", LARGE, {
        "triton-large-flags": ("if (tl.load(flags_ptr + tile) > 0) & (first_i < I):", "if (tl.load(flags_ptr + tile) < 0) & (first_i < I):"),
        "triton-large-flag-of-a-tile": ("tile = first + turn // PARTS", "tile = first"),
    }),
    *mutants(TRITON_FOLDER + "npu.py", "tests/triton/test_large.py -k one_of_two_models", {
        "triton-large-flags-of-the-padding": ("    first = tl.program_id(0) * _FLAGS\n", "    first = tl.program_id(0) * _FLAGS\n    tiles_b = tl.cdiv(B, BLOCK_B)\n"),
        "triton-large-number-of-flags": ("tl.minimum(tiles - first, _FLAGS)", "tl.minimum(K * tl.cdiv(B, BLOCK_B) * tiles_i - first, _FLAGS)"),
    }),
    *mutants(TRITON_FOLDER + "tuning.py", "tests/triton/test_tuning.py -k tables", {
        "triton-tables-whole-numbers": ("any(type(value) is not int for value in entry.values())", "False"),
        "triton-tables-missing-names": ("if not entry.keys() >= set(names):", "if False:"),
        "triton-tables-other-gpus": ("tables_in_use().get(architecture_of(device), {})\n    name", "tables_in_use()[architecture_of(device)]\n    name"),
    }),
    *mutants(TRITON_FOLDER + "tuning.py", "tests/triton/test_tuning.py -k whichever_is_current", {
        "triton-tables-of-the-current-gpu": ('with torch.cuda.device(device) if device.type == "cuda" else nullcontext():', "with nullcontext():"),
    }),
    *mutants(TRITON_FOLDER + "npu_large.py", LARGE, {
        "triton-large-scales-of-models": ("scales = scale_ptr + k * tiles_n * OUTPUTS", "scales = scale_ptr + 0 * k"),
        "triton-large-repair": ("if bad > 0:", "if bad > 9:"),
        "triton-large-places": ("tl.cumsum(flagged) - 1, -1)", "tl.cumsum(flagged) - 1, 0)"),
        "triton-large-flags-of-all-rows": ("tl.maximum(flagged, tl.load(ptrs", "tl.maximum(0, tl.load(ptrs"),
        "triton-large-lo-of-x": ("plane_x + (1 - second)", "plane_x"),
        "triton-large-lo-of-weights": ("plane_w + second", "plane_w"),
    }),
    *mutants(TRITON_FOLDER + "npu_large.py", LARGE, {
        "triton-large-scales-of-inputs": ("offs = k * pitch + first_i + offs_i\n", "offs = first_i + offs_i\n"),
        "triton-large-greatest-of-all-tiles": ("greatest = tl.maximum(greatest, scale)", "greatest = scale"),
        "triton-large-rows-of-zeros": ("tl.where(greatest > LEAST_INVERSE, greatest, 0.0)", "greatest"),
        "triton-large-row-scale-ahead": ("tl.minimum(n + DEPTH, packed - 1) // BLOCK * block_scales", "n // BLOCK * block_scales"),
        "triton-large-column-scale-ahead": ("after = tl.minimum(turn + 1, last) // TURNS", "after = tl.minimum(turn, last) // TURNS"),
        "triton-large-lo-of-upstream": ("row_d += (kind == 0)", "row_d += (kind == 9)"),
        "triton-large-lo-of-logs": ("right += (kind == 1)", "right += (kind == 9)"),
        "triton-large-negatives-skipped": ("tl.where(any_negative > 0, tiles", "tl.where(any_negative > 1, tiles"),
    }),
    *mutants(TRITON_FOLDER + "reduction.py", LARGE, {
        "triton-large-clip-always": ("clip=not straight_through)", "clip=True)"),
    }),
    *mutants(TRITON_FOLDER + "npu.py", KERNELS + "'needs and npu'", {
        "triton-needs-of-the-gate": ("        if need_x or need_gate:\n", "        if need_x:\n"),
        "triton-needs-of-the-phase": ("if HAS_IM and (NEED_IM or NEED_GATE):", "if HAS_IM and NEED_IM:"),
        "triton-needs-of-the-masks": ("        if NEED_RE or NEED_GATE:\n", "        if NEED_RE:\n"),
    }),
    *mutants(TRITON_FOLDER + "npu.py", KERNELS + "'upstream_layouts and npu'", {
        "triton-strides-ignored": ("operands = launch.contiguous(grad_y, x,", "operands = [grad_y] + launch.contiguous(x,"),
    }),
    *mutants(TRITON_FOLDER + "npu_small.py", SMALL, {
        "triton-small-shrink-sign": ("p -= angle * w_im", "p += angle * w_im"),
        "triton-small-gate-phase": ("d_angle -= d_p * w_im", "d_angle += d_p * w_im"),
        "triton-small-clip-at-the-ends": ("(gate >= 0) & (gate <= 1)", "(gate > 0) & (gate < 1)"),
        "triton-small-weight-im": (
            "column = tl.sum(d_q * log_r - d_p * angle, axis=0)",
            "column = tl.sum(d_q * log_r, axis=0)",
        ),
        "triton-small-tiles-of-a-program": (
            "offs_b = (pid_s * tiles + tile) * BLOCK_B + tl.arange(0, BLOCK_B)",
            "offs_b = (pid_s * tiles) * BLOCK_B + tl.arange(0, BLOCK_B)",
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
        "triton-nmru-slope-of-the-reciprocal": ("d_x - d_r * (r * r)", "d_x - d_r * r"),
        "triton-nmru-zero-factors": ("zeros == (g == 0).to(tl.int32)", "zeros == 0"),
        "triton-nmru-clip-mask": ("(weight >= 0) & (weight <= 1)", "(weight >= 0)"),
        "triton-nmru-signs": ("d_r *= signum(r)", "d_r *= signum(x)"),
    }),
    *mutants(TRITON_FOLDER + "reduction.py", (*TILES, *SMALL), {
        "triton-reduction-first-rows": ("for r in range(0, loop_end(rows), ROWS):", "for r in range(0, 1, ROWS):"),
        "triton-reduction-clip-above": ("(gate >= 0) & (gate <= 1)", "(gate >= 0)"),
        "triton-reduction-clip-at-the-ends": ("(gate >= 0) & (gate <= 1)", "(gate > 0) & (gate < 1)"),
    }),
    *mutants(TRITON_FOLDER + "nalu.py", NALU, {
        "triton-inalu-sign": ("t = tl.where((state & 1) != 0, -t, t)", "t = tl.where((state & 1) != 0, t, t)"),
        "triton-inalu-count-of-zeros": ("tl.minimum(state >> 1, 2) * 2", "tl.minimum(state >> 1, 1) * 2"),
        "triton-inalu-zero-product": ("sigmoid(-h) * product\n", "sigmoid(-h) * t\n"),
        "triton-nalu-bias-of-models": (
            "tl.load(bias_ptr + k * O + first_o + offs_o,",
            "tl.load(bias_ptr + 0 * k + first_o + offs_o,",
        ),
        "triton-inalu-factor-of-zeros": ("state, x == 0, 1.0 - tl.abs(w),", "state, x == 0, 1.0 - 2.0 * tl.abs(w),"),
    }),
    *mutants(TRITON_FOLDER + "nalu.py", NALU, {
        "triton-inalu-one-zero": ("tl.where((flags >> 1) == 1, d_product * t, 0.0)", "tl.where((flags >> 1) >= 1, d_product * t, 0.0)"),
        "triton-nalu-slope-at-zero": ("acc_log * signum(x) / (tl.abs(x) + EPS)", "acc_log / (tl.abs(x) + EPS)"),
        "triton-nalu-gate-slope": ("d_a * rest * (a - product)", "d_a * (a - product)"),
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
        "triton-ode-needs-of-the-imaginary-part": ("        if NEEDS & 4:\n            sum_im", "        if NEEDS & 2:\n            sum_im"),
        "triton-ode-gradient-of-the-states": (
            "            if grad_trajectory_ptr is not None:\n                g += tl.load(grad_trajectory_ptr + offs_u, mask=mask_u, other=0.0)\n\n        if NEEDS & 1:",
            "        if NEEDS & 1:",
        ),
        "triton-ode-starts-of-a-split": ("offs_b = ((split * tiles + tile) * BLOCK_B", "offs_b = ((split * tiles) * BLOCK_B"),
    }),
]  # fmt: skip

MATH = [
    *mutants(TRITON_FOLDER + "device_math.py", "tests/triton/test_precision.py -k 'exp or sine or planes or schemes'", {
        "triton-exp-low-part": ("        f = tl.fma(n, 2.12194440e-4, f)\n", ""),
        "triton-cos-quadrant": ("tl.where(((quadrant + 1) & 2) != 0, -cos_q, cos_q)", "tl.where((quadrant & 2) != 0, -cos_q, cos_q)"),
        "triton-third-plane": ("lo = round_to_plane(rest - mid.to(tl.float32))", "lo = round_to_plane(rest - rest)"),
        "triton-product-of-planes": ("step = tl.dot(a[1], b[1], step)", "step = tl.dot(a[1], b[1], step) * 0"),
        "triton-mask-product-of-planes": (
            "            if not MASK_A:\n                step = tl.dot(a[2]",
            "            if not MASK_A and not MASK_B:\n                step = tl.dot(a[2]",
        ),
    }),
]  # fmt: skip

TRITON = [*NPU, *SIBLINGS, *TIME_LOOP, *MATH]
