# Each target does all of its own set-up: nothing but Python 3.10+ with venv, a C++ compiler and make need be there.
#
#   make demo      build, then the demonstration: Kepler's law, the paper's arithmetic, the speed on this machine,
#                  and an equation from a table
#   make test      build, then the quick tests: 5 to 8 minutes on two cores
#   make check     build, then every test, with the libraries of other processors too
#   make fuzz      calls that Hypothesis draws, other ones each time (make fuzz SECONDS=600: for each of the tests)
#   make sanitize  the core and the extension under the address and undefined-behaviour sanitizers
#   make tsan      the core with threads under the thread sanitizer
#   make allocations  every allocation fails in turn
#   make lint      ruff, mypy, clang-format
#   make bench     the throughput suite (make bench ARGS="--quick")
#   make gpu       on a machine with a GPU and nothing but torch and triton: errors, tests, speed
#   make tables    the tables and pictures of README.md and docs/, from benchmarks/results
#   make docs      the documentation's pages, in build/docs
#   make site      the pages in a headless browser: widths, themes, pictures, contrast (make site SITE_ARGS=--quick)
#   make mutants   small wrong changes to the code, of which a test must notice every one (hours; make mutants ARGS="--language cpp")
#   make resources benchmarks/results/triton-resources.md: what every Triton kernel compiles to
#   make wheels    what a release uploads, in dist/: the sdist, and one wheel for many torches and Pythons
#                  (make wheels ARGS="--targets x86_64 aarch64" for Linux on Arm too, by a cross compiler)
#   make test-wheels  dist/'s wheel in empty environments: every release of torch with every Python that is here, or one
#                  pair (make test-wheels TORCH=2.10.0 PYTHON=python3.10)
#   make test-arm-wheel  dist/'s wheel for Linux on Arm, in an emulator
#   make test-sdist   a wheel built from the sdist alone, in an empty environment
#   make support   the table of docs/install.md, from release/runs.jsonl
#   make version   the version, which stands in pyproject.toml and nowhere else
#   make install   .venv with the package built into it
#   make clean     away with .venv and everything built

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
SITE_ARGS ?=
SECONDS ?= 60
TORCH ?=
BIN := $(VENV)/bin
OLD_TRITON_VERSION := 3.6.0
OLD_TRITON := build/triton-$(OLD_TRITON_VERSION)
THROUGHPUT := $(wildcard benchmarks/results/throughput-*.jsonl)
# Whose rows the pictures show.
PROCESSOR ?= AMD Zen 5
SOURCES := setup.py pyproject.toml CMakeLists.txt $(wildcard $(patsubst %,csrc/%/*,core core/* fast_path operators platform))
# The build finds the cmake and ninja of .venv.
export PATH := $(abspath $(BIN)):$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Python keeps the bytecode of what it imports, so that pip need not compile all that it installs.
export PIP_COMPILE := 0
unexport PYTHONDONTWRITEBYTECODE
# The compiler works while packages are installed. Several targets are made one after the other.
ifneq ($(filter 0 1,$(words $(MAKECMDGOALS))),)
MAKEFLAGS += -j2
endif
# Kept between builds; the core's unit tests are built there too.
export NPU_KERNELS_BUILD := $(abspath build/cmake)

.PHONY: demo test check check-setup fuzz sanitize tsan allocations lint format bench speed mutants gpu tables docs site resources wheels test-wheels test-extras \
  test-arm-wheel test-sdist support version install clean

demo: install
	$(BIN)/python -m benchmarks.demo $(ARGS)

# For this processor alone, as `make install` builds it; `make check` has every instruction set.
test: install
	$(BIN)/python -m tests.run $(ARGS)

check: check-setup
	$(BIN)/python -m tests.run --all $(ARGS)

# All that the tests need: every instruction set, too.
check-setup: $(VENV)/.requirements $(VENV)/.built-for-all $(OLD_TRITON)/.installed

fuzz: install
	NPU_KERNELS_FUZZ=$(SECONDS) $(BIN)/python -m pytest tests/fuzz $(ARGS)
	NPU_KERNELS_FUZZ=$(SECONDS) TRITON_INTERPRET=1 $(BIN)/python -m pytest tests/triton/test_fuzz.py $(ARGS)

# Beside .venv and not in it: the rest of the environment is the same.
$(OLD_TRITON)/.installed: $(VENV)/.requirements
	$(BIN)/pip install --no-deps --target $(OLD_TRITON) triton==$(OLD_TRITON_VERSION)
	@touch $@

# All instruction sets; `make check` has a quick part of these two. ARGS="tests/training/test_optim.py -k states" chooses tests.
sanitize: install
	$(BIN)/python -m tests.backends.sanitized $(ARGS)

tsan: install
	cmake -S . -B build/thread -G Ninja -DNPU_KERNELS_TESTS=ON -DNPU_KERNELS_SANITIZE=thread
	ninja -C build/thread
	ctest --test-dir build/thread -j2 --output-on-failure $(ARGS)

allocations: install
	$(BIN)/python -m pytest tests/backends/test_allocations.py $(ARGS)

# Nothing built is needed: CI compiles meanwhile.
lint: $(VENV)/.lint
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

# Fails where a ratio to eager is far below those of benchmarks/results/speed-*.json.
speed: install
	$(BIN)/python -m pytest benchmarks/speed $(ARGS)

# What was tried before is tried again only where the mutant, its file or its tests have changed.
mutants: install
	$(BIN)/python -m tests.mutants $(ARGS)

# What needs a GPU, right results first; at most 430 seconds, and the same command goes on. Installs nothing.
gpu:
	PYTHON="$(PYTHON)" benchmarks/gpu.sh $(ARGS)

tables: install
	$(BIN)/python -m benchmarks.throughput.report $(THROUGHPUT) --tables docs/tables \
	  --page docs/performance.md --gpus docs/gpus.md \
	  --picture docs/images/throughput.png --processor "$(PROCESSOR)"
	$(BIN)/python -m benchmarks.gpu.report benchmarks/results/gpu-*.jsonl --page docs/gpus.md
	$(BIN)/python -m benchmarks.throughput.report benchmarks/results/rows-*.jsonl --rows docs/performance.md
	$(BIN)/python -m benchmarks.throughput.report benchmarks/results/derivatives-*.jsonl --derivatives docs/performance.md
	$(BIN)/python -m benchmarks.throughput.report benchmarks/results/threads-*.jsonl --threads docs/performance.md
	$(BIN)/python -m benchmarks.throughput.report benchmarks/results/steps-*.jsonl --steps docs/in-your-training.md
	$(BIN)/python -m benchmarks.throughput.cold --page docs/performance.md benchmarks/results/cold-*.jsonl
	$(BIN)/python -m benchmarks.equations.processors --page docs/how-well.md
	$(BIN)/python -m benchmarks.equations.workers --page docs/in-your-training.md benchmarks/results/workers-*.jsonl
	$(BIN)/python -m benchmarks.paper report --out benchmarks/results/paper --insert docs/paper.md \
	  docs/choosing-a-layer.md
	$(BIN)/python -m benchmarks.regression --report docs/when-not-to-use.md --pictures docs/images
	$(BIN)/python -m benchmarks.equations --report docs/how-well.md --picture docs/images/equations.png
	$(BIN)/python -m benchmarks.time_series --report docs/how-well.md --picture docs/images/odebench.png
	$(BIN)/python -m benchmarks.extrapolation --out docs/images/extrapolation.png

# Warnings are errors; links between pages are checked; the tutorials are executed; no page needs a network.
docs: install $(VENV)/.docs
	$(BIN)/python -m sphinx -W --keep-going -q -d build/doctrees docs build/docs
	@! grep -rlE '<(script|link|img)[^>]* (src|href)="https?:' build/docs --include='*.html'
	@! grep -rlE '\]\(\.\.|nb-download' build/docs/_downloads --include='*.ipynb'

site: docs $(VENV)/.site
	$(BIN)/python -m tools.site build/docs $(SITE_ARGS)

# The document lists what is over its budget too.
resources: install $(OLD_TRITON)/.installed
	-$(BIN)/python -m tools.aot --table build/triton-new.json
	-PYTHONPATH=$(OLD_TRITON) $(BIN)/python -m tools.aot --table build/triton-old.json
	$(BIN)/python -m tools.aot.report build/triton-new.json build/triton-old.json --out benchmarks/results/triton-resources.md

wheels: $(VENV)/.release
	$(BIN)/python -m release.wheels $(ARGS)

test-wheels: $(VENV)/.created
	$(BIN)/python -m release.try_install dist/*_$(shell uname -m).whl $(if $(TORCH),--pairs $(TORCH):$(PYTHON)) --fast-path $(ARGS)

test-extras: $(VENV)/.created
	$(BIN)/python -m release.extras dist/*_$(shell uname -m).whl $(ARGS)

test-arm-wheel: $(VENV)/.release
	$(BIN)/python -m release.emulated dist/*_aarch64.whl $(ARGS)

test-sdist: $(VENV)/.release
	rm -rf build/sdist
	$(BIN)/python setup.py -q sdist -d build/sdist
	$(BIN)/python -m release.try_install build/sdist/*.tar.gz --pairs $(or $(TORCH),2.13.0):$(PYTHON) --fast-path $(ARGS)

support: install
	$(BIN)/python -m release.support

version:
	@sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml

install: $(VENV)/.requirements $(VENV)/.built

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "npu_kernels needs Python >= 3.10; name one: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { echo "python's venv module is missing; Debian, Ubuntu: apt-get install python3-venv"; exit 1; }
	@touch $@

# What the build needs. One pip after the other writes into .venv; that of the build beside them installs nothing else.
$(VENV)/.tools: $(VENV)/.created requirements.txt constraints.txt
	$(BIN)/pip install -c constraints.txt torch setuptools cmake ninja
	@touch $@

$(VENV)/.requirements: $(VENV)/.tools
	$(BIN)/pip install -r requirements.txt
	@touch $@

$(VENV)/.lint: $(VENV)/.requirements requirements-lint.txt
	$(BIN)/pip install -r requirements-lint.txt
	@touch $@

$(VENV)/.release: $(VENV)/.created requirements-release.txt constraints.txt
	$(BIN)/pip install -r requirements-release.txt
	@touch $@

$(VENV)/.docs: $(VENV)/.requirements requirements-docs.txt | $(if $(filter lint,$(MAKECMDGOALS)),$(VENV)/.lint)
	$(BIN)/pip install -r requirements-docs.txt
	@touch $@

$(VENV)/.site: $(VENV)/.docs requirements-site.txt
	$(BIN)/pip install -r requirements-site.txt
	@touch $@

# For this processor alone, which compiles less. NPU_KERNELS_ISAS=all: for all, as pip builds it.
$(VENV)/.built: $(VENV)/.tools $(SOURCES)
	NPU_KERNELS_ISAS="$${NPU_KERNELS_ISAS:-native}" $(BIN)/pip install --no-build-isolation --no-deps -e .
	@touch $@

$(VENV)/.built-for-all: $(VENV)/.tools $(SOURCES)
	NPU_KERNELS_ISAS=all $(BIN)/pip install --no-build-isolation --no-deps -e .
	@touch $(VENV)/.built $@

clean:
	rm -rf $(VENV) build npu_kernels/lib *.egg-info
