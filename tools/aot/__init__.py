"""Ahead-of-time compilation of the Triton kernels for absent GPUs, and its check against budgets.

__main__.py    the command: compiles, prints and writes the table of resources
cases.py       the calls that are compiled
compiling.py   launches as compilations, and their budgets
loops.py       instructions of the loops of products, and the budgets of large layers' kernels
report.py      several tables as benchmarks/results/triton-resources.md
"""
