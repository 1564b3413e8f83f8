"""A demonstration, a throughput suite and the paper's experiments; README.md says how to run."""
