"""The code that runs inside a server's processes: Python 3.10, its standard library, nothing else.

It is copied as the package `fidelity_guard` into a folder on the server's PYTHONPATH, so its modules import
one another relatively. What goes wrong in it is written into the process's marker, never raised.
"""
