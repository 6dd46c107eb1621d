"""`python -m numerics.cli` runs the command `dmft`."""

from numerics.cli import main

main()
