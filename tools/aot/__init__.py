"""Ahead-of-time compilation of the Triton kernels for GPUs that are not there, and its check against budgets.

__main__.py    the command: compiles, prints and writes the table of resources
cases.py       what is compiled
compiling.py   launches as compilations, and their budgets
loops.py       what the loops of products issue, and the budgets of large layers' kernels
report.py      several tables as docs/triton-resources.md
"""
