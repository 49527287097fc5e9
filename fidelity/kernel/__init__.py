"""The kernel check: `fused_moe` against an fp32 reference, on memory filled so that stale values show.

`cases`, `verdict`, `report`, `launch` and `command` run where fidelity is installed. The others run inside
the image too: Python 3.10, its standard library and torch, nothing else.
"""
