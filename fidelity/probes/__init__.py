"""Families of experiments, one file each: which requests, what counts as exercised."""
