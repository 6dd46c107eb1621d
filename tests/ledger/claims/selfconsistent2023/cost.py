"""Table 1: growth of memory and time with width N, samples P and times T."""

from __future__ import annotations

from sympy import Basic, Symbol

from tests.ledger.claims.selfconsistent2023.notation import P


def table_1() -> dict[str, Basic]:
    """Return the printed Table 1: leading monomials by theory and requirement."""
    width = Symbol("N", integer=True, positive=True)
    times = Symbol("T", integer=True, positive=True)
    return {
        "network_memory": width**2,
        "network_kernels": P * width**2 * times,
        "network_outputs": P * width**2 * times,
        "static_memory": P**2,
        "static_kernels": P**2,
        "static_outputs": P**3,
        "perturbative_memory": P**4 * times,
        "perturbative_kernels": P**4 * times,
        "perturbative_outputs": P**4,
        "full_memory": P**2 * times**2,
        "full_kernels": P**3 * times**3,
        "full_outputs": P**3 * times**3,
    }
