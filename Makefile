# `make demo` and `make test` set up everything they need in .venv, once; a second run is quick.

# The first of these that runs, is of a supported version and can make virtual environments.
ifndef PYTHON
PYTHON := $(shell for p in python3 python3.13 python3.12 python3.11 python3.10; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' 2>/dev/null && echo $$p && break; done)
endif
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

export TF_CPP_MIN_LOG_LEVEL ?= 3
export TF_ENABLE_ONEDNN_OPTS ?= 0
# Else each of the processes that tests start would compile all of dtopt again, which takes a second.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo check test tests test-all docs format lint types lock clean

setup: $(STAMP)

$(STAMP): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "dtopt needs Python 3.10 to 3.13 with venv; set PYTHON=/path/to/python"; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $(STAMP)

demo: setup
	$(BIN)/python examples/demo.py

# Each includes the one before: a minute, a few minutes, everything.
check: setup lint types
	$(BIN)/python -m pytest tests/test_architecture.py tests/test_optim/rules/test_rules.py

# Types, which take half a minute of one core, are checked while the tests start.
test: setup
	$(MAKE) --no-print-directory -j2 lint types tests

tests: setup
	$(BIN)/python -m pytest -n auto --dist worksteal

test-all: setup lint types
	$(BIN)/python -m pytest -n auto --dist worksteal -m ""

# http://127.0.0.1:8000, renewed when a page changes.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: setup
	$(BIN)/mypy

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock:
	uv pip compile --universal --python-version 3.10 --group dev --generate-hashes --no-annotate --no-header \
		--no-emit-index-url --quiet --output-file requirements.lock pyproject.toml

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache build *.egg-info
