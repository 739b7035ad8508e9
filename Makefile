# Everything that is needed is Python 3.11+ with venv. `make demo` runs the main job, `make test` passes the tests.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# Each process of a test would compile all of flowdist anew where this is set.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-all test-rest test-lab frameworks prove prove-some newest oracle test-late chaos witnesses gpu trust mutants mutated docs docs-serve package check check-static coverage format bench soak clean

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit("flowdist needs Python 3.11 or newer, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(BIN)/python pyproject.toml constraints.txt
	@echo "installing flowdist and numpy into $(VENV) ..."
	$(INSTALL) --editable '.[demo]'
	@touch $@

$(VENV)/.dev: $(BIN)/python pyproject.toml constraints.txt
	@echo "installing flowdist, torch and the test tools into $(VENV) (once; torch is large) ..."
	$(INSTALL) --editable '.[dev]'
	@touch $@ $(VENV)/.demo

$(VENV)/.frameworks: $(VENV)/.dev
	@echo "installing accelerate, transformers, Lightning, torchdata and torchft into $(VENV) ..."
	$(INSTALL) --editable '.[dev,frameworks]'
	@touch $@

$(VENV)/.oracle: $(VENV)/.frameworks
	@echo "installing datasets, deepspeed, hydra, pandas, pyarrow and wandb into $(VENV) ..."
	$(INSTALL) --editable '.[dev,oracle]'
	@touch $@

$(VENV)/.docs: $(BIN)/python pyproject.toml constraints.txt
	@echo "installing Sphinx into $(VENV) ..."
	$(INSTALL) --editable '.[docs]'
	@touch $@

$(VENV)/.release: $(BIN)/python pyproject.toml constraints.txt
	$(INSTALL) --editable '.[release]'
	@touch $@

demo: $(VENV)/.demo  ## the main job, with a parameter server and a trainer killed on the way
	$(BIN)/flowdist run examples/word2vec/topology.py --fail ps/0@checkpoint=ps,4+500ms --fail trainer/1@step=trainer,2000

# Tests on real processes mostly wait, and run beside those that compute: two for each core are best.
JOBS ?= $(shell $(PYTHON) -c 'import os; print(min(16, 2 * (os.cpu_count() or 1)))')
PYTEST := $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal

test: $(VENV)/.dev  ## what every commit has to pass
	$(PYTEST) -m 'not slow and not lab'

test-all: $(VENV)/.dev  ## every test but those of the lab, the slow ones too, with all examples of the long campaigns
	TEST_ALL=1 $(PYTEST) -m 'not lab'

test-rest: $(VENV)/.dev  ## what `make test` leaves to test-all: slow tests, and the campaigns with all their examples
	TEST_ALL=1 $(PYTEST) -m 'not lab and (slow or campaign)'

test-lab: $(VENV)/.dev  ## jobs over hosts in network namespaces; skipped, with the reason, where none can be made
	$(BIN)/python -m pytest -q -n 3 --dist worksteal tests/lab

TIMES ?= 1

frameworks: $(VENV)/.frameworks  ## those of docs/frameworks.md: a worker of each is killed, and it ends as without a kill
	TIMES=$(TIMES) $(BIN)/python -m pytest -q -n 2 --dist worksteal tests/frameworks

PROVE ?=
EVERY ?= 1

prove: $(VENV)/.frameworks  ## right scripts are green at all of their points, and bugs that somebody has planted are found
	$(BIN)/python -m tests.prove $(PROVE) --every $(EVERY)

prove-some: $(VENV)/.frameworks  ## three of the right scripts, and each fourth of their bugs
	$(BIN)/python -m tests.prove ddp.py numpy_loop.py stateful_loader.py ddp- numpy- loader- --every 4
	$(BIN)/python -m tests.prove --oracle ddp.py ddp-best-lost

NEWEST := .venv-newest
NEWEST_PYTHON := $(NEWEST)/bin/python

$(NEWEST_PYTHON):
	$(PYTHON) -m venv $(NEWEST)

newest: $(NEWEST_PYTHON)  ## the newest torch and frameworks, without constraints, in an environment of their own (about 5 GB)
	$(NEWEST_PYTHON) -m pip install --quiet --disable-pip-version-check --upgrade --upgrade-strategy eager \
		--editable '.[dev,frameworks]' datasets pyarrow
	$(NEWEST_PYTHON) tools/versions.py
	$(NEWEST_PYTHON) -m pytest -q -n 2 --dist worksteal tests/torchrun tests/frameworks
	$(NEWEST_PYTHON) -m tests.oracle
	$(NEWEST_PYTHON) benchmarks/recovery.py --rows none --trials $(TIMES)

WORDS ?=

oracle: $(VENV)/.oracle  ## hostile scripts and frameworks, as under torchrun in each entry: make oracle WORDS='--only imports'
	$(BIN)/python -m tests.oracle $(WORDS)

chaos: $(VENV)/.dev  ## the table of evidence/chaos.md: each fault is played, and what was observed is written there
	$(BIN)/python -m tests.chaos --write evidence/chaos.md

PAIRS ?= 60

witnesses: $(VENV)/.dev  ## random jobs run, simulated and replayed: the same decisions, the same buckets of time
	$(BIN)/python -m tests.witnesses --pairs $(PAIRS)

docs: $(VENV)/.docs  ## the site in build/site; a link or an anchor that leads nowhere fails
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going --builder html docs build/site
	@echo "open build/site/index.html, or: make docs-serve"

docs-serve: docs  ## the site at http://127.0.0.1:8000
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory build/site 8000

package: $(VENV)/.release  ## sdist and wheel, their metadata, and each way of installing in a fresh environment
	$(BIN)/python tools/check_package.py

# Nothing is installed: a machine with a GPU may have no network. Its own Python is used if there is no .venv.
gpu:  ## everything that needs a GPU, in one table and less than ten minutes; exit code 4 without a GPU
	PYTHONPATH=$(CURDIR)$${PYTHONPATH:+:$$PYTHONPATH} $(firstword $(wildcard $(BIN)/python) $(PYTHON)) -m tests.gpu

RUNS ?= 20
LOADED_RUNS ?= 5
LOAD ?= 8

trust: $(VENV)/.dev  ## how often `make test` fails, on an idle machine and beside LOAD busy processes
	$(BIN)/python -m tests.trust --runs $(RUNS) --loaded-runs $(LOADED_RUNS) --load $(LOAD)

LATE ?= 1.5
STUTTER ?= 0.5

test-late: $(VENV)/.dev  ## those on real processes, which are late by LATE seconds and stand still for STUTTER, at most: see tests/late
	LATE=$(LATE) PYTHONPATH=$(CURDIR)/tests/late:$(CURDIR) $(BIN)/python tests/late/stutter.py $(STUTTER) \
		$(BIN)/python -m pytest -q -n 3 -m 'real and not lab' --timeout 240

mutants: $(VENV)/.dev  ## one safeguard switched off at a time: a property has to fail for each
	$(BIN)/python -m tests.proofs.mutants

CASES ?= 10000

mutated: $(VENV)/.dev  ## valid inputs with one mistake each: the command line has to answer in words, and soon
	$(BIN)/python -m tests.mutated --cases $(CASES)

check-static: $(VENV)/.dev  ## format, lint, types, import contracts, the picture of the architecture, the house
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/draw_architecture.py --check
	$(BIN)/python tools/house.py
	$(BIN)/python tools/check_workflows.py

check: check-static test  ## what to run before every commit

# The rooms that `source` in pyproject.toml names, by their own tests: what is covered by the way proves little.
# Those of control without the one that draws its events: it may hit or miss a branch.
COVERED := tests/graph tests/dsl tests/faults tests/control tests/record tests/sim/test_unfired.py
COVERED += --deselect tests/control/test_any_events.py

coverage: $(VENV)/.dev  ## every statement and branch of these rooms, or it fails
	TEST_ALL=1 $(BIN)/python -m coverage run -m pytest -q $(COVERED)
	$(BIN)/python -m coverage report

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	cp flowdist/dsl/problems/errors.md docs/errors.md

bench: $(VENV)/.dev  ## every benchmark, with its peer in the same run
	$(BIN)/python benchmarks/simulate_hour.py
	$(BIN)/python benchmarks/macro.py
	$(BIN)/python benchmarks/simulator.py
	$(BIN)/python benchmarks/check_large.py
	$(BIN)/python benchmarks/controller_events.py
	$(BIN)/python benchmarks/many_hosts.py
	$(BIN)/python benchmarks/torchrun_restart.py
	$(BIN)/python benchmarks/recovery.py --slow-trials 3
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/proof.py
	$(BIN)/python benchmarks/snapshot.py
	$(BIN)/python benchmarks/same_run.py
	$(BIN)/python benchmarks/from_memory.py

MINUTES ?= 30
SEED ?= 1

soak: $(VENV)/.dev  ## random faults against real processes: make soak MINUTES=2 SEED=7
	$(BIN)/python benchmarks/soak.py --minutes $(MINUTES) --seed $(SEED)

clean:
	rm -rf $(VENV) $(NEWEST) build dist *.egg-info runs
