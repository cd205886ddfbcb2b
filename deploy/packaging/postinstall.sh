#!/bin/sh
# After the package's files are in place: the user of the service. The service
# is neither enabled nor started: `systemctl enable --now roundhouse` does both.
set -e
if ! getent passwd roundhouse >/dev/null; then
	useradd --system --user-group --home-dir /var/lib/roundhouse --no-create-home --shell /usr/sbin/nologin roundhouse
fi
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	# An upgrade restarts the service if it runs.
	systemctl try-restart roundhouse.service || true
fi
