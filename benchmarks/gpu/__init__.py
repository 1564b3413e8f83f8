"""The first minutes on a machine with a GPU: ``python -m benchmarks.gpu``, which `make gpu` starts."""
