# make demo | test | check | format | bench | venv | lock | clean
# PYTHON chooses the interpreter (3.11 or newer) that .venv is made from.

PYTHON  ?= python3
UV      ?= uv
WORKERS ?= 2
VENV    := .venv
BIN     := $(VENV)/bin
DEMO    := runs/demo
BENCH   := runs/bench

# Everything comes by its hash: first what installs, then what is installed, the package last.
# A Python newer than all locks takes the newest of them.
LOCKS   := $(wildcard requirements/py*.txt)
LOCK     = $(firstword $(filter %/py$(shell $(BIN)/python -c 'import sys; print("%d.%d" % sys.version_info[:2])').txt,$(LOCKS)) $(lastword $(sort $(LOCKS))))
PIP     := $(BIN)/python -m pip install --disable-pip-version-check --quiet
STAMP   := $(VENV)/.installed

# One hash seed for the whole suite; one thread per process, because the processes are the
# parallelism.
export PYTHONHASHSEED := 0
test check: export OMP_NUM_THREADS := 1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help venv demo test check format bench lock clean

help:
	@echo "make demo    run agents on a stored problem and on courses while they train; write a report"
	@echo "make test    run the whole test suite"
	@echo "make check   format, lint, types and the fast tests (before every commit)"
	@echo "make format  rewrite the sources in the project's format"
	@echo "make bench   run the scripts in benchmarks/, but for mutation.py and choose_spaces.py; the reports go to runs/bench"
	@echo "make venv    make .venv with everything (demo and test do it by themselves)"
	@echo "make lock    resolve what .venv holds again (needs uv) and write requirements/*.txt"
	@echo "make clean   remove .venv, caches and build outputs (never runs/)"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit("fedhpo_gym needs Python 3.11 or newer, $(PYTHON) is " + sys.version.split()[0] + "; set PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

$(STAMP): pyproject.toml setup.py requirements/build.txt requirements/cuda.txt $(LOCKS) | $(BIN)/python
	$(PIP) --require-hashes -r requirements/build.txt
	$(PIP) --require-hashes --no-build-isolation -r $(LOCK) -c requirements/cuda.txt
	$(PIP) --no-deps --no-build-isolation -e .
	@touch $@

venv: $(STAMP)

lock:
	$(UV) --version
	$(PYTHON) requirements/make.py $(UV)

demo: $(STAMP)
	$(BIN)/fedhpo-gym run FedHPO-LR-CreditG --agent random --agent optuna-tpe --seeds 5 --out $(DEMO)
	$(BIN)/fedhpo-gym run FedHPO-DAC-LR-BreastCancer --agent random --agent fedex --seeds 3 --out $(DEMO)
	$(BIN)/fedhpo-gym report $(DEMO)
	@find $(DEMO) -name '*.html' -exec echo "Report: {}" \; | grep . \
	  || { echo "No report was written to $(DEMO)" >&2; exit 1; }

test: $(STAMP)
	$(BIN)/python -m pytest -n $(WORKERS)

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n $(WORKERS) -m "not slow and not raw and not data"

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP)
	@set -e; for script in $$(grep -l 'measuring\.parser' benchmarks/*.py | grep -v "mutation\|choose_spaces"); do echo "== $$script"; \
	  $(BIN)/python "$$script" --out "$(BENCH)/$$(basename "$$script" .py).md"; done

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
