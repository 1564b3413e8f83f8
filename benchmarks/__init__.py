"""Benchmarks of the Neural Power Unit, a layer: a demonstration and a throughput suite. README.md says how to run."""
