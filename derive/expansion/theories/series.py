"""What the expansion of a theory is: its orders, as equations and as power series of order parameters."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from sympy import Add, Eq, Expr, Symbol, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.series import PowerSeries
from derive.expansion.theories.orders import Expander, at_order, named
from derive.show.notation import Name, notation
from derive.theory import Theory
from derive.theory.document import Show, render


@dataclass(frozen=True)
class TheorySeries:
    """``theory`` in powers of ``variable``, up to ``order``.

    ``scaled`` is the theory in which the small parameter is the symbol ``small``, and ``tables`` names
    functions of two times that are series too; ``scales`` are the factors by which responses of ``theory``
    are those of ``scaled``, whose sources may be others.  ``expanded`` is the theory of all orders: for
    each field ``a`` fields ``a, a__1, a__2, ...`` whose sum, with powers of the variable, it is.  A
    correlation function has at order n the parts ``C__k_l = <a_k b_l>`` with ``k + l = n``.
    """

    theory: Theory
    scaled: Theory
    variable: Expr
    small: Symbol
    order: int
    tables: frozenset[str] = frozenset()
    scales: tuple[tuple[str, Expr], ...] = ()

    @cached_property
    def expanded(self) -> Theory:
        """The theory of all orders, that can be solved like any other."""
        found = Expander(self.scaled, self.small, self.order, self.tables).expanded()
        what = f"expanded in {self.variable} to order {self.order}"
        return replace(found, reduction=f"{self.theory.reduction}, {what}".strip(", "))

    def coefficient(self, n: int) -> tuple[Eq, ...]:
        """The equations of order n: of fields, then of scalars.  Raises IndexError beyond the order."""
        self._check(n)
        names = {named(e.name, n) for e in (*self.theory.equations, *self.theory.scalars)}
        return tuple(e.eq for e in (*self.expanded.equations, *self.expanded.scalars) if e.name in names)

    def truncate(self, n: int) -> TheorySeries:
        """The series up to order n only.  Raises IndexError beyond the order."""
        self._check(n)
        return replace(self, order=n)

    def parameter(self, name: str) -> PowerSeries:
        """A correlation function, response or scalar of ``theory`` as a power series, in terms of its parts.

        Raises KeyError for a name that the theory does not have.
        """
        kinds = {q.name: q for q in self.theory.order_parameters}
        symbol = kinds[name].symbol if name in kinds else self._scalar(name)
        orders = [[c * at_order(symbol, *k) for c, k in parts] for parts in self.parts(name)]
        return PowerSeries(tuple(Add(*x) for x in orders), self.variable)

    def parts(self, name: str) -> tuple[tuple[tuple[Expr, tuple[int, ...]], ...], ...]:
        """What an order parameter or scalar is made of, order by order: numbers, and orders of parts.

        >>> from derive.theory import mean_field
        >>> from derive.program import isotropic
        >>> from derive.program.networks.isotropic import nu
        >>> from derive.expansion.theories import expand_sizes
        >>> wide = expand_sizes(mean_field(isotropic()), nu, 1)
        >>> wide.parts("C_v"), wide.parts("R_h0r0")
        ((((1, (0, 0)),), ((1, (1, 0)), (1, (0, 1)))), ((), ((1/gamma0, (0,)),)))
        """
        if any(q.name == name and q.kind == "correlation" for q in self.theory.order_parameters):
            one = sympify(1)
            return tuple(tuple((one, (n - k, k)) for k in range(n + 1)) for n in range(self.order + 1))
        scale = Expander(self.scaled, self.small, self.order).taylor(dict(self.scales).get(name, sympify(1)))
        return tuple(
            tuple((scale[n - k], (k,)) for k in range(n + 1) if scale[n - k] != 0)
            for n in range(self.order + 1)
        )

    def _scalar(self, name: str) -> AppliedUndef:
        for e in self.theory.scalars:
            if e.name == name and isinstance(e.lhs, AppliedUndef):
                return e.lhs
        known = ", ".join(
            [*(q.name for q in self.theory.order_parameters), *(e.name for e in self.theory.scalars)]
        )
        raise KeyError(f"no order parameter or scalar {name}; there are {known}")

    def render(self, show: Show = "single-site", format: str = "text") -> str:
        """The theory of all orders as text, LaTeX, srepr or JSON; orders are written as lower marks."""
        return render(self.expanded, show, format, self.names)

    @property
    def names(self) -> dict[str, str]:
        """The LaTeX of the names of all parts but those of order zero."""
        plain = notation(self.theory)
        single = [e.name for e in (*self.theory.equations, *self.theory.scalars)]
        single += [str(x.func) for u in self.theory.sources for x in (u.symbol, u.partner)]
        single += [q.name for q in self.theory.responses()] + sorted(self.tables)
        found: dict[str, tuple[str, tuple[int, ...]]] = {}
        for n in range(1, self.order + 1):
            found |= {named(x, n): (x, (n,)) for x in single}
            for q in self.theory.correlations():
                found |= {named(q.name, n - k, k): (q.name, (n - k, k)) for k in range(n + 1)}
        return {x: _marked(plain.name(base), orders) for x, (base, orders) in found.items()}

    def __str__(self) -> str:
        return self.render()

    def _check(self, n: int) -> None:
        if not 0 <= n <= self.order:
            raise IndexError(f"n = {n}: the series is known for orders 0 to {self.order}")


def _marked(name: Name, orders: tuple[int, ...]) -> str:
    lower = f"{name.lower}({','.join(map(str, orders))})"
    base = f"{{{name.base}}}" if "_" in name.base else name.base
    return base + (f"^{{{name.upper}}}" if name.upper else "") + f"_{{{lower}}}"


__all__ = ["TheorySeries"]
