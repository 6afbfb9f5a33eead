# Every target makes the virtual environment it needs; repeated calls are quick.

PYTHON ?= python3.11
PIP_FLAGS ?= -qq --disable-pip-version-check
ROOT_DIR ?= runs/demo-$(shell date +%Y%m%d-%H%M%S)
# Test files are shared between so many processes; each keeps about one processor busy.
TEST_JOBS ?= 2
PYTEST_FLAGS ?=
KILLS ?= 25
# What meets TensorFlow, and not only parts that have tests of their own.
OLDEST_LINE := networks utils $(addsuffix .py, \
	$(addprefix algorithms/test_, agent learner normalization off_policy_algorithms) \
	$(addprefix drivers/test_, lifecycle policy_driver queues segments stepping) \
	export/test_saved_model replay/test_uniform_replay trainers/test_checkpointing)

RUN := .venv
DEV := .venv-dev
OLDEST := .venv-oldest
DOCS := .venv-docs

.DEFAULT_GOAL := help
.PHONY: help demo test checked environments test-default test-oldest lint docs thorough learning kill-loop chaos examples benchmarks locks wheel clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /|/' | awk -F'|' '{ printf "  make %-14s %s\n", $$1, $$2 }'

# $(call venv,FOLDER): a fresh virtual environment with exactly what the lock file (the first prerequisite) names.
define venv
	@command -v $(PYTHON) >/dev/null || { \
		echo "make needs Python 3.11, and '$(PYTHON)' is not on the PATH: install it, or name it with 'make PYTHON=/path/to/python3.11'; docs/first_run.md has the way for 3.12 and 3.13."; \
		exit 1; }
	@echo "making $(1) from $< (about a minute)"
	@rm -rf $(1)
	@$(PYTHON) -m venv $(1)
	@$(1)/bin/python -m pip install $(PIP_FLAGS) -r $<
	@$(1)/bin/python -m pip install $(PIP_FLAGS) --no-deps --editable .
	@touch $@
endef

$(RUN)/.made: requirements.lock pyproject.toml setup.py
	$(call venv,$(RUN))

$(DEV)/.made: requirements-dev.lock pyproject.toml setup.py
	$(call venv,$(DEV))

$(OLDEST)/.made: requirements-oldest.lock pyproject.toml setup.py
	$(call venv,$(OLDEST))

$(DOCS)/.made: requirements-docs.lock pyproject.toml setup.py
	$(call venv,$(DOCS))

demo: $(RUN)/.made  ## train CartPole with asynchronous PPO and show the progress
	$(RUN)/bin/python -m alf.bin.train --gin_file=examples/async_ppo_cart_pole.gin --root_dir=$(ROOT_DIR)

test: checked test-default test-oldest  ## everything CI runs

# Neither pip nor mypy keeps two processors busy.
checked:
	@$(MAKE) --no-print-directory -j2 lint $(OLDEST)/.made docs

environments:  ## make the virtual environments of the tests, side by side
	@$(MAKE) --no-print-directory -j3 $(DEV)/.made $(OLDEST)/.made $(DOCS)/.made

lint: $(DEV)/.made  ## ruff and mypy
	$(DEV)/bin/ruff check .
	$(DEV)/bin/ruff format --check .
	$(DEV)/bin/mypy

docs: $(DOCS)/.made  ## build the documentation site into build/site; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --quiet --strict

test-default: $(DEV)/.made  ## all tests but the learning runs, chaos and thorough ones, on the default TensorFlow line
	$(DEV)/bin/python -m pytest -n $(TEST_JOBS) --dist loadfile -m "not learning and not chaos and not thorough" $(PYTEST_FLAGS)

test-oldest: $(OLDEST)/.made  ## the fast tests of what meets TensorFlow, on its oldest line
	$(OLDEST)/bin/python -m pytest -n $(TEST_JOBS) --dist loadfile -m "not learning and not slow and not thorough" $(PYTEST_FLAGS) \
		$(OLDEST_LINE:%=tests/%)

thorough: $(DEV)/.made  ## the cases of tests/thorough.txt, which CI shows by cheaper ones; half an hour
	$(DEV)/bin/python -m pytest -n $(TEST_JOBS) --dist loadfile -m thorough $(PYTEST_FLAGS)

learning: $(DEV)/.made  ## the long tests: train until a return is reached, over several seeds
	$(DEV)/bin/python -m pytest -m learning --timeout 1800 $(PYTEST_FLAGS)

kill-loop: $(DEV)/.made  ## kill -9 at 2 x 25 random moments of training and saving; five minutes
	ALF_KILLS=$(KILLS) $(DEV)/bin/python -m pytest -s tests/trainers/test_kill_loop.py $(PYTEST_FLAGS)

chaos: KILLS = 30
chaos: $(DEV)/.made  ## kill -9 of workers, evaluator, nodes and learner on an emulated cluster, 30 times; 20 to 25 minutes
	ALF_CHAOS_KILLS=$(KILLS) $(DEV)/bin/python -m pytest -s tests/distributed/test_chaos.py $(PYTEST_FLAGS)

examples: $(DEV)/.made  ## every example that states a return, in full
	$(DEV)/bin/python -m benchmarks.examples

benchmarks: $(DEV)/.made  ## all benchmarks but those of learning and memory; results go to benchmarks/results
	$(DEV)/bin/python -m benchmarks.startup
	$(DEV)/bin/python -m benchmarks.queues
	$(DEV)/bin/python -m benchmarks.unroll
	$(DEV)/bin/python -m benchmarks.driver_cpu
	$(DEV)/bin/python -m benchmarks.service_overhead
	$(DEV)/bin/python -m benchmarks.agents
	$(DEV)/bin/python -m benchmarks.workers
	$(DEV)/bin/python -m benchmarks.remote_step
	$(DEV)/bin/python -m benchmarks.scale
	$(DEV)/bin/python -m benchmarks.plain_sketch
	$(DEV)/bin/python -m benchmarks.peers_cart_pole
	$(DEV)/bin/python -m benchmarks.off_policy
	$(DEV)/bin/python -m benchmarks.pictures

locks: $(RUN)/.made  ## resolve the four lock files anew from pyproject.toml
	$(RUN)/bin/python .ci/locks.py

wheel: $(DEV)/.made  ## build the wheel and the source archive into dist/
	$(DEV)/bin/python -m build

clean:  ## remove the virtual environments, caches and build outputs (runs/ stays)
	rm -rf $(RUN) $(DEV) $(OLDEST) $(DOCS) .cache build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find alf benchmarks examples tests -name __pycache__ -type d -prune -exec rm -rf {} +
