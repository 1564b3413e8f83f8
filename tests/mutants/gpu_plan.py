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
]  # fmt: skip
