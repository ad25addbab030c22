# All that a maintainer needs; CI calls the same targets. `make help` lists them.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
# cpu: refuse a CUDA build of torch (several GB); any: take whatever the package index offers.
TORCH ?= cpu
# A further package index to look for torch in.
TORCH_INDEX ?=
# Further arguments of demo, test, foreign, bench and sim.
ARGS ?=
# Files of ringd bench --json, for tables.
JSON ?= bench.json
# How many seeds sim runs.
SEEDS ?= 500
# Another version of torch, for matrix.
MATRIX ?= 2.12.0

PY := .venv/bin/python
STAMP := .venv/.ringd-installed
PIP := $(PY) -m pip install --disable-pip-version-check
PIN := -c constraints.txt $(if $(filter cpu,$(TORCH)),-c constraints-cpu.txt)
INDEX := $(if $(TORCH_INDEX),--extra-index-url '$(TORCH_INDEX)')
OTHER := .venv-torch-$(MATRIX)
BENCH := --op all_reduce --sizes 1K,64K,1M,16M,64M -n 2 -n 4 --peers gloo

define SUPPORTED
import sys
version = sys.version_info[:2]
if not sys.platform.startswith("linux"):
    sys.exit("ringd runs on Linux only; this is " + sys.platform)
if not (3, 11) <= version <= (3, 13):
    sys.exit("ringd needs Python 3.11 to 3.13; $(PYTHON) is %d.%d: try make setup PYTHON=python3.12" % version)
endef
export SUPPORTED

define NO_TORCH
make setup: torch could not be installed; pip says why above.
If it names cuda, nvidia or triton packages: the package index offers a CUDA build of torch only,
which is several GB, and ringd needs none of it. Either name an index of CPU builds ("Get started"
on pytorch.org gives its address), or take the CUDA build all the same:
    make setup TORCH_INDEX=ADDRESS
    make setup TORCH=any
endef
export NO_TORCH

.PHONY: help setup demo test slow foreign matrix test-compose test-lan check format bench tables docs sim dist clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: $(STAMP) ## Make .venv and install everything (the others do it when it is missing)

$(STAMP): pyproject.toml constraints.txt constraints-cpu.txt
	@command -v $(PYTHON) >/dev/null || { echo "make setup: no $(PYTHON) here; ringd needs Python 3.11 to 3.13 (PYTHON=...)" >&2; exit 1; }
	@$(PYTHON) -c "$$SUPPORTED"
	@test -x $(PY) || $(PYTHON) -m venv .venv
	$(PIP) $(INDEX) $(PIN) torch || { echo "$$NO_TORCH" >&2; exit 1; }
	$(PIP) $(INDEX) $(PIN) -e '.[demo,dev]'
	@$(PY) -m compileall -q ringd client
	@touch $@

demo: $(STAMP) ## See it work: checks, bytes on the wire, timing, a training run, a fault
	.venv/bin/ringd demo $(ARGS)

test: $(STAMP) ## Run all tests, or those that ARGS names (ARGS="tests/config -k size")
ifeq ($(strip $(ARGS)),)
	$(PY) -m pytest -n 2 -m "not serial and not slow and not compose and not lan"
	$(PY) -m pytest -m "serial and not slow and not compose and not lan" || [ $$? -eq 5 ]
else
	$(PY) -m pytest $(ARGS)
endif

slow: $(STAMP) ## Run the long tests, which `make test` leaves out: soaks, 10,000 operations
	$(PY) -m pytest -m slow

foreign: $(STAMP) ## Run torch's own tests of process groups under ringd and gloo
	$(PY) -m tests.foreign --page docs/torch-foreign.md $(ARGS)

matrix: $(STAMP) ## Run tests/torch with another torch, in a venv of its own (MATRIX=2.12.0; several GB)
	@echo "make matrix: torch $(MATRIX) for $(OTHER). Unless TORCH_INDEX names an index of CPU builds, this"
	@echo "is a CUDA build: about 3 GB to download, 7 GB on disk. rm -rf $(OTHER) gives them back."
	@test -x $(OTHER)/bin/python || $(PY) -m venv $(OTHER)
	@grep -Ev '^(torch|setuptools)==' constraints.txt >$(OTHER)/constraints.txt
	$(OTHER)/bin/python -m pip install --disable-pip-version-check $(INDEX) -c $(OTHER)/constraints.txt 'torch==$(MATRIX)' -e '.[dev]'
	$(OTHER)/bin/python -m pytest tests/torch $(if $(ARGS),$(ARGS),-m "not slow")

test-lan: $(STAMP) ## Test on several hosts, in network namespaces: needs root, is skipped without
	$(PY) -m pytest -m lan tests/lan $(ARGS)

test-compose: $(STAMP) ## Run containers: needs a Docker engine (deploy/with-engine.sh starts one)
	RINGD_IMAGE=ringd-test deploy/build-image.sh
	RINGD_IMAGE=ringd-test $(PY) -m pytest -m compose tests/compose $(ARGS)

check: $(STAMP) ## Format, lint, types, architecture
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/lint-imports --no-logo

format: $(STAMP) ## Put the code in its format, and repair what the linter can
	.venv/bin/ruff check --fix-only .
	.venv/bin/ruff format .

bench: $(STAMP) ## Measure all_reduce beside gloo (ARGS="--quick" for a shorter run)
	.venv/bin/ringd bench $(BENCH) $(ARGS)

tables: $(STAMP) ## Print what README and docs/bench.md show of a bench (JSON="bench.json torch.json")
	$(PY) -m ringd.bench.markdown $(JSON)

docs: $(STAMP) ## Test the documentation: its links, its code blocks
	$(PY) -m pytest tests/docs $(ARGS)

sim: $(STAMP) ## Simulate jobs with faults in virtual time, on all cores (SEEDS=10000)
	$(PY) -m ringd.sim --seeds $(SEEDS) $(ARGS)

dist: $(STAMP) ## Build wheel and sdist
	rm -rf dist
	$(PY) -m build --outdir dist

clean: ## Remove what was built or cached; .venv stays
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find ringd client tests -name __pycache__ -type d -prune -exec rm -rf {} +
