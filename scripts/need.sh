#!/usr/bin/env bash
# usage: need.sh COMMAND PACKAGE...
#
# Sees to it that COMMAND exists, or the module NAME of the system's own Python if it is
# python3:NAME, or that of Node.js, as Debian installs them, if it is node:NAME. If it does not, it is installed from Debian's
# PACKAGEs where that can be done without a question (as root, with apt-get);
# anywhere else this says what to install.
set -euo pipefail

command=$1
shift

there() {
	case $command in
	python3:*) /usr/bin/python3 -c "import ${command#*:}" 2>/dev/null ;;
	node:*) NODE_PATH=/usr/share/nodejs node -e "require('${command#*:}')" 2>/dev/null ;;
	*) command -v "$command" >/dev/null ;;
	esac
}

if there; then
	exit 0
fi
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
	echo "error: $command is missing: install it (on Debian: apt-get install $*)" >&2
	exit 1
fi

echo "installing $* for $command"
export DEBIAN_FRONTEND=noninteractive
install() { apt-get install -y -qq --no-install-recommends "$@" </dev/null >/dev/null; }
# The lists of a new machine are empty or old: they are fetched only if it turns out so.
if ! install "$@" 2>/dev/null; then
	apt-get update -qq
	install "$@"
fi
there || {
	echo "error: $* installed, yet there is no $command" >&2
	exit 1
}
