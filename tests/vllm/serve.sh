#!/bin/bash
# Serve a model folder with a real vLLM on the CPU, in the foreground; up when it prints "startup complete".
# usage: serve.sh PYTHON MODEL PORT [VLLM FLAG...]
# environment: FIDELITY_FAULT_FILE (see plugin/fidelity_m1_fault.py), OMP_NUM_THREADS (1)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=$1 model=$2 port=$3
shift 3
export PYTHONPATH=$here/plugin HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false VLLM_NO_USAGE_STATS=1
export VLLM_SERVER_DEV_MODE=${VLLM_SERVER_DEV_MODE:-1} VLLM_CPU_KVCACHE_SPACE=1 PYTHONWARNINGS=ignore
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
# `vllm serve` asks for the metadata of a package called vllm; this one is called vllm-cpu
exec "$python" -m vllm.entrypoints.openai.api_server --model "$model" --served-model-name tiny \
  --host 127.0.0.1 --port "$port" --max-model-len 2048 --max-num-seqs 4 --enforce-eager \
  --enable-prefix-caching --enable-prompt-tokens-details "$@"
