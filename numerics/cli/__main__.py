"""`python -m numerics.cli` is `dmft`."""

from numerics.cli import main

main()
