# Elemental Conduit. `make` alone explains itself.
#
# Everything here needs Go and a POSIX shell. Tools are built from source at a
# pinned version into .tools/; the only thing taken from the system is protoc,
# and only for `make generate` and `make check-generate`.

GO    ?= go
BIN   := bin
TOOLS := $(CURDIR)/.tools

GOLANGCI_VERSION := v2.15.0
# The version is part of the file's name, so that a new pin builds a new tool.
GOLANGCI := $(TOOLS)/golangci-lint-$(GOLANGCI_VERSION)

# What a build says about itself. A tree without git (an unpacked archive) is "dev".
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS ?= -X main.version=$(VERSION)

# A run that hangs is ended with a stack dump well before a person would give up.
TEST_TIMEOUT ?= 5m
RACE_TIMEOUT ?= 10m
# More flags for go test, as in: make test TESTFLAGS='-run TestDrain -v'
TESTFLAGS ?=
# Packages of `make test`, `make cover` and `make fuzz`.
PKGS ?= ./...
# Everything but the black-box tests, which spend their time in other processes
# that the race detector does not see.
RACE_PKGS ?= $(shell $(GO) list ./... | grep -v '/integration$$')
# The modules beside this one: what they need stays out of its go.mod.
MODULES := $(patsubst ./%/go.mod,%,$(shell find . -mindepth 2 -name go.mod -not -path './.*'))
# Time for each fuzz target; a count such as 5000x works, too.
FUZZTIME ?= 10s
# Which benchmarks, in which packages, and what to hand to the program in benchmarks/.
BENCH           ?= .
BENCH_PKGS      ?= ./...
BENCHFLAGS      ?= -benchmem
BENCHMARKS_ARGS ?=
# Which revision `make bench-compare` measures beside this tree, and what else to hand over.
BASE         ?=
COMPARE_ARGS ?=
# How often `make bench-cluster` kills a worker, and restarts all five, by each way in.
KILLS ?= 6
ROLLS ?= 1
# How often `make bench-host` replaces a binary under load.
SWAPS ?= 100

# What to hand to `make bench-store`, as in STORE_ARGS='-rounds 1 -resources 50000'.
STORE_ARGS ?=

# How many seeds `make sim` runs (100000), and how often `make sim-capacity` runs each row
# of its table (20); FIRST is the first seed of `make sim`.
SEEDS ?=
FIRST ?= 1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo build test test-full race fuzz bench bench-compare bench-pick sim sim-capacity bench-cluster bench-host bench-store soak lint fmt check-fmt check-mod check-cross release man generate check-generate cover clean ci others

help: ## List what can be made
	@printf 'usage: make TARGET\n\n'
	@sed -n 's/^\([a-z][a-z-]*\):.*## \(.*\)/  \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-17s %s\n", $$1, $$2 }'

demo: build ## See it work: hosts, elements and calls on this machine
	@bash scripts/demo.sh

# Go decides what is up to date, so these are never files to make. They are built as tests and
# authors' own plugins are, so that nothing is compiled twice; make release trims the paths.
build: ## Build bin/conduit-host and the elements bin/echo, bin/matches and bin/txpersist
	$(GO) build -ldflags '$(LDFLAGS)' -o $(BIN)/conduit-host ./cmd/conduit-host
	$(GO) build -ldflags '$(LDFLAGS)' -o $(BIN)/echo ./plugins/echo
	$(GO) build -ldflags '$(LDFLAGS)' -o $(BIN)/matches ./plugins/matches
	$(GO) build -ldflags '$(LDFLAGS)' -o $(BIN)/txpersist ./plugins/txpersist

# Elements and clients in other languages are tested with what Debian has for these.
# Where that is missing and cannot be had without a question, their tests are skipped and say so.
others:
	@bash scripts/need.sh python3:grpc python3-grpcio || true
	@bash scripts/need.sh node:ws nodejs node-ws || true

test: others ## Run all tests (TESTFLAGS='-run Name -v' for some)
	$(GO) test -timeout $(TEST_TIMEOUT) $(TESTFLAGS) $(PKGS)
	cd benchmarks && $(GO) test -timeout $(TEST_TIMEOUT) ./...
	cd integration/etcd && $(GO) test -timeout $(TEST_TIMEOUT) ./...

test-full: others ## Run the tests that take too long for every change (PART=NAME for one, scripts/full.sh --list tells which)
	@bash scripts/full.sh $(or $(PART),--all)

# The race detector has pointers checked, too. bbolt reads pages through unsafe slices, and of
# a damaged file the check would end the process, where a program of users panics, which is
# caught, and what the tests of damaged files are about.
race: ## Run the tests under the race detector (RACE_PKGS)
	CGO_ENABLED=1 $(GO) test -race -gcflags='go.etcd.io/bbolt/...=-d=checkptr=0' -timeout $(RACE_TIMEOUT) $(TESTFLAGS) $(RACE_PKGS)

fuzz: ## Run each fuzz target for FUZZTIME (10s)
	@GO='$(GO)' bash scripts/fuzz.sh $(FUZZTIME) $(PKGS)

bench: ## Run the benchmarks (BENCH=regexp), then the program in benchmarks/
	$(GO) test -run '^$$' -bench '$(BENCH)' $(BENCHFLAGS) $(BENCH_PKGS)
	@if [ -f benchmarks/go.mod ]; then \
		echo 'cd benchmarks && $(GO) run . $(BENCHMARKS_ARGS)'; \
		cd benchmarks && $(GO) run . $(BENCHMARKS_ARGS); \
	fi

bench-compare: ## Measure calls of this tree beside those of another revision (BASE=rev, COMPARE_ARGS)
	@test -n '$(BASE)' || { echo 'error: say beside which revision, as in `make bench-compare BASE=main`' >&2; exit 2; }
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && git archive '$(BASE)' | tar -x -C "$$dir" && \
		cd benchmarks && $(GO) run . -base "$$dir" -sizes 32 -inflight 1,64 -rounds 9 $(COMPARE_ARGS)

bench-pick: ## Measure the choice among 10 to 10,000 peers
	$(GO) test -run '^$$' -bench Pick $(BENCHFLAGS) ./registry

sim: ## Simulate clusters that fail in each way: SEEDS (100000) worlds from seed FIRST on
	$(GO) test -count 1 -run '^TestSim$$' -timeout 24h ./internal/link -sim.seeds $(or $(SEEDS),100000)
	$(GO) test -count 1 -run '^TestSim$$' -timeout 24h ./host -sim.first $(FIRST) -sim.seeds $(or $(SEEDS),100000)

soak: ## Make CALLS (1000000) calls under cancels, deadlines, cuts and kills, and look what is left of them
	SOAK_CALLS=$(or $(CALLS),1000000) $(GO) test -tags full -count 1 -timeout 2h -run '^TestFullSoak$$' -v ./host

sim-capacity: ## Simulate picks with network delay: joiners, false refusals (SEEDS)
	$(GO) test -run '^TestCapacity$$' -v -timeout 30m ./registry -sim.seeds $(or $(SEEDS),20)

bench-cluster: ## Kill workers, and restart five, under calls (KILLS, ROLLS)
	cd benchmarks && $(GO) run . -scenario kill -rounds $(KILLS)
	cd benchmarks && $(GO) run . -scenario rolling -rounds $(ROLLS)

bench-host: ## Swap, kill, start and crash plugins, and look at their neighbours (SWAPS)
	$(GO) test -run '^$$' -bench 'Swap$$' -benchtime $(SWAPS)x ./host
	$(GO) test -run '^$$' -bench 'Killed$$' -benchtime 50x ./host
	$(GO) test -run '^$$' -bench 'Start$$' -benchtime 50x ./host
	$(GO) test -run '^$$' -bench 'StartMany$$' -benchtime 3x ./host
	$(GO) test -run '^$$' -bench 'Neighbours$$' -benchtime 20000x ./host
	HOST_CRASH_CYCLES=200 $(GO) test -count 1 -run 'TestManyCrashes$$' -v ./host

bench-store: ## The store beside bbolt and PostgreSQL 15, doing the same work (STORE_ARGS)
	@bash scripts/need.sh /usr/lib/postgresql/15/bin/postgres postgresql-15
	cd benchmarks && $(GO) run . -scenario store $(STORE_ARGS)

lint: $(GOLANGCI) ## Report what the linters find
	$(GO) vet -tags full ./...
	$(GOLANGCI) run --build-tags full ./...
	cd benchmarks && $(GO) vet ./... && $(GOLANGCI) run --config ../.golangci.yml ./...
	cd integration/etcd && $(GO) vet -tags full ./... && $(GOLANGCI) run --build-tags full --config ../../.golangci.yml ./...

fmt: $(GOLANGCI) ## Format the Go files and group their imports
	$(GOLANGCI) fmt ./...

check-fmt: ## Fail if a Go file is not formatted
	@files=$$(find . -name '*.go' ! -path './.*/*' -exec gofmt -l {} +) || exit 1; \
	if [ -n "$$files" ]; then echo 'not formatted (make fmt mends it):' >&2; echo "$$files" >&2; exit 1; fi

check-mod: ## Fail if a go.mod is not tidy or a module is not what go.sum says
	$(GO) mod verify
	$(GO) mod tidy -diff
	@for dir in $(MODULES); do echo "$(GO) -C $$dir mod tidy -diff"; $(GO) -C $$dir mod tidy -diff || exit 1; done

check-cross: ## Build what authors and clients import for other systems
	GOOS=darwin GOARCH=arm64 $(GO) build ./...
	GOOS=linux GOARCH=arm64 $(GO) build ./...

release: ## Build static programs for Linux (amd64, arm64) into dist, with checksums (VERSION)
	@GO='$(GO)' bash scripts/release.sh dist

man: ## Write the man pages into dist/man
	$(GO) run ./cmd/conduit-host man dist/man

generate: $(TOOLS)/protoc-gen-go ## Write the code of proto/ anew
	@PATH="$(TOOLS):$$PATH" bash scripts/generate.sh

check-generate: $(TOOLS)/protoc-gen-go ## Fail if the code of proto/ is not what its definitions say
	@PATH="$(TOOLS):$$PATH" bash scripts/generate.sh --check

cover: ## Write coverage.html and print the total
	$(GO) test -timeout $(TEST_TIMEOUT) -coverpkg=./... -coverprofile=coverage.out $(TESTFLAGS) $(PKGS)
	$(GO) tool cover -html=coverage.out -o coverage.html
	$(GO) tool cover -func=coverage.out | tail -n 1

ci: ## Do all that the continuous integration does
	bash .ci/run

clean: ## Remove what was built, but not the tools
	rm -rf $(BIN) dist .demo coverage.out coverage.html

# Three minutes on two cores, once for each version.
$(GOLANGCI):
	@echo 'building golangci-lint $(GOLANGCI_VERSION); this takes some minutes, once'
	@mkdir -p $(TOOLS)
	GOBIN='$(TOOLS)' $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)
	@mv $(TOOLS)/golangci-lint $@

$(TOOLS)/protoc-gen-go: tools.mod tools.sum
	@mkdir -p $(TOOLS)
	$(GO) build -modfile=tools.mod -o $(TOOLS)/ tool
	@touch $@
