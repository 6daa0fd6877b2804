# rayfed-ssl: `make help` lists what there is to make.

PYTHON ?= $(firstword $(foreach p,python3 python3.13 python3.12 python3.11,$(shell \
  $(p) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null && echo $(p))))

BIN := .venv/bin
READY := .venv/.installed

.DEFAULT_GOAL := help
unexport PYTHONDONTWRITEBYTECODE  # else every process that a test starts compiles the library again

.PHONY: help bench demo test test-cluster test-long test-gpu mutants docs lint types

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.venv: $(READY)

# Made again when pyproject.toml changes. A .venv made by hand is completed rather than replaced.
$(READY): pyproject.toml
	@test -x $(BIN)/python || test -n "$(PYTHON)" || { echo "make: no Python 3.11 to 3.13 found; name one: make PYTHON=/path/to/python" >&2; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python .ci/installed.py || { \
	  { $(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip; } && set -x && \
	  $(BIN)/python -m pip install --disable-pip-version-check -q -e '.[dev,privacy]'; }
	@touch $@

demo: $(READY)  ## Run configs/demo.yaml: it prints the accuracy and where to look next
	rm -rf runs/demo
	env -u OMP_NUM_THREADS $(BIN)/rayfed-ssl run configs/demo.yaml --out runs/demo
	@echo "commands      . $(BIN)/activate puts rayfed-ssl and tensorboard on the path"

PYTEST := $(BIN)/python -m pytest -n 2 --dist loadscope --durations 10

test: lint types  ## Lint, types, and the tests to run after every change
	$(PYTEST) -m 'not long and not cluster and not gpu' --timeout 300

test-cluster: $(READY)  ## The tests that start and kill Ray clusters
	$(PYTEST) -m 'cluster and not long' --timeout 900

test-long: $(READY)  ## The tests that take long: processes, browsers, notebooks, all methods, more clusters
	$(PYTEST) -m 'long and not cluster and not gpu' --timeout 300
	$(PYTEST) -m 'long and cluster' --timeout 900

test-gpu: $(READY)  ## What takes a GPU: the contract of every method on it, and what the CPU computes
	@$(BIN)/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' || { \
	  echo "make: torch sees no CUDA device here" >&2; exit 2; }
	$(BIN)/python -m pytest -m gpu --timeout 300 -n 4 --dist loadscope --durations 10

mutants: $(READY)  ## Break one line at a time that an equation fixes: which tests notice? (about an hour)
	nice $(BIN)/python benchmarks/mutants.py --jobs 2

bench: $(READY)  ## What the simulator costs beside training: the table with measured ratios (an idle machine)
	$(BIN)/python benchmarks/bench.py

docs: $(READY)  ## Write the generated parts of the documentation
	$(BIN)/python docs/generate.py

lint: $(READY)  ## Formatting and lint (ruff)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(READY)  ## Static types (mypy --strict)
	$(BIN)/mypy
