"""The command `dmft`: its commands, its limits and its ledger; what they share is in `common`."""

from numerics.cli.app import main, run

__all__ = ["main", "run"]
