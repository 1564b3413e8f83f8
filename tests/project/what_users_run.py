"""What users run: each command of the documents, each way to install, what CI runs of it, and when
it last ran whole.

`tests/project/test_what_users_run.py` compares the list with the documents and with the tests.
After a whole run by hand, write its date and commit here. "2026-11-23 ecf339e" is the day and the
commit that has the record of the last whole run.
"""

from typing import NamedTuple

WHOLE = "whole"  # every run of .ci/run
NO_RECORD = "no record"


class Entry(NamedTuple):
    """One command or one way to install."""

    name: str
    # Tests as "folder/module::function", or "make ..." steps of .ci/run; none where CI runs nothing.
    checked_by: tuple[str, ...]
    last_whole_run: str  # WHOLE, NO_RECORD, or date and commit
    reason: str = ""  # why CI runs nothing of it


COMMANDS = [
    # ---- make
    Entry(".ci/run", ("make clean", "make -j2 site test SITE_ARGS=--quick"), WHOLE),
    Entry("make clean", ("make clean",), WHOLE),
    Entry("make install", ("make -j2 lint test-setup",), WHOLE),
    Entry("make lint", ("make -j2 lint test-setup",), WHOLE),
    Entry("make format", ("make -j2 lint test-setup",), NO_RECORD),
    Entry("make docs", ("make -j2 site test SITE_ARGS=--quick",), WHOLE),
    Entry("make site", ("make -j2 site test SITE_ARGS=--quick",), "2026-11-25 80a3fd6"),
    Entry("make test", ("make -j2 site test SITE_ARGS=--quick",), WHOLE),
    Entry("make test-setup", ("make -j2 lint test-setup",), WHOLE),
    Entry("make version", ("project/test_what_users_run::test_version",), WHOLE),
    Entry("make allocations", ("backends/test_allocations::test_every_allocation_fails_in_turn",),
          WHOLE),
    Entry("make demo", ("benchmarks/test_demo::test_the_whole_demonstration_runs",),
          "2026-11-26 c7dcabc"),
    Entry("make bench",
          ("benchmarks/test_throughput_command::test_the_suite_writes_rows_that_the_report_reads",),
          "2026-11-27 fc85ec4"),
    Entry("make speed",
          ("make speed", "benchmarks/test_speed_benchmark::test_every_case_has_a_kept_ratio"),
          NO_RECORD),
    Entry("make fuzz", ("fuzz/test_layers::test_calls", "triton/test_fuzz::test_calls"),
          "2026-11-26 cd87d34"),
    Entry("make sanitize",
          ("backends/test_sanitized::test_core", "backends/test_sanitized::test_extension"),
          "2026-11-26 6eb27d5"),
    Entry("make tsan", ("backends/test_core::test_threads_do_not_race",), "2026-11-26 6eb27d5"),
    Entry("make gpu", ("benchmarks/test_gpu_run::test_rehearsal",), NO_RECORD),
    Entry("benchmarks/gpu.sh", ("benchmarks/test_gpu_run::test_rehearsal",), NO_RECORD),
    Entry("make mutants", ("project/test_mutants::test_every_mutant_applies",), NO_RECORD),
    Entry("make resources", ("triton/test_aot::test_budgets",), "2026-11-26 73f1edb"),
    Entry("make tables",
          ("benchmarks/test_figures::test_throughput_tables_are_those_of_the_results",
           "benchmarks/test_figures::test_paper_tables_are_those_of_the_results",
           "benchmarks/test_equations_benchmark::test_tables_of_the_guide",
           "benchmarks/test_time_series_benchmark::test_the_table_is_that_of_the_rows",
           "benchmarks/test_pictures::test_extrapolation"), "2026-11-26 1c41aae"),
    Entry("make support",
          ("project/test_release::test_the_table_of_the_page_is_made_from_the_runs",), WHOLE),
    Entry("make wheels",
          ("project/test_release::test_libraries_of_a_wheel_need_no_newer_symbols",
           "project/test_build::test_wheel_works_outside_the_tree"), "2026-11-27 65c9eaa"),
    Entry("make test-wheels",
          ("project/test_build::test_check_of_an_installation_passes_on_the_wheel",
           "project/test_release::test_an_interrupted_matrix_goes_on_where_it_stopped"),
          "2026-11-26 c7dcabc"),
    Entry("make test-extras",
          ("project/test_what_users_run::test_help", "project/test_what_users_run::test_extras"),
          "2026-11-27 5892cbb"),
    Entry("make test-arm-wheel", ("project/test_what_users_run::test_help",), "2026-11-22 6e29343"),
    Entry("make test-sdist", ("project/test_sdist::test_it_holds_what_git_holds",),
          "2026-11-27 65c9eaa"),
    # ---- python -m
    Entry("python -m npu_kernels.env", ("project/test_env::test_command",), WHOLE),
    Entry("python -m npu_kernels.certify",
          ("project/test_certify::test_quick_checks_pass", "project/test_certify::test_command"),
          "2026-11-27 65c9eaa"),
    Entry("python -m npu_kernels.law", ("laws/test_law_command::test_the_planets",), WHOLE),
    Entry("python -m pytest", ("make -j2 site test SITE_ARGS=--quick",), WHOLE),
    Entry("python -m benchmarks.demo",
          ("benchmarks/test_demo::test_the_whole_demonstration_runs",
           "project/test_what_users_run::test_help"), "2026-11-25 6b410c9"),
    Entry("python -m benchmarks.equations",
          ("benchmarks/test_equations_benchmark::test_a_run_adds_what_the_file_lacks",),
          "2026-11-23 6a59952"),
    Entry("python -m benchmarks.equations.workers",
          ("benchmarks/test_equation_workers::test_rows_of_two_numbers_of_workers",),
          "2026-11-26 6857bd0"),
    Entry("python -m benchmarks.paper",
          ("benchmarks/test_paper_cli::test_simple_quick_from_end_to_end",
           "benchmarks/test_paper_all::test_killed_and_resumed_it_ends_with_the_same_tables",
           "benchmarks/test_paper_cli::test_gradient_surface_from_end_to_end"),
          "2026-11-22 bdc0839"),
    Entry("python -m benchmarks.regression",
          ("benchmarks/test_regression_benchmark::test_a_run_adds_what_the_file_lacks",),
          "2026-11-25 7a0b833"),
    Entry("python -m benchmarks.throughput",
          ("benchmarks/test_throughput_command::test_the_suite_writes_rows_that_the_report_reads",),
          "2026-11-27 fc85ec4"),
    Entry("python -m benchmarks.throughput.cold",
          ("benchmarks/test_cold_starts_benchmark::test_the_page_gets_the_table",),
          "2026-11-25 dca8190"),
    Entry("python -m benchmarks.throughput.report",
          ("benchmarks/test_throughput_report::test_report_prints_by_default",),
          "2026-11-27 fc85ec4"),
    Entry("python -m benchmarks.time_series",
          ("benchmarks/test_time_series_benchmark::test_a_run_adds_what_the_file_lacks",),
          "2026-11-23 f74aa68"),
    Entry("python -m tests.triton.mocked", ("triton/test_tape::test_processor_time_of_a_step",),
          WHOLE),
    Entry("python -m tools.aot", ("triton/test_aot::test_budgets",), "2026-11-26 3c79360"),
    # ---- examples
    Entry("python examples/law_of_a_time_series.py",
          ("project/test_examples::test_law_of_a_time_series",), WHOLE),
    Entry("python examples/neural_ode.py", ("project/test_examples::test_neural_ode",), WHOLE),
    Entry("python examples/train_drop_in.py",
          ("project/test_examples::test_drop_in_goes_on_from_its_checkpoint",), WHOLE),
    Entry("torchrun", ("layers/test_distributed::test_example",), WHOLE),
    # ---- installations
    Entry("pip install .", ("project/test_build::test_wheel_works_outside_the_tree",),
          "2026-11-23 ecf339e"),
    Entry("pip install .[formula]", ("project/test_what_users_run::test_examples_of_extras",),
          NO_RECORD),
    Entry("pip install .[sklearn]", ("project/test_what_users_run::test_examples_of_extras",),
          "2026-11-25 523be8f"),
    Entry("pip install npu_kernels[formula]", ("project/test_what_users_run::test_examples_of_extras",),
          "2026-11-27 5892cbb"),
    Entry("pip install npu_kernels[laws]", ("project/test_what_users_run::test_examples_of_extras",),
          "2026-11-27 5892cbb"),
    Entry("pip install npu_kernels[ode]", ("project/test_what_users_run::test_examples_of_extras",),
          "2026-11-27 5892cbb"),
    Entry("pip install npu_kernels[sklearn]", ("project/test_what_users_run::test_examples_of_extras",),
          "2026-11-27 5892cbb"),
    Entry("pip install npu_kernels[triton]", ("project/test_what_users_run::test_examples_of_extras",),
          "2026-11-27 5892cbb"),
    Entry("pip install npu_kernels[units]", ("project/test_what_users_run::test_examples_of_extras",),
          "2026-11-27 5892cbb"),
    # ---- variables
    Entry("NPU_KERNELS_NO_CPP", ("project/test_build::test_without_the_kernels_says_so_once",),
          WHOLE),
    Entry("NPU_KERNELS_NO_FAST_PATH",
          ("project/test_build::test_a_build_within_pip_tells_the_terminal_how_far_it_is",),
          NO_RECORD),
    Entry("NPU_KERNELS_TORCH",
          ("project/test_build::test_without_torch_the_build_names_the_commands",),
          "2026-11-24 36a7032"),
    Entry("NPU_KERNELS_BUILD", ("make -j2 lint test-setup",), WHOLE),
    Entry("NPU_KERNELS_FETCH_TORCH", (), NO_RECORD, "downloads a torch of several gigabytes"),
    Entry("NPU_KERNELS_CPU_ISA", ("backends/test_isa::test_environment_variable",), WHOLE),
    Entry("NPU_KERNELS_TEST_ROWS", ("layers/test_rows::test_error_of_many_rows",),
          "2026-11-26 e80538e"),
    Entry("NPU_KERNELS_LONG", (), "2026-11-26 e80538e",
          "scikit-learn's checks with default parameters take minutes"),
    Entry("NPU_KERNELS_OPENMP", ("backends/test_core::test_core",), WHOLE),
    # ---- tools of others
    Entry("ctest", ("backends/test_core::test_core",), WHOLE),
    Entry("compute-sanitizer", (), NO_RECORD, "needs a GPU"),
]  # fmt: skip

# Promises that no command names.
INSTALLATIONS = [
    Entry("a wheel needs no newer symbols than manylinux_2_28 has",
          ("project/test_release::test_libraries_of_a_wheel_need_no_newer_symbols",),
          "2026-11-24 36a7032"),
    Entry("a wheel runs with glibc 2.28", (), NO_RECORD,
          "needs another system: .github/workflows/release.yml"),
    Entry("the source distribution is complete",
          ("project/test_sdist::test_it_holds_what_git_holds",), WHOLE),
    Entry("the pages build without a warning", ("make -j2 site test SITE_ARGS=--quick",), WHOLE),
    Entry("without NumPy",
          ("project/test_without_numpy::test_quick_start",
           "project/test_without_numpy::test_training_run",
           "project/test_without_numpy::test_star_import_leaves_out_the_estimator"), WHOLE),
    Entry("without a compiler", ("project/test_build::test_without_the_kernels_says_so_once",),
          WHOLE),
    Entry("an editable install is seen by type checkers",
          ("project/test_typing::test_a_users_file_outside_of_the_tree",), WHOLE),
    Entry("the blocks of the README and of the pages", ("project/test_docs::test_example",), WHOLE),
]  # fmt: skip
