"""The engine's path integral of the isotropic network, and its names in the units of linear2025.

In the paper's units u0 = alpha u0' and r0 = gamma0 nu r0', so that hats and responses scale inversely; its
conjugates of correlations are twice the engine's.
"""

from functools import cache

from sympy import Expr, Function, S
from sympy.core.function import AppliedUndef

from derive.program import gamma0
from derive.program.networks.random_data import alpha, nu
from derive.theory.path_integral import PathIntegral, path_integral
from tests.derive.once import isotropic

CONJUGATES = {"Chat_v", "Chat_h0", "Chat_Delta", "Chat_h", "Chat_g"}


@cache
def route() -> PathIntegral:
    """Return the path integral of the isotropic network with label noise."""
    return path_integral(isotropic(noise=True))


def units() -> dict[str, tuple[Expr, str]]:
    """Return the factor and the name in the paper's units for each of the engine's names."""
    first = gamma0 * nu
    return {
        "xihat_u0": (1 / alpha, "h0hat"),
        "xi_u0": (alpha, "h0"),
        "xihat_r0": (1 / first, "xi0hat"),
        "xi_r0": (first, "xi0"),
        "R_vu": (1 / alpha, "R_vu"),
        "R_h0r0": (1 / first, "R_h0r0"),
        "chihat_u_Delta": (S.One, "Dhat"),
        **{x: (S.Half, x) for x in CONJUGATES},
    }


def in_units_of_the_paper(e: Expr) -> Expr:
    """Return the expression with the paper's names and units."""
    scale = units()

    def one(x: AppliedUndef) -> Expr:
        factor, name = scale[str(x.func)]
        return factor * Function(name)(*x.args)

    return e.replace(lambda x: isinstance(x, AppliedUndef) and str(x.func) in scale, one).expand()
