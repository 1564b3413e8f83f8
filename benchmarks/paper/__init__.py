"""The experiments of "Neural Power Units" (NeurIPS 2020), and the field's benchmark.

An experiment is a folder or a module with its plan, the columns of its table, its part of the
report and its picture. registry.py lists them: no other module that they share knows an
experiment's name. experiment.py has the records that describe an experiment and its tables,
runner.py does the work, session.py and report.py show it.
"""
