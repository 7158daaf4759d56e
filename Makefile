# `make run` and `make test` work on a bare machine with Python 3.11 (or newer), pip, git and make:
# each makes its own virtual environment first.

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
# The version that results were measured with. Without a GPU a CPU wheel of it is enough.
TORCH ?= torch==2.13.0
RECIPE ?= quick
ARGS ?=
# Tests run in so many processes; those that start a Ray stay in one of them.
WORKERS ?= 2
XDIST := -n $(WORKERS) --dist loadscope --no-loadscope-reorder

export RAY_USAGE_STATS_ENABLED = 0

.PHONY: run test fast long lint format types check clean

run: $(VENV)/.ready  ## run PARC: recipe quick, about 30 minutes on two cores
	$(BIN)/python run_parc.py --recipe $(RECIPE) $(ARGS)

test: $(VENV)/.ready  ## all tests, as in CI
	$(BIN)/python -m pytest $(XDIST)

fast: $(VENV)/.ready  ## without the slow tests
	$(BIN)/python -m pytest $(XDIST) -m "not slow and not long"

long: $(VENV)/.ready  ## the tests that take many minutes each, which CI leaves out
	$(BIN)/python -m pytest -m long

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.ready
	$(BIN)/pyright --pythonpath $(BIN)/python

check: lint types test

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' \
		|| { echo "Python 3.11, 3.12 or 3.13 is needed; set PYTHON=/path/to/it"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install $(TORCH)
	$(BIN)/python -m pip install -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
