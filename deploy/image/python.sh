#!/bin/sh
# Makes a folder to build an image with Debian's Python of, for `make
# test-image-python` and for machines that reach no registry with such an image:
#
#   python.sh amd64|arm64 FOLDER
#   buildah build -t NAME FOLDER
#
# The packages are unpacked and not configured: debian.sh.
set -eu
arch=$1 out=$2
root=$out/root
rm -rf "$out"
# The shell and its tools are for a Dockerfile's RUN, the C++ library for wheels.
"$(dirname "$0")/debian.sh" "$arch" "$root" base-files base-passwd coreutils dash libc-bin libstdc++6 python3 python3-venv
cp "$root/usr/share/base-passwd/passwd.master" "$root/etc/passwd"
cp "$root/usr/share/base-passwd/group.master" "$root/etc/group"
mkdir -p "$root/tmp" "$root/etc/ssl/certs"
chmod 1777 "$root/tmp"
# pip brings authorities of its own. Those that this machine trusts may be more.
authorities=${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}
if [ -f "$authorities" ]; then
	cp -L "$authorities" "$root/etc/ssl/certs/ca-certificates.crt"
	printf '[global]\ncert = /etc/ssl/certs/ca-certificates.crt\n' >"$root/etc/pip.conf"
fi
# Debian's Python refuses that pip installs into it; an environment of it does not.
cat >"$out/Dockerfile" <<'END'
FROM scratch
COPY root/ /
RUN ["/usr/bin/python3", "-m", "venv", "/opt/python"]
ENV PATH=/opt/python/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
END
