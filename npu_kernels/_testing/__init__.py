"""Samples and errors of every layer, for tests, benchmarks and certification."""
