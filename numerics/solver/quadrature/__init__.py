"""Theories without memory by quadrature over initial fields, which move by the derived equations."""
