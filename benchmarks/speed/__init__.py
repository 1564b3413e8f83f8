"""The main sizes under pytest-benchmark: `pytest benchmarks/speed`."""
