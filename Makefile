# Every target sets up what it needs: .venv is set up again when pyproject.toml or constraints.txt change.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := -m pip install --quiet --disable-pip-version-check
# Files with tests of a mark: each process that runs them reads these alone, not the whole suite.
MARKED = $(sort $(shell grep -rl --include='test_*.py' 'mark\.$(1)' tests))
# Where it is set, every process compiles every test again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help run test test-slow test-all test-kernels test-lowest figures figures-quick check format bench mutants constraints docs clean
.DEFAULT_GOAL := help

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/'

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(INSTALL) -c constraints.txt -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.ready
	$(BIN)/python $(INSTALL) -c constraints.txt -e '.[dev]'
	@touch $@

$(VENV)/.docs: $(VENV)/.ready
	$(BIN)/python $(INSTALL) -c constraints.txt -e '.[docs]'
	@touch $@

run: $(VENV)/.ready  ## run the main experiment on embedded data and write its report
	$(BIN)/fedsim attack=span_matching

test: $(VENV)/.dev  ## run the tests of every capability (about six minutes on two cores)
	$(BIN)/python -m pytest -n 3 --dist worksteal -m "not slow"

test-slow: $(VENV)/.dev  ## run the others: Ray and deployment in full, signals, sweeps elsewhere, long searches
	$(BIN)/python -m pytest -n 4 --dist worksteal -m slow $(call MARKED,slow)

test-all: test test-slow  ## run all tests

test-kernels: $(VENV)/.dev  ## run the tests of rounding as older and newer CPUs would compute them
	ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 $(BIN)/python -m pytest -n 2 -m kernels $(call MARKED,kernels)
	ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 $(BIN)/python -m pytest -n 2 -m kernels $(call MARKED,kernels)

test-lowest:  ## run the fast tests with the oldest versions that pyproject.toml admits
	$(PYTHON) -m venv --clear build/lowest
	build/lowest/bin/python $(INSTALL) -c constraints-lowest.txt -e '.[dev]'
	build/lowest/bin/python -m pytest -n 2 tests/unit tests/contracts tests/e2e/test_rounds.py

figures: $(VENV)/.ready  ## run every experiment of at most 20 minutes, and compare its figures with what is expected (nightly)
	$(BIN)/fedsim check --under 20

figures-quick: $(VENV)/.ready  ## the same of those of at most half a minute
	$(BIN)/fedsim check --under 0.5

check: $(VENV)/.dev  ## lint, format check, strict types, layers of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev  ## rewrite the code in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.ready  ## run all measurements (two hours)
	@set -e; for script in $(filter-out benchmarks/mutants.py benchmarks/leaderboard.py,$(wildcard benchmarks/*.py)); do echo "== $$script"; $(BIN)/python $$script; done

# The theme's own note on its maintenance is no warning of the build.
docs: $(VENV)/.docs  ## build the documentation site into build/site, offline; a broken link or a warning fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --clean

mutants: $(VENV)/.dev  ## change the methods in small ways and see whether the fast tests notice (hours)
	$(BIN)/python benchmarks/mutants.py --essential
	$(BIN)/python benchmarks/mutants.py --sample 1000

constraints:  ## renew constraints.txt with the newest versions that pyproject.toml admits
	$(PYTHON) -m venv --clear build/newest
	build/newest/bin/python $(INSTALL) -e '.[dev,docs]'
	build/newest/bin/python -m pip freeze --all --exclude pip --exclude-editable > build/frozen.txt
	{ grep '^#' constraints.txt; sed -E '/^(cuda|nvidia|triton)/d; s/\+.*//' build/frozen.txt; } > build/constraints.txt
	mv build/constraints.txt constraints.txt

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache
