# Every target works from a bare clone: it needs make, Python 3.11 or newer, and a package index for the first run.
# `make PYTHON=python3.12 test` chooses the interpreter.

.DEFAULT_GOAL := help
.NOTPARALLEL:
SHELL := /bin/sh
export PYTHON
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
# Where it is set (images often do), each of a thousand processes would compile the package and its tests once more.
unexport PYTHONDONTWRITEBYTECODE

RUN := .venv/bin/python
VENV := .venv/.installed$(if $(PYTHON),-$(subst /,_,$(PYTHON)))
# Three for two cores: many tests wait for a process, a lease or a server.
WORKERS := $(shell echo $$(( $$(getconf _NPROCESSORS_ONLN) * 3 / 2 )))
PEERS := $(if $(wildcard tests/peers/package-lock.json),tests/peers/node_modules/.installed)

.PHONY: help venv peers demo cluster-demo fast test check lint types contracts documents docs dist format audit bench soak lock clean

help: ## Say what can be made
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

venv: $(VENV) ## Create .venv from requirements.lock and install the project into it

$(VENV): requirements.lock pyproject.toml scripts/bootstrap
	@sh scripts/bootstrap .venv/.installed $@

peers: $(PEERS) ## Install the programs that some tests talk to (skipped without npm)

tests/peers/node_modules/.installed: tests/peers/package-lock.json tests/peers/strands-requirements.txt \
		tests/peers/minilm-requirements.txt scripts/bootstrap-peers $(VENV)
	@sh scripts/bootstrap-peers $@

demo: $(VENV) ## Run the offline demonstration
	@$(RUN) -m examples.demo

cluster-demo: $(VENV) $(PEERS) ## Run four processes on PostgreSQL under load: one is killed, one frozen, all replaced
	@$(RUN) -m tests.simulation.cluster_demo

fast: $(VENV) ## Run the quick tests, in three minutes (ARGS="tests/app/agent" for a part of them)
	@test -e tests/peers/node_modules/.installed || echo "fast: make peers has not run: tests with its servers, its browser and the SDK are skipped"
	@echo "fast: pytest over tests/, as tests/lanes.py says"
	@$(RUN) -m pytest -n $(WORKERS) --dist worksteal --fast $(ARGS)

test: $(VENV) $(PEERS) ## Run every test, each on asyncio or trio by turns (ARGS="-n 0 ..." for one process)
	@echo "test: pytest over tests/, as tests/lanes.py says"
	@$(RUN) -m tests.second_try -n $(WORKERS) --dist worksteal --alternate-loops $(ARGS)

# Types take one core for minutes, and the documents wait often: they run at the same time.
check: lint contracts $(PEERS) ## Format, lint, types, import contracts and the documents with their examples
	@log=$$(mktemp); $(MAKE) --no-print-directory types >$$log 2>&1 & types=$$!; trap "kill $$types" INT TERM; \
	$(MAKE) --no-print-directory documents; documents=$$?; \
	wait $$types; types=$$?; cat $$log; rm -f $$log; exit $$((types | documents))

lint: $(VENV) ## ruff: lint and format; codespell: misspelled words; bandit: careless code
	@echo "check: ruff"
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .
	@echo "check: codespell"
	@.venv/bin/codespell
	@echo "check: bandit"
	@$(RUN) -m bandit --quiet --configfile pyproject.toml --severity-level medium --recursive repertory

audit: ## Look for published advisories about what requirements.lock names (needs uv and the network)
	@sh scripts/audit

types: $(VENV) ## pyright over the package, and over the programs of tests/typing with mypy, all strict
	@echo "check: pyright, strict, over repertory, the examples in folders and tests/typing"
	@$(RUN) -m pyright --project pyproject.toml
	@echo "check: mypy, strict, over tests/typing"
	@$(RUN) -m mypy

contracts: $(VENV) ## The import contracts of pyproject.toml
	@echo "check: import contracts"
	@.venv/bin/lint-imports --no-logo

documents: $(VENV) $(PEERS) ## Run the examples of the documents, and check their links, their English and the site
	@echo "check: documents"
	@$(RUN) -m compileall -q repertory  # Their programs keep no bytecode: each of hundreds would compile what it imports.
	@$(RUN) -m tests.second_try -q -n auto --dist worksteal tests/docs

docs: $(VENV) ## Build the site of the documents into build/site, offline
	@$(RUN) scripts/site.py

dist: $(VENV) ## Build wheel, source archive, list of components and checksums into dist
	@$(RUN) scripts/dist.py

format: $(VENV) ## Rewrite the files as ruff wants them
	@$(RUN) -m ruff check --fix .
	@$(RUN) -m ruff format .

bench: $(VENV) ## Run every benchmark and say which bars were missed (ARGS=--strict makes a miss an error)
	@$(RUN) -m bench $(ARGS)

soak: $(VENV) $(PEERS) ## Run the long fault campaigns (MINUTES=2 for each, a quarter of an hour of many turns, tests on their other loop, extras old, new and alone, every Python, the tests of the SDK and of packages that import it)
	@$(RUN) -m pytest -n $(WORKERS) --dist worksteal --other-loops
	@$(RUN) -m bench.conservation --seeds 1000
	@$(RUN) -m tests.simulation.damaged_documents --seeds 300
	@$(RUN) -m tests.simulation.hostile_exports --seeds 5000
	@$(RUN) -m bench.fights --seeds 20
	@$(RUN) -m tests.simulation.random_damage --seeds 1000
	@$(RUN) -m examples.demo --kills 30 --sessions 8
	@$(RUN) -m tests.campaigns.campaigns --minutes $(or $(MINUTES),2) --except soak
	@$(RUN) -m tests.campaigns.campaigns soak --minutes 15
	@$(RUN) -m tests.simulation.extras
	@$(RUN) -m tests.simulation.alone
	@$(RUN) -m tests.simulation.pythons
	@$(RUN) -m tests.simulation.sdk_suite
	@$(RUN) -m tests.simulation.sdk_packages

lock: ## Resolve pyproject.toml into requirements.lock again (needs uv)
	@uv pip compile pyproject.toml --universal --python-version 3.11 --extra all --group dev --generate-hashes \
		--custom-compile-command "make lock" --quiet --output-file requirements.lock

clean: ## Remove .venv, the installed peers and every cache
	@rm -rf .venv tests/peers/node_modules .pytest_cache .ruff_cache .mypy_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
