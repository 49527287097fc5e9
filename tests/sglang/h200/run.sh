#!/bin/bash
# `fidelity run` against a real sglang 0.5.17 on one NVIDIA GPU without a network, in the root of the repository.
# usage: run.sh BUNDLE_DIR RESULTS_DIR [RUN...]  (BUNDLE_DIR: what build_bundle.sh made, and a junitparser wheel;
# RUN: names from the end of this file, by default all of them)
# Needs python3 with CUDA torch 2.11, numpy, scipy, httpx, typer, rich, psutil, pyyaml, jinja2 and nvcc.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
bundle=$1 results=$2 site=/tmp/site
shift 2
wanted=" $* "
mkdir -p "$results" "$site"
tar -xJf "$bundle/site.tar.xz" -C "$site"
for wheel in "$bundle"/*.whl; do python3 -m zipfile -e "$wheel" "$site"; done
# the real sgl_kernel in the bundle comes before the CPU stand-in of that name
export PYTHONPATH=$site:$here/../standins:$root PYTHONUNBUFFERED=1
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false SGLANG_IS_FLASHINFER_AVAILABLE=false CUDA_HOME=/usr/local/cuda
export FIDELITY_FAULT_FILE=/tmp/fault
echo off > "$FIDELITY_FAULT_FILE"
python3 -m fidelity serve --export /tmp/quiz || exit 1

resend="--probe resend --tail 1 --control 2 --control 33"

one() { # one NAME FAULT PAGE GUARD [FIDELITY FLAG...] [-- SGLANG FLAG...]; several guards are several arms
  local name=$1 fault=$2 page=$3 guards=$4 guard=${4%%,*} flags="" own="" before=$SECONDS
  shift 4
  [ "$wanted" = "  " ] || [[ $wanted == *" $name "* ]] || return 0
  while [ $# -gt 0 ] && [ "$1" != -- ]; do flags="$flags $1"; shift; done
  [ $# -eq 0 ] || { shift; own="$*"; }
  echo off > "$FIDELITY_FAULT_FILE"
  # the fault comes on once the server is up: its own start computes one-token forwards
  [ "$fault" = off ] || ( until grep -q "ready to roll" "$results/$name/server-$guard.log" 2>/dev/null; do sleep 0.2; done
    echo "$fault" > "$FIDELITY_FAULT_FILE" ) &
  local waiter=$!
  # shellcheck disable=SC2086  # words of flags
  timeout 560 python3 -m fidelity run --model /tmp/quiz --python python3 --guard ${guards//,/ --guard } ${flags:-$resend} \
    --output "$results/$name" -- $own --served-model-name quiz --dtype bfloat16 --context-length 4096 \
    --attention-backend triton --sampling-backend pytorch --grammar-backend none --moe-runner-backend triton \
    --mamba-radix-cache-strategy extra_buffer --page-size "$page" --max-total-tokens 131072 \
    --max-running-requests 8 --max-mamba-cache-size 400 --mem-fraction-static 0.2 --enable-cache-report \
    --disable-decode-cuda-graph --disable-prefill-cuda-graph
  echo "== $name: exit $? after $((SECONDS - before)) s"
  kill $waiter 2>/dev/null
}

nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
one healthy-page64 off 64 none
one healthy-page1 off 1 none
one nan nan 64 none
one stale stale 64 none
one nan-retreat nan 64 retreat
one probes-healthy off 64 none,retreat --probe all --tail 1 --control 2 --control 33 -- --tool-call-parser qwen25
one probes-nan nan 64 none --probe resend --probe decode --probe batch --probe impact --tail 1 --control 2 --control 33
one ngram off 1 none --probe decode --probe draft -- --speculative-algorithm NGRAM
