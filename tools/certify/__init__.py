"""Check of everything that npu_kernels does on this machine: ``python -m tools.certify``.

Runs one matrix on this torch, every device and every instruction set of this machine: values
against mpmath, gradients to second order, transforms, compile, export, autocast, special values,
copies, threads, processes. Prints it, and writes a report as JSON and Markdown with the versions.
Ends with 1 if anything fails, else 0. Under two minutes on two cores. ``--quick`` is a part of it
on one size, with every layer and every backend of this machine; it writes only files that are
named. ``python -m npu_kernels.certify`` is the small check that an installation has with it.

A cell is what was measured: "ok", a number, or "n/a" with the reason why it cannot run here (no C++
compiler, a package that is not installed); a check that fails says how. Nothing is taken from
another run. What has no column here, such as a missing GPU, is listed below the table with the
reason.

    matrix      columns, cells, and running them; models, inputs and comparisons of checks
    values, derivatives, compiling, services, processes
                the checks, in their order
    command     the command line and the report
"""

from tools.certify import matrix  # isort: skip

# In the order of the table, whose rows they register; a new process needs them too.
from tools.certify import values, derivatives, compiling, services, processes  # isort: skip
from tools.certify import command

__all__ = ["command", "compiling", "derivatives", "matrix", "processes", "services", "values"]
