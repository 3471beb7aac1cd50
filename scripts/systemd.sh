#!/usr/bin/env bash
# Runs deploy/systemd as systemd itself does: a systemd is started as process 1 of
# namespaces of its own, over a copy of this machine's files that is thrown away, and has
# the unit started, asked, reloaded, crashed and stopped.
#
# `make test-full PART=systemd`. It takes root, systemd, overlayfs, and a kernel that lets
# root make namespaces and mount cgroup2: a container does not, most often.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() {
	echo "FAILED: $*" >&2
	exit 1
}

# What process 1 of the new namespaces is first: it makes the root directory and becomes systemd.
if [ "${1:-}" = --inside ]; then
	work=$2
	mount -t tmpfs tmpfs "$work/layers"
	mkdir "$work/layers/upper" "$work/layers/work" "$work/layers/root"
	root=$work/layers/root
	mount -t overlay overlay -o "lowerdir=/,upperdir=$work/layers/upper,workdir=$work/layers/work" "$root"
	mount -t proc proc "$root/proc"
	mount -t sysfs -o ro sysfs "$root/sys"
	mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
	mount -t tmpfs -o mode=755 tmpfs "$root/run"
	mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
	mount --rbind /dev "$root/dev"
	mkdir "$root/run/try"
	mount --bind "$work/try" "$root/run/try"
	# Of this machine's units none is started, and of its configuration nothing is seen.
	for dir in /etc/systemd /usr/local/lib/systemd /var/lib/systemd; do
		if [ -d "$root$dir" ]; then mount -t tmpfs -o mode=755 tmpfs "$root$dir"; fi
	done
	mkdir -p "$root/etc/systemd/system" "$root/etc/conduit" "$root/usr/local/bin"
	printf '[Journal]\nStorage=volatile\n' >"$root/etc/systemd/journald.conf"
	printf '[Manager]\nDefaultEnvironment=PATH=/usr/local/bin:/usr/bin:/bin\n' >"$root/etc/systemd/system.conf"
	for unit in sysinit.target basic.target multi-user.target network-online.target; do
		printf '[Unit]\nDescription=nothing\nDefaultDependencies=no\n' >"$root/etc/systemd/system/$unit"
	done
	# As docs/operations.md installs it.
	install -m 755 "$work/conduit-host" "$root/usr/local/bin/conduit-host"
	groupadd --root "$root" --system conduit 2>/dev/null || echo 'conduit:x:64999:' >>"$root/etc/group"
	echo 'conduit:x:64999:64999::/var/lib/conduit:/usr/sbin/nologin' >>"$root/etc/passwd"
	sed -i '/^conduit:/d' "$root/etc/group" && echo 'conduit:x:64999:' >>"$root/etc/group"
	install -m 644 deploy/systemd/conduit.yaml "$root/etc/conduit/conduit.yaml"
	install -m 644 deploy/systemd/conduit-host.service "$root/etc/systemd/system/"
	install -d -o 64999 -g 64999 -m 700 "$root/var/lib/conduit" "$root/var/lib/conduit/deployments"
	install -o 64999 -g 64999 -m 755 "$work/echo" "$root/var/lib/conduit/deployments/echo"
	install -m 755 scripts/systemd_inside.sh "$root/usr/local/bin/try"
	cat >"$root/etc/systemd/system/try.target" <<'UNIT'
[Unit]
Description=A trial of conduit-host.service
DefaultDependencies=no
Wants=try.service systemd-journald.service
UNIT
	cat >"$root/etc/systemd/system/try.service" <<'UNIT'
[Unit]
DefaultDependencies=no
After=systemd-journald.service
[Service]
Type=exec
ExecStart=/usr/local/bin/try
ExecStopPost=/bin/systemctl --no-block exit
StandardOutput=file:/run/try/out
StandardError=file:/run/try/out
UNIT
	ip link set lo up 2>/dev/null || true
	exec env -i container=trial PATH=/usr/sbin:/usr/bin:/sbin:/bin \
		chroot "$root" /lib/systemd/systemd --system --unit=try.target --log-target=console --log-level=notice --show-status=no
fi

[ "$(id -u)" -eq 0 ] || fail 'this needs root: namespaces, mounts and another user'
grep -qw overlay /proc/filesystems || modprobe overlay 2>/dev/null || fail 'this kernel has no overlayfs'

work=$(mktemp -d)
group=
finish() {
	# Process 1 of the namespaces takes all others with it.
	if [ -n "${systemd:-}" ]; then kill -KILL "$systemd" 2>/dev/null || true; wait "$systemd" 2>/dev/null || true; fi
	if [ -n "$group" ]; then
		find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || true
	fi
	rm -rf --one-file-system "$work"
}
trap finish EXIT
mkdir "$work/layers" "$work/try"

echo '- programs'
CGO_ENABLED=0 go build -trimpath -o "$work/conduit-host" ./cmd/conduit-host
CGO_ENABLED=0 go build -trimpath -o "$work/echo" ./plugins/echo

# A group of processes below which systemd finds the root of its own.
hierarchy=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/mounts)
[ -n "$hierarchy" ] || fail 'no cgroup2 is mounted'
group=$(mktemp -d "$hierarchy/conduit-trial.XXXXXX" 2>/dev/null) || { group=; fail "no group can be made in $hierarchy: this is a container, most likely"; }

echo '- systemd as process 1'
(
	echo "$BASHPID" >"$group/cgroup.procs"
	exec timeout --kill-after 5 110 unshare --mount --pid --fork --kill-child --cgroup --uts --ipc --net --propagation private bash scripts/systemd.sh --inside "$work"
) >"$work/boot" 2>&1 </dev/null &
systemd=$!
wait "$systemd" || true
systemd=
cat "$work/try/out" 2>/dev/null || true
grep -qx 'all done' "$work/try/out" 2>/dev/null || {
	tail -n 40 "$work/boot" >&2
	[ -e "$work/try/out" ] || fail 'systemd did not come up in namespaces of its own'
	tail -n 40 "$work/try/journal" >&2 2>/dev/null || true
	fail 'the unit does not do what it should'
}
