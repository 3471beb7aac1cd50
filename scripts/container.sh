#!/usr/bin/env bash
# Builds the image of deploy/Containerfile, and runs it as docs/operations.md says: with a
# call to an element in it, a drain, and a second life on the same volume. Nothing is
# fetched for it, and it runs where there is no network.
#
# `make test-full PART=container`. It takes root, buildah, podman and crun, and a machine
# that lets root make namespaces: a container does not, most often.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() {
	echo "FAILED: $*" >&2
	exit 1
}

# In namespaces for mounts and the network: engines want cgroup2 where many machines have
# both, and the ports of the image are not this machine's.
if [ "${1:-}" = --inside ]; then
	work=$2
	umount -R /sys/fs/cgroup 2>/dev/null || true
	mount -t cgroup2 cgroup2 /sys/fs/cgroup
	ip link set lo up
	# Without a group of processes, which is the machine's to give; --ulimit: no more than
	# there is to give. What is left is what Kubernetes' "restricted" asks for.
	podman=(podman --storage-driver vfs --root "$work/store" --runroot "$work/run" --cgroup-manager cgroupfs --events-backend none --tmpdir "$work/tmp")
	start=(run --detach --pull never --cgroups disabled --network host --ulimit "nofile=1024:$(ulimit -Hn)" --ulimit nproc=1000:1000
		--read-only --cap-drop ALL --security-opt no-new-privileges --stop-timeout 60 --log-driver k8s-file --volume data:/var/lib/conduit)
	"${podman[@]}" run --rm --pull never --cgroups disabled --network host --ulimit "nofile=1024:$(ulimit -Hn)" --ulimit nproc=1000:1000 localhost/trial version

	stopped() { [ "$("${podman[@]}" inspect -f '{{.State.Running}}' "$1")" != true ]; }
	up() {
		local end=$((SECONDS + 60))
		until "${podman[@]}" logs "$1" 2>&1 | grep -q '"@message":"ready"'; do
			if stopped "$1"; then fail "it ended: $("${podman[@]}" logs "$1" 2>&1 | tail -n 5)"; fi
			[ "$SECONDS" -lt "$end" ] || fail "it is not ready: $("${podman[@]}" logs "$1" 2>&1 | tail -n 5)"
			read -r -t 0.2 <> <(:) || true
		done
	}
	inside() { "${podman[@]}" exec "$@"; }
	of() { "${podman[@]}" logs "$1" 2>&1 | sed -n 's/.*"@message":"started".*"instance":"\([0-9a-f]*\)".*/\1/p'; }

	echo '- it runs, and an element of an image made from it is called'
	"${podman[@]}" "${start[@]}" --name first localhost/trial-elements serve --mode worker --name trial >/dev/null
	up first
	answer=$(inside first /usr/local/bin/conduit-host call '*://echo/echo/conduit.example.Echo' Upper '"hello"')
	[ "$answer" = '"HELLO"' ] || fail "the element answers $answer"
	[ "$("$work/conduit-host" call '*://echo/echo/conduit.example.Echo' Upper '"hello"' --peer ws://127.0.0.1:7400 --run-dir "$work/tmp")" = '"HELLO"' ] || fail 'it is not called from outside'
	identity=$(of first)
	[ -n "$identity" ] || fail 'it has no id'
	echo '- it is hardened, as the kernel has it'
	main=$("${podman[@]}" inspect -f '{{.State.Pid}}' first)
	for field in Uid:65532 NoNewPrivs:1 Seccomp:2 CapEff:0000000000000000 CapBnd:0000000000000000; do
		[ "$(sed -n "s/^${field%%:*}:[[:space:]]*\([^[:space:]]*\).*/\1/p" "/proc/$main/status")" = "${field#*:}" ] || fail "it has not $field: $(grep "^${field%%:*}" "/proc/$main/status")"
	done
	echo '- it drains when it is stopped'
	inside first /usr/local/bin/conduit-host call '*://echo/echo/conduit.example.Echo' CountSlow '{"n":20,"interval_ms":100}' >"$work/slow" &
	call=$!
	until grep -q . "$work/slow"; do
		kill -0 "$call" 2>/dev/null || fail 'the slow call ended at once'
		read -r -t 0.1 <> <(:) || true
	done
	"${podman[@]}" stop first >/dev/null
	wait "$call" || true # the engine ends commands that run in a container with it
	[ "$("${podman[@]}" inspect -f '{{.State.ExitCode}}' first)" = 0 ] || fail "it ends with $("${podman[@]}" inspect -f '{{.State.ExitCode}}' first)"
	"${podman[@]}" logs first 2>&1 | grep -q '"@message":"stopped"' || fail 'it did not say that it has stopped'
	"${podman[@]}" rm first >/dev/null

	echo '- and goes on with its volume'
	"${podman[@]}" "${start[@]}" --name second localhost/trial-elements serve --mode worker --name trial >/dev/null
	up second
	[ "$(of second)" = "$identity" ] || fail "it is another instance now: $(of second), and was $identity"
	"${podman[@]}" stop second >/dev/null
	"${podman[@]}" rm second >/dev/null
	exit 0
fi

[ "$(id -u)" -eq 0 ] || fail 'this needs root: namespaces and images'
work=$(mktemp -d)
finish() {
	umount -R "$work/store" 2>/dev/null || true
	rm -rf "$work"
}
trap finish EXIT
mkdir "$work/tmp" "$work/store" "$work/run" "$work/context"

echo '- the image, of what make release builds'
arch=$(go env GOARCH)
ARCHES=$arch VERSION=v0.0.0-test bash scripts/release.sh "$work/context/dist" >/dev/null
cp "$work/context/dist/linux-$arch/conduit-host" "$work/conduit-host"
CGO_ENABLED=0 go build -o "$work/context/echo" ./plugins/echo
# The example of an image with elements, at the head of the file.
sed -n 's/^#   \(FROM\|COPY\) /\1 /p' deploy/Containerfile | sed 's,FROM conduit-host,FROM localhost/trial,; s,greeter,echo,g' >"$work/Containerfile"
[ "$(wc -l <"$work/Containerfile")" = 2 ] || fail 'deploy/Containerfile has no example of an image with elements'
build() { unshare --net buildah --storage-driver vfs --root "$work/store" --runroot "$work/run" bud --isolation chroot --pull-never --build-arg "TARGETARCH=$arch" -t "$1" -f "$2" "$work/context" >"$work/log" 2>&1 || fail "$(tail -n 20 "$work/log")"; }
build localhost/trial deploy/Containerfile
build localhost/trial-elements "$work/Containerfile"

timeout --kill-after 5 110 unshare --mount --net --pid --fork --kill-child --mount-proc --propagation private bash scripts/container.sh --inside "$work"
