"""Changes applied inside a server so that the fault is not reached."""
