#!/usr/bin/env bash
# See it work: a worker with the echo element, and an external instance that finds
# it and calls it for others: over HTTP, from the command line, from a plugin.
# Prints each command and what came of it; leaves no process and no file.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

host=$PWD/bin/conduit-host
bash scripts/need.sh curl curl
bash scripts/need.sh ps procps
bash scripts/need.sh pgrep procps
# Short, since sockets live below it.
work=$(mktemp -d "${TMPDIR:-/tmp}/cdt-demo.XXXXXX")
worker=
external=

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
if [ ! -t 1 ] || [ -n "${NO_COLOR:-}" ]; then say() { printf '\n%s\n' "$*"; }; fi

die() {
	printf 'demo: %s\n' "$*" >&2
	local name
	for name in worker external; do
		if [ -s "$work/$name.log" ]; then
			printf -- '--- the last of the log of the %s:\n' "$name" >&2
			tail -n 30 "$work/$name.log" >&2
		fi
	done
	exit 1
}

finish() {
	status=$?
	trap - EXIT
	for pid in $external $worker; do
		kill -KILL "$pid" 2>/dev/null || true
		wait "$pid" 2>/dev/null || true
	done
	rm -rf "$work"
	exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# until_ok COMMAND...: tries again for up to 20 s, or until an instance is gone.
until_ok() {
	local _
	for _ in $(seq 200); do
		if "$@" >/dev/null 2>&1; then return 0; fi
		for pid in $external $worker; do
			kill -0 "$pid" 2>/dev/null || die "an instance ended"
		done
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

# start NAME OPTIONS...: starts an instance and sets the variables $NAME (its
# process) and $ops.
start() {
	local name=$1
	shift
	"$host" serve --name "$name" --data-dir "$work/data" --run-dir "$work/run" \
		--ops-listen 127.0.0.1:0 --log-format text "$@" 2>"$work/$name.log" &
	printf -v "$name" %s $!
	until_ok curl -fsS "$(printed "$name" ops)/readyz" || die "the $name is not ready"
}

# printed NAME WHAT: where an instance listens, as it said.
printed() {
	until_ok grep -q "^$2: " "$work/$1.log" || die "the $1 does not come up"
	sed -n "s/^$2: //p" "$work/$1.log"
}

# stop NAME: SIGTERM, and insists that it drains.
stop() {
	local pid=${!1} got=0
	kill -TERM "$pid"
	wait "$pid" || got=$?
	[ "$got" -eq 0 ] || die "the $1 exited $got, expected 0"
	printf -v "$1" %s ''
}

# web ARGUMENTS...: prints a curl command and runs it.
web() {
	printf '\n$ curl%s\n' "$(quoted "$@")"
	curl -sS --max-time 20 "$@" || die "curl exited $?"
	echo
}

echo='*://echo/echo/conduit.example.Echo'
export CONDUIT_CFG_RUN_DIR=$work/run   # where the command line finds the instances
export CONDUIT_CFG_DATA_DIR=$work/data # and the users and sessions that they share

say "1. A worker, with the echo element in its deployments directory"
mkdir "$work/at-worker" "$work/at-external"
cp bin/echo "$work/at-worker/echo"
start worker --mode worker --host-deployments "$work/at-worker" --cluster-listen 127.0.0.1:0
peer=$(printed worker cluster)
echo "cluster endpoint  $peer"
echo "plugin processes  $(ps -o pid= --ppid "$worker" | wc -l)"

say "2. An external instance: it serves no cluster endpoint, finds the worker, and has the HTTP gateway"
cp bin/echo "$work/at-external/front"
start external --mode external --host-deployments "$work/at-external" --gateway-listen 127.0.0.1:0 \
	--discovery-static "$peer" --drain-delay 0s
gateway=$(printed external gateway)
# A pick waits for the first answer of the peers, so a first call is enough.
until_ok "$host" call "$echo" Upper '"ready?"' --instance external || die "the external instance does not find the worker"
echo "HTTP gateway      $gateway"
show 0 ls instances --instance external

say "3. A call over HTTP: the external instance picks the worker"
web "$gateway/v1/call/echo/echo/conduit.example.Echo/Upper" --json '"hello, fabric"'
web "$gateway/v1/call/echo/echo/conduit.example.Echo/CountSlow" --json '{"n":3,"interval_ms":200}' -H 'Accept: application/x-ndjson' --no-buffer

say "4. The same from the command line, through the management socket of this machine's instance"
show 0 call "$echo" Upper '"hello, fabric"' --instance external
show 0 explain "$echo" Upper --instance external

say "5. An element of the external instance calls one of the worker, with Host.At"
show 0 call '*://front/echo/conduit.example.Echo' Chain \
	"{\"address\":\"$echo\",\"method\":\"WhoAmI\"}" --instance external

say "6. A method that yields results as they come, straight from the worker"
show 0 call "$echo" CountSlow '{"n":5,"interval_ms":200}' --peer "$peer"

say "7. A typed error: its reason, and whether the work may have run; over HTTP also its code"
show 1 call "$echo" Fail '{"code":"failed_precondition","reason":"lobby_full","message":"the lobby is full"}' --instance external
web "$gateway/v1/call/echo/echo/conduit.example.Echo/Fail" --json '{"code":"failed_precondition","reason":"lobby_full","message":"the lobby is full"}'

say "8. A method that its author did not open is refused before it runs"
show 4 call "$echo" Hidden --instance external

say "9. A call that is cancelled (Ctrl-C after a second; the element sees it at once)"
printf '\n$ conduit-host%s   # then SIGINT\n' "$(quoted call "$echo" Delay '{"ms":60000}' --instance external)"
"$host" call "$echo" Delay '{"ms":60000}' --instance external &
caller=$!
sleep 1
kill -INT "$caller"
got=0
wait "$caller" || got=$?
[ "$got" -eq 130 ] || die "the cancelled call exited $got, expected 130"
echo "exit status 130"

say "10. A deadline"
show 5 call "$echo" Delay '{"ms":60000}' --instance external --timeout 300ms

say "11. A user, a session, and what it opens; who has none is anonymous"
show 0 user add ada --level user
# The header with the secret is in a file, so that nothing shows it.
(umask 077 && printf 'Authorization: Bearer %s' "$("$host" session mint --user ada)" >"$work/ada")
web "$gateway/v1/call/echo/echo/conduit.example.Echo/UserOnly" --json null
web "$gateway/v1/call/echo/echo/conduit.example.Echo/UserOnly" --json null -H "@$work/ada"
web "$gateway/v1/call/front/echo/conduit.example.Echo/Chain" -H "@$work/ada" --json "{\"address\":\"$echo\",\"method\":\"WhoAmI\"}"
show 0 session revoke --user ada
sleep 1
web "$gateway/v1/call/echo/echo/conduit.example.Echo/UserOnly" --json null -H "@$work/ada"

say "12. Stop: SIGTERM drains, then nothing is left"
stop external
stop worker
if pgrep -f "$work/" >/dev/null 2>&1; then die "a process is left: $(pgrep -af "$work/")"; fi
echo "both drained and exited 0; no process is left"
