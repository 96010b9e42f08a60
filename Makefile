# Every task of the project. `make help` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN_LOCKS := locks/cpu.txt locks/build.txt locks/uv.txt
stamp = $(VENV)/.trainyard-$(shell cat $(1) pyproject.toml | cksum | cut -d' ' -f1)
STAMP := $(call stamp,locks/dev.txt)
RUN_STAMP := $(call stamp,$(RUN_LOCKS))
UV := $(shell command -v uv 2>/dev/null || echo .uv/bin/uv)
RECIPE ?= digits
VARIANT ?= cpu
IMAGE ?= trainyard/$(VARIANT):0.1.0
COMPILE = $(UV) pip compile --quiet $(UPGRADE) --universal --generate-hashes --no-emit-index-url --python-version 3.11
# Named by Beam's, TensorFlow's and our lists, and run by no step: clients of other services, TensorBoard's server,
# Clang and uv.
UNUSED := google-cloud-aiplatform google-genai libclang uv $(addprefix google-cloud-,bigquery bigquery-storage \
  bigtable build datastore dlp kms language monitoring pubsub recommendations-ai resource-manager secret-manager \
  spanner sql \
  videointelligence vision) cloud-sql-python-connector pg8000 pymysql python-tds tensorboard-data-server
TENSORFLOW = $(shell sed -n 's/^tensorflow==\([^ ]*\).*/\1/p' locks/cpu.txt)
IMAGE_LOCK := $(foreach name,$(UNUSED),--no-emit-package $(name))
# Processes of tests: those of tests/faults wait for half of their time. A module's tests share what it prepares, so
# they stay together; modules go in the order given, as those with few tests take longest.
FAST_PROCESSES ?= -n 2 $(BY_MODULE)
PROCESSES ?= -n 3 $(BY_MODULE)
CLUSTER_PROCESSES ?= -n 4 $(BY_MODULE)
BY_MODULE := --dist loadscope --no-loadscope-reorder
export TF_CPP_MIN_LOG_LEVEL ?= 3
# Where it is set, every process of a test would compile our modules anew, a tenth of a second each.
unexport PYTHONDONTWRITEBYTECODE

# What runs a model in a browser: an npm package, of which export puts two files into each demo.html.
DEMO_LOCK := locks/demo-runtime.sha512
DEMO_RUNTIME := components/trainyard/steps/export/browser/runtime
# Where there is no npm, all but export.demo works.
WITH_DEMO := $(if $(shell command -v npm),demo-runtime)
DEMO_FILES := ort.wasm.bundle.min.mjs ort-wasm-simd-threaded.wasm

.PHONY: bench demo-runtime docs goldens help images profiles run sbom scan screenshots setup test test-cluster test-fast test-kubeflow test-wheel update verify wheel
help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 18

setup: $(STAMP) ## Install everything from the hash-locked list into .venv

.uv/bin/uv:
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --require-hashes --target .uv -r locks/uv.txt

$(STAMP): LOCKS := locks/dev.txt
$(RUN_STAMP): LOCKS := $(RUN_LOCKS)
$(STAMP) $(RUN_STAMP): $(if $(filter .uv/bin/uv,$(UV)),.uv/bin/uv)
	@test -x $(BIN)/python || $(UV) venv --quiet --python $(PYTHON) $(VENV)
	VIRTUAL_ENV=$(VENV) $(UV) pip sync --quiet --require-hashes $(LOCKS)
	VIRTUAL_ENV=$(VENV) $(UV) pip install --quiet --no-deps --no-build-isolation -e .
	@rm -f $(VENV)/.trainyard-*; touch $@

demo-runtime: $(DEMO_RUNTIME)/$(lastword $(DEMO_FILES)).gz ## Fetch with npm what export.demo needs, by its hash

$(DEMO_RUNTIME)/$(lastword $(DEMO_FILES)).gz: $(DEMO_LOCK)
	@rm -rf $(DEMO_RUNTIME) .demo; mkdir -p $(DEMO_RUNTIME) .demo
	cd .demo && npm pack --silent $$(sed -E 's/.* (.*)-(.*)\.tgz/\1@\2/' ../$(DEMO_LOCK)) && sha512sum --check ../$(DEMO_LOCK)
	tar -xzf .demo/*.tgz -C .demo $(addprefix package/dist/,$(DEMO_FILES))
	for file in $(DEMO_FILES); do gzip -9nc .demo/package/dist/$$file >$(DEMO_RUNTIME)/$$file.gz; done
	@rm -rf .demo

run: $(or $(wildcard $(STAMP)),$(RUN_STAMP)) ## Run the default recipe from raw data to a pushed model (RECIPE=name for another)
	$(BIN)/trainyard run $(RECIPE)

test: test-fast $(WITH_DEMO) ## Run every test that needs no cluster
	$(BIN)/pytest $(PROCESSES) tests/faults tests/local tests/cluster

test-fast: setup ## Run the unit and golden tests, for the loop while working
	$(BIN)/pytest $(FAST_PROCESSES) tests/golden tests/unit

verify: setup ## Check formatting, lint, spelling, types and import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/codespell *.md benchmarks components docs images k8s pipelines
	$(BIN)/mypy
	$(BIN)/lint-imports

update: UPGRADE := --upgrade
update: lock ## Resolve the locked requirements again, with the newest versions

lock: setup ## Lock what pyproject.toml names, and keep every other version
	$(COMPILE) --extra dev pyproject.toml -o locks/dev.txt
	$(COMPILE) $(IMAGE_LOCK) --extra cpu -c locks/dev.txt pyproject.toml -o locks/cpu.txt
	$(COMPILE) $(IMAGE_LOCK) --extra gpu -c locks/dev.txt pyproject.toml -o locks/gpu.txt
	$(COMPILE) $(IMAGE_LOCK) --extra tpu pyproject.toml -o locks/tpu.txt
	$(COMPILE) $(IMAGE_LOCK) --extra jax -c locks/dev.txt pyproject.toml -o locks/jax.txt
	$(COMPILE) $(IMAGE_LOCK) --extra jax-gpu -c locks/dev.txt pyproject.toml -o locks/jax-gpu.txt
	echo "tensorflow-cpu==$(TENSORFLOW)" | $(COMPILE) --no-deps - -o locks/tensorflow-cpu.txt
	printf 'editables\nhatchling\n' | $(COMPILE) -c locks/dev.txt - -o locks/build.txt
	echo "cyclonedx-bom==7.5.0" | $(COMPILE) - -o locks/sbom.txt
	echo "uv" | $(COMPILE) - -o locks/uv.txt
	printf 'detect-secrets\npip-audit\n' | $(COMPILE) - -o locks/scan.txt
	printf 'ai-edge-litert\nnumpy\npillow\n' | $(COMPILE) -c locks/dev.txt - -o locks/device.txt

images: $(WITH_DEMO) ## Build the image of the steps and training workers (VARIANT=cpu|gpu|tpu|jax|jax-gpu), or of Flink (flink)
	bash images/build.sh $(VARIANT) $(IMAGE)

sbom: $(if $(filter .uv/bin/uv,$(UV)),.uv/bin/uv) ## Write what each image holds to sbom/, as CycloneDX
	test -x .sbom/bin/python || $(UV) venv --quiet --python $(PYTHON) .sbom
	VIRTUAL_ENV=.sbom $(UV) pip sync --quiet --require-hashes locks/sbom.txt
	mkdir -p sbom
	for variant in cpu gpu tpu jax jax-gpu; do .sbom/bin/cyclonedx-py requirements locks/$$variant.txt --pyproject pyproject.toml \
	  --output-reproducible --output-format JSON --output-file sbom/trainyard-$$variant.cdx.json; done

# The secrets in tests are invented, and the digests of locks look like some. The excluded two are names.
scan: $(if $(filter .uv/bin/uv,$(UV)),.uv/bin/uv) ## Look for secrets in tracked files and known vulnerabilities in locked packages
	test -x .scan/bin/python || $(UV) venv --quiet --python $(PYTHON) .scan
	VIRTUAL_ENV=.scan $(UV) pip sync --quiet --require-hashes locks/scan.txt
	git ls-files -z ':!tests' ':!locks' ':!*.sha256' ':!*.svg' ':!*.png' ':!*.jpg' | \
	  xargs -0 .scan/bin/detect-secrets-hook --no-verify --exclude-secrets '^(mlpipeline-minio-artifact|secrets)$$'
	code=0; for lock in locks/*.txt; do \
	  .scan/bin/pip-audit --progress-spinner off --disable-pip --require-hashes -r $$lock || code=1; done; exit $$code

wheel: $(if $(filter .uv/bin/uv,$(UV)),.uv/bin/uv) $(WITH_DEMO) ## Build the wheel and the sdist into dist/
	rm -rf dist
	test -x .build/bin/python || $(UV) venv --quiet --python $(PYTHON) .build
	VIRTUAL_ENV=.build $(UV) pip sync --quiet --require-hashes locks/build.txt
	.build/bin/python -m hatchling build -d dist

test-wheel: wheel ## Install the wheel into a new environment and run a short training outside the checkout
	rm -rf .wheel
	$(UV) venv --quiet --python $(PYTHON) .wheel
	VIRTUAL_ENV=.wheel $(UV) pip install --quiet -c locks/dev.txt "trainyard[cpu] @ file://$$(ls $(CURDIR)/dist/*.whl)"
	mkdir .wheel/elsewhere && cd .wheel/elsewhere && ../bin/trainyard run digits --require-blessed \
	  --set train.epochs=1 --set evaluate.gates=[] --set evaluate.bootstrap=20 --set export.formats=[saved_model]

test-cluster: setup ## Run the tests that need the cluster of KUBECONFIG and the image TRAINYARD_IMAGE
	$(BIN)/pytest $(CLUSTER_PROCESSES) -m cluster tests/cluster

test-kubeflow: export TRAINYARD_KFP_NAMESPACE ?= kubeflow
test-kubeflow: setup ## Run the tests that need Kubeflow on the cluster of KUBECONFIG and the image TRAINYARD_IMAGE
	@$(BIN)/python tests/cluster/kubeflow_needs.py
	$(BIN)/pytest -m cluster tests/cluster/test_kubeflow*.py

goldens: setup ## Write the golden files again, to be reviewed as a diff
	TRAINYARD_GOLDENS=write $(BIN)/pytest tests/golden tests/unit/test_image_versions.py tests/unit/test_published.py \
	  tests/unit/test_scaling_simulation.py

screenshots: setup ## Run the commands that README and site show, and draw their screens and report again
	$(BIN)/python tests/golden/screenshots.py

docs: setup ## Build the documentation into site/, which loads nothing from elsewhere
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@! grep -rnoE '(<(img|script|iframe|source)[^>]* src|<link[^>]* href)="?https?://[^" >]*|url\(.?https?://[^)]*|@import[^;]*//[^;]*' \
	  site --include=*.html --include=*.css --include=*.svg

profiles: setup ## Measure again what the named networks cost, for the planner
	$(BIN)/python -m trainyard.models.costs.profiles

bench: setup ## Run the benchmarks and write their parts of docs/benchmarks.md
	$(BIN)/python -m benchmarks
