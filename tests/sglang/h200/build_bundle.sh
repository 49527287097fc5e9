#!/bin/bash
# Makes OUT/site.tar.xz (about 47 MB) for device_run.sh.   usage: build_bundle.sh OUT_DIR
# Runs on any x86-64 Linux with pip, strip and xz; needs about 1 GB of disk for a while; 3 to 4 minutes on 2 cores.
set -e
HERE=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"; OUT=$(cd "$1" && pwd); W=$(mktemp -d); trap 'rm -rf "$W"' EXIT
P="--platform manylinux2014_x86_64 --platform manylinux1_x86_64"
for n in 17 24 26 27 28 31 34 35; do P="$P --platform manylinux_2_${n}_x86_64"; done
python3 -m pip install -q --no-deps --no-compile --only-binary=:all: --python-version 3.12 --implementation cp $P \
  --target "$W/site" -r "$HERE/requirements.txt"
cd "$W/site"
rm -f sgl_kernel/flash_ops.*so sgl_kernel/infllm_ops.*so sgl_kernel/flashmla_ops.*so torchao/*.so   # 342 of 383 MB
rm -rf sgl_kernel/sm100 sglang/multimodal_gen sglang/test sglang/benchmark xgrammar/lib/*.a bin
find . -name '*.so' -size +200k -not -path './sgl_kernel/*' -exec strip --strip-unneeded {} \;
find . -name __pycache__ -prune -exec rm -rf {} +
tar -cf - . | xz -3 -T0 > "$OUT/site.tar.xz"
ls -l "$OUT/site.tar.xz"
