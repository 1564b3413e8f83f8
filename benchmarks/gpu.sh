#!/bin/sh
# A machine with a GPU and nothing but Python, torch and triton: `benchmarks/gpu.sh --help`. PYTHON names another Python.
cd "$(dirname "$0")/.." && exec "${PYTHON:-python3}" -m benchmarks.gpu "$@"
