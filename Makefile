# `make demo` and `make test` need Python 3.11 or newer with venv, and nothing else: they build .venv themselves.
# VENV=path uses another environment; an environment that is already active is not touched.

# the first interpreter that really starts and is new enough
PYTHON ?= $(shell for name in python3 python3.13 python3.12 python3.11; do \
	$$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$name; break; }; done)
VENV ?= .venv
BIN := $(VENV)/bin
PYTEST_ARGS ?=
BENCH_ARGS ?= --scale small

.PHONY: demo test nightly certify lint types docs bench bench-peers clean

demo: $(VENV)/.demo
	$(BIN)/dpone-xmin demo

# Airflow writes its configuration to a home directory of its own
test nightly certify bench bench-peers: export AIRFLOW_HOME ?= $(abspath $(VENV))/airflow

test: $(VENV)/.test
	$(BIN)/python -m pytest -n 3 -m "not nightly" $(PYTEST_ARGS)

nightly: $(VENV)/.test
	$(BIN)/python -m pytest -n 2 $(PYTEST_ARGS)

# what may be said about a release, leg by leg and engine by engine: test_artifacts/live_certification; SAMPLE=1 for a bounded one.
# On SQL Server one test at a time, and nobody else in the three databases: two tables belong to the database, and sessions are killed.
certify: $(VENV)/.test
	$(BIN)/python -m pytest -n $(if $(DPONE_TEST_MSSQL_URL),0,2) -p tests.certification.plugin $(if $(SAMPLE),-m "not nightly") $(PYTEST_ARGS)

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-cache

types: $(VENV)/.test
	$(BIN)/mypy

# ratios, budgets, plots; BENCH_ARGS="--scale full --publish" renews the docs page (25 minutes)
bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

# dlt, connectorx, ingestr and sling on the same work, each in an environment of its own
bench-peers: $(VENV)/.bench
	$(BIN)/python -m benchmarks.peers

# broken links and anchors fail the build; `make docs` writes build/site
docs: $(VENV)/.docs
	$(BIN)/zensical build --strict

$(BIN)/uv:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11 …" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "On Debian: apt-get install python3-venv" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv

# the stamps make a second call immediate; a change of pyproject.toml installs again
$(VENV)/.demo: pyproject.toml | $(BIN)/uv
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --editable '.[demo]'
	@touch $@

$(VENV)/.test: pyproject.toml | $(BIN)/uv
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --editable '.[test]'
	@touch $@ $(VENV)/.demo

$(VENV)/.bench: pyproject.toml | $(BIN)/uv
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --editable '.[bench]'
	@touch $@

$(VENV)/.docs: pyproject.toml | $(BIN)/uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python --editable '.[docs]'
	@touch $@

clean:
	rm -rf $(VENV) build dist .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis
