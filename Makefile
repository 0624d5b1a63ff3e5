# make demo | test | check | format | bench | venv | clean
# PYTHON chooses the interpreter (3.11 or newer) that .venv is made from.

PYTHON  ?= python3
WORKERS ?= 2
VENV    := .venv
BIN     := $(VENV)/bin
DEMO    := runs/demo
BENCH   := runs/bench

TEST_STAMP := $(VENV)/.installed-test
# The test environment holds everything the demo needs; alone, the demo needs less.
DEMO_STAMP := $(if $(wildcard $(TEST_STAMP)),$(TEST_STAMP),$(VENV)/.installed-demo)
DECLARED   := pyproject.toml setup.py constraints.txt
INSTALL    := $(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt

# One hash seed for the whole suite; one thread per process, because the processes are the
# parallelism.
export PYTHONHASHSEED := 0
test check: export OMP_NUM_THREADS := 1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help venv demo test check format bench clean

help:
	@echo "make demo    run agents on a stored problem and on courses while they train; write a report"
	@echo "make test    run the whole test suite"
	@echo "make check   format, lint, types and the fast tests (before every commit)"
	@echo "make format  rewrite the sources in the project's format"
	@echo "make bench   run every script in benchmarks/; the reports go to runs/bench"
	@echo "make venv    make .venv with everything (test does it by itself)"
	@echo "make clean   remove .venv, caches and build outputs (never runs/)"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit("fedhpo_gym needs Python 3.11 or newer, $(PYTHON) is " + sys.version.split()[0] + "; set PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-demo: $(DECLARED) | $(BIN)/python
	$(INSTALL) -e ".[agents,data,plot,raw]"
	@touch $@

$(TEST_STAMP): $(DECLARED) | $(BIN)/python
	$(INSTALL) -e ".[all,dev]"
	@touch $@

venv: $(TEST_STAMP)

demo: $(DEMO_STAMP)
	$(BIN)/fedhpo-gym run FedHPO-LR-CreditG --agent random --agent optuna-tpe --seeds 5 --out $(DEMO)
	$(BIN)/fedhpo-gym run FedHPO-DAC-LR-BreastCancer --agent random --agent fedex --seeds 3 --out $(DEMO)
	$(BIN)/fedhpo-gym report $(DEMO)
	@find $(DEMO) -name '*.html' -exec echo "Report: {}" \; | grep . \
	  || { echo "No report was written to $(DEMO)" >&2; exit 1; }

test: $(TEST_STAMP)
	$(BIN)/python -m pytest -n $(WORKERS)

check: $(TEST_STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n $(WORKERS) -m "not slow and not raw and not data"

format: $(TEST_STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(TEST_STAMP)
	@set -e; for script in $$(grep -l 'measuring\.parser' benchmarks/*.py); do echo "== $$script"; \
	  $(BIN)/python "$$script" --out "$(BENCH)/$$(basename "$$script" .py).md"; done

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
