#!/usr/bin/env bash
# Tries what is in deploy/ and what `make release` builds as far as one machine without a
# cluster can: part of `make test-full`. It needs root, for an empty root directory and for
# another user, and systemd-analyze.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() {
	echo "FAILED: $*" >&2
	exit 1
}

[ "$(id -u)" -eq 0 ] || fail "this needs root: chroot, and processes of another user"

work=$(mktemp -d)
chmod 755 "$work"
pids=()
# started: the process of the instance, if there is one.
started() { sed -n 's/.*"@message":"started".*"pid":\([0-9]*\).*/\1/p' "$work/log" 2>/dev/null || true; }
finish() {
	for pid in "${pids[@]}" $(started); do kill -KILL "$pid" 2>/dev/null || true; done
	rm -rf "$work"
}
trap finish EXIT

echo '- a release is the same twice, also from another directory'
export VERSION=v0.0.0-test SOURCE_DATE_EPOCH=1700000000
bash scripts/release.sh "$work/one" >/dev/null
mkdir "$work/elsewhere"
git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "$work/elsewhere"
(cd "$work/elsewhere" && TZ=Asia/Tokyo LC_ALL=C bash scripts/release.sh "$work/two" >/dev/null)
cmp "$work/one/SHA256SUMS" "$work/two/SHA256SUMS" || fail 'two builds of one source differ'
(cd "$work/one" && sha256sum --quiet -c SHA256SUMS)
for arch in amd64 arm64; do
	name=conduit-host-$VERSION-linux-$arch
	tar -tzf "$work/one/$name.tar.gz" >"$work/list"
	for file in conduit-host LICENSE NOTICE README.md SECURITY.md man/conduit-host-serve.1 deploy/systemd/conduit-host.service deploy/kubernetes/conduit.yaml deploy/Containerfile; do
		grep -qx "$name/$file" "$work/list" || fail "$name.tar.gz lacks $file"
	done
	go version -m "$work/one/linux-$arch/conduit-host" >"$work/about"
	grep -q 'CGO_ENABLED=0' "$work/about" || fail "$arch is not static"
	grep -q "GOARCH=$arch" "$work/about" || fail "$arch is for another processor"
	if grep -q "$PWD" "$work/one/linux-$arch/conduit-host"; then fail "$arch names this directory"; fi
done

echo '- the image runs, as its user, without anything else'
root=$work/root
mkdir -p "$root/usr/local/bin" "$root/var/lib/conduit" "$root/etc/conduit" "$root/etc/conduit-tls"
case $(go env GOARCH) in amd64 | arm64) program=$work/one/linux-$(go env GOARCH)/conduit-host ;; *) fail 'no release for this processor' ;; esac
cp "$program" "$root/usr/local/bin/conduit-host"
cp -R "$work/one/image/deployments" "$root/deployments"
CGO_ENABLED=0 go build -o "$root/deployments/echo" ./plugins/echo
install -d -m 1777 "$root/tmp"
# As Kubernetes gives a volume to fsGroup.
chown root:65532 "$root/var/lib/conduit"
chmod 2775 "$root/var/lib/conduit"
# chroot(8) would look for setpriv inside, where there is nothing: this does both.
mkdir "$work/enter.src"
cat >"$work/enter.src/main.go" <<'GO'
package main

import (
	"fmt"
	"os"
	"syscall"
)

// Runs a program of another root directory as user 65532, without a new privilege.
func main() {
	must := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(70)
		}
	}
	must(syscall.Chroot(os.Args[1]))
	must(os.Chdir("/var/lib/conduit"))
	must(syscall.Setgroups(nil))
	must(syscall.Setresgid(65532, 65532, 65532))
	must(syscall.Setresuid(65532, 65532, 65532))
	must(syscall.Exec(os.Args[2], os.Args[2:], os.Environ()))
}
GO
CGO_ENABLED=0 go build -o "$work/enter" "$work/enter.src/main.go"
# Engines give a container /proc, by which the sandbox starts what it confines.
mkdir "$root/proc" "$root/dev"
mknod -m 666 "$root/dev/null" c 1 3 2>/dev/null || install -m 666 /dev/null "$root/dev/null"
enter=("$work/enter" "$root")
confined=()
if unshare --mount mount --bind /proc "$root/proc" 2>/dev/null; then
	enter=(unshare --mount bash -c 'mount --bind /proc "$1/proc" && exec "$0" "$@"' "$work/enter" "$root")
else
	echo '  (nothing can be mounted here: without host.sandbox)'
	confined=(--host-sandbox off)
fi
# The program in the image, as in the pod: its user, and an environment full of what
# others put there.
in_image() {
	env -i CONDUIT_PORT=tcp://10.0.0.1:7400 CONDUIT_SERVICE_HOST=10.0.0.1 CONDUIT_SERVICE_PORT=7400 PORT=80 KUBERNETES_PORT=tcp://10.0.0.1:443 \
		CONDUIT_CFG_DATA_DIR=/var/lib/conduit/data CONDUIT_CFG_HOST_DEPLOYMENTS=/deployments CONDUIT_CFG_LOG_FORMAT=json \
		"${enter[@]}" /usr/local/bin/conduit-host "$@"
}
[ "$(in_image version -o json | sed 's/.*"version":"\([^"]*\)".*/\1/')" = "$VERSION" ] || fail 'it does not say its version'

echo '- and with the configuration of the pod'
sed -n '/^  conduit.yaml: |/,/^---/p' deploy/kubernetes/conduit.yaml | sed '1d;$d;s/^    //' >"$root/etc/conduit/conduit.yaml"
(cd "$root/etc/conduit-tls" && "$program" tls dev --data-dir "$work/tls" >/dev/null && cp "$work/tls/tls/cert.pem" tls.crt && cp "$work/tls/tls/key.pem" tls.key && cp "$work/tls/tls/ca.pem" ca.crt && chown root:65532 ./* && chmod 440 ./*)
# The pod's ports, and a name that is looked up, are not this machine's.
flags=(--config /etc/conduit/conduit.yaml --name conduit-0 --cluster-listen 127.0.0.1:0 --gateway-listen 127.0.0.1:0 --ops-listen 127.0.0.1:0 --discovery-srv-name '' "${confined[@]}")
in_image config check "${flags[@]}" >"$work/check" 2>&1 || fail "$(cat "$work/check")"
in_image serve "${flags[@]}" 2>"$work/log" &
pid=$!
pids+=("$pid")
until grep -q '"@message":"ready"' "$work/log"; do
	kill -0 "$pid" 2>/dev/null || fail "it ended: $(tail -5 "$work/log")"
	read -r -t 0.1 <> <(:) || true
done
# On a busy machine the first start may have been given up: "ready" is said of that, too.
end=$((SECONDS + 60))
until answer=$(in_image call '*://echo/echo/conduit.example.Echo' Upper '"hello"' --data-dir /var/lib/conduit/data 2>"$work/why"); do
	grep -q 'reason=plugin_starting' "$work/why" && [ "$SECONDS" -lt "$end" ] || fail "$(cat "$work/why"): $(grep -e '"error"' "$work/log" | tail -n 5)"
	read -r -t 0.5 <> <(:) || true
done
[ "$answer" = '"HELLO"' ] || fail "the element in the image answers $answer"
# The program itself: $pid is the shell that waits for it.
kill -TERM "$(started)"
wait "$pid" || fail "it did not drain: $(tail -5 "$work/log")"
grep -q '"@message":"stopped"' "$work/log" || fail "it did not say that it has stopped: $(tail -5 "$work/log")"
mv "$work/log" "$work/log.ended" # the number of its process may be another one's from now on

echo '- systemd reads the unit, and finds it hardened'
mkdir "$work/unit"
sed "s,/usr/local/bin/conduit-host,$program," deploy/systemd/conduit-host.service >"$work/unit/conduit-host.service"
systemd-analyze verify --man=no --recursive-errors=no "$work/unit/conduit-host.service" >"$work/verify" 2>&1 || fail "$(cat "$work/verify")"
# Of other units of this machine it may say what it likes.
if grep conduit-host "$work/verify"; then fail 'systemd-analyze verify has something to say'; fi
systemd-analyze security --offline=true --threshold=25 "$work/unit/conduit-host.service" >"$work/security" || fail "$(cat "$work/security")"
tail -n 1 "$work/security"

echo '- and lets through what the sandbox needs'
# expand NAME: a system call, or those of a group, and of groups in it.
expand() {
	case $1 in
	@*) systemd-analyze syscall-filter "$1" | sed -n 's/^ *\([@a-z0-9_-]*\)$/\1/p' | while read -r name; do
		if [ "$name" != "$1" ]; then expand "$name"; fi
	done ;;
	*) echo "$1" ;;
	esac
}
for name in @default $(sed -n 's/^SystemCallFilter=//p' deploy/systemd/conduit-host.service); do expand "$name"; done | sort -u >"$work/calls"
for call in landlock_create_ruleset landlock_add_rule landlock_restrict_self prctl prlimit64 capset execve clone clone3 pidfd_open pidfd_send_signal waitid inotify_init1 statx flock; do
	grep -qx "$call" "$work/calls" || fail "the unit's SystemCallFilter takes $call away"
done
if grep -qx mount "$work/calls"; then fail "the unit's SystemCallFilter lets mount through: this looked at nothing"; fi
