# Two commands do all the set-up: `make demo` and `make test`. Each builds .venv when it is missing or out of date.
PYTHON ?= python3
BIN := .venv/bin
EXTRAS := [dev,docs,semantic,onnx]
PYTEST := $(BIN)/python -m pytest
# One more than there are processors, because some tests wait; each worker starts its own servers, so not too many.
WORKERS ?= $(shell n=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2); [ $$n -gt 7 ] && n=7; echo $$((n + 1)))
# The tests start hundreds of processes; with bytecode files none compiles what another has compiled.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test check docs format golden screenshots bench clients deep clean
.DEFAULT_GOAL := help

help:  ## List the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

.venv/.core .venv/.dev: pyproject.toml constraints.txt
	PYTHON=$(PYTHON) scripts/install.sh '$(if $(findstring dev,$@),$(EXTRAS),[server,testing])'
	@touch .venv/.core $@

demo: .venv/.core  ## Run a cached multi-turn session against the simulator, offline
	@$(BIN)/holdfast demo

test: .venv/.dev  ## Run the tests
	$(PYTEST) -n $(WORKERS) --dist worksteal

check: .venv/.dev  ## Format, lint, types, import contract, docs site, tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy -n 2
	cd examples/weather_agent && ../../$(BIN)/mypy --strict .
	$(BIN)/lint-imports
	@$(MAKE) --no-print-directory docs
	@$(MAKE) --no-print-directory test

docs: .venv/.dev  ## Build the docs site into build/site and check its links
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

format: .venv/.dev  ## Format, and fix what the linter can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

golden: .venv/.dev  ## Rewrite the golden files; review the diff like code
	HOLDFAST_GOLDEN=write $(PYTEST) -p no:xdist tests/golden tests/tidy/test_public_api.py

screenshots: .venv/.dev  ## Render every dashboard view into build/screenshots
	HOLDFAST_REQUIRE_BROWSER=1 HOLDFAST_SCREENSHOTS=build/screenshots $(PYTEST) -p no:xdist tests/browser/test_page.py -k fits

# `make bench retrieval` runs one benchmark: the words after `bench` are its arguments and no targets.
ifeq (bench,$(firstword $(MAKECMDGOALS)))
NAMES := $(wordlist 2,$(words $(MAKECMDGOALS)),$(MAKECMDGOALS))
$(eval $(NAMES):;@:)
endif
bench: .venv/.dev  ## Measure beside peers, into benchmarks/RESULTS.md and docs; NAME runs one, `fast` headlines, BEFORE=COMMIT also the package of then
	$(BIN)/python -m benchmarks $(if $(BEFORE),--before $(BEFORE)) $(NAMES)

clients: .venv/.dev  ## Run real clients from npm and PyPI through the gateway; LATEST=1 takes their newest versions
	$(BIN)/python -m conformance $(if $(LATEST),--latest)
	$(BIN)/python -m conformance.wrapped

deep: .venv/.dev  ## Slow checks: all API phases, more examples, 5,000 compactions, 50 mutants
	HOLDFAST_EVERY_CASE=1 $(PYTEST) -n 2 tests/service/test_openapi.py tests/gateway/test_provider_schemas.py
	HYPOTHESIS_PROFILE=wide $(PYTEST) -n 2 --dist worksteal --timeout=900 $(shell find tests -name '*_properties.py' -o -name 'test_properties.py' -o -name '*_contract.py')
	HYPOTHESIS_PROFILE=deep $(PYTEST) -p no:xdist --timeout=900 tests/gateway/test_properties.py
	HOLDFAST_MUTATED_BODIES=20000 $(PYTEST) -p no:xdist --timeout=1800 tests/gateway/test_mutated_bodies.py
	HOLDFAST_SIMULATION_SEEDS=10000 $(PYTEST) -n 2 tests/simulation/test_seeds.py -k every_seed
	HOLDFAST_PLAN_EVENTS=10000000 $(PYTEST) -p no:xdist --timeout=3600 tests/stores/postgres/test_plans.py
	HOLDFAST_REPLICA_SECONDS=300 $(PYTEST) -p no:xdist --log-cli-level=INFO tests/gateway/test_replicas.py
	HOLDFAST_FAULT_ROUNDS=25 $(PYTEST) -p no:xdist --timeout=3600 --log-cli-level=INFO tests/gateway/test_faults.py
	HOLDFAST_MUTATED_EXCHANGES=10000 $(PYTEST) -p no:xdist tests/gateway/test_mutated_exchanges.py
	$(BIN)/python -m benchmarks compaction_structure
	$(BIN)/python scripts/mutate.py

clean:  ## Remove what the other targets made
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
