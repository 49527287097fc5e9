"""Prompt families, tokenizers, and fitting a prompt to an exact number of templated tokens."""
