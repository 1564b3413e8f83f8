"""Mutants of the C++ loop of `training.run`, and of its operator."""

from __future__ import annotations

from tests.mutants.mutant import mutants

TRAINING_LOOP = [
    *mutants("csrc/training_loop.h", "tests/training/test_training_run.py", {
        "train-model-of-a-block": ("p.operands[1 + w] = parameter.values + model_ * parameter.size;", "p.operands[1 + w] = parameter.values;"),
        "train-number-of-a-step": ("p.number + double(step) + 1}", "p.number + 1}"),
        "train-frozen-layers": ("p.grads[0] = l == first_ ? nullptr", "p.grads[0] = l != first_ ? nullptr"),
        "train-rows-of-a-step": ("run_.rows + step * run_.batch,", "run_.rows,"),
        "train-first-of-rows-that-follow": ("return {from + start * features,", "return {from,"),
        "train-distance-of-rows": ("return {from + start * features, shared ? 0 : all};", "return {from + start * features, shared ? 0 : size};"),
        "train-weights-of-errors-at-once": (" || run_.weight != nullptr) return false;", ") return false;"),
        "train-features-of-gathered-rows": ("from[rows[n] * features + f]", "from[rows[n] + f]"),
        "train-losses-of-a-step": ("records = number % run_.every == 0;", "records = step % run_.every == 0;"),
        "train-slope-halfway": ("(near + far) / 2", "near"),
        "train-norm-of-zero": ("squares == 0 ? T(0)", "squares < 0 ? T(0)"),
        "train-centered": ("scale = std::fma(-mean[n], mean[n], scale);", ""),
        "train-weights-of-a-model": ("if (!in.shared_target) weight += in.count;", ""),
        "train-weighted-loss": ("sum += double(weight[first + n]) * error * error;", "sum += error * error;"),
        "train-not-finite": ("if (!std::isfinite(grad[n])) grad[n] = 0;", ";"),
        "train-upper-end": ("(values[n] > high ? high : values[n])", "values[n]"),
    }),
    *mutants("csrc/training_loop.h", "tests/training/test_training_loops.py", {
        "train-clamp-of-frozen-parameters": ("if (!p.trained) return clamp(p.low, p.high, count, values);", "if (!p.trained) return;"),
        "train-rmsprop-maximizes": ("o.maximize ? -grad[n] : grad[n]", "o.maximize ? grad[n] : grad[n]"),
        "train-rmsprop-decay": ("(decay != 0 ? decay * p[n] : T(0))", "T(0)"),
        "train-decay-of-infinite-weights": ("(decay != 0 ? decay * p[n] : T(0))", "decay * p[n]"),
    }),
    *mutants("csrc/training_loop.h", "tests/training/test_training_plan.py -k 'one_end or only or frozen'", {
        "train-interval-without-an-upper-end": ("return low > -HUGE_VAL || high < HUGE_VAL;", "return high < HUGE_VAL;"),
        "train-interval-without-a-lower-end": ("return low > -HUGE_VAL || high < HUGE_VAL;", "return low > -HUGE_VAL;"),
        "train-memory-that-is-only-read": ("if (!bounded(lowest, highest)) return;", ""),
    }),
    *mutants("csrc/train_operator.cpp", "tests/training/test_training_run.py -k rows", {
        "train-rows-that-ascend": ("return b != a + 1;", "return b <= a;"),
    }),
    *mutants("csrc/train_operator.cpp", "tests/training/test_training_plan.py -k wrong", {
        "train-size-of-a-parameter": ("check(t.numel() == count, \"train: \"", "check(t.numel() >= 0, \"train: \""),
        "train-rows-out-of-bounds": ("*ends.second < run.count, ", "*ends.second <= run.count, "),
    }),
    *mutants("csrc/train_operator.cpp", "tests/training/test_training_plan.py", {
        "train-absent-weight": ("if (index == -1 && weight.optional) return;", "if (index == -1) return;"),
        "train-memory-of-two-tensors": ("other == nullptr || other->end <= piece.begin,", "true || other->end <= piece.begin,"),
        "train-nan-in-a-plan": ("check(!std::isnan(value), ", "check(value == value || true, "),
        "train-columns-of-schedules": ("t.dim() == 2 && t.size(1) == run.steps", "t.dim() == 2"),
        "train-steps-before-that-overflow": ("call.before <= std::numeric_limits<int64_t>::max() - run.steps", "true"),
    }),
]  # fmt: skip
