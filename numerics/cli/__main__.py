"""`python -m numerics.cli` is `dmft`."""

from numerics.cli.app import main

main()
