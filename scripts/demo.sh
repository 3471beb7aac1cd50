#!/usr/bin/env bash
# See it work: a worker with the echo element, called from the command line.
# Prints each command and what came of it; leaves no process and no file.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

host=$PWD/bin/conduit-host
# Short, since sockets live below it.
work=$(mktemp -d "${TMPDIR:-/tmp}/cdt-demo.XXXXXX")
worker=

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
if [ ! -t 1 ] || [ -n "${NO_COLOR:-}" ]; then say() { printf '\n%s\n' "$*"; }; fi

die() {
	printf 'demo: %s\n' "$*" >&2
	if [ -s "$work/worker.log" ]; then
		printf '%s\n' '--- the last of the worker'"'"'s log:' >&2
		tail -n 30 "$work/worker.log" >&2
	fi
	exit 1
}

finish() {
	status=$?
	trap - EXIT
	if [ -n "$worker" ] && kill -0 "$worker" 2>/dev/null; then
		kill -KILL "$worker" 2>/dev/null || true
		wait "$worker" 2>/dev/null || true
	fi
	rm -rf "$work"
	exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# until COMMAND...: tries again for up to 20 s, or until the worker is gone.
until_ok() {
	local _
	for _ in $(seq 200); do
		if "$@" >/dev/null 2>&1; then return 0; fi
		kill -0 "$worker" 2>/dev/null || die "the worker ended"
		sleep 0.1
	done
	return 1
}

# quoted WORDS...: as a person would type them.
quoted() {
	local word
	for word; do
		case $word in
		*[!A-Za-z0-9_./:=-]*) printf " '%s'" "$word" ;;
		*) printf ' %s' "$word" ;;
		esac
	done
}

# show EXIT COMMAND...: prints a command, runs it, and insists on its exit status.
show() {
	local want=$1 got=0
	shift
	printf '\n$ conduit-host%s\n' "$(quoted "$@")"
	"$host" "$@" || got=$?
	[ "$got" -eq "$want" ] || die "exit status $got, expected $want"
}

say "1. A worker, with the echo element in its deployments directory"
mkdir "$work/deployments"
cp bin/echo "$work/deployments/"
"$host" serve --mode worker --name demo --auth-mode disabled \
	--data-dir "$work/data" --run-dir "$work/run" --host-deployments "$work/deployments" \
	--cluster-listen 127.0.0.1:0 --ops-listen 127.0.0.1:0 --log-format text 2>"$work/worker.log" &
worker=$!
until_ok grep -q '^ops: ' "$work/worker.log" || die "the worker does not come up"
peer=$(sed -n 's/^cluster: //p' "$work/worker.log")
ops=$(sed -n 's/^ops: //p' "$work/worker.log")
# Ready when a call gets through; /readyz says the same for those who have curl.
echo='*://echo/echo/conduit.example.Echo'
until_ok "$host" call "$echo" Upper '"ready?"' --peer "$peer" || die "the element does not come up"
echo "cluster endpoint  $peer"
echo "health            $ops/readyz"
plugins=$(ps -o pid= --ppid "$worker" | wc -l)
echo "plugin processes  $plugins"

say "2. A unary call"
show 0 call "$echo" Upper '"hello, fabric"' --peer "$peer"

say "3. A method that yields results as they come"
show 0 call "$echo" CountSlow '{"n":5,"interval_ms":200}' --peer "$peer"

say "4. A typed error: its code, its reason, and whether the work may have run"
show 1 call "$echo" Fail '{"code":"failed_precondition","reason":"lobby_full","message":"the lobby is full"}' --peer "$peer"

say "5. A method that its author did not open is refused before it runs"
show 4 call "$echo" Hidden --peer "$peer"

say "6. A call that is cancelled (Ctrl-C after a second; the element sees it at once)"
printf '\n$ conduit-host%s   # then SIGINT\n' "$(quoted call "$echo" Delay '{"ms":60000}' --peer "$peer")"
"$host" call "$echo" Delay '{"ms":60000}' --peer "$peer" &
caller=$!
sleep 1
kill -INT "$caller"
got=0
wait "$caller" || got=$?
[ "$got" -eq 130 ] || die "the cancelled call exited $got, expected 130"
echo "exit status 130"

say "7. A deadline"
show 5 call "$echo" Delay '{"ms":60000}' --peer "$peer" --timeout 300ms

say "8. Stop: SIGTERM drains, then nothing is left"
kill -TERM "$worker"
got=0
wait "$worker" || got=$?
[ "$got" -eq 0 ] || die "the worker exited $got, expected 0"
if pgrep -f "$work/" >/dev/null 2>&1; then die "a process is left: $(pgrep -af "$work/")"; fi
worker=
echo "the worker drained and exited 0; no process is left"
