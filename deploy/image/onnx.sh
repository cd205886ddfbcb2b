#!/bin/sh
# Makes the folder that the image with ONNX Runtime has besides the programs: the
# library of the wheel on PyPI, and Debian's C and C++ libraries, which it and
# roundhouse-onnx need.
#
#   onnx.sh amd64|arm64 FOLDER [VERSION]
#
# It needs Python with pip, and apt-get for the libraries; nothing is installed, and
# other architectures need no emulation. ONNX_LIBRARIES names a
# folder with the libraries for a machine without apt-get.
set -eu
arch=$1 out=$2 version=${3:-1.31.1}
case $arch in
amd64) machine=x86_64 loader=lib64/ld-linux-x86-64.so.2 ;;
arm64) machine=aarch64 loader=lib/ld-linux-aarch64.so.1 ;;
*) echo "onnx.sh: $arch: write amd64 or arm64" >&2 && exit 2 ;;
esac
lib=$out/lib/$machine-linux-gnu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --implementation cp --python-version 3.12 --abi cp312 \
	--platform "manylinux_2_27_$machine" --platform "manylinux_2_28_$machine" --dest "$work" "onnxruntime==$version"
python3 -m zipfile -e "$work"/onnxruntime-*.whl "$work/wheel"

libraries=${ONNX_LIBRARIES:-}
if [ -z "$libraries" ]; then
	command -v apt-get >/dev/null || { echo "onnx.sh: there is no apt-get: name a folder with libc.so.6, libstdc++.so.6 and what else ld.so --list names in ONNX_LIBRARIES" >&2; exit 1; }
	"$(dirname "$0")/debian.sh" "$arch" "$work/debian" libstdc++6 libc6
	libraries=$work/debian
fi

rm -rf "$out"
mkdir -p "$lib" "$(dirname "$out/$loader")" "$out/usr/share/doc/onnxruntime"
for name in libc.so.6 libm.so.6 libdl.so.2 librt.so.1 libpthread.so.0 libgcc_s.so.1 libstdc++.so.6; do
	file=$(find "$libraries" -name "$name" | head -n 1)
	test -n "$file" || { echo "onnx.sh: there is no $name in $libraries" >&2; exit 1; }
	cp -L "$file" "$lib/$name"
done
cp -L "$(find "$libraries" -name "$(basename "$loader")" | head -n 1)" "$out/$loader"
cp "$work"/wheel/onnxruntime/capi/libonnxruntime.so.* "$lib/libonnxruntime.so"
cp "$work"/wheel/onnxruntime/LICENSE "$work"/wheel/onnxruntime/ThirdPartyNotices.txt "$out/usr/share/doc/onnxruntime/"
find "$libraries" -path '*/doc/libc6/copyright' -o -path '*/doc/gcc-*-base/copyright' | while read -r notice; do
	package=$(basename "$(dirname "$notice")")
	mkdir -p "$out/usr/share/doc/$package" && cp "$notice" "$out/usr/share/doc/$package/"
done
chmod -R u=rwX,go=rX "$out"
