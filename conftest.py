"""One BLAS thread in the tests, as the embedded engine has: numpy reads it when it is first imported."""

import os

for library in ("OPENBLAS", "OMP", "MKL", "VECLIB"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")
