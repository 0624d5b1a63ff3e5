# make demo | demo-training | test | nightly | weekly | check | lint | format | docs | bench | venv | lock | clean
# PYTHON chooses the interpreter (3.11 or newer) that environments are made from. TORCH chooses the
# build of torch in .venv: cpu, cuda, or auto, which is cuda only where an NVIDIA device is seen.

PYTHON  ?= python3
UV      ?= uv
WORKERS ?= 2
TORCH   ?= auto
VENV    := .venv
BIN     := $(VENV)/bin
DEMO    := .venv-demo
BENCH   := runs/bench
# Where the compute queue keeps what it has trained: outside the checkout, which may be made anew.
NUMBERS ?= $(HOME)/.cache/fedhpo_gym/numbers
DEVICE  ?= cpu
ARRAYS  ?= data/fedhpo_gym_data

# Everything comes by its hash: first what installs, then what is installed, the package last.
# A Python newer than all locks takes the newest of them. The demo has an environment of its own,
# which needs no torch and nothing that compiles.
LOCKS   := $(sort $(wildcard requirements/py*.txt))
DEMOS   := $(sort $(wildcard requirements/demo*.txt))
VERSION  = $(shell $(1)/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')
LOCK     = $(firstword $(filter %/py$(call VERSION,$(VENV)).txt,$(LOCKS)) $(lastword $(LOCKS)))
DEMOLOCK = $(firstword $(filter %/demo$(call VERSION,$(DEMO)).txt,$(DEMOS)) $(lastword $(DEMOS)))
PIP     := $(BIN)/python -m pip install --disable-pip-version-check --quiet
STAMP   := $(VENV)/.installed
# What the last installation was asked for, where it was another build of torch.
OTHER   := $(filter-out auto $(shell cat $(STAMP) 2>/dev/null),$(TORCH))

# One hash seed for the whole suite; one thread per process, because the processes are the
# parallelism.
export PYTHONHASHSEED := 0
test check: export OMP_NUM_THREADS := 1
# Hundreds of tests start interpreters: without bytecode each would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: numbers numbers-status numbers-store help venv demo demo-training test check lint nightly weekly format docs bench lock clean dist try-install

help:
	@echo "make demo    compare three optimizers on seven stored problems: who wins, how sure (no torch)"
	@echo "make demo-training  compare two agents on a federation that is really trained (needs torch)"
	@echo "make test    run the whole test suite"
	@echo "make nightly run the conformance kit on the ids that \`make test\` leaves out"
	@echo "make weekly  run what takes minutes: the commands of pages, and long studies in small"
	@echo "make check   format, lint, types and the fast tests (before every commit)"
	@echo "make lint    the same without the tests"
	@echo "make format  rewrite the sources in the project's format"
	@echo "make docs    make the site in build/site: its guides are run, a warning is an error"
	@echo "make bench   run the commands in benchmarks/, but for mutation.py; the reports go to runs/bench"
	@echo "make numbers train the samples that numbers.toml lists; numbers-status says how far it is,"
	@echo "             numbers-store writes what is done into the package"
	@echo "make venv    make .venv with everything (test and others do it by themselves)"
	@echo "             TORCH=cpu, cuda or auto chooses the build of torch in it"
	@echo "make dist    build both distributions, and check them as an index would"
	@echo "make try-install  install them into fresh environments: the core, and each extra alone"
	@echo "make lock    resolve what .venv holds again (needs uv) and write requirements/*.txt"
	@echo "make clean   remove .venv, caches and build outputs (never runs/)"

$(BIN)/python $(DEMO)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit("fedhpo_gym needs Python 3.11 or newer, $(PYTHON) is " + sys.version.split()[0] + "; set PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(@:/bin/python=)

$(STAMP): pyproject.toml setup.py requirements/build.txt requirements/cuda.txt requirements/torch-cpu.txt requirements/torch-cuda.txt $(LOCKS) $(if $(OTHER),FORCE) | $(BIN)/python
	$(PIP) --require-hashes -r requirements/build.txt
	$(BIN)/python requirements/install_torch.py $(TORCH)
	$(PIP) --require-hashes --no-build-isolation -r $(LOCK) -c requirements/cuda.txt
	$(PIP) --no-deps --no-build-isolation -e .
	@echo $(TORCH) > $@

$(DEMO)/.installed: $(DEMOS) | $(DEMO)/bin/python
	$(PIP:$(BIN)%=$(DEMO)/bin%) --require-hashes --only-binary :all: -r $(DEMOLOCK)
	@touch $@

FORCE:

venv: $(STAMP)

lock:
	$(UV) --version
	$(PYTHON) requirements/make.py $(UV)

demo: $(DEMO)/.installed
	MPLBACKEND=Agg $(DEMO)/bin/python -m fedhpo_gym compare small --agents random,de,hyperband --seeds 3 --workers $(WORKERS) --out runs/demo
	@echo "Open runs/demo/report.html in a browser."

demo-training: $(STAMP)
	$(BIN)/fedhpo-gym compare FedHPO-DAC-LR-BreastCancer --agents random,fedex --seeds 3 --workers $(WORKERS) --out runs/demo-training
	@echo "Open runs/demo-training/report.html in a browser."

test: $(STAMP)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

check: lint
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not slow and not raw and not data"

nightly: $(STAMP)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m nightly

weekly: $(STAMP)
	$(BIN)/python -m pytest -m weekly

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# A reader has no data folder, so the guides get an empty one.
docs: export FEDHPO_GYM_DATA := $(CURDIR)/build/no-data
docs: $(STAMP)
	mkdir -p $(CURDIR)/build/no-data
	$(BIN)/python -m sphinx --quiet --jobs $(WORKERS) --fail-on-warning -c docs -d build/doctrees . build/site
	@echo "Open build/site/index.html in a browser."

# Both distributions, as wheels and sources, in dist/; twine reads what an index would refuse.
dist: $(STAMP)
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m build --outdir dist data
	$(BIN)/python -m twine check --strict dist/*

# The compute queue. DEVICE=cuda trains what torch trains on a GPU; ONLY is a word of names.
numbers: $(STAMP)
	nice -n 19 $(BIN)/fedhpo-gym queue numbers.toml --out "$(NUMBERS)" --workers $(WORKERS) --device $(DEVICE) $(if $(ONLY),--only=$(ONLY))

numbers-status: $(STAMP)
	@$(BIN)/fedhpo-gym queue numbers.toml --out "$(NUMBERS)" --status $(if $(ONLY),--only=$(ONLY))

numbers-store: $(STAMP)
	$(BIN)/fedhpo-gym queue numbers.toml --out "$(NUMBERS)" --store fedhpo_gym/stored/data --arrays $(ARRAYS) $(if $(ONLY),--only=$(ONLY))

try-install:
	$(PYTHON) requirements/try_install.py

bench: $(STAMP)
	@set -e; for script in $$(grep -l 'measuring\.Parser' benchmarks/*/*.py | grep -v mutation); do echo "== $$script"; \
	  $(BIN)/python "$$script" --out "$(BENCH)/$$(basename "$$script" .py).md"; done

clean:
	rm -rf $(VENV) $(DEMO) build dist docs/made *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
