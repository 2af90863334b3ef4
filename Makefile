# `make run` and `make test` are all a newcomer needs; `make help` lists the rest.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
TOOLS := $(VENV)/.tools-stamp
# The Python of .venv where there is one, so that Cargo does not build the bindings anew for another one.
RS_PYTHON = $$([ -x $(BIN)/python ] && echo $(BIN)/python || bash scripts/need.sh --python)
CORE := $(VENV)/.core-stamp
NODE_MODULES := tests/clients/node_modules/.stamp
QUICK_SPARK := $(VENV)/spark/classes.jsa

export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_QUIET := 1
export CARGO_TERM_COLOR ?= never
export PATH := $(PATH):$(HOME)/.cargo/bin

RUST_SOURCES := Cargo.toml $(wildcard Cargo.lock) $(shell find crates -name '*.rs' -o -name Cargo.toml)

.PHONY: help run build test check check-py check-rs fix bench soak dist clean

help: ## lists what make can do
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## /\1\t/' | awk -F'\t' '{ printf "  make %-8s %s\n", $$1, $$2 }'

run: build ## builds, starts a node with the sample configuration
	@echo "redis: redis-cli -p 3221    http: http://127.0.0.1:3220/v1/rooms    rooms chat:* remember, in hubsub-data/    ctrl-c ends it"
	@exec $(BIN)/hubsub serve --config sample/hubsub.toml

build: $(CORE) ## makes .venv with the release core and all tools: .venv/bin/hubsub

test: build ## everything: checks, Rust, Python, real clients
	@bash scripts/need.sh redis-server redis-cli redis-benchmark node npm etcd zookeeper mosquitto_pub mosquitto_sub chromium || true
	@if command -v npm >/dev/null && [ -f tests/clients/package.json ]; then $(MAKE) $(NODE_MODULES); fi
	@$(MAKE) $(QUICK_SPARK)
	@$(BIN)/python scripts/test.py

check: $(TOOLS) ## check-py and check-rs: no compiled core is needed; writes nothing
	@$(BIN)/python scripts/test.py check

check-py: $(TOOLS) ## Python's formatter, linter, types and import rules, spelling, plain words
	@$(BIN)/python scripts/test.py check-py

check-rs: ## Rust's formatter and linter, where the core may panic, and deny.toml; needs no .venv
	@bash scripts/need.sh python cargo
	@$(RS_PYTHON) scripts/test.py check-rs

fix: build ## what check complains of, as far as a tool can mend it
	$(BIN)/python scripts/tables.py
	cargo fmt --all
	$(BIN)/ruff check --fix --quiet python tests scripts examples benches
	$(BIN)/ruff format --quiet python tests scripts examples benches
	$(BIN)/hubsub config reference > docs/reference/config.md
	$(BIN)/hubsub pipeline options > docs/reference/spark.md
	$(BIN)/python scripts/panics.py > docs/reference/panics.md

bench: build ## the benchmark against redis-server; results under benches/results
	@bash scripts/need.sh redis-server
	$(BIN)/maturin develop --quiet --profile dist --skip-install
	cd benches && ../$(BIN)/maturin develop --quiet --release --locked
	$(BIN)/hubsub bench all --against redis-server

soak: build ## long runs of the same tests, bounded: SOAK_ROUNDS of them (10), KILL_ROUNDS kills a coordinator (34)
	cargo test --quiet --release -p hubsub-log -p hubsub-route
	SIM_SEEDS=$${SIM_SEEDS:-20000} cargo test --quiet --release -p hubsub-sim
	KILL_ROUNDS=$${KILL_ROUNDS:-34} $(BIN)/pytest -q -s tests/cluster/test_kills.py
	EXTREMES_S=$${EXTREMES_S:-3600} EXTREMES_SEED=$${EXTREMES_SEED:-1000} $(BIN)/pytest -q tests/cluster/test_extremes.py
	CHAT_EVENTS=$${CHAT_EVENTS:-60282} $(BIN)/pytest -q tests/cluster/test_chat_log.py
	LARGE_BYTES=200000000 $(BIN)/pytest -q tests/pipeline/test_large.py
	$(BIN)/pytest -q -n auto -m soak
	@[ -z "$${PAHO_TESTING:-}" ] || $(BIN)/python scripts/paho.py "$$PAHO_TESTING"
	@for round in $$(seq 1 $${SOAK_ROUNDS:-10}); do echo "round $$round"; \
	  HUBSUB_TESTING_FRESH=1 HYPOTHESIS_PROFILE=soak CHAT_EVENTS=$${CHAT_EVENTS:-60282} $(BIN)/pytest -q tests/property tests/node; done

dist: build ## the abi3 wheel, tried in a bare environment
	rm -rf dist
	$(BIN)/maturin build --profile dist --locked --out dist
	$(BIN)/python scripts/try_wheel.py dist

clean: ## removes what was built
	rm -rf $(VENV) target dist tests/clients/node_modules .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find python -name __pycache__ -prune -exec rm -rf {} + ; rm -f python/hubsub/_core*.so

$(TOOLS): pyproject.toml constraints.txt
	@bash scripts/need.sh python cargo
	@[ -x $(BIN)/python ] || "$$(bash scripts/need.sh --python)" -m venv $(VENV)
	$(BIN)/python scripts/install.py
	@touch $@

$(CORE): $(TOOLS) $(RUST_SOURCES)
	@bash scripts/need.sh cargo
	$(BIN)/maturin develop --quiet --release
	@touch $@

$(QUICK_SPARK): $(TOOLS) | $(CORE)
	@$(BIN)/python scripts/quick_spark.py $(@D) 2>$(VENV)/quick-spark.log || echo "without $@: Spark starts slowly; see $(VENV)/quick-spark.log" >&2

$(NODE_MODULES): tests/clients/package.json $(wildcard tests/clients/package-lock.json)
	cd tests/clients && npm ci --no-fund --no-audit --loglevel=error
	@touch $@
