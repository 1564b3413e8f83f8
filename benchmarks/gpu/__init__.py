"""What `make gpu` runs on a machine with a GPU: ``python -m benchmarks.gpu``."""
