#!/usr/bin/env bash
# The trial of scripts/systemd.sh, which systemd runs: what an operator would type, and
# look at. It is of no use by itself.
set -euo pipefail

unit=conduit-host.service
journal() { journalctl --no-pager -u "$unit" -o cat; }
fail() {
	echo "FAILED: $*"
	systemctl --no-pager status "$unit" || true
	journal >/run/try/journal 2>&1 || true
	exit 1
}
of() { systemctl show -P "$1" "$unit"; }
is() { [ "$(of "$1")" = "$2" ] || fail "$1 is $(of "$1"), not $2"; }
# until COMMAND...: tries it again and again, for half a minute.
eventually() {
	local end=$((SECONDS + 30))
	until "$@"; do
		[ "$SECONDS" -lt "$end" ] || fail "in vain: $*"
		read -r -t 0.1 <> <(:) || true
	done
}
as_conduit() { setpriv --reuid conduit --regid conduit --clear-groups env -i PATH="$PATH" "$@"; }
host() { as_conduit conduit-host "$@" --config /etc/conduit/conduit.yaml; }
logged() { journal | grep -q "$1"; }

echo '- it starts: systemctl returns once its elements are ready'
systemctl start "$unit" || fail 'it does not start'
is ActiveState active
is SubState running
logged '"@message":"ready"' || fail 'systemctl returned before it was ready'
[ "$(of StatusErrno)" = 0 ] || fail 'a status with an error'
answer=$(host call '*://echo/echo/conduit.example.Echo' Upper '"hello"') || fail 'no call can be made'
[ "$answer" = '"HELLO"' ] || fail "the element answers $answer"

echo '- hardened, as the kernel has it'
main=$(of MainPID)
plugin=$(host ls elements -o json | sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' | head -n 1)
[ -n "$plugin" ] || fail 'the element has no process'
for pid in "$main" "$plugin"; do
	field() { sed -n "s/^$1:[[:space:]]*//p" "/proc/$pid/status"; }
	[ "$(field Uid | cut -f1)" = "$(id -u conduit)" ] || fail "process $pid runs as $(field Uid)"
	[ "$(field NoNewPrivs)" = 1 ] || fail "process $pid may gain privileges"
	[ "$(field Seccomp)" = 2 ] || fail "process $pid has no filter of system calls"
	for set in CapPrm CapEff CapBnd CapAmb; do
		[ "$(field $set)" = 0000000000000000 ] || fail "process $pid has capabilities: $set $(field $set)"
	done
done
# written PATH: who is where the instance is, and as who it is, can write there.
written() { nsenter --target "$main" --mount --root setpriv --reuid conduit --regid conduit --clear-groups touch "$1" 2>/dev/null; }
written /var/lib/conduit/trial || fail 'it cannot write in its own directory'
for path in /etc/trial /usr/local/bin/trial /var/trial /root/trial; do
	if written "$path"; then fail "it can write $path"; fi
done
nsenter --target "$main" --mount --root findmnt -n -o OPTIONS / | grep -qw ro || fail 'the root is not read-only for it'
nsenter --target "$main" --mount --root test ! -e /dev/sda -a ! -e /dev/kmsg || fail 'it sees devices'

echo '- it is reloaded'
sed -i 's/^mode: worker$/mode: worker\nlog:\n  level: debug/' /etc/conduit/conduit.yaml
systemctl reload "$unit" || fail 'it is not reloaded'
eventually logged 'SIGHUP\|a file of the configuration has changed'
is MainPID "$main"

echo '- a crash is mended'
kill -KILL "$main"
restarted() { [ "$(of NRestarts)" -ge 1 ] && [ "$(of ActiveState)" = active ]; }
eventually restarted
[ ! -e "/proc/$plugin" ] || [ "$(sed -n 's/^State:[[:space:]]*\(.\).*/\1/p' "/proc/$plugin/status")" = Z ] || fail 'its element outlived it'
host call '*://echo/echo/conduit.example.Echo' Upper '"again"' >/dev/null || fail 'no call can be made after a crash'

echo '- it is stopped, and drains: a call that is under way ends well'
host call '*://echo/echo/conduit.example.Echo' CountSlow '{"n":20,"interval_ms":100}' >/run/try/slow 2>&1 &
call=$!
begun() { grep -q . /run/try/slow; }
eventually begun
main=$(of MainPID)
systemctl stop "$unit"
wait "$call" || fail "the call under way was cut off: $(tail -n 1 /run/try/slow)"
[ "$(grep -c . /run/try/slow)" = 20 ] || fail "of the call under way $(grep -c . /run/try/slow) results came"
is ActiveState inactive
is Result success
is ExecMainStatus 0
logged '"@message":"stopped"' || fail 'it did not say that it has stopped'
is KillMode mixed

echo '- a mistake in the configuration is told at once, and not tried for ever'
echo 'no_such_key: 1' >>/etc/conduit/conduit.yaml
if systemctl start "$unit" 2>/dev/null; then fail 'it starts with a mistake'; fi
logged no_such_key || fail 'the journal does not say which'

echo '- and what systemd thinks of it'
systemd-analyze security --threshold=25 "$unit" --no-pager >/run/try/security || fail "$(cat /run/try/security)"
tail -n 1 /run/try/security
echo 'all done'
