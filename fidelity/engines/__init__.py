"""Clients of the serving APIs, one file each."""
