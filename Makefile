# The project's commands; `make help` lists them.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
IMAGE ?= ddp
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

help: ## show this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 22

demo: $(VENV)/.runtime ## train on real digits with 2 ranks and a monitor, under Slurm if it answers
	@examples/demo.sh

test: WITHOUT := --ignore=tests/examples --ignore=tests/matrix
test: ## run the tests; as root on Debian, first install and start what they need
test-all: ## the same, also with the frameworks of examples/ and on another Debian: it installs both
test test-all: $(VENV)/.dev
	@tests/provision.sh
	@$(PY) -m pytest $(PARALLEL) $(COVERAGE) -m "not thorough" $(WITHOUT)

coverage: COVERAGE := --cov --cov-report=term --cov-fail-under=92
coverage: test-all ## test-all, measuring what is covered, which takes longer: at least 92 %

thorough: $(VENV)/.dev ## run what `make test-all` leaves out: further variants, and the benchmarks
	@tests/provision.sh
	@$(PY) -m pytest $(PARALLEL) -m thorough

test-fast: $(VENV)/.dev ## run the short tests that need neither root nor network nor Docker (some 40 s)
	@$(PY) -m pytest -q $(ON_CORES) -m "not slurm and not docker and not slow"

lint: $(VENV)/.dev ## check style, types, imports and shell scripts
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-logo
	$(VENV)/bin/shellcheck $(SCRIPTS)
	$(VENV)/bin/shfmt -i 4 -ci -d $(SCRIPTS)

# One job at a time: what is measured is a job's own.
faults: export DDP_FAULT_JOBS ?= 1
faults: FAULTS := tests/faults
faults: ## bring every fault about and write docs/faults.md (root; an hour)
storm: FAULTS := tests/faults/test_storm.py
storm: ## the last part of it alone: faults every 45 s for a quarter of an hour (root; half an hour)
faults storm: $(VENV)/.dev
	@tests/provision.sh --install-only
	@results=$$(mktemp -d) && DDP_FAULT_RESULTS=$$results $(PY) -m pytest --timeout=5400 $(FAULTS) && \
	    $(PY) -m tests.faults.write $$results && rm -r $$results

matrix: $(VENV)/.dev $(VENV)-lowest/.dev ## test with other versions of Python, torch and Slurm: docs/versions.md (root; an hour or two)
	@tests/provision.sh --install-only
	@failed=; \
	echo "== this machine"; $(PY) -m pytest $(PARALLEL) $(MATRIX) || failed+=" this-machine"; \
	for suite in trixie sid; do \
	    echo "== $$suite"; tests/matrix/root.sh build $$suite; \
	    tests/matrix/root.sh run $$suite python -m pytest $(PARALLEL) $(MATRIX) || failed+=" $$suite"; \
	done; \
	echo "== the lowest torch"; $(VENV)-lowest/bin/python -m pytest $(PARALLEL) tests/trainer || failed+=" lowest-torch"; \
	[[ -z $$failed ]] || { echo "matrix: failed on$$failed" >&2; exit 1; }

pictures: $(VENV)/.dev ## make the pictures and the page that README.md and docs/ show
	@tests/provision.sh --install-only
	@$(PY) docs/make_pictures.py

options: $(VENV)/.runtime ## write the table of options in docs/trainer.md
	@$(PY) docs/write_options.py

image: ## build the Docker image (IMAGE=ddp)
	docker build -t $(IMAGE) $(BUILD_ARGS) .

sqsh: ## turn the image into ddp.sqsh
	container/to_squashfs.sh $(IMAGE) ddp.sqsh

cluster-up: ## start a virtual Slurm cluster of 2 nodes on this machine (root)
	@tests/provision.sh --install-only
	@tests/cluster/cluster.sh up

cluster-down: ## stop the virtual Slurm cluster
	@tests/cluster/cluster.sh down

bench: $(VENV)/.dev ## measure speed side by side and write benchmarks/results.md
	@benchmarks/run.sh

gpu: ## on a machine with a GPU, without a network: is it right, then how fast is it (9 minutes)
	@benchmarks/gpu.sh

# Most tests wait for a clock, a signal or a daemon: three processes share two cores well.
PARALLEL := -n 3 --dist loadscope --no-loadscope-reorder # see tests/conftest.py
ON_CORES := -n logical --maxprocesses 4 --dist loadscope # the short ones compute

MATRIX := tests/cluster tests/jobs tests/faults $(wildcard tests/trainer/checkpoint/test_checkpoint*.py) tests/trainer/checkpoint/test_safe_reader.py

# The tests start thousands of interpreters: each finds the modules compiled, whatever the shell says.
test test-all test-fast faults storm matrix: export PYTHONDONTWRITEBYTECODE :=

SCRIPTS = $(shell git ls-files '*.sh') .ci/run

# The environment: says what it installs, where pip and venv themselves are missing, too.
$(PY):
	@if ! $(PYTHON) -c 'import venv, ensurepip' 2>/dev/null; then \
	    if [[ $$(id -u) == 0 ]] && command -v apt-get >/dev/null; then \
	        echo "installing Debian packages: python3-venv python3-pip"; \
	        apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv python3-pip; \
	    else echo "make: Python's venv is missing, found none in $(PYTHON): install python3-venv" >&2; exit 64; fi; fi
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "make: Python must be 3.11 or later, found $$($(PYTHON) -V): give another with PYTHON=…" >&2; exit 64; }
	@echo "creating the virtual environment $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: pyproject.toml | $(PY)
	@echo "installing Python packages into $(VENV): torch, torchvision and what pyproject.toml names (minutes, the first time)"
	@$(PY) -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(VENV)/.dev: pyproject.toml | $(PY)
	@echo "installing Python packages into $(VENV), with the tools for tests and lint (minutes, the first time)"
	@$(PY) -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@ $(VENV)/.runtime

# The first versions that pyproject.toml allows, of those that decide whether a model trains.
$(VENV)-lowest/.dev: pyproject.toml | $(PY)
	@echo "installing Python packages into $(VENV)-lowest, with the lowest torch (minutes, the first time)"
	@$(PY) -m venv $(VENV)-lowest
	@$(VENV)-lowest/bin/python -m pip install --quiet --disable-pip-version-check -e '.[dev]' \
	    $$(sed -nE 's/^    "(torch|torchvision)>=([0-9.]+)",/\1==\2.*/p' pyproject.toml)
	@touch $@

.PHONY: help demo test test-all coverage thorough test-fast lint faults storm matrix pictures image sqsh cluster-up cluster-down bench gpu
