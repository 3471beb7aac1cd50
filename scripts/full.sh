#!/usr/bin/env bash
# The tests that take too long for every change: `make test-full` runs them all,
# `make test-full PART=NAME` one of them, and .ci/run one at each run, in turn.
#
# A part is a function whose name begins with part_. It takes at most two minutes on
# two idle cores, needs nothing but what its own lines install with scripts/need.sh, and
# leaves nothing behind. One whose name begins with named_ is run only when it is named:
# it needs what many machines do not give. Tests in Go that belong here have the build tag `full` and a
# name that begins with TestFull.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# full PACKAGE REGEXP: the tests of a package that have the tag.
full() {
	go test -tags full -count 1 -timeout 10m -run "$2" "$1"
}

# A cluster of five is restarted one by one under 2,000 calls a second, ten times by each
# way in, or as often as there is time for: no call may fail, of whatever kind.
part_rolling() {
	(cd benchmarks && go run . -scenario rolling -rounds 10 -within 90s)
}

# Discovery by DNS against a server that we did not write.
part_dnsmasq() {
	bash scripts/dnsmasq.sh
	full ./integration '^TestFullDNS'
}

# Ten instances that host matches, and callers at and beyond what they have room for.
part_capacity() {
	full ./integration '^TestFullCapacity$'
}

# The store's process is killed in the middle of commits and of compactions; a disk of its own is filled.
part_store() {
	STORE_CRASH_ROUNDS=150 go test -count 1 -timeout 10m -run '^TestCrash$' ./plugins/txpersist/store
	full ./plugins/txpersist/store '^TestFull'
}

# The element and its host are killed, in turns, while callers commit; contents of 320 MiB
# go up and down; the file is held by another process, and damaged.
part_store_host() {
	full ./integration '^TestFullStore|^TestFullLargeContents$'
}

# nginx, HAProxy and Caddy before two workers, as docs/proxies.md configures them.
part_proxies() {
	local proxy
	for proxy in nginx haproxy caddy; do # RUNLEVEL: as no service of the machine
		RUNLEVEL=1 bash scripts/need.sh "$proxy" "$proxy"
	done
	full ./integration '^TestFullProxies'
}

# Links over a network of 50 ms, and over ones that lose packets or are cut, in network
# namespaces. It takes root.
part_network() {
	bash scripts/need.sh ip iproute2
	full ./integration '^TestFullNetwork'
}

# A cluster with a link for each call.
part_percall() {
	full ./integration '^TestFullPerCall'
}

# Links, and clusters of instances with plugins, that fail in each way, in fake time: as
# many seeds as two minutes have room for; `make sim` runs more.
part_sim() {
	go test -count 1 -timeout 10m -run '^TestSim$' ./internal/link -sim.seeds 2000
	go test -count 1 -timeout 10m -run '^TestSim$' ./host -sim.seeds 3000
}

# The objects for Kubernetes, as its API server decodes them.
part_kubernetes() {
	(cd deploy/kubernetes/check && go vet ./... && go test -count 1 ./...)
}

# What is shipped: a release that is the same twice and runs in an empty directory, and the
# unit as systemd reads it.
part_ship() {
	bash scripts/need.sh systemd-analyze systemd
	bash scripts/shipped.sh
}

# The image, under podman, and the unit, under a systemd of its own. Both take root and a
# kernel that lets it make namespaces, and fail where there is none.
named_container() {
	bash scripts/need.sh buildah buildah
	bash scripts/need.sh podman podman
	bash scripts/need.sh crun crun
	bash scripts/container.sh
}

named_systemd() {
	bash scripts/need.sh systemd-analyze systemd
	bash scripts/systemd.sh
}

# Calls that are cancelled, time out, lose their link and their plugin, after which
# nothing of them is left; `make soak` makes a million.
part_soak() {
	full ./host '^TestFullSoak$'
}

# The gateway's OpenAPI document is held to OpenAPI 3.1 by a validator, which is a module
# of its own: it takes long to build.
part_openapi() {
	(cd integration/openapi && go test -count 1 -timeout 10m ./...)
}

# The auth store on three servers of etcd, of which one and then another is killed.
part_etcd() {
	(cd integration/etcd && go test -tags full -count 1 -timeout 10m -run '^TestFull' .)
}

mapfile -t parts < <(compgen -A function part_ | sort)
mapfile -t named < <(compgen -A function named_ | sort)

usage() {
	echo "usage: scripts/full.sh --list | --all | --next | NAME" >&2
	printf '  %s\n' "${parts[@]#part_}" >&2
	printf '  %s (only by its name)\n' "${named[@]#named_}" >&2
	exit 2
}

one() {
	echo "--- $1"
	if declare -F "part_$1" >/dev/null; then "part_$1"; else "named_$1"; fi
}

case "${1:-}" in
--list) printf '%s\n' "${parts[@]#part_}" "${named[@]#named_}" ;;
--all)
	for part in "${parts[@]#part_}"; do one "$part"; done
	echo "not run, as they need what many machines do not give: ${named[*]#named_}"
	;;
--next) # by the number of commits, or the day where that says nothing
	turn=$(git rev-list --count HEAD 2>/dev/null || echo 1)
	if [ "$turn" -le 1 ]; then turn=$(date +%s); turn=$((turn / 86400)); fi
	one "$(printf '%s\n' "${parts[@]#part_}" | sed -n "$((turn % ${#parts[@]} + 1))p")"
	;;
*) if declare -F "part_${1:-}" >/dev/null || declare -F "named_${1:-}" >/dev/null; then one "$1"; else usage; fi ;;
esac
