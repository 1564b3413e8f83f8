"""Mutants of the C++ kernels of the siblings, loss and optimiser, of memory, and of how threads share work."""

from __future__ import annotations

from tests.mutants.mutant import mutants

CORE = "csrc/core/"
# Small cases first: the whole takes half a minute.
KERNELS = ("kernels 25000", "kernels")

SIBLINGS = [
    *mutants(CORE + "nmu.cpp", KERNELS, {
        "nmu-x-less-one": ("x_less_one = x - S::set1(T(1));", "x_less_one = x;"),
        "nmu-last-outs": (
            "for (; o < in_.out; ++o) outs<1>(o, registers, grad_weight);",
            "for (; o + 1 < in_.out; ++o) outs<1>(o, registers, grad_weight);",
        ),
        "nmu-suffix": (
            "suffix[n] = suffix[n] * S::fma(weight, x, S::set1(w[P * n + 1]));",
            "suffix[n] = suffix[n] * S::fma(weight, x, S::set1(w[P * n]));",
        ),
        "nmu-weights-of-the-first-model": (
            "if (model != packed_model) pack<T, Separate>(in, model, packed);",
            "if (packed_model < 0) pack<T, Separate>(in, model, packed);",
        ),
        "nmu-clip-mask": ("(weight >= S::zero()) & (weight <= S::set1(T(1)))", "(weight >= S::zero())"),
        "nmru-slope-of-the-reciprocal": ("dx - dr * (r * r)", "dx - dr * r"),
        "nmru-lanes-behind-the-rows": ("panel[i * lanes + lane] = T(1);", "panel[i * lanes + lane] = T(0);"),
        "nmru-sign-of-the-size": ("dx = dx * sign(S::load(x_ + n)), dr", "dx = dx + S::zero(), dr"),
        "nmru-gradient-of-the-signs": ("S::set1(T(-kPi)) * (suffix[n]", "S::set1(T(kPi)) * (suffix[n]"),
        "nmru-clipped-weight-in-the-signs": ("if (Separate) *packed++ = given;", "if (Separate) *packed++ = w;"),
    }),
    *mutants(CORE + "nau.cpp", KERNELS, {
        "nau-lower-clip": ("return weight < T(-1) ? T(-1) :", "return weight < T(0) ? T(0) :"),
        "nau-clip-mask-below": (
            "if (!(in.weight[n] >= T(-1) && in.weight[n] <= T(1)))",
            "if (!(in.weight[n] <= T(1)))",
        ),
        "nau-clip-at-the-ends": ("in.weight[n] <= T(1)))", "in.weight[n] < T(1)))"),
        "nau-few-weights-overwrite": ("S::store(at, S::load(at) + sum);", "S::store(at, sum);"),
        "nau-few-weights-of-an-out": ("sums_ + (o * in_.in + i) * S::width;", "sums_ + (o + i) * S::width;"),
        "nau-weights-of-the-first-model": (
            "if (f_.grad_x != nullptr && model != model_)",
            "if (f_.grad_x != nullptr && model_ < 0)",
        ),
    }),
    *mutants(CORE + "product.h", KERNELS, {
        "product-tile-overwrites": ("resume ? S::load(at) + sums[s][n][r] : sums[s][n][r]", "sums[s][n][r]"),
        "product-runs-overwrite": ("total[r][n] = total[r][n] + run[r][n];", "total[r][n] = run[r][n];"),
    }),
    *mutants(CORE + "row_groups.h", KERNELS, {
        "row-groups-second-lost": ("for (int64_t g = 0; g < groups.count; ++g, groups_sums", "for (int64_t g = 0; g + 1 < groups.count; ++g, groups_sums"),
        "row-groups-spans-of-one-group": ("if (one_span) add(single", "if (!one_span) add(single"),
    }),
    *mutants(CORE + "inalu.cpp", KERNELS, {
        "inalu-omega-ignored": (
            "VectorMath<T>::exp(S::select(bounded, omega, e[r][n]))",
            "VectorMath<T>::exp(e[r][n])",
        ),
        "inalu-gradient-beyond-omega": (
            "S::select(S::load(bounds) == zero, d_t, zero)",
            "S::select(S::load(bounds) == zero, d_t, d_t)",
        ),
        "inalu-gate-slope": ("d_a * shares.rest * (a - whole)", "d_a * (a - whole)"),
        "inalu-slope-at-zero": (
            "S::select(S::abs(value) >= eps, S::set1(T(1)) / inside, S::zero());",
            "S::set1(T(1)) / inside;",
        ),
        "inalu-class-of-zeros": (
            "if (count_sums > kZero) d_size = d_size + of_class(T(-1), sum[kZero], sum[kZeroRest]);",
            "",
        ),
        "inalu-sign-of-the-weight": ("S::select(w < zero, -d_size,", "S::select(w < zero, d_size,"),
        "inalu-blocks-without-negatives": ("        any_negative |= S::any_less(value, S::zero());\n", ""),
        "inalu-zeros-of-full-registers": ("        if (count >= W) any_zero |= S::any_equal(value, S::zero());\n", ""),
        "inalu-zeros-of-the-last-inputs": ("any_zero |= x[row * in_.in + i + l] == T(0);", "any_zero |= false;"),
    }),
    *mutants(CORE + "inalu.cpp", ("kernels 25000", "tests/backends/test_isa.py -k 'zero or special_input'", "kernels"), {
        "inalu-zeros-in-the-last-values": (
            "  for (; seen < values && !zeros; ++seen) zeros = in.x[seen] == T(0);\n",
            "",
        ),
    }),
    *mutants(CORE + "nac.cpp", KERNELS, {
        "nac-product-of-the-first-model": ("nac_gradients<T>(S::load_first(grad + n, lanes),", "nac_gradients<T>(S::load_first(grad + n % (in.out * in.in), lanes),"),
        "nac-clips-as-the-nau": ("in.shared_x, product, false};", "in.shared_x, in.weight, false};"),
        "nac-known-gradient-ignored": ("const T* grad = f.grad_product;", "const T* grad = nullptr;"),
    }),
    *mutants(CORE + "nac.h", KERNELS, {
        "nac-mask-slope": ("grad * turn * share * (one - share)", "grad * turn * share"),
        "nac-parts-without-the-masks": ("S::store_first(keep + count + n, share, lanes);", "S::store_first(keep + count + n, turn, lanes);"),
    }),
    *mutants(CORE + "nac.h", "tests/layers/test_edges.py -k slopes_of_a_gate", {
        "nac-rest-of-the-gate": ("S::select(v < S::zero(), more, less);", "one - gate;"),
    }),
    *mutants(CORE + "nalu.cpp", KERNELS, {
        "nalu-gate-slope": ("d_a * shares.rest * (a - t)", "d_a * (a - t)"),
        "nalu-slope-without-eps": ("one / (S::abs(x) + eps)", "one / S::abs(x)"),
        "nalu-slope-at-zero": ("S::with_sign_of(one / (S::abs(x) + eps), x)", "one / (x + eps)"),
        "nalu-bias-ignored": ("if (in_.gate_bias != nullptr) add_bias", "if (in_.gate_bias == in_.x) add_bias"),
        "nalu-few-outs-not-moved": ("sum(Sum(which), 0)[row * outs + l] = sum(Sum(which), row)[l];", ""),
        "nalu-later-rows-overwrite": ("into_sums(i, rows, row > begin, sums)", "into_sums(i, rows, false, sums)"),
        "nalu-bias-of-the-span-before": ("if (want_bias) std::memset(bias_, 0, size_t(kParts * in_.out) * sizeof(double));", ""),
        "nalu-one-sum-of-the-bias": ("bias_[row % kParts * in_.out + o] += double(", "bias_[row % kParts * in_.out + o] = double("),
        "nalu-sums-without-rows": ("if (sums != nullptr && begin == end)", "if (sums != nullptr && begin > end)"),
        "nalu-logs-in-the-sum": ("Product<0, 1, 1>, Product<1, 2, 0>", "Product<0, 1, 1>, Product<0, 2, 0>"),
        "nalu-second-register-of-inputs": ("if (in_.in - i > W) add", "if (in_.in - i > 2 * W) add"),
    }),
    *mutants(CORE + "product.h", KERNELS, {
        "products-later-terms-overwrite": ("resume || k > 0,", "false,"),
        "products-lanes-behind-the-last-input": ("valid > 0 ? S::load_first(weight + o * in + i + l, valid)", "valid > 0 ? S::load_first(weight + o * in + i, valid)"),
    }),
    *mutants(CORE + "loss.cpp", KERNELS, {
        "loss-scale-of-the-first-model": ("f.grad_loss[model]", "f.grad_loss[0]"),
        "loss-first-chunk-only": (
            "for (int64_t c = 0; c < chunks; ++c) total +=",
            "for (int64_t c = 0; c < 1; ++c) total +=",
        ),
        "loss-shared-target-ignored": (
            "in.target + (in.shared_target ? 0 : model * in.count) + n,",
            "in.target + n,",
        ),
        "loss-three-registers": ("(sum[0] + sum[1]) + (sum[2] + sum[3])", "(sum[0] + sum[1]) + sum[2]"),
    }),
    *mutants(CORE + "adam.cpp", "tests/training/test_optim.py", {
        "adam-second-correction": ("(std::sqrt(v[n]) * scale + eps)", "(std::sqrt(v[n]) + eps)"),
        "adam-maximize-ignored": ("const T g = sign * grad[n]", "const T g = grad[n]"),
        "adam-decay-without-rate": ("T(1 - step.lr * step.weight_decay)", "T(1 - step.weight_decay)"),
        "adam-last-elements": ("std::memcpy(p + n, some[0], rest), ", ""),
    }),
]  # fmt: skip

MEMORY = [
    *mutants(CORE + "memory.cpp", ("tests/training/test_training_run.py", "tests/backends/test_allocations.py -k operators"), {
        "scratch-twice": ("kept.next += bytes;", ""),
        "scratch-given-back": ("kept.next = static_cast<char*>(taken);", ";"),
    }),
    *mutants(CORE + "memory.cpp", "kernels 25000", {
        "scratch-not-kept": ("kept.most = kept.taken;", ";"),
    }),
    *mutants(CORE + "memory.cpp", "tests/backends/test_threads.py -k scratch", {
        "scratch-of-ended-threads": ("pthread_key_create(&key, std::free)", "pthread_key_create(&key, nullptr)"),
    }),
]  # fmt: skip

THREADS = [
    *mutants(CORE + "pieces.h", "threads", {
        "threads-own-part-first": ("part = (thread + n) % parts_", "part = n"),
        "threads-last-part": ("n < parts_; ++n", "n + 1 < parts_; ++n"),
        "threads-end-of-a-piece": ("count_ * (piece + 1) / pieces_);", "count_ * piece / pieces_ + 1);"),
    }),
    *mutants(CORE + "retreat.h", "threads", {
        "threads-time-lost": ("const int64_t lost = wall - worked;", "const int64_t lost = wall;"),
        "threads-debt-paid": ("std::max<int64_t>(0, debt - worked)", "std::max<int64_t>(0, debt - 2 * worked)"),
    }),
]  # fmt: skip

OTHERS = [*SIBLINGS, *MEMORY, *THREADS]
