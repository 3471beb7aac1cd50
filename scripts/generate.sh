#!/usr/bin/env bash
# usage: generate.sh [--check]
#
# Writes the Go code of proto/**/*.proto beside its definitions. With --check it
# writes to a temporary directory instead and fails if that differs.
# protoc-gen-go and protoc-gen-go-grpc must be in PATH (make puts them there).
set -euo pipefail
cd "$(dirname "$0")/.."

check=false
case ${1-} in
'') ;;
--check) check=true ;;
*)
	echo "usage: generate.sh [--check]" >&2
	exit 2
	;;
esac

if [ -z "$(find proto -name '*.proto')" ]; then
	echo "error: there is no .proto file under proto/" >&2
	exit 1
fi
bash scripts/need.sh protoc protobuf-compiler

fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
find proto -name '*.proto' -exec protoc -I proto \
	--go_out="$fresh" --go_opt=paths=source_relative \
	--go-grpc_out="$fresh" --go-grpc_opt=paths=source_relative {} +

# generated DIR: the generated files under DIR, relative to it.
generated() { (cd "$1" && find . -name '*.pb.go' | sed 's|^\./||' | LC_ALL=C sort); }

if ! $check; then
	# What no definition asks for any more goes, too.
	generated proto | while read -r file; do
		[ -e "$fresh/$file" ] || { rm "proto/$file" && echo "removed proto/$file"; }
	done
	generated "$fresh" | while read -r file; do
		cmp -s "$fresh/$file" "proto/$file" || { cp "$fresh/$file" "proto/$file" && echo "wrote proto/$file"; }
	done
	exit 0
fi

drift=false
while read -r file; do
	committed=proto/$file expected=$fresh/$file
	[ -e "$committed" ] || committed=/dev/null
	[ -e "$expected" ] || expected=/dev/null
	# Which protoc ran shows only in a comment: that line may differ.
	diff -u -I '^//[[:space:]-]*protoc[[:space:]]' --label "proto/$file" --label "generated/$file" \
		"$committed" "$expected" || drift=true
done < <({ generated proto && generated "$fresh"; } | LC_ALL=C sort -u)
if $drift; then
	echo "error: the generated code is not what proto/ says; run 'make generate' and commit the result" >&2
	exit 1
fi
