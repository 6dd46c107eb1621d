"""The commands of `dmft`, one module each; what they share is in `common`."""
