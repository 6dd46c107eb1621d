"""Right-hand sides as linear2025 prints them, as SymPy expressions.

Fields, sources and order parameters carry the engine's names (``R_h0r0`` is the paper's R^0_hr, ``C_h0`` its
C^0_h) in the paper's units: r0 and u0 enter v and h0 with factor one, so that their covariances hold
1/(nu gamma0^2) and 1/alpha.  ``absorb_factors(theory, "r0", "u0")`` brings a derived theory to these units.
The paper's t' is ``s``, its single-time sums over t' < t are ``(s, 0, t - 1)``.
"""
