"""The smallest requests that show a failing cell again: chosen from a run's record, printed as a script for a
shell, or sent to a live server. Only `replay` talks to one."""
