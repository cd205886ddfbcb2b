#!/bin/sh
# After the package's files are gone. `apt purge` removes the data as well;
# otherwise /var/lib/roundhouse and its owner stay.
set -e
if [ "$1" = purge ]; then
	rm -rf /var/lib/roundhouse
	userdel roundhouse 2>/dev/null || true
fi
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
fi
