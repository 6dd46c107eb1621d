"""Exact rewritings of a theory: each takes what was derived and returns something simpler and equal."""
