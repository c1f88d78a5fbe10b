# Sendoff's commands. `make` alone lists them.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.DEFAULT_GOAL := help
.NOTPARALLEL:  # the tests use every core by themselves
.PHONY: help setup demo test check lint types unit contract airflow acceptance conformance audit chaos bench clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Sendoff needs Python 3.11 or newer; found " + sys.version.split()[0] + ". Name another one: make PYTHON=python3.12 ...")'
	@$(PYTHON) -m venv $(VENV) || { echo "Python could not make a virtual environment. On Debian: apt-get install python3-venv" >&2; exit 1; }
	@echo "Installing into $(VENV) (about a minute, once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[airflow,postgres,service,dev]'
	@touch $@

setup: $(READY) ## Make the virtual environment with the pinned versions

demo: $(READY) ## Run a whole campaign on this machine (EXIT=1 stops at the end; other ports: DEMO_OPTIONS="--airflow-port 8081")
	@$(BIN)/sendoff demo $(if $(EXIT),--exit) $(DEMO_OPTIONS)

test: check contract airflow acceptance audit ## Everything that must pass

check: lint types unit ## What a developer runs all day

lint: $(READY) ## Style
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(READY) ## Types, strictly
	@$(BIN)/mypy

unit contract airflow: $(READY)
	@echo "== tests/$@"
	@$(BIN)/pytest -q -n auto --dist loadfile tests/$@

acceptance: $(READY)
	@echo "== tests/$@"
	@$(BIN)/pytest -q tests/$@

unit:       ## Tests that need nothing
contract:   ## Tests against the local service
airflow:    ## Tests that need Airflow
acceptance: ## Tests on real processes

conformance: $(READY) ## Write docs/conformance.md from the tests' markers
	@$(BIN)/python -P tests/conformance.py

audit: $(READY) ## Hold the pinned versions against known vulnerabilities
	@$(BIN)/python tests/audit.py

chaos: $(READY) ## Break everything for a quarter of an hour, and count what was sent twice or lost
	@$(BIN)/python -m chaos $(CHAOS_OPTIONS)

bench: bench-audience bench-parse bench-receiver ## Benchmarks, each beside its peer (make bench-audience runs one)

bench-%: $(READY)
	@$(BIN)/python benchmarks/bench_$*.py

clean: ## Remove what the targets above made
	rm -rf $(VENV) .demo .airflow .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
