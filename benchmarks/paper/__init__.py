"""The experiments of "Neural Power Units" (NeurIPS 2020), and the field's benchmark.

Experiments, each with its plan, the columns of its table, its part of the report and its picture:

gradient_surface.py  the relevance gate's gradient surface
simple/              the simple arithmetic task
large/               the large scale arithmetic task
fsir/                the fractional SIR model by neural ODEs
fsir_equation/       that model's equation itself, by pruning and refitting
single_module/       the field's single-module benchmark
fitted/              the simple and the large task with npu_kernels.fit

registry.py          lists them: what is below knows no experiment's name
experiment.py        the records that describe an experiment and its tables

What they share:

__main__.py          the command line
runner.py            batches of models over processes and machines; resumes
workers.py           the processes, and what they say to each other
session.py           what a command has found so far
training.py          one training step for a batch of models, as work for the runner
optimizers.py        RMSProp and Adam over one flat buffer
models.py layers.py  the stacks of layers and their starts; layers that the package lacks
streams.py           the random and the Sobol streams
tables.py            comma-separated files
summary.py           median, MAD, mean, standard error
published.py         the paper's numbers
checks.py            what counts as reaching them
markdown.py report.py    the Markdown report
drawing.py pictures.py   the figures
"""
