"""Check of everything that npu_kernels does on this machine: ``python -m npu_kernels.certify``.

Runs one matrix on this torch, every device and every instruction set of this machine: values
against mpmath, gradients to second order, transforms, compile, export, autocast, special values,
copies, threads, processes. Prints it, and writes a report as JSON and Markdown with the versions.
Ends with 1 if anything fails, else 0. Under two minutes on two cores. ``--quick`` is a part of it
on one size, with every layer and every backend of this machine; it writes only files that are
named.

A cell is what was measured: "ok", a number, or "n/a" with the reason why it cannot run here (no C++
compiler, a package that is not installed); a check that fails says how. Nothing is taken from
another run. What has no column here, such as a missing GPU, is listed below the table with the
reason.

    matrix      columns, cells, and running them
    samples     models, inputs and comparisons of checks
    values, derivatives, transforms, compiling, training, services, processes
                the checks, in their order
    report      Markdown, versions, notes
    command     the command line
"""

from npu_kernels.certify._checks import CHECKS, Column, Result, columns, measure  # isort: skip
from npu_kernels.certify._checks import not_run, run  # isort: skip

# In the order of the table, whose rows they register.
from npu_kernels.certify import _values as values  # isort: skip
from npu_kernels.certify import _derivatives as derivatives  # isort: skip
from npu_kernels.certify import _transforms as transforms  # isort: skip
from npu_kernels.certify import _compiling as compiling  # isort: skip
from npu_kernels.certify import _training as training  # isort: skip
from npu_kernels.certify import _services as services  # isort: skip
from npu_kernels.certify import _processes as processes  # isort: skip
from npu_kernels.certify._command import main
from npu_kernels.certify._report import NOTES, markdown, versions

__all__ = [
    "CHECKS",
    "NOTES",
    "Column",
    "Result",
    "columns",
    "compiling",
    "derivatives",
    "main",
    "markdown",
    "measure",
    "not_run",
    "processes",
    "run",
    "services",
    "training",
    "transforms",
    "values",
    "versions",
]
