#!/usr/bin/env bash
# usage: fuzz.sh FUZZTIME [PACKAGE...]
#
# Runs each fuzz target of the packages (./... by default) for FUZZTIME and stops
# at the first that fails. Go itself writes the input that failed to the package's
# testdata/fuzz/: commit it, and every later `go test` tries it again.
set -euo pipefail

go=${GO:-go}
fuzztime=${1:?usage: fuzz.sh FUZZTIME [PACKAGE...]}
shift
[ $# -gt 0 ] || set -- ./...

log=$(mktemp)
trap 'rm -f "$log"' EXIT

# fuzz PACKAGE NAME: one run of one target.
fuzz() {
	echo "--- $1 $2 for $fuzztime"
	"$go" test -run "^$2\$" -fuzz "^$2\$" -fuzztime "$fuzztime" "$1" 2>&1 | tee "$log"
}

# Up to Go 1.26 the end of -fuzztime may race with a worker that is still busy, and
# is then reported as a failure (go.dev/issue/75804). Nothing was found in that
# case: no input is written, and no other line says what is wrong.
late() {
	grep -q '^ *context deadline exceeded$' "$log" &&
		! grep -qE 'Failing input written|panic:|\.go:[0-9]+:' "$log"
}

# Linking a test binary only to hear that it has no target is slow: look first.
# shellcheck disable=SC2016 # the $ is the template's
files=$("$go" list -f '{{$p := .}}{{range .TestGoFiles}}{{$p.ImportPath}} {{$p.Dir}}/{{.}}
{{end}}{{range .XTestGoFiles}}{{$p.ImportPath}} {{$p.Dir}}/{{.}}
{{end}}' "$@")
packages=$(while read -r package file; do
	if [ -n "$file" ] && grep -q '^func Fuzz' "$file"; then echo "$package"; fi
done <<<"$files" | sort -u)

targets=0
for package in $packages; do
	names=$("$go" test -list '^Fuzz' "$package")
	for name in $(grep '^Fuzz' <<<"$names" || true); do
		if ! fuzz "$package" "$name"; then
			late || { echo "error: $name of $package failed" >&2 && exit 1; }
			echo "--- nothing found: Go's fuzzer was late for its own deadline; once more"
			fuzz "$package" "$name" || { echo "error: $name of $package failed" >&2 && exit 1; }
		fi
		targets=$((targets + 1))
	done
done
echo "--- fuzzed $targets targets, nothing found"
