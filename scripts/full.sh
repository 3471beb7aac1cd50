#!/usr/bin/env bash
# The tests that take too long for every change: `make test-full` runs them all,
# `make test-full PART=NAME` one of them, and .ci/run one at each run, in turn.
#
# A part is a function whose name begins with part_. It takes at most two minutes on
# two idle cores, needs nothing but what its own lines install with scripts/need.sh, and
# leaves nothing behind. Tests in Go that belong here have the build tag `full` and a
# name that begins with TestFull.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# full PACKAGE REGEXP: the tests of a package that have the tag.
full() {
	go test -tags full -count 1 -timeout 10m -run "$2" "$1"
}

# A cluster of five is restarted one by one under calls.
part_rolling() {
	(cd benchmarks && go run . -scenario rolling -rounds 2)
}

# The auth store on three servers of etcd, of which one and then another is killed.
part_etcd() {
	(cd integration/etcd && go test -tags full -count 1 -timeout 10m -run '^TestFull' .)
}

mapfile -t parts < <(compgen -A function part_ | sort)

usage() {
	echo "usage: scripts/full.sh --list | --all | --next | NAME" >&2
	printf '  %s\n' "${parts[@]#part_}" >&2
	exit 2
}

one() {
	echo "--- $1"
	"part_$1"
}

case "${1:-}" in
--list) printf '%s\n' "${parts[@]#part_}" ;;
--all) for part in "${parts[@]#part_}"; do one "$part"; done ;;
--next) # by the number of commits, or the day where that says nothing
	turn=$(git rev-list --count HEAD 2>/dev/null || echo 1)
	if [ "$turn" -le 1 ]; then turn=$(date +%s); turn=$((turn / 86400)); fi
	one "$(printf '%s\n' "${parts[@]#part_}" | sed -n "$((turn % ${#parts[@]} + 1))p")"
	;;
*) if declare -F "part_${1:-}" >/dev/null; then one "$1"; else usage; fi ;;
esac
