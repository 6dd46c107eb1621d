"""Theories without memory: the nodes of a quadrature move by the derived equations."""
