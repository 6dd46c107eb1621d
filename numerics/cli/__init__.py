"""The command `dmft`, one module a command; what they share is in `common`."""

from numerics.cli.app import main, run

__all__ = ["main", "run"]
