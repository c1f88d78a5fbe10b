# Sendoff's commands. `make` alone lists them.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
PYTEST := $(BIN)/pytest -q -n auto
TEST   := $(PYTEST) --dist worksteal -m "not proof"
PROOF  := $(PYTEST) --dist loadfile --no-loadscope-reorder -m "proof or hypothesis"

.DEFAULT_GOAL := help
.NOTPARALLEL:  # the tests use every core by themselves
.PHONY: help setup demo test proof check lint types quick unit contract service airflow acceptance repository docs reference conformance audit chaos bench soak simulate clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Sendoff needs Python 3.11 or newer; found " + sys.version.split()[0] + ". Name another one: make PYTHON=python3.12 ...")'
	@$(PYTHON) -m venv $(VENV) || { echo "Python could not make a virtual environment. On Debian: apt-get install python3-venv" >&2; exit 1; }
	@echo "Installing into $(VENV) (about a minute, once)"
	@$(BIN)/python -m pip uninstall -qq --yes sendoff  # what older clones installed; Airflow refuses two of one provider
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[airflow,celery,lineage,postgres,service,statistics,telemetry,dev]'
	@touch $@

setup: $(READY) ## Make the virtual environment with the pinned versions

demo: $(READY) ## Run a whole campaign on this machine (EXIT=1 stops at the end; other ports: DEMO_OPTIONS="--airflow-port 8081")
	@$(BIN)/sendoff demo $(if $(EXIT),--exit) $(DEMO_OPTIONS)

test: lint types ## What must pass before a change lands: style, types, all tests but those of `make proof`, one demo
	@echo "== tests/demo tests/unit tests/contract tests/service"
	@$(TEST) tests/demo tests/unit tests/contract tests/service
	@echo "== tests/airflow"
	@$(TEST) tests/airflow

proof: export HYPOTHESIS_PROFILE = proof
proof: $(READY) ## All the rest: crash tests, cluster, browser, repository, pages, more property examples, audit
	@echo "== the tests that are marked as proof, and every example of the property tests"
	@$(PROOF) --ignore tests/repository/docs $(addprefix tests/,acceptance demo repository contract service unit)
	@$(PROOF) tests/airflow
	@$(MAKE) --no-print-directory docs audit

check: lint types quick ## What a developer runs all day

lint: $(READY) ## Style, and the direction of imports
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/lint-imports --no-logo

types: $(READY) ## Types, strictly
	@$(BIN)/mypy

unit contract service airflow: $(READY)
	@echo "== tests/$@"
	@$(TEST) tests/$@

acceptance repository: $(READY)
	@echo "== tests/$@"
	@$(PROOF) --ignore tests/repository/docs tests/$@

quick: $(READY) ## The tests of tests/unit that need no PostgreSQL
	@echo "== tests/unit, without PostgreSQL"
	@$(TEST) -k "not postgres" tests/unit

unit:       ## Tests that need no other process
contract:   ## Tests of Sendoff against the local service
service:    ## Tests of the local service alone
airflow:    ## Tests that need Airflow
acceptance: ## Tests on real processes
repository: ## Tests of the repository itself: pages, compose file, tools

docs: $(READY) ## Check spelling, build the site of the pages (build/site), and run every command on them
	@$(BIN)/codespell README.md CHANGELOG.md CONTRIBUTING.md dags docs examples include plugins tools
	@$(BIN)/python -m zensical build --clean --strict
	@echo "== tests/repository/docs"
	@$(PYTEST) tests/repository/docs

reference: $(READY) ## Write docs/reference and the drawn pictures from the code
	@$(BIN)/python -m tools.reference

conformance: $(READY) ## Write docs/proofs/conformance.md and docs/proofs/promises.md from the tests' markers
	@$(BIN)/python -P tests/conformance.py

audit: $(READY) ## Hold the pinned versions against known vulnerabilities
	@$(BIN)/python tests/audit.py

chaos: $(READY) ## Break everything for a quarter of an hour, and count what was sent twice or lost
	@$(BIN)/python -m tools.chaos $(CHAOS_OPTIONS)

bench: bench-audience bench-rules bench-dispatch bench-receiver bench-reconcile bench-parse ## Benchmarks, each beside its peer (make bench-audience runs one)

bench-%: $(READY)
	@$(BIN)/python tools/benchmarks/bench_$*.py

soak: $(READY) ## The receiver at full load for three minutes, and every answer held against the ledger
	@$(BIN)/python tools/benchmarks/soak_receiver.py

simulate: $(READY) ## Measure each step, and simulate a launch to a billion people (SIMULATE_OPTIONS="--devices 100000000")
	@$(BIN)/python tools/benchmarks/simulate.py $(SIMULATE_OPTIONS)

clean: ## Remove what the targets above made
	rm -rf $(VENV) .demo .airflow .mypy_cache .pytest_cache .ruff_cache .hypothesis .cache build dist
