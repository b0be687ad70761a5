# Two commands matter: `make demo` and `make test`. Both do their own set-up and skip what is done.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UI_PORT ?= 3000
SEED ?= 1
RUNS ?= 30
LEDGER ?= both
KINDS ?=
TESTS_AT_ONCE ?= 2

.PHONY: demo test chaos lint ui setup model clean

demo: setup model
	@$(BIN)/batch-assets demo

# Most tests wait for processes, so two files run at once; what needs the machine to itself comes afterwards.
test: setup model
	@$(BIN)/python -m pytest -n $(TESTS_AT_ONCE) --dist loadfile --no-loadscope-reorder -m 'not alone'; others=$$?; \
	$(BIN)/python -m pytest -m alone && exit $$others

# Faults against real workers. SEED=7 RUNS=30 LEDGER=sqlite|postgresql|both; a failure prints the command that repeats it.
chaos: setup
	@$(BIN)/python -m assets_tests.chaos.campaign --seed $(SEED) --runs $(RUNS) --ledger $(LEDGER) --kinds '$(KINDS)'

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

ui: setup
	@$(BIN)/batch-assets ui --port $(UI_PORT)

setup: $(VENV)/.ready

# pip says nothing for minutes while it downloads, so each step says what it is about to do.
$(VENV)/.ready: pyproject.toml deploy/local/install_cpu_engine.py
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or later is needed; PYTHON=/path/to/python3.11 make ... names one." if sys.version_info < (3, 11) else 0)'
	@test -x $(BIN)/python || { echo "Set-up: creating the virtual environment $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "Set-up: installing Batch Assets and Dagster (about a minute)"
	@$(BIN)/python -m pip install --quiet --upgrade pip
	@$(BIN)/python -m pip install --quiet --editable '.[dev,k8s,postgres]'
	@echo "Set-up: installing the CPU engine (about 3 GB, a few minutes)"
	@$(BIN)/python deploy/local/install_cpu_engine.py
	@touch $@

model: setup
	@$(BIN)/python deploy/local/prepare_model.py

clean:
	rm -rf $(VENV) .batch_assets test-artifacts
