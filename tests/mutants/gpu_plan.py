"""Mutants of the plan by which a GPU is measured."""

from __future__ import annotations

from tests.mutants.mutant import mutants

GPU_PLAN = [
    *mutants("benchmarks/gpu/plan.py", "tests/benchmarks/test_gpu_run.py -k huge", {
        "gpu-huge-tests-at-once": (' without={HUGE}" for item in _shards(FIRST_TESTS)', '" for item in _shards(FIRST_TESTS)'),
    }),
    *mutants("benchmarks/throughput/environment.py", "tests/benchmarks/test_gpu_run.py -k belong", {
        "gpu-sources-of-benchmarks-alone": ('folders = ("npu_kernels", "benchmarks", "tests/triton", "tests/support")', 'folders = ("benchmarks",)'),
        "gpu-sources-without-support": ('"tests/triton", "tests/support")', '"tests/triton")'),
    }),
    *mutants("benchmarks/throughput/tune.py", "tests/benchmarks/test_tune.py -k all_numbers", {
        "tune-one-number-of-rows": ("return math.prod(seconds_of) ** (1 / len(seconds_of))", "return seconds_of[0]"),
        "tune-first-result-alone": ("results = zip(launches, expected, strict=True)", "results = zip(launches[:1], expected, strict=False)"),
    }),
    *mutants("npu_kernels/_backends/triton/costs.py", "tests/benchmarks/test_gpu_run.py -k the_model", {
        "costs-host-in-a-graph": ("return device if captured else", "return"),
        "costs-host-waits-for-the-device": ("max(launches * chip.launch, device + 2 * chip.launch)", "launches * chip.launch + device"),
    }),
    *mutants("npu_kernels/_loops/captured.py", "tests/training/test_training_captured.py -k before_a_capture", {
        "captured-kernels-not-loaded": ("(self.x.device), for_graph():", "(self.x.device):"),
    }),
    *mutants("npu_kernels/training/_arguments.py", "tests/training/test_training_captured.py -k by_name", {
        "adam-fused-on-the-cpu": ("p.is_cuda and p.is_floating_point()", "p.is_floating_point()"),
        "adam-never-fused": ('settings["fused"] = True', 'settings["fused"] = None'),
    }),
]  # fmt: skip
