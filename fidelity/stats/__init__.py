"""Pure statistics on numpy arrays: divergences from censored top-k, rates, equivalence. No I/O."""
