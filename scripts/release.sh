#!/usr/bin/env bash
# usage: release.sh [DIR]
#
# Builds what a release consists of into DIR (dist): for each system an archive with the
# static program, its man pages, licences and what is in deploy/, their checksums, and what
# deploy/Containerfile copies. The same source, version and Go give the same bytes, on
# whichever machine and in whichever directory.
#
# VERSION says what the build calls itself; SOURCE_DATE_EPOCH, what time the files have;
# ARCHES, for which processors it is ("amd64 arm64").
# By default the first two are the commit's.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

out=${1:-dist}
version=${VERSION:-$(git describe --tags --always --dirty 2>/dev/null || echo dev)}
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
case $version in
*[!A-Za-z0-9._+-]* | '') echo "error: VERSION is \"$version\"; it takes letters, digits, and . _ + -" >&2; exit 2 ;;
esac
umask 022 # the modes in an archive are nobody's own

rm -rf "$out"
mkdir -p "$out/image/deployments" "$out/image/data" "$out/image/tmp"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

echo 'writing man pages'
SOURCE_DATE_EPOCH=$epoch GOFLAGS= ${GO:-go} run -ldflags "-X main.version=$version" ./cmd/conduit-host man "$out/man" >/dev/null

for arch in ${ARCHES:-amd64 arm64}; do
	name=conduit-host-$version-linux-$arch
	echo "building $name"
	mkdir -p "$out/linux-$arch" "$work/$name"
	# Nothing of the machine goes in: no path, no commit's state, no id of the link; and
	# no C library, so that it runs on any Linux, also in an empty image.
	CGO_ENABLED=0 GOOS=linux GOARCH=$arch GOAMD64=v1 GOARM64=v8.0 GOFLAGS= ${GO:-go} build -trimpath -buildvcs=false \
		-ldflags "-s -w -buildid= -X main.version=$version" -o "$out/linux-$arch/conduit-host" ./cmd/conduit-host
	cp -R "$out/linux-$arch/conduit-host" LICENSE NOTICE README.md CHANGELOG.md SECURITY.md "$work/$name/"
	mkdir -p "$work/$name/deploy"
	cp -R "$out/man" "$work/$name/man"
	cp -R deploy/systemd deploy/Containerfile "$work/$name/deploy/"
	mkdir "$work/$name/deploy/kubernetes"
	cp deploy/kubernetes/*.yaml "$work/$name/deploy/kubernetes/"
	chmod -R u=rwX,go=rX "$work/$name"
	tar --sort=name --format=gnu --mtime="@$epoch" --owner=0 --group=0 --numeric-owner -C "$work" -cf - "$name" | gzip -n -9 >"$out/$name.tar.gz"
done
(cd "$out" && sha256sum -- *.tar.gz linux-*/conduit-host >SHA256SUMS)
echo "$out: $version"
