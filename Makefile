# The commands of this project. `make help` lists them.
SHELL := bash
.DEFAULT_GOAL := help
CARGO ?= cargo
# The cluster tests wait more than they compute: more of them at once than there are cores.
CLUSTER_TEST_THREADS ?= 8

.PHONY: help
help: ## list the commands
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

.PHONY: demo
demo: tools ## show the operator at work on a real control plane; KEEP=1 leaves it up
	@hack/postgres/install.sh
	@$(CARGO) build --locked
	@hack/demo.sh

.PHONY: test
test: lint test-fast tools test-postgres test-cluster e2e ## everything that CI runs

.PHONY: test-fast
test-fast: ## the tests that need no control plane
	$(CARGO) test --locked --lib --bins
	$(CARGO) test --locked --doc
	$(CARGO) test --locked --test cli --test model
	hack/alerts-test.sh

.PHONY: test-postgres
test-postgres: ## the tests on a real PostgreSQL server
	@hack/postgres/install.sh --all
	@hack/build-clients.sh
	$(CARGO) test --locked --test postgres

.PHONY: test-cluster
test-cluster: tools ## the tests on a real control plane
	@hack/postgres/install.sh
	@hack/build-clients.sh
	$(CARGO) test --locked --test cluster -- --test-threads=$(CLUSTER_TEST_THREADS)
	hack/demo-test.sh

.PHONY: e2e
e2e: ## install with Helm on a real node and live through what users live through; needs root
	hack/e2e.sh

.PHONY: image
image: ## build the container image without Docker, as an OCI tar
	hack/image.sh

.PHONY: bench
bench: tools ## measure with 10,000 locks on a real API server; writes bench/results/latest.json
	cd bench/peer && CGO_ENABLED=0 go build -buildvcs=false -trimpath -ldflags "-s -w" -o ../../.cache/bench/peer .
	$(CARGO) bench --locked --bench locks
	$(MAKE) bench-audit bench-objects bench-postgres

.PHONY: bench-audit
bench-audit: ## measure the audit of 10,000 and 100,000 manifests; writes bench/results/latest.json
	$(CARGO) bench --locked --bench audit

.PHONY: bench-objects
bench-objects: tools ## measure what the guard of Kubernetes objects costs; writes bench/results/latest.json
	$(CARGO) bench --locked --bench objects

.PHONY: bench-postgres
bench-postgres: ## measure what a guard costs PostgreSQL; writes bench/results/latest.json
	@hack/postgres/install.sh
	$(CARGO) bench --locked --bench postgres

.PHONY: test-deep
test-deep: ## the model in deeper histories, minutes
	$(CARGO) test --locked --release --test model -- --ignored --nocapture

.PHONY: lint
lint: ## formatting, clippy, documentation, licences, shell scripts, Go programs
	$(CARGO) fmt --check
	$(CARGO) clippy --locked --all-targets -- --deny warnings
	RUSTDOCFLAGS="--deny warnings" $(CARGO) doc --locked --no-deps --quiet
	hack/lint.sh

.PHONY: tools
tools: ## build the control plane, Helm and the clients that tests and demo need
	@hack/build-tools.sh > /dev/null

.PHONY: generate
generate: ## write the generated files
	$(CARGO) run --locked --quiet -- crds --write crds
	$(CARGO) run --locked --quiet -- crds --write charts/fencedlock/files/crds
	GENERATE=1 $(CARGO) test --locked --lib schema_of_our_json

.PHONY: clean
clean: ## remove what was built
	$(CARGO) clean
	rm -rf .cache
