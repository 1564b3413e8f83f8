"""Benchmarks: a demonstration, a throughput suite and the experiments of the paper. README.md says how to run."""
