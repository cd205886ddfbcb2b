#!/bin/sh
# Before the package's files go: stop the service, unless this is an upgrade
# (dpkg says "upgrade", RPM the number of versions that stay).
set -e
case "$1" in
remove | 0)
	if [ -d /run/systemd/system ]; then
		systemctl disable --now roundhouse.service || true
	fi
	;;
esac
