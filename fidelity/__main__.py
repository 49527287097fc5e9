"""`python -m fidelity`."""

from fidelity.cli import main

main()
