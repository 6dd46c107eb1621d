"""Reductions: from a theory to something simpler and equal, or the reason why that cannot be had."""
