#!/bin/bash
# Serve a model folder with a real sglang on the CPU, in the foreground; up when it prints "ready to roll".
# usage: serve.sh PYTHON MODEL PORT [SGLANG FLAG...]
# environment: FIDELITY_FAULT_FILE (see standins/cpu_standins/moe_fault.py), PAGE (64), OMP_NUM_THREADS (1)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=$1 model=$2 port=$3
shift 3
export PYTHONPATH=$here/standins SGLANG_USE_CPU_ENGINE=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
# two OpenMP threads on a busy two-core machine spin-wait: a request then takes up to 10 s
export PYTHONWARNINGS=ignore OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} OMP_WAIT_POLICY=passive
# the pools hold about 400 prompts of 230 tokens, so one run evicts little
exec "$python" -m sglang.launch_server --device cpu --model-path "$model" --served-model-name tiny \
  --host 127.0.0.1 --port "$port" --context-length 4096 --attention-backend torch_native --grammar-backend none \
  --mamba-radix-cache-strategy extra_buffer --page-size "${PAGE:-64}" --max-total-tokens 131072 \
  --max-running-requests 4 --max-mamba-cache-size 400 --mem-fraction-static 0.2 --enable-cache-report \
  --sleep-on-idle "$@"
