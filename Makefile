# Every task of the project. `make help` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.trainyard-$(shell cat locks/dev.txt pyproject.toml | cksum | cut -d' ' -f1)
UV := $(shell command -v uv 2>/dev/null || echo .uv/bin/uv)
RECIPE ?= digits
export TF_CPP_MIN_LOG_LEVEL ?= 3

.PHONY: help setup run test verify update images goldens docs bench
help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 18

setup: $(STAMP) ## Install everything from the hash-locked list into .venv

.uv/bin/uv:
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --require-hashes --target .uv -r locks/uv.txt

$(STAMP): $(if $(filter .uv/bin/uv,$(UV)),.uv/bin/uv)
	@test -x $(BIN)/python || $(UV) venv --quiet --python $(PYTHON) $(VENV)
	VIRTUAL_ENV=$(VENV) $(UV) pip sync --quiet --compile-bytecode --require-hashes locks/dev.txt
	VIRTUAL_ENV=$(VENV) $(UV) pip install --quiet --no-deps --no-build-isolation -e .
	@rm -f $(VENV)/.trainyard-*; touch $@

run: setup ## Run the default recipe from raw data to a pushed model (RECIPE=name for another)
	$(BIN)/trainyard run $(RECIPE)

test: setup ## Run every test that needs no cluster
	$(BIN)/pytest

verify: setup ## Check formatting, lint, types and import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

update: setup ## Resolve the locked requirements again
	$(UV) pip compile --quiet --upgrade --universal --generate-hashes --no-emit-index-url --python-version 3.11 --extra dev pyproject.toml -o locks/dev.txt
	$(UV) pip compile --quiet --upgrade --universal --generate-hashes --no-emit-index-url --python-version 3.11 --extra cpu -c locks/dev.txt pyproject.toml -o locks/cpu.txt
	echo "hatchling" | $(UV) pip compile --quiet --upgrade --universal --generate-hashes --no-emit-index-url --python-version 3.11 -c locks/dev.txt - -o locks/build.txt

images: ## Build the image of the steps and training workers
	docker build --file images/Dockerfile --target cpu --tag trainyard/cpu:0.1.0 .

goldens: setup ## Write the golden files again, to be reviewed as a diff
	TRAINYARD_GOLDENS=write $(BIN)/pytest tests/golden

docs: setup ## Build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: setup ## Run the benchmarks and write docs/benchmarks.md
	$(BIN)/python -m benchmarks
