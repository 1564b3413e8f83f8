"""The experiments of "Neural Power Units" (Heim, Pevny, Smidl, NeurIPS 2020) on the Neural Power Unit, a layer.

__main__.py          the command line
runner.py            batches of models over processes and machines; resumes; knows nothing of any experiment
workers.py           the processes, and what they say to each other
training.py          one training step for a batch of models, as work for the runner
optimizers.py        RMSProp and Adam over one flat buffer
models.py            the stacks of layers and their starts
layers.py            forms of the package's layers that train fastest here
streams.py           the random and the Sobol streams
gradient_surface.py  simple.py  large.py  fsir.py    one experiment each: its settings, data, batches, rows
fsir_dense.py        the dense rival in Euler's loop
fsir_equation.py     least_squares.py    the equation itself, by pruning and refitting
fsir_report.py  fsir_pictures.py    their part of the report
single_module.py  single_module_report.py  single_module_pictures.py    the field's benchmark, in the same way
fitted.py  fitted_report.py    the simple and the large task with npu_kernels.fit
eager.py             what eager torch takes, one model at a time
summary.py           median, MAD, mean, standard error
session.py           what an experiment has found so far
tables.py            comma-separated files
published.py         the paper's numbers, and what counts as reaching them
report.py            the Markdown report
pictures.py          its figures
"""
