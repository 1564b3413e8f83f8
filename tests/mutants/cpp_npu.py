"""Mutants of the NPU family's C++ kernels."""

from __future__ import annotations

from tests.mutants.mutant import mutants

CORE = "csrc/core/"
# Small cases first: the whole takes half a minute.
KERNELS = ("kernels 25000", "kernels")
TILES_TEST = ("tiles 25000", "tiles")

FORWARD = [
    *mutants(CORE + "npu/forward.cpp", KERNELS, {
        "forward-phase-without-gate": (
            "const Reg angle = S::set1(T(kPi)) * S::load_first(gate + i, count);",
            "const Reg angle = S::set1(T(kPi));",
        ),
        "forward-shrink-sign": (
            "part ? -angle * S::load_first(im + i, count)",
            "part ? angle * S::load_first(im + i, count)",
        ),
        "forward-packed-imaginary-weights": ("(n % parts == 0 ? in.weight_re : in.weight_im)", "in.weight_re"),
        "forward-packed-block": ("&rows[n]) + block, kRow", "&rows[n]), kRow"),
        "forward-second-run-overwrites": (
            "    store(q_out, q);\n    resume = true;",
            "    store(q_out, q);",
        ),
        "forward-phases-of-the-last-inputs": (
            "    if (i < ins) pack(i, int(ins - i));\n",
            "",
        ),
        "forward-tail-without-phases": (
            "for (; i < end; ++i) multiply();\n      if constexpr (negative && together) turn();",
            "for (; i < end; ++i) multiply();",
        ),
        "forward-shared-x-ignored": (
            "const T* x = in_.x + ((in_.shared_x ? 0 : model * in_.rows) + row) * in_.in;",
            "const T* x = in_.x + (in_.shared_x ? model * in_.rows % 2 : model * in_.rows + row) * in_.in;",
        ),
        "forward-gate-of-the-first-model": (
            "for (int64_t i = 0; model != gate_model && i < in.in; ++i)",
            "for (int64_t i = 0; gate_model < 0 && i < in.in; ++i)",
        ),
        "forward-gate-not-clamped": (
            "gate[i] = in.gate == nullptr ? T(1) : clamp_gate(in.gate[model * in.in + i]);",
            "gate[i] = in.gate == nullptr ? T(1) : in.gate[model * in.in + i];",
        ),
        "forward-outs-of-a-task": (
            "end_out = tasks.first_out(range + 1);",
            "end_out = tasks.first_out(range + 1) - (range + 1 < ranges);",
        ),
        "forward-rows-of-a-task": (
            "tasks.first_row(part + 1), first_out, end_out, gate);",
            "tasks.first_row(part + 1) - (part > 0 ? 1 : 0), first_out, end_out, gate);",
        ),
        "forward-rows-behind-the-last-tile": (
            "if (rows && part + 1 == chunks) rows->run(model, tasks.tile_rows(),",
            "if (rows && part + 1 == chunks) rows->run(model, 0,",
        ),
        "forward-second-block-of-inputs": (
            "const T *log_r = t.log_r + i0 * R * W,",
            "const T *log_r = t.log_r + i0 / 2 * R * W,",
        ),
    }),
    *mutants(CORE + "npu/gate.h", ("kernels 25000", "tests/layers/test_edges.py -k 'special_input or minus_zero or zero_has_no_sign'"), {
        "gate-without-eps": ("S::fma(gate_, S::abs(x) + eps_, rest_)", "S::fma(gate_, S::abs(x), rest_)"),
        "gate-size": ("*sum = S::fma(dr, size - S::set1(T(1)), *sum);", "*sum = S::fma(dr, size, *sum);"),
        "gate-x-without-gate": ("return dr * gate_;", "return dr;"),
        "gate-sign": ("S::with_sign_of(of_size(dl, x, sum), x)", "of_size(dl, x, sum)"),
    }),
    *mutants(CORE + "simd/avx512.h", "tests/layers/test_edges.py -k 'zero_has_no_sign or special_input'", {
        "sign-of-zero": ("_CMP_EQ_UQ);\n      return (Reg)_mm512_mask_mul_ps", "_CMP_UNORD_Q);\n      return (Reg)_mm512_mask_mul_ps"),
    }, isa="avx512"),
    *mutants(CORE + "simd/avx512.h", KERNELS, {
        "pair-sums-of-the-fourth": ("0xFF00, set1(terms[3]));", "0xFF00, set1(terms[2]));"),
        "pair-sums-of-both": ("(0x6666, t, 0x10), 0x8888, both, 0);", "(0x6666, t, 0x10), 0x8888, t, 0);"),
    }, isa="avx512"),
    *mutants(CORE + "panel.h", KERNELS, {
        "squares-loaded-as-they-lie": (
            "block[r] = S::load(p + r * row_stride);\n  S::transpose(block);",
            "block[r] = S::load(p + r * row_stride);",
        ),
        "squares-of-fewer-rows": (
            "  if (rows == W && count == W)\n    return W < 16 ? store_square_inline",
            "  if (count == W)\n    return W < 16 ? store_square_inline",
        ),
    }),
    *mutants(CORE + "npu/forward_few_outs.cpp", KERNELS, {
        "few-outs-sign-of-shrink": ("put(-angle * im);", "put(angle * im);"),
        "few-outs-phase-without-gate": ("put(angle * re);", "put(S::set1(T(kPi)) * re);"),
        "few-outs-weights-of-the-first-model": ("if (model != loaded) {", "if (loaded < 0) {"),
        "few-outs-runs-overwrite": ("p[o][b + r] = first ? p_run[o][r] : p[o][b + r] + p_run[o][r];", "p[o][b + r] = p_run[o][r];"),
        "few-outs-last-row": ("for (; b < rows; ++b) add_rows<O, 1>", "for (; b + 1 < rows; ++b) add_rows<O, 1>"),
        "few-outs-x-of-the-first-model": ("(in_.shared_x ? 0 : model * in_.rows) + row", "0 * model + row"),
    }, isa="avx512"),
    *mutants(CORE + "npu/forward.cpp", ("kernels 25000", "kernels", "tests/operators/test_operators.py"), {
        "forward-signs-of-all-inputs": ("        all_ |= group_;\n", ""),
        "forward-signs-of-the-last-inputs": ("if (in_group_ > 0) end_group();", ""),
    }),
    *mutants(CORE + "simd/vector_math.h", "vector_math", {
        "log-rest-of-ln2": ("S::fma(e, S::set1(Table::kLn2[1]), ", "S::fma(e - e, S::set1(Table::kLn2[1]), "),
        "log-cell": ("(typename S::Bits)a >> Table::kShift", "(typename S::Bits)a >> (Table::kShift + 1)"),
        "exp-rest-of-ln2": ("S::set1(-LogTable<T>::kLn2[1]), t)", "S::zero(), t)"),
        "exp-power-without-its-part": ("S::fma(power, r, power)", "S::fma(S::set1(T(1)), r, power)"),
        "sincos-sign-of-the-cosine": ("(quadrant + 1) << kToTop", "quadrant << kToTop"),
        "sincos-far": ("if (std::fabs(q[l]) > limit) near[l] = function(q[l]);", ";"),
    }, isa="avx512"),
    *mutants(CORE + "npu/forward.h", KERNELS, {
        "forward-sine-without-size": ("*s = size * sine;", "*s = sine;"),
    }),
    *mutants(CORE + "npu/forward_few_rows.h", KERNELS, {
        "few-phase-without-gate": (
            "S::select(v < S::zero(), pi * g, S::zero())",
            "S::select(v < S::zero(), pi, S::zero())",
        ),
        "few-shrink-sign": ("p[r] = S::fma(-t, im, p[r]);", "p[r] = S::fma(t, im, p[r]);"),
        "few-last-rows": ("b < count_; b += R) multiply(", "b + R <= count_; b += R) multiply("),
        "few-first-row-of-x": ("model * in_.rows) + first_row) * in_.in", "model * in_.rows)) * in_.in"),
        "few-q-is-p": (
            "q_[(b + r) * outs_ + o + n] = totals[n * 2 * R + R + r];",
            "q_[(b + r) * outs_ + o + n] = totals[n * 2 * R + r];",
        ),
        "few-model-ignored": (
            "const int64_t at = (model * in_.out + o + n) * in_.in;",
            "const int64_t at = (o + n) * in_.in + 0 * model;",
        ),
    }),
]  # fmt: skip

BACKWARD = [
    *mutants(CORE + "npu/backward.h", KERNELS, {
        "backward-weight-im-sign": ("sum[kSQ] - times_sum<T>(turn, sum[kMP])", "sum[kSQ] + times_sum<T>(turn, sum[kMP])"),
        "backward-gate-phase-of-weight-im": (
            "phase = phase - times_sum<T>(S::load_first(f.inputs.weight_im + at, count), sum[kMP]);",
            "phase = phase + times_sum<T>(S::load_first(f.inputs.weight_im + at, count), sum[kMP]);",
        ),
    }),
    *mutants(CORE + "npu/backward_few_outs.h", KERNELS, {
        "few-outs-sign-of-dq": ("q[n] = -f_.grad_y", "q[n] = f_.grad_y"),
        "few-outs-model-of-the-weights": ("const int64_t at = (task.model * O + o) * in_.in + i;", "const int64_t at = o * in_.in + i;"),
        "few-outs-totals-overwritten": ("S::store(total, S::load(total) + sum[o][part]);", "S::store(total, sum[o][part]);"),
        "few-outs-upstream-of-the-first-block": ("const T *p = grads_ + begin * O,", "const T *p = grads_,"),
        "few-outs-rows-of-the-first-block": ("first = task.begin + begin;", "first = task.begin;"),
        "few-outs-totals-of-the-first-register": ("totals + (n - begin) * kTotals);\n    if", "totals + (n - begin) * 0);\n    if"),
        "few-outs-gate-runs-overwrite": ("task.gate_sums[i + l] += double(lanes[l]);", "task.gate_sums[i + l] = double(lanes[l]);"),
        "few-outs-swapped-masks": ("S::add_masked(sum[o][kMP], negative, dp)", "S::add_masked(sum[o][kMP], negative, dq)"),
        "few-outs-rows-of-dx": ("        grad_x += step;\n", ""),
        "few-outs-order-of-the-sums": ("task.sums + part * O * step + at", "task.sums + part * step + at"),
    }),
    *mutants(CORE + "npu/backward.h", KERNELS, {
        "gate-sum-of-the-first-group": (
            "for (int64_t g = 0; g < groups; ++g) grad += gate_sums",
            "for (int64_t g = 0; g < 1; ++g) grad += gate_sums",
        ),
    }),
    *mutants(CORE + "npu/backward_groups.h", KERNELS, {
        "groups-model-ignored": (
            "const int64_t at = (model * in_.out + o) * in_.in + i;",
            "const int64_t at = o * in_.in + i;",
        ),
        "groups-sums-of-the-first": (
            "for (int64_t g = 1; g < groups; ++g) {",
            "for (int64_t g = 1; g < 1; ++g) {",
        ),
        "groups-first-of-two": ("T(from[l] + from[size + l])", "T(from[l])"),
        "groups-sums-of-the-first-model": ("partial + model * groups * size + at;", "partial + at;"),
        "groups-sums-of-the-next-model": (
            "step = in_place ? groups_ * size : size;",
            "step = size;",
        ),
    }),
    *mutants(CORE + "npu/backward.h", "tests/operators/test_gradients.py tests/operators/test_reference.py -k 'gate or parity or straight'", {
        "groups-straight-through-ignored": (
            "const bool passes = f.straight_through || (raw >= T(0) && raw <= T(1));",
            "const bool passes = raw >= T(0) && raw <= T(1);",
        ),
        "groups-clip-mask-dropped": (
            "const bool passes = f.straight_through || (raw >= T(0) && raw <= T(1));",
            "const bool passes = f.straight_through || raw >= T(0) || raw < T(0);",
        ),
        "groups-clip-at-the-ends": (
            "(raw >= T(0) && raw <= T(1));",
            "(raw > T(0) && raw < T(1));",
        ),
    }),
    *mutants(CORE + "npu/backward_narrow.h", KERNELS, {
        "narrow-sign-of-dq": ("-column[0][n] * column[2][n]", "column[0][n] * column[2][n]"),
        "narrow-last-registers": (
            "for (int64_t r = 0; r < registers; ++r) spread<T, complex, 1, N>",
            "for (int64_t r = 0; r + 1 < registers || r == 0; ++r) spread<T, complex, 1, N>",
        ),
        "narrow-negative-of-the-last": ("c.negative[i + n] |= negative;", "c.negative[i + n] = negative;"),
        "narrow-order-of-the-parts": (
            "order[4] = {kSP, negative ? kMQ : kSQ, kSQ, kMP};",
            "order[4] = {kSP, kMQ, kSQ, kMP};",
        ),
        "narrow-runs-overwrite": ("dl[r][n] = dl[r][n] + acc[r][n];", "dl[r][n] = acc[r][n];"),
        "narrow-sums-of-the-last-run": ("{ *sum = *sum + run; });", "{ *sum = run; });"),
        "narrow-gate-run-counted-twice": (
            "      if (!last && (v + kSpreadRows) % kGateRun == 0) std::memset(gate_lanes, 0, size_t(in_.in * W) * sizeof(T));\n",
            "",
        ),
        "narrow-weights-behind-the-last": (
            "const bool inside = i0 + n < in.in;",
            "const bool inside = i0 + n + 1 < in.in;",
        ),
        "narrow-second-chunk-of-x": (
            "in_.x + ((in_.shared_x ? 0 : task.model * in_.rows) + row) * in_.in;",
            "in_.x + ((in_.shared_x ? 0 : task.model * in_.rows) + task.begin + 0 * row) * in_.in;",
        ),
    }),
    *mutants(CORE + "npu/forward_tiny.h", KERNELS, {
        "tiny-forward-model-of-the-weights": ("re_ = in_.weight_re + model * count;", "re_ = in_.weight_re;"),
        "tiny-forward-sign-of-shrink": ("shrink_[n] = -(T(kPi)", "shrink_[n] = (T(kPi)"),
        "tiny-forward-second-chunk": ("first = task % chunks * kChunk,", "first = 0 * (task % chunks) * kChunk,"),
        "tiny-forward-shared-x-ignored": ("in.shared_x ? row : at", "in.shared_x ? at : at"),
    }),
    *mutants(CORE + "npu/step.h", KERNELS, {
        "step-rows-behind-the-last": ("const Reg y = first(panel_.y[n], valid),", "const Reg y = panel_.y[n],"),
        "step-distance-of-targets": ("f_.target + model * f_.next_target;", "f_.target + model * in_.rows * in_.out;"),
        "step-runs-overwrite": ("totals_[n + l] += double(lanes[l]);", "totals_[n + l] = double(lanes[l]);"),
        "step-imaginary-weight-of-the-gate": (
            "if constexpr (complex) dl[r] = S::fma(grad_q[r * out + o], im, dl[r]);", "(void)im;",
        ),
        "step-lanes-of-the-loss": ("for (int n = 0; n <= loss_at_; n += W) {", "for (int n = 0; n < loss_at_; n += W) {"),
        "step-of-many-rows": ("Rows::suits(in) && in.rows <= kMostRows;", "Rows::suits(in);"),
        "step-beyond-the-targets": ("load_few_columns<T>(target + r * W * out, valid, out, t);", "load_few_columns<T>(target + r * W * out, W, out, t);"),
        "step-loss-of-a-sum": ("f_.loss[model] = T(totals_[loss_at_] / double(in_.rows * in_.out));", "f_.loss[model] = T(totals_[loss_at_] / double(in_.rows));"),
    }),
    *mutants(CORE + "npu/step.h", "tests/training/test_training_run.py -k behind_the_last", {
        "step-sines-behind-the-last": ("first(panel_.s[n], valid);", "panel_.s[n];"),
    }),
    *mutants(CORE + "npu/backward_panels.h", "tests/layers/test_edges.py -k one_negative_row", {
        "wide-signs-of-the-last-rows": ("negative(block, begin) |= prepare_logs", "negative(block, begin) = prepare_logs"),
    }),
    *mutants(CORE + "npu/backward_panels.h", KERNELS, {
        "wide-second-chunk-of-x": (
            "x_ = in_.x + ((in_.shared_x ? 0 : task.model * in_.rows) + row) * in_.in;",
            "x_ = in_.x + ((in_.shared_x ? 0 : task.model * in_.rows) + task.begin) * in_.in;",
        ),
        "wide-signs-of-all-rows": ("      any |= marks;\n", ""),
        "wide-dq-of-the-first-tile": ("W + first + (L - kOuts) % kOuts", "W + (L - kOuts) % kOuts"),
        "wide-model-ignored": ("row_ = task.model * in_.rows + row;", "row_ = row;"),
    }),
    *mutants(CORE + "npu/backward_wide.h", KERNELS, {
        "wide-part-of-no-thread": (
            "first_part(end, threads)); });",
            "first_part(end, threads) - (end < threads)); });",
        ),
        "wide-gate-runs-overwrite": (
            "task.gate_sums[i] += double(run[i - i0]);",
            "task.gate_sums[i] = double(run[i - i0]);",
        ),
        "wide-last-group-of-a-lookup": (
            "for (; reals && b < run_end; ++b) add_row();\n          add_group();",
            "for (; reals && b < run_end; ++b) add_row();",
        ),
        "wide-sums-of-the-last-run": ("sum[kSP] = sum[kSP] + sp[n][v];", "sum[kSP] = sp[n][v];"),
        "wide-swapped-gradient": ("grad[r * kGrads + part * kOuts + n]", "grad[r * kGrads + n]"),
        "wide-model-ignored-for-few-rows": (
            "const int64_t at = (task.model * in_.out + o + n) * in_.in + i0 + v * W;",
            "const int64_t at = (o + n) * in_.in + i0 + v * W;",
        ),
        "wide-negative-of-the-first-rows": (
            "any |= c.negative(block + n, b);",
            "any |= c.negative(block + n, 0);",
        ),
        "wide-negative-of-some-rows": ("for (; b < end; b += kSumRows)", "for (; b < end; b = end)"),
        "wide-gradients-of-one-pass": ("f.inputs.rows <= Panels::sum_rows(f.inputs)", "f.inputs.rows <= 2 * kSumRows"),
        "wide-total-begins-anew-in-each-chunk": ("c.first() && b == 0", "b == 0"),
        "wide-total-begins-anew-in-a-chunk": ("c.first() && b == 0", "c.first()"),
        "wide-two-outs-of-a-last-tile": ("in_.out - tile * kOuts > 1", "in_.out - tile * kOuts >= kOuts"),
        "wide-tables-of-the-next-row": ("grad += kGroup * kGrads", "grad += kGrads"),
        "wide-rows-of-the-next-runs": ("fill_tables(c, row, row_end, tile, tables);", "fill_tables(c, b, b + row_end - row, tile, tables);"),
        "wide-sums-of-a-part": ("i % kBlock / W) * kParts<complex> + part;", "i % kBlock / W) * kParts<complex>;"),
        "wide-phases-of-the-last-out": (
            "Reg phase = S::load_first(task.phase_sums + i, count);",
            "Reg phase = S::zero();",
        ),
        "wide-last-row": (
            "(left >= kSpreadRest ? kSpreadRest : 1);",
            "(left >= kSpreadRest ? kSpreadRest : left);",
        ),
    }),
]  # fmt: skip

TILES = [
    *mutants(CORE + "npu/tiles.h", TILES_TEST, {
        "tiles-second-term": (
            "b = b - wide(_mm512_maskz_extracti64x4_epi64(0xf, row, 1));",
            "b = b + wide(_mm512_maskz_extracti64x4_epi64(0xf, row, 1));",
        ),
        "tiles-swapped-row": ("_tile_dpbf16ps(2, 5, 6);", "_tile_dpbf16ps(2, 4, 6);"),
    }, isa="amx"),
    *mutants(CORE + "npu/side_work.h", TILES_TEST, {
        "tiles-side-work-left-over": ("    while (waiting_ > 0) next();\n", ""),
        "tiles-side-work-all-at-once": (
            "rate_ = steps > 0 ? (waiting_ * kWhole + steps - 1) / steps : 0;",
            "rate_ = waiting_ * kWhole;",
        ),
        "tiles-side-work-share": (
            "add(job, count * (i + 1) / steps - count * i / steps);",
            "add(job, count / steps);",
        ),
    }, isa="amx"),
    *mutants(CORE + "npu/tiled_forward.h", TILES_TEST, {
        "tiles-forward-phase-sign": ("S::set1(turned ? -phase : phase)", "S::set1(phase)"),
        "tiles-forward-last-negative": ("*negative_row_ |= ", "*negative_row_ = "),
        "tiles-forward-second-register": (
            "p_ + (complex ? unit_size_ : kColumn)",
            "p_ + kColumn",
        ),
    }, isa="amx"),
    *mutants(CORE + "npu/tiled_forward.cpp", TILES_TEST, {
        "tiles-forward-wild-models": (
            "    if (ranges.tame(model)) continue;\n",
            "    if (ranges.tame(model) || in.rows > 0) continue;\n",
        ),
        "tiles-forward-second-block": (
            "const bool resume = !now.place().first,",
            "const bool resume = false,",
        ),
        "tiles-forward-one-unit-of-weights": (
            "own_units_ + ++units_packed_ % 2 * layout_.size()",
            "own_units_ + ++units_packed_ % 1 * layout_.size()",
        ),
    }, isa="amx"),
    *mutants(CORE + "npu/tiled_backward.h", TILES_TEST, {
        "tiles-backward-swapped-masks": (
            "part == kSQ || part == kMQ",
            "part == kSQ || part == kMP",
        ),
        "tiles-backward-second-chunk-of-rows": (
            "S::store(to + n, S::load(to + n) + S::load(from + at + n));",
            "S::store(to + n, S::load(from + at + n));",
        ),
        "tiles-backward-last-chunk-alone": (
            ": S::load(before + at + n * kTile) + sum[n];",
            ": sum[n];",
        ),
        "tiles-backward-gate-sums-of-a-tile": (
            "    gate_sums_[0] = gate_sums_[1] = S::zero();\n",
            "",
        ),
    }, isa="amx"),
    *mutants(CORE + "npu/tiled_backward.cpp", TILES_TEST, {
        "tiles-backward-second-block-of-outs": (
            "engine.begin(!first, sums);",
            "engine.begin(false, sums);",
        ),
        "tiles-backward-inputs-of-the-first-chunk": (
            "c.turned == nullptr || c.out == 0;",
            "c.turned == nullptr || (c.out == 0 && c.row == 0);",
        ),
        "tiles-backward-sign-of-dq": (
            "*dq = -grad_y * S::load_first(f_.s + at, count);",
            "*dq = grad_y * S::load_first(f_.s + at, count);",
        ),
    }, isa="amx"),
    # On AMX side work is done before the products that it must not meet are stored.
    *mutants(CORE + "npu/tiled_forward.cpp", TILES_TEST, {
        "tiles-forward-results-of-overwritten-sums": (
            "    if (results_.sums() == sums) finish_results();\n",
            "",
        ),
    }, isa="avx512_bf16"),
    *mutants(CORE + "npu/tiled_backward.cpp", TILES_TEST, {
        "tiles-backward-one-block": (
            "blocks[(pair * c.row_pairs() + rows) % 2]",
            "blocks[0]",
        ),
    }, isa="avx512_bf16"),
]  # fmt: skip

SECOND = [
    *mutants(CORE + "npu/second.cpp", "tests/operators/test_second_kernel.py -k sizes", {
        "second-few-outs-by-stride": ("if (in_.out < W) {  // few outs", "if (stride_ == in_.out) {  // few outs"),
    }),
    *mutants(CORE + "npu/second.cpp", KERNELS, {
        "second-direction-outside-of-the-clip": ("const bool along = f_.along_gate != nullptr && f_.gate_passes(gate);", "const bool along = f_.along_gate != nullptr;"),
        "second-gradient-outside-of-the-clip": ("f.grad_gate[n] = f.gate_passes(in.gate[n]) ? sum : T(0);", "f.grad_gate[n] = sum;"),
        "second-sums-of-nothing": ("if (!complex() || !f_.changes_inputs() || in_.in == 0) std::memset", "if (false) std::memset"),
        "second-direction-of-the-weights-overwrites": ("      resume = true;\n", ""),
        "second-mixed-slope": ("of_change * (along_gate * mixed - along * at.slope_x * at.slope_x)", "of_change * (along_gate * mixed)"),
        "second-gate-of-a-phase": ("if (negative_ && f_.grad_gate != nullptr) {", "if (false) {"),
        "second-later-rows-overwrite": ("into_weights(i, rows, row > begin, sums)", "into_weights(i, rows, false, sums)"),
        "second-shared-x-ignored": ("(in_.shared_x ? 0 : model * in_.rows) + row) * in_.in;\n      const int64_t y", "(model * in_.rows) + row) * in_.in;\n      const int64_t y"),
        "second-turn-of-conj": ("grad * S::fma(value, turn, -turned * change)", "grad * S::fma(value, turn, turned * change)"),
        "second-register-of-inputs": ("if (in_.in - i > W) add", "if (in_.in - i > 2 * W) add"),
    }),
]  # fmt: skip

NPU = [*FORWARD, *BACKWARD, *SECOND, *TILES]
