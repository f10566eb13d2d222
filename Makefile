# Each target sets up what it needs in .venv; nothing is installed outside of it, except for the Debian packages of
# Slurm and Grid Engine that `make test` runs against, where it may install them (as root).

PYTHON ?= python3
# What pip installs as torch; for a build without CUDA give a wheel or use --index-url in PIP_ARGS.
TORCH ?= torch==2.13.0
PIP_ARGS ?=
# More for tests.gpu.check: --only NAME.
GPU_CHECK_ARGS ?=
# `make twins SITES="polaris gadi"`; empty: all.
SITES ?=
# More for pytest. The plugin of --reruns takes a seventh of the time of unit tests, even if nothing is run again.
PYTEST_ARGS ?= -p no:rerunfailures
# Processes of the tests other than unit tests on two cores: while some wait for schedulers, the others compute.
PROCESSES ?= 4
# `make test-torch`: each of these in an environment of its own. The oldest torch has no wheels for Python 3.13, so the
# two ends of both are tested where there are such Pythons. `make clean` forgets which torch was the newest.
TORCH_OLDEST ?= torch==2.4.0
TORCH_NEWEST ?= torch
first_python = $(shell for each in $(1) $(PYTHON); do "$$each" -c 0 2>/dev/null && echo "$$each" && break; done)
PYTHON_OLDEST ?= $(call first_python,python3.10 python3.11 python3.12)
PYTHON_NEWEST ?= $(call first_python,python3.13 python3.12)
# `make test-python`: each Python from 3.10 to 3.13 on this machine, once; the system's first, then those on PATH and pyenv's.
PYTHONS ?= $(shell for each in /usr/bin/python3 $(foreach minor,10 11 12 13,python3.$(minor)) $${PYENV_ROOT:-$$HOME/.pyenv}/versions/*/bin/python3; do \
  "$$each" -c 'import sys; v = sys.version_info; (3, 10) <= v < (3, 14) and print("%d.%d.%d" % v[:3], sys.argv[1])' "$$each" 2>/dev/null; \
done | sort -s -u -k 1,1 | cut -d " " -f 2)
VENV := .venv
READY := $(VENV)/ready
# Tests that import torch, or what imports it.
CONCERNS_TORCH := '^ *(import|from) (torch|workloads|tests.processes.workload_ranks|launcher.(agent|checkpoint|node|preflight|worker))\b'
RUN := $(VENV)/bin/python
# Else each process of a test, and of `make demo`, would compile the launcher anew.
unexport PYTHONDONTWRITEBYTECODE
# Tests of milliseconds each, which wait for nothing. Those of a file are in one process, as they share what they make.
UNIT_TESTS := tests/unit tests/golden
# Which of them `make test` runs; empty: all.
UNIT_ARGS ?=
# Which of the other tests it runs, by their markers (tests/conftest.py).
MARKERS ?= not slow and not ci

.PHONY: help demo test test-user test-slow test-torch test-python twins golden gpu-check lint chaos bench docs clean

help:
	@echo "make demo       set up, train on this machine, print the accuracy and where everything is"
	@echo "make test       set up (Slurm and Grid Engine too, as root on Debian), run all tests, print what ran against what"
	@echo "make test-user  the unit tests as an ordinary user, for root"
	@echo "make test-slow  what make test leaves out: what CI runs (benchmarks, chaos), more schedulers a test, longer forms, more examples"
	@echo "make test-torch what concerns torch, and whole runs on this machine, with the oldest torch and the newest"
	@echo "make test-python unit tests, checkpoints, and a run stopped and resumed, with each Python on this machine"
	@echo "make twins      each profile of a site against a scheduler that keeps the site's published rules, as a table"
	@echo "make golden     write tests/golden/ anew: the job scripts, keys and options that tests compare with"
	@echo "make gpu-check  what only a machine with GPUs can show, as a table; elsewhere it says so"
	@echo "make lint       ruff, mypy, and which package may import which"
	@echo "make chaos      a hundred faults against a run on this machine, and as many on a real Slurm"
	@echo "make bench      every speed claim as a measured ratio; what fails is a row of the table, and the rest still runs"
	@echo "make docs       the pages of docs/ as a site, in site/; docs/config.md from the schema"
	@echo "make clean      remove what the other targets made"

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if (3, 10) <= v < (3, 14) else f"Python 3.10 to 3.13 is needed, and {sys.executable} is {v.major}.{v.minor}: use make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) "$(TORCH)"
	$(RUN) -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) --editable ".[test,optuna,lightning,transformers,wandb]"
	@touch $@

demo: $(READY)
	$(RUN) -m launcher workload=ddp_mnist procs_per_node=2
	@echo
	@echo "Next:"
	@echo "  . $(VENV)/bin/activate"
	@echo "  launcher status                                    this run and later ones"
	@echo "  launcher workload=ddp_mnist nodes=2 dry_run=true   what would run, and how"
	@echo "  launcher workload=ddp_mnist cluster=slurm nodes=2  the same on a Slurm cluster"

test: lint
	@bash tests/setup_debian.sh
	@unit=0 rest=0; \
	$(RUN) -m pytest --quiet --numprocesses=auto --dist=loadfile $(PYTEST_ARGS) $(UNIT_ARGS) $(UNIT_TESTS) || unit=$$?; \
	$(RUN) -m pytest --numprocesses=$(PROCESSES) --durations=15 -m "$(MARKERS)" $(PYTEST_ARGS) $(UNIT_TESTS:%=--ignore=%) || rest=$$?; \
	if [ $$unit != 0 ]; then echo "The unit tests failed, too: their failures are above."; fi; \
	exit $$((unit ? unit : rest))

test-user: $(READY)
	tests/as_ordinary_user.sh $(VENV) --quiet --numprocesses=auto --dist=loadfile $(PYTEST_ARGS) $(UNIT_TESTS)

test-slow: $(READY)
	@bash tests/setup_debian.sh
	$(RUN) -m pytest --numprocesses=2 --durations=0 -m "slow or ci"
	$(RUN) -m pytest --quiet --numprocesses=2 --hypothesis-profile=long -m hypothesis $(UNIT_TESTS) tests/processes

.venv-torch-oldest/ready: MADE_BY = $(PYTHON_OLDEST)
.venv-torch-oldest/ready: WITH = $(TORCH_OLDEST)
.venv-torch-newest/ready: MADE_BY = $(PYTHON_NEWEST)
.venv-torch-newest/ready: WITH = $(TORCH_NEWEST)
.venv-%/ready: pyproject.toml
	$(MADE_BY) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) "$(WITH)"
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) --editable ".[test,optuna]"
	@touch $@

test-torch: .venv-torch-oldest/ready .venv-torch-newest/ready
	@for venv in .venv-torch-oldest .venv-torch-newest; do \
	  $$venv/bin/python -c 'import sys, torch; print(f"torch {torch.__version__}, Python {sys.version.split()[0]}")' && \
	  $$venv/bin/python -m pytest --quiet $(PYTEST_ARGS) $$(grep -rlE --include='test_*.py' $(CONCERNS_TORCH) tests/unit tests/processes) && \
	  $$venv/bin/python -m pytest --quiet $(PYTEST_ARGS) -k local tests/contract || exit 1; \
	done

test-python:
	@[ -n "$(strip $(PYTHONS))" ] || { echo "There is no Python 3.10 to 3.13: looked for /usr/bin/python3, for python3.10 to python3.13 on PATH, and in $${PYENV_ROOT:-$$HOME/.pyenv}/versions. Use make test-python PYTHONS=/path/to/python3" >&2; exit 1; }
	@for python in $(PYTHONS); do \
	  venv=.venv-python-$$($$python -c 'import platform; print(platform.python_version())') && \
	  $(MAKE) --no-print-directory $$venv/ready MADE_BY=$$python WITH="$(TORCH)" && \
	  $$venv/bin/python -c 'import sys, torch; print(f"Python {sys.version.split()[0]}, torch {torch.__version__}")' && \
	  $$venv/bin/python -m pytest --quiet $(PYTEST_ARGS) $(UNIT_TESTS) tests/processes/test_checkpoint*.py && \
	  $$venv/bin/python -m pytest --quiet $(PYTEST_ARGS) -k "stopped and resume" tests/contract/test_fsdp.py || exit 1; \
	done

twins: $(READY)
	@bash tests/setup_debian.sh
	$(RUN) -m tests.twins $(SITES)

golden: $(READY)
	rm -rf tests/golden/plans tests/golden/formats/json_output
	$(RUN) -m pytest --quiet tests/golden --golden-update

gpu-check: $(READY)
	$(RUN) -m tests.gpu.check $(GPU_CHECK_ARGS)

lint: $(READY)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/lint-imports --no-cache
	$(VENV)/bin/mypy

chaos: $(READY)
	$(RUN) -m tests.chaos.harness --faults 100 --backend local
	@bash tests/setup_debian.sh
	$(RUN) -m tests.chaos.harness --faults 100 --seed 1 --backend slurm
	for backend in local slurm pbs; do $(RUN) -m tests.chaos.sweep_submitter --kills 30 --backend $$backend || exit 1; done
	$(RUN) -m tests.chaos.pilots --kills 300
	$(RUN) -m tests.chaos.pilots --kills 100 --late 2

bench: $(READY)
	$(RUN) -m benchmarks

docs: $(READY)
	$(RUN) -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) --editable ".[docs]"
	$(RUN) docs/reference.py
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --quiet --site-dir site

clean:
	rm -rf $(VENV) .venv-* build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis
