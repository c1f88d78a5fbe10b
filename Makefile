# Targets for development. `make` alone lists them.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
CORES  := $(shell $(PYTHON) -c 'import os; print(os.cpu_count())')
# Tests often wait, so they get one more process than there are processors.
WORKERS = $(shell expr $(CORES) + 1)
# `make test` runs three jobs at once, the longest first. On two processors, two of them are one process each, because a
# second one would import Airflow again. The tests of tests/unit take longest and often wait, so they get two.
SHARE   = $(shell expr $(CORES) / 4 '*' 2)
PYTEST  = $(BIN)/pytest -q -n $(WORKERS)
# Tests write thousands of small files, which need not wait for a disk if there are 4 GB in memory for them.
MEMORY := $(shell df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 4000000 { print "env TMPDIR=/dev/shm" }')
TEST    = $(MEMORY) $(PYTEST) --dist worksteal -m "not proof" -o tmp_path_retention_policy=failed
# The environment of `make airflow-next`. Other pins: make airflow-next NEXT_PINS=file
NEXT      := .venvs/airflow-next
NEXT_PINS := constraints-airflow-next.txt
EXTRAS    := airflow,celery,lineage,postgres,service,telemetry,dev
PROOF   = $(PYTEST) -m "proof or hypothesis" -o tmp_path_retention_policy=failed
# Tests with real processes share servers per file. The others go to any process that has nothing to do.
SERVERS = --dist loadfile --no-loadscope-reorder

# Without compiled modules, each of the many processes of the tests compiles everything again.
unexport PYTHONDONTWRITEBYTECODE
# Most installed modules are never imported. Python compiles the others when it imports them first.
export PIP_NO_COMPILE = 1

.DEFAULT_GOAL := help
.PHONY: help setup demo test proof proof-servers proof-others proof-unit proof-simulator proof-airflow proof-airflow-next check lint types quick unit contract demos service airflow acceptance repository docs reference conformance lock sbom audit chaos interleavings simulator journey mutants bench airflow-next soak simulate simulate-looks simulate-own-hours clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Sendoff needs Python 3.11 or newer, but this is " + sys.version.split()[0] + ". To use another one: make PYTHON=python3.12 ...")'
	@$(PYTHON) -m venv $(VENV) || { echo "Python could not create a virtual environment. On Debian, run: apt-get install python3-venv" >&2; exit 1; }
	@echo "Installing into $(VENV) (once, a few minutes; it downloads Airflow)"
	@$(BIN)/python -m pip uninstall -qq --yes sendoff  # the name in older clones; Airflow refuses duplicate providers
	@grep == constraints.txt | xargs -n 40 -P $(CORES) \
		$(BIN)/python -m pip install -qqq --disable-pip-version-check --no-deps 2>/dev/null || true  # faster: all processors
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

setup: $(READY) ## Create the virtual environment with the pinned versions

demo: $(READY) ## Run a whole campaign on this machine (EXIT=1 stops at the end; other ports: DEMO_OPTIONS="--airflow-port 8081")
	@$(BIN)/sendoff demo $(if $(EXIT),--exit) $(DEMO_OPTIONS)

test: $(READY) ## Required before a change lands: style, types, the tests except those of `make proof`, one demo
	@$(MAKE) --no-print-directory --jobs=3 --keep-going --output-sync WORKERS=$(SHARE) airflow unit demos contract types lint

# Four jobs at once. The tests with real processes take longest and often wait, so the others give way to them.
proof: export HYPOTHESIS_PROFILE = proof
proof: $(READY) ## The slower tests: crashes, cluster, browser, repository, pages, more property examples, audit
	@$(MAKE) --no-print-directory --jobs=4 --keep-going --output-sync WORKERS=$(CORES) proof-servers proof-unit proof-simulator proof-others

proof-others:
	@failed=; for part in proof-airflow proof-airflow-next docs audit; \
	do nice $(MAKE) --no-print-directory $$part || failed=yes; done; test -z "$$failed"

proof-servers: $(READY)
	@echo "== tests with real processes"
	@$(PROOF) $(SERVERS) --ignore tests/repository/docs $(addprefix tests/,acceptance demo repository service)

proof-unit: $(READY)
	@echo "== tests/contract and tests/unit, the tests marked as proof, and all examples of the property tests"
	@nice $(MEMORY) $(PROOF) --dist worksteal tests/contract tests/unit

proof-simulator: $(READY)
	@echo "== ten minutes of launches in every order of events"
	@nice $(BIN)/python -m tools.simulator --commit --seconds 600 --processes 1

proof-airflow: $(READY)
	@echo "== tests/airflow, the tests marked as proof"
	@$(PROOF) $(SERVERS) tests/airflow

proof-airflow-next:
	@if $(MAKE) --no-print-directory $(NEXT)/.ready; \
	then $(MAKE) --no-print-directory airflow-next WORKERS=2 CHOICE="-m 'newest_airflow or airflow_database'"; \
	else echo "== No tests on the newest Airflow: its packages could not be installed"; fi

check: lint types quick ## The quick checks during development

lint: $(READY) ## Style, prose, and the direction of imports
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/lint-imports --no-logo && $(BIN)/python -m tools.prose

types: $(READY) ## Check types strictly
	@$(BIN)/mypy

# The tests of tests/airflow take longest, so the others give way to them.
unit contract demos: GIVE_WAY = nice
unit: SPREAD = -n $(CORES)

unit contract airflow: $(READY)
	@echo "== tests/$@"
	@$(GIVE_WAY) $(TEST) $(SPREAD) tests/$@

demos: $(READY)
	@echo "== tests/demo"
	@$(GIVE_WAY) $(TEST) tests/demo

service acceptance repository: $(READY)
	@echo "== tests/$@"
	@$(PROOF) $(SERVERS) --ignore tests/repository/docs tests/$@

# Most files are links to those of the other environment. pip replaces the packages whose pins differ.
$(NEXT)/.ready: $(READY) $(NEXT_PINS)
	@echo "Installing into $(NEXT), with the pins of $(NEXT_PINS)"
	@rm -rf $(NEXT) && $(PYTHON) -m venv --without-pip $(NEXT)
	@cp -al $(VENV)/lib/. $(NEXT)/lib/ 2>/dev/null || cp -R $(VENV)/lib/. $(NEXT)/lib/
	@$(NEXT)/bin/python -m pip install --quiet --disable-pip-version-check -c $(NEXT_PINS) -e '.[$(EXTRAS)]'
	@touch $@

airflow-next: $(NEXT)/.ready ## Run the tests that need Airflow on the newest Airflow, even if it is a pre-release
	@echo "== tests/airflow on Airflow $$($(NEXT)/bin/python -c 'from importlib.metadata import version; print(version("apache-airflow"))')"
	@$(MEMORY) $(NEXT)/bin/python -m pytest -q -n $(WORKERS) --dist worksteal $(CHOICE) -o tmp_path_retention_policy=failed tests/airflow

quick: $(READY) ## Run the tests of tests/unit that need no PostgreSQL
	@echo "== tests/unit, without PostgreSQL"
	@$(TEST) -k "not postgres" tests/unit

unit:       ## Run the tests that need no other process
contract:   ## Run the tests of Sendoff against the local service
service:    ## Run the tests of the local service alone
airflow:    ## Run the tests that need Airflow
demos:      ## Run the demo's tests
acceptance: ## Run the tests with real processes
repository: ## Run the tests of the repository itself: pages, compose file, tools

docs: $(READY) ## Check spelling, build the documentation site (build/site), and run all commands on the pages
	@$(BIN)/codespell README.md CHANGELOG.md CONTRIBUTING.md dags docs examples include plugins tools
	@$(BIN)/python -m zensical build --clean --strict
	@echo "== tests/repository/docs"
	@$(PYTEST) tests/repository/docs

reference: $(READY) ## Generate docs/reference and the diagrams from the code
	@$(BIN)/python -m tools.reference

conformance: $(READY) ## Generate docs/proofs/conformance.md and docs/proofs/promises.md from the tests' markers
	@$(BIN)/python -P tests/conformance.py

# The extras and the Python of docker/Dockerfile, and the build backend.
lock: $(READY) ## Write docker/requirements.txt: hashes of all packages that the images install
	@grep --only-matching 'hatchling==[0-9.]*' constraints.txt | $(BIN)/uv pip compile --quiet --generate-hashes --only-binary :all: \
		--no-annotate --custom-compile-command "make lock" --python-version 3.12 --python-platform linux -c constraints.txt \
		--extra airflow --extra celery --extra postgres --extra service pyproject.toml - --output-file docker/requirements.txt >/dev/null

sbom: $(READY) ## Write build/sbom.cdx.json: a bill of materials of the Python packages in the images
	@$(BIN)/python -m tools.release.sbom build/sbom.cdx.json

audit: $(READY) ## Check the pinned versions for known vulnerabilities
	@$(BIN)/python tests/audit.py

chaos: $(READY) ## Run all crash tests, for half an hour or more: count duplicate and lost messages
	@$(BIN)/python -m tools.chaos $(CHAOS_OPTIONS)

interleavings: $(READY) ## Play the orders of two steps of the protocol, more of them than `make proof`
	@HYPOTHESIS_PROFILE=search $(PYTEST) -rP -m "" tests/unit/ledger/test_interleavings.py

simulator: $(READY) ## Play seeded launches with faults and in every order of events (SIMULATOR_OPTIONS="--seconds 600")
	@$(BIN)/python -m tools.simulator $(SIMULATOR_OPTIONS)

journey: $(READY) ## Send a journey in a real Airflow and kill each step's task (JOURNEY_RECIPIENTS=1000000)
	@$(PYTEST) -s -n0 tests/acceptance/test_journey.py -k InAirflow

mutants: $(READY) ## Change one line of the core packages at a time, and count which changes the tests notice (an hour at most after recording)
	@$(MEMORY) $(BIN)/python -m tools.mutation $(MUTANTS_OPTIONS)

bench: $(READY) ## Run the benchmarks, and compare their figures with the goals (make bench-audience runs one)
	@$(BIN)/python tools/benchmarks/run_all.py

bench-%: $(READY)
	@$(BIN)/python tools/benchmarks/bench_$*.py

soak: $(READY) ## Load the receiver fully for three minutes, and compare all answers with the ledger
	@$(BIN)/python tools/benchmarks/soak_receiver.py

simulate: $(READY) ## Measure each step and simulate a launch to a billion people (SIMULATE_OPTIONS="--devices 100000000")
	@$(BIN)/python tools/benchmarks/simulate.py $(SIMULATE_OPTIONS)

simulate-looks: $(READY) ## Simulate launches whose report is read every ten minutes: false and found differences
	@$(BIN)/python tools/benchmarks/simulate_looks.py

simulate-own-hours: $(READY) ## Simulate campaigns at own hours: what they gain, when the report shows it, what they learn
	@$(BIN)/python tools/benchmarks/simulate_own_hours.py

clean: ## Remove everything that the other targets created
	rm -rf $(VENV) .venvs .demo .airflow .mypy_cache .pytest_cache .ruff_cache .hypothesis .cache build dist
