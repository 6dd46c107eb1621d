"""First corrections to the power laws of the rich regime: what a small part of a norm does to the loss."""

from __future__ import annotations

from dataclasses import dataclass

from sympy import Expr, S, simplify

from derive.scale.rich_ansatz import kappa
from derive.scale.rich_profiles import missing, product_transform


@dataclass(frozen=True)
class Correction:
    """A part ``size`` of the loss, relative to the leading power: ``loss = leading (1 + size + ...)``.

    ``known`` says whether its amplitude is derived; if not, it contains ``kappa``, a number of order one that
    the start of training decides.
    """

    name: str
    size: Expr
    power: Expr
    known: bool


@dataclass(frozen=True)
class Powers:
    """What the leading laws are made of: ``b = B X^q`` and its clock X, the power of sigma in b, the source
    of the data, and the power of X in the norm of what has been learnt, if that grows."""

    q: Expr
    clock: Expr
    height: Expr
    source: Expr
    learnt: Expr | None

    def correction(self, name: str, d: Expr, eta: Expr, known: bool) -> Correction:
        """The effect of a part ``eta X^-d`` of the squared singular value.

        It makes ``b = B X^q (1 + e X^-d)``; this moves the profile, which becomes
        ``F_q + e X^-d (F_q - F_(q+d))``, and with it the norm, the loss and the clock.  Where ``q + d`` is
        one or more the profile is moved by early times more than by this part, and where ``1 - 2 q = d``
        there is a logarithm: then the amplitude is not known.
        """
        q, r = self.q, simplify(self.q + d)
        power, late = simplify(-d / (1 - 2 * q)).factor(), simplify(1 - 2 * q - d)
        if late == 0 or (r.is_number and r >= 1):
            return Correction(name, kappa * self.clock**-d, power, False)
        share = S.Zero  # modes that have been learnt do not feel it
        if self.learnt is not None:
            whole, both = (product_transform(q, p, -self.learnt) for p in (q, r))
            share = 1 - both / whole
        e = eta / (2 / self.height + 2 - 2 * share)
        left = missing(q, q, self.source)
        # v = w (1 - F) moves by (1 - F_q) - (1 - F_r) times w
        fields = 2 * (left - missing(q, r, self.source)) / left
        hands = -2 * self.source / late
        return Correction(name, e * (fields + hands) * self.clock**-d, power, known)


__all__ = ["Correction", "Powers"]
