#!/bin/bash
# Make a Python 3.11 environment that serves a real sglang 0.5.21 on a CPU (x86-64 Linux, about 2.7 GB).
# usage: install.sh VENV [PIP OPTION...]     options go to the torch install, e.g. --index-url of a CPU-only index
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
venv=$1
shift
"${PYTHON:-python3.11}" -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 "$@"
# --no-deps: sglang's own requirements name CUDA-only packages; requirements.txt lists what serving on a CPU imports
"$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --only-binary=:all: -r "$here/requirements.txt"
touch "$venv/complete"
