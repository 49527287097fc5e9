"""The embedded engine: a small Qwen3-Next in NumPy behind sglang's HTTP API, with a reproducible fault.

It runs as its own process and imports nothing of the rest of the package.
"""
