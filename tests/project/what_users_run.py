"""What users run: each command of the documents, each way to install, what CI runs of it, and when
it last ran whole.

`tests/project/test_what_users_run.py` compares the list with the documents and with the tests.
After a whole run by hand, write its date and commit here. "2026-11-23 ecf339e" is the day and the
commit that has the record of the last whole run.
"""

from __future__ import annotations

from typing import NamedTuple

WHOLE = "whole"  # every run of .ci/run
NO_RECORD = "no record"


class Entry(NamedTuple):
    """One command or one way to install."""

    name: str
    checked_by: tuple[
        str, ...
    ]  # tests, or "make ..." steps of .ci/run; none where CI cannot run any of it
    last_whole_run: str  # WHOLE, NO_RECORD, or date and commit
    reason: str = ""  # why CI runs nothing of it


COMMANDS = [
    # ---- make
    Entry(".ci/run", ("make clean", "make docs", "make test"), WHOLE),
    Entry("make clean", ("make clean",), WHOLE),
    Entry("make install", ("make -j2 lint test-setup",), WHOLE),
    Entry("make lint", ("make -j2 lint test-setup",), WHOLE),
    Entry("make format", ("make -j2 lint test-setup",), NO_RECORD),
    Entry("make docs", ("make docs",), WHOLE),
    Entry("make test", ("make test",), WHOLE),
    Entry("make test-setup", ("make -j2 lint test-setup",), WHOLE),
    Entry("make version", ("tests/project/test_what_users_run.py::test_version",), WHOLE),
    Entry("make allocations",
          ("tests/backends/test_allocations.py::test_every_allocation_fails_in_turn",), WHOLE),
    Entry("make demo", ("tests/benchmarks/test_demo.py::test_the_whole_demonstration_runs",),
          NO_RECORD),
    Entry(
        "make bench",
        (
            "tests/benchmarks/test_throughput_command.py::test_the_suite_writes_rows_that_the_report_reads",
        ),
        "2026-11-24 15b4716",
    ),
    Entry("make fuzz",
          ("tests/fuzz/test_layers.py::test_calls", "tests/triton/test_fuzz.py::test_calls"),
          NO_RECORD),
    Entry("make sanitize",
          ("tests/backends/test_sanitized.py::test_core",
           "tests/backends/test_sanitized.py::test_extension"), NO_RECORD),
    Entry("make tsan", ("tests/backends/test_core.py::test_threads_do_not_race",), NO_RECORD),
    Entry("make gpu", ("tests/benchmarks/test_gpu_run.py::test_rehearsal",), NO_RECORD),
    Entry("benchmarks/gpu.sh", ("tests/benchmarks/test_gpu_run.py::test_rehearsal",), NO_RECORD),
    Entry("make mutants", ("tests/project/test_mutants.py::test_every_mutant_applies",), NO_RECORD),
    Entry("make resources", ("tests/triton/test_aot.py::test_budgets",), "2026-11-23 96eb002"),
    Entry(
        "make tables",
        (
            "tests/benchmarks/test_figures.py::test_throughput_tables_are_those_of_the_results",
            "tests/benchmarks/test_figures.py::test_paper_tables_are_those_of_the_results",
            "tests/benchmarks/test_equations_benchmark.py::test_the_tables_in_the_guide_are_those_of_the_rows",
            "tests/benchmarks/test_time_series_benchmark.py::test_the_table_is_that_of_the_rows",
            "tests/benchmarks/test_pictures.py::test_overview",
        ),
        "2026-11-24 15b4716",
    ),
    Entry("make support",
          ("tests/project/test_release.py::test_the_table_of_the_page_is_made_from_the_runs",),
          WHOLE),
    Entry(
        "make wheels",
        (
            "tests/project/test_release.py::test_the_libraries_of_a_wheel_need_no_newer_symbols_than_its_tag_says",
            "tests/project/test_build.py::test_wheel_works_outside_the_tree",
        ),
        "2026-11-24 36a7032",
    ),
    Entry("make test-wheels",
          ("tests/project/test_build.py::test_check_of_an_installation_passes_on_the_wheel",
           "tests/project/test_release.py::test_an_interrupted_matrix_goes_on_where_it_stopped"),
          "2026-11-23 ecf339e"),
    Entry("make test-arm-wheel", ("tests/project/test_what_users_run.py::test_help",),
          "2026-11-22 6e29343"),
    Entry("make test-sdist", ("tests/project/test_sdist.py::test_it_holds_what_git_holds",),
          "2026-11-23 ecf339e"),
    # ---- python -m
    Entry("python -m npu_kernels.env", ("tests/project/test_env.py::test_command",), WHOLE),
    Entry("python -m npu_kernels.certify",
          ("tests/project/test_certify.py::test_quick_checks_pass",
           "tests/project/test_certify.py::test_command"), "2026-11-22 fe15b66"),
    Entry("python -m pytest", ("make test",), WHOLE),
    Entry("python -m benchmarks.demo",
          ("tests/benchmarks/test_demo.py::test_the_whole_demonstration_runs",
           "tests/project/test_what_users_run.py::test_help"), NO_RECORD),
    Entry("python -m benchmarks.equations",
          ("tests/benchmarks/test_equations_benchmark.py::test_a_run_adds_what_the_file_lacks",),
          "2026-11-23 6a59952"),
    Entry("python -m benchmarks.paper",
          ("tests/benchmarks/test_paper_cli.py::test_simple_quick_from_end_to_end",
           "tests/benchmarks/test_paper_cli.py::test_large_quick_from_end_to_end",
           "tests/benchmarks/test_paper_cli.py::test_gradient_surface_from_end_to_end"),
          "2026-11-22 bdc0839"),
    Entry(
        "python -m benchmarks.throughput",
        (
            "tests/benchmarks/test_throughput_command.py::test_the_suite_writes_rows_that_the_report_reads",
        ),
        "2026-11-24 15b4716",
    ),
    Entry("python -m benchmarks.throughput.report",
          ("tests/benchmarks/test_throughput_report.py::test_report_prints_by_default",),
          "2026-11-24 15b4716"),
    Entry("python -m benchmarks.time_series",
          ("tests/benchmarks/test_time_series_benchmark.py::test_a_run_adds_what_the_file_lacks",),
          "2026-11-23 f74aa68"),
    Entry("python -m tests.triton.mocked",
          ("tests/triton/test_tape.py::test_processor_time_of_a_step",), WHOLE),
    Entry("python -m tools.aot", ("tests/triton/test_aot.py::test_budgets",), "2026-11-23 96eb002"),
    # ---- examples
    Entry("python examples/equation_from_csv.py",
          ("tests/project/test_examples.py::test_equation_of_the_planets",), WHOLE),
    Entry("python examples/law_of_a_time_series.py",
          ("tests/project/test_examples.py::test_law_of_a_time_series",), WHOLE),
    Entry("python examples/neural_ode.py", ("tests/project/test_examples.py::test_neural_ode",),
          WHOLE),
    Entry("python examples/train_drop_in.py",
          ("tests/project/test_examples.py::test_drop_in_goes_on_from_its_checkpoint",), WHOLE),
    Entry("torchrun", ("tests/layers/test_distributed.py::test_example",), WHOLE),
    # ---- installations
    Entry("pip install .", ("tests/project/test_build.py::test_wheel_works_outside_the_tree",),
          "2026-11-23 ecf339e"),
    Entry("pip install npu_kernels[formula]",
          ("tests/project/test_what_users_run.py::test_extras",), NO_RECORD),
    Entry("pip install npu_kernels[ode]", ("tests/project/test_what_users_run.py::test_extras",),
          NO_RECORD),
    Entry("pip install npu_kernels[sklearn]",
          ("tests/project/test_what_users_run.py::test_extras",), NO_RECORD),
    Entry("pip install npu_kernels[triton]", ("tests/project/test_what_users_run.py::test_extras",),
          NO_RECORD),
    Entry("pip install npu_kernels[units]", ("tests/project/test_what_users_run.py::test_extras",),
          NO_RECORD),
    # ---- variables
    Entry("NPU_KERNELS_NO_CPP",
          ("tests/project/test_build.py::test_without_the_kernels_says_so_once",), WHOLE),
    Entry(
        "NPU_KERNELS_NO_FAST_PATH",
        (
            "tests/project/test_build.py::test_a_build_whose_words_pip_hides_tells_the_terminal_how_far_it_is",
        ),
        NO_RECORD,
    ),
    Entry("NPU_KERNELS_TORCH",
          ("tests/project/test_build.py::test_without_torch_the_build_names_the_commands",),
          "2026-11-24 36a7032"),
    Entry("NPU_KERNELS_FETCH_TORCH", (), NO_RECORD, "downloads a torch of several gigabytes"),
    Entry("NPU_KERNELS_CPU_ISA", ("tests/backends/test_isa.py::test_environment_variable",), WHOLE),
    Entry("NPU_KERNELS_TEST_ROWS", ("tests/layers/test_rows.py::test_error_of_many_rows",),
          NO_RECORD),
    Entry("NPU_KERNELS_LONG", (), NO_RECORD,
          "scikit-learn's checks with default parameters take minutes"),
    # ---- tools of others
    Entry("ctest", ("tests/backends/test_core.py::test_core",), WHOLE),
    Entry("compute-sanitizer", (), NO_RECORD, "needs a GPU"),
]  # fmt: skip

# Promises that no command names.
INSTALLATIONS = [
    Entry(
        "a wheel needs no newer symbols than manylinux_2_28 has",
        (
            "tests/project/test_release.py::test_the_libraries_of_a_wheel_need_no_newer_symbols_than_its_tag_says",
        ),
        "2026-11-24 36a7032",
    ),
    Entry("a wheel runs with glibc 2.28", (), NO_RECORD,
          "needs another system: .github/workflows/release.yml"),
    Entry("the source distribution is complete",
          ("tests/project/test_sdist.py::test_it_holds_what_git_holds",), WHOLE),
    Entry("the pages build without a warning", ("make docs",), WHOLE),
    Entry(
        "without NumPy",
        (
            "tests/project/test_without_numpy.py::test_quick_start",
            "tests/project/test_without_numpy.py::test_training_run",
            "tests/project/test_without_numpy.py::test_star_import_leaves_out_the_estimator_which_names_numpy",
        ),
        WHOLE,
    ),
    Entry("without a compiler",
          ("tests/project/test_build.py::test_without_the_kernels_says_so_once",), WHOLE),
    Entry("an editable install is seen by type checkers",
          ("tests/project/test_typing.py::test_a_users_file_outside_of_the_tree",), WHOLE),
    Entry("the blocks of the README and of the pages",
          ("tests/project/test_docs.py::test_example",), WHOLE),
]  # fmt: skip
