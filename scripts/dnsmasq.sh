#!/usr/bin/env bash
# usage: dnsmasq.sh
#
# Tests discovery by DNS against a server that we did not write, Debian's dnsmasq,
# which is installed if it is missing. `go test ./...` knows nothing of it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PATH=$PATH:/usr/sbin
bash scripts/need.sh dnsmasq dnsmasq-base
"${GO:-go}" test -tags dnsmasq -run '^TestDnsmasq$' -count 1 -timeout 2m -v ./discovery
