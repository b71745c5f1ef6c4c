# Every verb works from a fresh clone; `make venv` is made when it is missing or older than the lock.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help venv run check test redis kill-sweep kill-cluster takeovers redis-chaos control-plane e2e images bench bench-operator bench-cluster crds docs

help: ## these verbs
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

venv: .venv/.ready ## .venv with the `towline` command, from wheels alone

.venv/.ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "towline needs Python 3.11 or newer: make venv PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -m venv --clear .venv || { echo "this Python has no venv module (Debian: apt-get install python3-venv)" >&2; exit 1; }
	@echo "installing towline into .venv …"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --only-binary :all: --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable .
	@touch $@

run: venv ## the quick start: an agent fixes a bug in a sandbox, no cluster, no key
	@$(BIN)/towline run examples/02-fix-a-bug.yaml

check: venv ## format, lint, types, import layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

WORKERS ?= 4
test: venv ## every test that needs no cluster, WORKERS=n at a time
	$(BIN)/pytest -n $(WORKERS) --dist worksteal

redis: venv ## the event log's tests alone
	$(BIN)/pytest tests/redis

SEEDS ?= 2
POINTS ?= *
JOBS ?= 2
kill-sweep: venv ## kill every process at every failpoint: SEEDS=n runs each, POINTS=glob, JOBS=n
	$(BIN)/python -m tests.durability.sweep --seeds $(SEEDS) --points '$(POINTS)' --jobs $(JOBS)

kill-cluster: venv ## kill harnesses, gateways, operators and pods of a real cluster, as root: SEEDS=n, POINTS=glob
	$(BIN)/python -m e2e.cluster build
	$(BIN)/python -m e2e.kills --seeds $(SEEDS) --points '$(POINTS)'

takeovers: venv ## a thousand takeovers of a harness that is only paused
	$(BIN)/python -m tests.durability.takeovers

MINUTES ?= 10
redis-chaos: venv ## twenty runs at once while their store is killed every 5 to 40 s: MINUTES=n
	$(BIN)/python -m tests.durability.chaos --minutes $(MINUTES)

control-plane: venv ## the operator on a real API server and etcd, no nodes, no root
	$(BIN)/python -m e2e.cluster build
	$(BIN)/pytest tests/control_plane

e2e: venv ## everything on a real two-node cluster, as root: the chart by Helm, the examples, the faults
	$(BIN)/python -m e2e.cluster build
	$(BIN)/pytest e2e

images: venv ## build the images of all roles, without Docker
	$(BIN)/python -m images build

bench: venv ## measure, beside the alternatives, into bench/results.json
	$(BIN)/python -m bench

bench-operator: venv ## measure the operator with 1,000 runs on a real control plane
	$(BIN)/python -m bench --only operator

bench-cluster: venv ## measure runs and calls on a real two-node cluster, as root
	$(BIN)/python -m bench --only cluster

crds: venv ## write crds/ from the models
	$(BIN)/python -m towline.api.crds
	$(BIN)/python -m towline.api.crds charts/towline/crds

docs: venv ## write the generated pages (CLI help) anew
	$(BIN)/python -m tests.contracts.write_docs
