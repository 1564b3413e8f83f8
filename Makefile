# Each target does all of its own set-up: nothing but Python 3.10+ with venv, a C++ compiler and make need be there.
#
#   make demo      build, then the demonstration: Kepler's law, the paper's arithmetic, the speed on this machine
#   make test      build, then every test
#   make lint      ruff, mypy, clang-format
#   make bench     the throughput suite (make bench ARGS="--quick")
#   make install   .venv with the package built into it
#   make clean     away with .venv and everything built

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
BIN := $(VENV)/bin
SOURCES := setup.py pyproject.toml CMakeLists.txt $(wildcard csrc/*.cpp csrc/core/*)
# The build finds the cmake and ninja of .venv.
export PATH := $(abspath $(BIN)):$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test lint format bench install clean

demo: install
	$(BIN)/python -m benchmarks.demo $(ARGS)

# Two processes: Triton decides when it is imported whether it interprets, and then compiles nothing.
test: install
	$(BIN)/python -m pytest --ignore tests/triton $(ARGS)
	TRITON_INTERPRET=1 $(BIN)/python -m pytest tests/triton $(ARGS)

lint: install $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(shell git ls-files 'csrc/*.cpp' 'csrc/*.h')

format: install $(VENV)/.lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(shell git ls-files 'csrc/*.cpp' 'csrc/*.h')

bench: install
	$(BIN)/python -m benchmarks.throughput $(ARGS)

install: $(VENV)/.built

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "npu_kernels needs Python >= 3.10; name one: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { echo "python's venv module is missing; Debian, Ubuntu: apt-get install python3-venv"; exit 1; }
	@touch $@

$(VENV)/.requirements: $(VENV)/.created requirements.txt
	$(BIN)/pip install -r requirements.txt
	@touch $@

$(VENV)/.lint: $(VENV)/.created requirements-lint.txt
	$(BIN)/pip install -r requirements-lint.txt
	@touch $@

$(VENV)/.built: $(VENV)/.requirements $(SOURCES)
	$(BIN)/pip install --no-build-isolation --no-deps -e .
	@touch $@

clean:
	rm -rf $(VENV) build npu_kernels/lib *.egg-info
