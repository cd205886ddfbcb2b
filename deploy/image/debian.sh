#!/bin/sh
# Unpacks packages of Debian, and those that they depend on, into a folder:
#
#   debian.sh amd64|arm64 FOLDER PACKAGE…
#
# It needs apt-get and dpkg-deb. Nothing is installed on this machine, and no script
# of a package runs, so it needs no root, nor emulation for another architecture.
set -eu
arch=$1 out=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/state/lists/partial" "$work/cache/archives/partial" "$out"
: >"$work/status"
# An apt of its own: of the architecture, and without this machine's state.
debian() {
	apt-get -qq -o "APT::Architecture=$arch" -o "APT::Architectures=$arch" -o "Dir::State=$work/state" -o "Dir::State::status=$work/status" \
		-o "Dir::Cache=$work/cache" -o APT::Sandbox::User=root "$@"
}
debian update
debian install --yes --download-only --no-install-recommends "$@" >/dev/null
for deb in "$work"/cache/archives/*.deb; do dpkg-deb -x "$deb" "$out"; done
