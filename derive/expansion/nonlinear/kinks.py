"""Activations whose slope jumps at zero: the first powers of ``|gamma0|``.

Most units keep their initial slopes. They are the *bulk*; their features are linear in the change of their
fields, so that Taylor series end after the slope, and the covariances of their sources change as in any
network (Price's theorem): :func:`straight`.

A unit with ``u_kappa = |gamma0| x`` moves during training by a distance that is comparable to its distance
from the kink. There are ``|gamma0| dx <delta(u_kappa) ...>`` of these units. Each changes its slope, by order
one, and its feature, by order gamma0. Their path ``|gamma0| X(t)`` obeys the equation of h of the theory at
leading order, and their contribution is an average minus its regular continuation, with every slope at its
initial value. Where the source u moves, by ``|gamma0| xi(t)``, it also takes units across the kink; its
effect alone belongs to the bulk and is subtracted. These contributions enter the bulk through the kernels:

* ``D_{-1}(t, s)``: with a kink B starts at ``1/gamma0``. A perturbation of u at one time changes the slopes
  of units that it takes across the kink. A constant perturbation only relabels units, so that the sum over s
  is zero.
* ``D_0(t, s)`` acts on features that do not depend on time, so that only its sum over s matters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product as choices
from typing import Any

from sympy import (
    Abs,
    Add,
    Derivative,
    DiracDelta,
    Dummy,
    Eq,
    Expr,
    Function,
    ImmutableDenseMatrix,
    Integral,
    KroneckerDelta,
    Lambda,
    Mul,
    Ne,
    Piecewise,
    Rational,
    S,
    Sum,
    Symbol,
    exp,
    integrate,
    oo,
    pi,
    sign,
    simplify,
    solve,
    sqrt,
)
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average
from derive.calculus.jumps import OtherKind, conditioned, jumps
from derive.calculus.series import PowerSeries
from derive.calculus.symbols import L, P, alpha, gamma0, mu, s, t
from derive.errors import NotApplicable
from derive.expansion.errors import ErrorLaw
from derive.expansion.expansion import Expansion, PrintedBlock, printed
from derive.expansion.nonlinear.expansion import (
    NonlinearExpansion,
    expand_nonlinear,
    tangent_kernel,
)
from derive.expansion.nonlinear.single_site import Neighbour, Site
from derive.expansion.nonlinear.trees import (
    BETWEEN,
    COL,
    LOWEST,
    OUTPUT,
    PAIR,
    ROW,
    Fields,
    Forest,
    Node,
    Piece,
    Terms,
    TermsByOrder,
    average,
    convolved,
    product,
    side_by_side,
    source_derivative,
)
from derive.show import latex, text
from derive.theory import Theory

kappa = Symbol("kappa", integer=True, positive=True)
"""The sample whose field is at the kink."""
x = Symbol("x", real=True)
"""Initial position of the unit, ``u_kappa / |gamma0|``."""

sigma, X, V, r, u, phi, Z, xi = (Function(n) for n in ("sigma", "X", "V", "r", "u", "phi", "Z", "xi"))
Xbar, Vbar = Function("Xbar"), Function("Vbar")
rho, upsilon = Function("rho"), Function("upsilon")
"""``G^-1 r`` and ``Phi^-1 u``, by Stein's lemma the response to a constant perturbation of r or u."""
turned = Function("turned")
"""``d sigma(kappa, t) / d u(kappa, s)`` with u in units of ``|gamma0|``."""

FACTORS = {"Phi": ("phi", "phi"), "G": ("g", "g"), OUTPUT: ("phi", "z")}
"""The two fields whose product an order parameter averages; f, of one time, is divided by gamma0."""
RESPONSES = {"A": ("phi", "rho"), "B": ("g", "upsilon")}
"""The two fields whose product a response averages; it is summed over the times of the perturbation.

Responses are divided by gamma0.
"""
Cases = dict[tuple[bool, ...], Expr]


@dataclass(frozen=True)
class AverageJump:
    """Contribution of units near the kink of phi to one average, at its lowest order in ``|gamma0|``.

    The units at the kink of sample kappa have ``h_kappa = |gamma0| x`` initially; ``cases`` are integrands
    over x. A key is a tuple of truth values, one for each sample of the average (mu and alpha, or mu for f):
    whether this sample is kappa. A missing key means no contribution. ``after`` has such keys too, and is
    added to the integral; it is minus the part that comes from the motion of the Gaussian source alone.
    ``order`` is the power of ``|gamma0|``, ``name`` that of the average.
    """

    name: str
    order: int
    cases: Cases
    after: Cases = field(default_factory=dict)


@dataclass(frozen=True, repr=False)
class KinkExpansion(Expansion):
    """First powers of ``|gamma0|`` of a network whose phi has a kink at zero.

    With several layers the fields of a unit at the kink belong to one layer, whose index is left out.

    Parameters
    ----------
    theory : Theory
        Theory.
    bulk : NonlinearExpansion
        Expansion at order 0.
    above : Expr
        Slope of phi for positive arguments.
    below : Expr
        Slope of phi for negative arguments.
    value : Expr
        Value phi(0).
    highest : int
        Highest order that is kept.

    Notes
    -----
    :attr:`jumps` and :attr:`equations` contain

    * ``X(t)``, ``sigma(kappa, t)``: position (h over ``|gamma0|``) and slope of the unit at the kink of
      ``kappa``, and ``Xbar(t)``, ``sigma(kappa)``, the same if the unit kept its initial slope;
    * ``V(mu, t)``: the coefficient of gamma0 in ``h_mu - u_mu`` of the same unit for another sample mu, whose
      slope ``sigma(mu)`` and feature ``phi(u(mu))`` keep their initial values; ``Vbar(mu, t)`` is the same if
      the unit kept its initial slope for ``kappa``;
    * ``xi(t)``: the change of the source ``u_kappa``, Gaussian with covariance :attr:`drift`.
    """

    theory: Theory
    bulk: NonlinearExpansion
    above: Expr
    below: Expr
    value: Expr
    highest: int = 2

    # -- the unit ----------------------------------------------------------------------------------------

    @cached_property
    def generic(self) -> NonlinearExpansion:
        """Expansion of the same theory at order 0 with an undefined function in place of phi."""
        (slot,) = self.bulk.activation.variables
        return replace(self.bulk, site=replace(self.bulk.site, activation=Lambda(slot, phi(slot))))

    @property
    def side(self) -> Lambda:
        """Slope of phi as a function of its argument: ``above`` for positive arguments, else ``below``."""
        z = Dummy("z", real=True)
        return Lambda(z, Piecewise((self.above, z > 0), (self.below, True)))

    @property
    def place(self) -> Expr:
        """Position ``u_kappa / |gamma0|`` of the source u of h, for a unit at the kink of sample kappa.

        It is the initial position x, plus the change xi(t) of the source if there are several layers.
        """
        return x + xi(t) if self.drifts else x

    @cached_property
    def motion(self) -> Terms:
        """Change of the field h of one sample at first order in gamma0, as a sum of products."""
        return self.generic.fields(1).moved[1]

    def moved(self, sample: Expr, followed: bool = True) -> Expr:
        """Return the first-order change of the field h of one sample in terms of the slopes of phi.

        It is the coefficient of gamma0 in h minus its source u.

        Parameters
        ----------
        sample : Expr
            Sample.
        followed : bool, optional
            Whether the slopes are those at the time at which they act, ``sigma(beta, t_)``; otherwise
            they are the initial ones, ``sigma(beta)``.

        Returns
        -------
        Expr
            Expression in slopes and sources.
        """
        e = self.generic.field("h", 1)
        at = {slope: slope.expr.args[0].args[1:] for slope in e.atoms(Derivative)}
        unit = {slope: sigma(*place) if followed else sigma(place[0]) for slope, place in at.items()}
        return e.xreplace(unit | {push: r(push.args[1]) for push in e.atoms(r)}).subs(mu, sample)

    @property
    def drifts(self) -> bool:
        """Whether the Gaussian source u of h changes in time, as it does with more than one hidden layer."""
        return not self.bulk.site.u.given

    @property
    def drift(self) -> Expr:
        """Covariance ``<xi(t) xi(s)>`` of the change in time of the source u of sample kappa.

        The change of u since time 0 is ``|gamma0|`` xi. Its covariance follows from the coefficient of
        gamma0^2 in the covariance of u, and is zero with one hidden layer.
        """
        if not self.drifts:  # with one hidden layer the source u is the data and does not change
            return S.Zero
        ends = (((t, s), 1), ((t, S.Zero), -1), ((S.Zero, s), -1), ((S.Zero, S.Zero), 1))
        return Add(*[c * self._variance(2, *times) for times, c in ends])

    def _variance(self, order: int, *times: Expr) -> Expr:
        """Return the variance of the source ``u_kappa`` at order 0 in gamma0, or order 2 at two ``times``.

        u_kappa is the Gaussian part of h for the sample kappa. Order 0 does not depend on time.
        """
        source = self.bulk.site.u
        if source.given:
            return Function(source.name)(kappa, kappa)
        at = self.bulk.site.layer + source.shift
        return Function(f"{source.name}{order}")(at, kappa, kappa, *times)

    @cached_property
    def density(self) -> Expr:
        """Density ``<delta(u_kappa)>`` of units at the kink of sample kappa, for ``u_kappa = |gamma0| x``.

        The fraction of units with x from x to x + dx is ``|gamma0| dx`` times this density.

        >>> from derive import mean_field, mlp
        >>> expand_kinks(mean_field(mlp(1, "relu"))).density
        sqrt(2)/(2*sqrt(pi)*sqrt(K_x(kappa, kappa)))
        """
        slot = Dummy("u", real=True)
        parts = conditioned([DiracDelta(slot)], (slot,), ImmutableDenseMatrix([[self._variance(0)]]))
        assert parts is not None
        return Mul(*parts[0][:2])

    @property
    def equations(self) -> tuple[Eq, ...]:
        """Equations of motion of a unit whose h is near the kink of phi for one sample, at leading order.

        They give X, the slopes sigma and V along the path of the unit, and Xbar, the initial slopes and Vbar
        if the unit kept its initial slope.
        """
        rest = self.side(u(mu))

        def slope(place: Expr) -> Expr:
            return Piecewise((rest, Ne(mu, kappa)), (self.side(place), True))

        return (
            Eq(X(t), self.place + self.moved(kappa), evaluate=False),
            Eq(sigma(mu, t), slope(X(t)), evaluate=False),
            Eq(V(mu, t), self.moved(mu), evaluate=False),
            Eq(Xbar(t), self.place + self.moved(kappa, False), evaluate=False),
            Eq(sigma(mu), slope(x), evaluate=False),
            Eq(Vbar(mu, t), self.moved(mu, False), evaluate=False),
        )

    # -- changes of averages -----------------------------------------------------------------------------

    @cached_property
    def jumps(self) -> dict[str, AverageJump]:
        """Contributions of units at the kink to Phi, G and f, and to the responses A and B, by name.

        With one hidden layer there are no responses A and B.

        >>> from derive import L, mean_field, mlp
        >>> found = expand_kinks(mean_field(mlp(1, "relu"))).jumps
        >>> [(j.name, j.order) for j in found.values()]
        [('Phi', 2), ('G', 1), ('f', 1)]
        >>> found["f"].cases[True,]
        X(t)*r(kappa)*sigma(kappa, t) - Xbar(t)*r(kappa)*sigma(kappa)
        >>> [(j.name, j.order) for j in expand_kinks(mean_field(mlp(L, "relu"))).jumps.values()][3:]
        [('A', 1), ('B', 0)]
        """
        names = FACTORS | (RESPONSES if self.drifts else {})
        return {name: self._jump(name, *fields) for name, fields in names.items()}

    @cached_property
    def turning(self) -> AverageJump:
        """Contribution of units at the kink to the response B of g to u, at order -1 in ``|gamma0|``.

        A perturbation of u at one time takes units across the kink and so changes their later slopes.
        """
        return AverageJump("B", LOWEST, {(True, True): turned(kappa, t, s) * r(kappa)})

    def _fields(
        self, is_kappa: bool, sample: Expr, time: Expr, followed: bool
    ) -> dict[str, tuple[Expr, Expr]]:
        """Return (order 0, order 1) in ``|gamma0|`` of the fields of a unit at the kink, by name.

        The fields are phi(h), z and g, and the factors of responses ``rho = G^-1 r`` and ``upsilon = Phi^-1
        u``, with the covariances G of r and Phi of u at order 0. With ``is_kappa`` the sample is kappa, for
        which h is at the kink. With ``followed`` the slope of phi is that at ``time``, else the initial one.
        """
        at = kappa if is_kappa else sample
        if is_kappa:
            slope = sigma(kappa, time) if followed else sigma(kappa)
            feature = (self.value, slope * (X(time) if followed else Xbar(time)))
        else:
            slope = sigma(sample)
            feature = (phi(u(sample)), slope * (V(sample, time) if followed else Vbar(sample, time)))
        # The backward field z is its source r at order 0 in |gamma0|, and has the coefficient Z at order 1. Z
        # contains features of order 0 only, and is therefore the same whether the slope of phi at the kink
        # changes or keeps its initial value.
        z = r(at), Z(at, time)
        responses = {q.name: (q(sample), S.Zero) for q in (rho, upsilon)}
        return {"phi": feature, "z": z, "g": (slope * z[0], slope * z[1])} | responses

    def _jump(self, name: str, one: str, two: str) -> AverageJump:
        """Return the contribution of units at the kink to the average of a product of two fields.

        ``one`` and ``two`` name the fields, ``name`` the average. The contribution is the product with the
        slopes of phi at their times minus that with initial slopes, at the first order in ``|gamma0|`` at
        which they differ. If they do not differ up to first order, there are no cases, and the order is 3.
        """
        single = name == OUTPUT
        divided = single or name in RESPONSES

        def pair(are_kappa: tuple[bool, ...], followed: bool) -> tuple[tuple[Expr, Expr], tuple[Expr, Expr]]:
            """Return both fields of the average for a unit at the kink, each as (order 0, order 1).

            ``are_kappa`` says for each sample of the average whether it is kappa, the sample of the kink.
            With ``followed`` slopes of phi are taken at their times, else at the initial time.
            """
            first = self._fields(are_kappa[0], mu, t, followed)[one]
            return first, self._fields(are_kappa[-1], *((mu, t) if single else (alpha, s)), followed)[two]

        for n in (0, 1):
            cases, after = {}, {}
            for are_kappa in choices((True, False), repeat=1 if single else 2):
                change: Expr = S.Zero
                for followed, number in ((True, 1), (False, -1)):
                    a, b = pair(are_kappa, followed)
                    change += number * Add(*[a[k] * b[n - k] for k in range(n + 1)])
                if change.expand() != 0:
                    cases[are_kappa] = change.expand()
                    # The motion of the source of h_kappa, the field at the kink, changes phi(h_kappa) by
                    # `_excess`. The bulk, which is the part without changes of slope, contains `_excess`
                    # times the other factor at its initial slope. This product is subtracted here at order 1,
                    # and for Phi only: in f and A the other factor is proportional to r, the source of z, and
                    # `_excess` does not depend on r, so that the average of the product is zero. G and B do
                    # not contain phi(h_kappa).
                    a, b = pair(are_kappa, False)
                    alone = (self._excess * b[0] if are_kappa[0] else 0) + (
                        a[0] * self._excess.subs(t, s) if are_kappa[-1] else 0
                    )
                    if n and name == "Phi" and alone != 0:
                        after[are_kappa] = -alone
            if cases:
                return AverageJump(name, n + 1 - divided, cases, after)
        return AverageJump(name, 3, {})

    @cached_property
    def _excess(self) -> Expr:
        """Change of ``phi(h_kappa)`` by the motion xi of the source alone, integrated over crossing units.

        These units have the initial position x = h_kappa/``|gamma0|`` between -xi and 0. Zero with one hidden
        layer.
        """
        if not self.drifts:
            return S.Zero
        return integrate((self.above - self.below) * (x + xi(t)), (x, -xi(t), 0))

    # -- coefficients ------------------------------------------------------------------------------------

    @cached_property
    def laws(self) -> TermsByLaw:
        """Contributions of units that keep their initial slopes of phi, by (order parameter, order).

        Each is a sum of products with their coefficients, see :func:`straight`.
        """
        return straight(self.bulk.site)

    variable = Abs(gamma0)

    @property
    def known(self) -> dict[str, int]:
        """Highest known power of ``|gamma0|`` of Phi, G, f, tangent kernel K, error and loss, by name.

        There is no loss if the error is not affine in the output.
        """
        orders = {name: min(j.order, self.highest) for name, j in self.jumps.items() if name in FACTORS}
        least = min(orders.values())
        read = ("K", "Delta", "loss") if ErrorLaw.of(self.bulk.theory).affine else ("K", "Delta")
        return orders | {name: least for name in read}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the quantities that have coefficients, the keys of :attr:`known`."""
        return tuple(self.known)

    @property
    def order(self) -> int:  # type: ignore[override]
        """Highest power of ``|gamma0|`` up to which all quantities are known.

        Some quantities are known to higher powers, such as Phi.
        """
        return min(self.known.values())

    def series(self, name: str, *args: Any, **where: Any) -> PowerSeries:
        """Return the coefficients of a quantity up to its highest known order as one truncated power series.

        Parameters
        ----------
        name : str
            Name of the quantity.
        *args : Any
            No further arguments; any raises TypeError.
        **where : Any
            No further options; any raises TypeError.

        Returns
        -------
        PowerSeries
            Series in ``|gamma0|``, up to the order that :attr:`known` has for the quantity.

        Raises
        ------
        KeyError
            If there is no quantity of that name.

        Examples
        --------
        >>> from derive import mean_field, mlp
        >>> found = expand_kinks(mean_field(mlp(1, "relu")))
        >>> found.order, found.series("Phi").order, found.series("K").order
        (1, 2, 1)
        """
        if name not in self.known:
            raise self.unknown(name)
        orders = range(self.known[name] + 1)
        return PowerSeries(tuple(self.coefficient(name, n, *args, **where) for n in orders), self.variable)

    def truncate(self, n: int) -> KinkExpansion:
        """Return the expansion up to a lower order.

        Parameters
        ----------
        n : int
            New order.

        Returns
        -------
        KinkExpansion
            Truncated expansion.

        Raises
        ------
        IndexError
            If ``n`` is negative, or beyond the order up to which all quantities are known.
        """
        self.check_order(n)
        return replace(self, highest=n)

    def conditions(self) -> tuple[str, ...]:
        """Return the assumptions about units at the kink of phi.

        Returns
        -------
        tuple[str, ...]
            Two sentences: these units keep their initial r, and are averaged separately from other units.
        """
        return (
            "the change of r in time contributes at the next order in |gamma0| only, so that units at "
            "the kink "
            "keep their initial r",
            "units at the kink and the other units can be averaged separately",
        )

    def layer(self, name: str) -> Expr:
        """Return the contribution of units at the kink of phi to an average of one layer.

        It is the coefficient of the lowest power of ``|gamma0|`` to which these units contribute.

        Parameters
        ----------
        name : str
            ``Phi``, ``G`` or ``f``; also ``A`` or ``B`` if they exist, for their sum over the times of a
            perturbation.

        Returns
        -------
        Expr
            Sum over kappa of ``<delta(u_kappa) ...>``: the density of ``u_kappa`` at zero, times the
            average over the other fields there of an integral over the initial position x.

        Raises
        ------
        KeyError
            If the name is another one.
        """
        if name not in self.jumps:
            raise KeyError(
                f"no contribution of units at the kink to {name!r}; there are contributions to "
                f"{', '.join(self.jumps)}"
            )
        jump, ways = self.jumps[name], []
        for cases in (jump.cases, jump.after):
            total: Expr = S.Zero
            for are_kappa, e in cases.items():
                at = (KroneckerDelta(i, kappa) for i in (mu, alpha))
                chosen = Mul(*[d if is_kappa else 1 - d for d, is_kappa in zip(at, are_kappa, strict=False)])
                total += chosen * e
            ways.append(total)
        return self._at_kinks(Integral(ways[0], (x, -oo, oo)) + ways[1])

    @staticmethod
    def _at_kinks(body: Expr) -> Expr:
        """Return ``sum over kappa of <delta(u_kappa) body>``: ``body`` averaged over units at the kink.

        u_kappa is the Gaussian source of h for the sample kappa.
        """
        return Sum(Average(DiracDelta(u(kappa)) * body), (kappa, 1, P))

    def coefficient(self, name: str, n: int) -> Expr:
        """Return the coefficient of ``|gamma0|^n`` of a quantity.

        Parameters
        ----------
        name : str
            ``Phi``, ``G``, ``f``, ``K``, ``Delta`` or ``loss``. With several layers Phi and G are at layer
            ell.
        n : int
            Order.

        Returns
        -------
        Expr
            Coefficient. ``D_1`` and ``D0`` are the kernel of z at orders -1 and 0, and ``A1`` is the response
            A without the part from ``Delta1``; see :meth:`response`.

        Raises
        ------
        KeyError
            If there is no quantity of that name.
        IndexError
            If the coefficient is not :attr:`known`.

        Examples
        --------
        >>> from derive import mean_field, mlp
        >>> series = expand_kinks(mean_field(mlp(1, "relu")))
        >>> series.coefficient("Phi", 1), series.coefficient("K", 1)
        (0, G1(1, mu, alpha, t, s)*K_x(mu, alpha))
        """
        if name not in self.known:
            raise self.unknown(name)
        if n not in range(self.known[name] + 1):
            raise IndexError(f"n = {n}: the series of {name} is known for orders 0 to {self.known[name]}")
        if n == 0:
            return self.generic.coefficient(name, 0)
        if name == "loss":
            return Sum(2 * Function("Delta0")(mu, t) * Function("Delta1")(mu, t) / P, (mu, 1, P))
        if name == "K":
            return tangent_kernel(self.bulk.site.tangent, 1, self._order_parameter)
        if name == "Delta":
            return ErrorLaw.of(self.bulk.theory).order([self.coefficient(OUTPUT, k) for k in range(2)])
        moved = self.layer(name) if n == self.jumps[name].order else S.Zero
        # The lazy output f_0 is linear in v, the integral of the error Delta0 over time (in discrete time a
        # sum). The error Delta1 therefore adds f_0 with v1, the same integral of Delta1, in place of v.
        if name == OUTPUT:
            lazy = self.generic.coefficient(OUTPUT, 0)
            old = [v for v in lazy.atoms(AppliedUndef) if str(v.func) == "v"]
            moved += lazy.xreplace({v: Function("v1")(*v.args) for v in old})
        return moved + self._of_bulk(name, n)

    def response(self, name: str, n: int) -> Expr:
        """Return a response of the units at layer ell; zero with one hidden layer.

        Parameters
        ----------
        name : str
            ``A``, the response of phi(h) to r, or ``B``, that of g to u. In the theory the response of g
            at layer ell is ``B(ell - 1)``.
        n : int
            Order: 1 for A, -1 or 0 for B.

        Returns
        -------
        Expr
            Response. A, and B at order 0, are summed over the times of the perturbation, and A is without
            the part from ``Delta1``.

        Raises
        ------
        KeyError
            If the name or order is another one.

        Examples
        --------
        >>> from derive import L, mean_field, mlp
        >>> found = expand_kinks(mean_field(mlp(L, "relu"))).response("B", -1)
        >>> found.has(Function("turned")), found.has(Function("D_1"))
        (True, True)
        """
        if (name, n) not in (("A", 1), ("B", -1), ("B", 0)):
            raise KeyError(f"no response {name!r} at order {n}; there are A at order 1, B at orders -1 and 0")
        if (name, n) not in self.laws:
            return S.Zero
        if n >= 0:
            return self.layer(name) + self._of_bulk(name, n)
        (turn,) = self.turning.cases.values()
        at = KroneckerDelta(mu, kappa) * KroneckerDelta(alpha, kappa)
        return self._at_kinks(Integral(at * turn, (x, -oo, oo))) + self._of_bulk(name, n)

    def _of_bulk(self, name: str, n: int) -> Expr:
        """Return the contribution to order n of an order parameter or of f by units that stay off the kink.

        These units keep their initial slopes of phi.
        """
        layer, past = (L, t) if name == OUTPUT else (self.bulk.site.layer, s)
        value = self.generic.writer(layer).terms(self.laws.get((name, n), {}), t, past)
        for edge in self.bulk.site.h:
            if not edge.memory:
                value = value.replace(
                    lambda e: isinstance(e, AppliedUndef) and str(e.func) == "C1",
                    lambda e, k=edge.kernel: Function(f"{k.name}1")(e.args[0] + k.shift, *e.args[1:]),
                )
        return value

    def _order_parameter(self, kernel: Neighbour, n: int, at: Expr) -> Expr:
        """Return order n, 0 or 1, in ``|gamma0|`` of Phi or G at layer ``at`` as an undefined function.

        It is zero at order 1 for an order parameter that changes only at order 2.
        """
        if n == 0:
            return Function(f"{kernel.name}0")(at, *sorted((mu, alpha), key=str))
        moves = self.jumps[kernel.name].order == 1
        return Function(f"{kernel.name}1")(at, mu, alpha, t, s) if moves else S.Zero

    def one_sample(self, name: str) -> Expr:
        """Return the contribution of units at the kink of phi to G or f in closed form, for one sample.

        The network must have one hidden layer.

        Parameters
        ----------
        name : str
            ``G`` or ``f``.

        Returns
        -------
        Expr
            Function of ``v`` at the earlier time and ``v + dv`` at the later one; for f, of ``v`` at t.

        Raises
        ------
        KeyError
            If the name is another one.
        NotApplicable
            If there are several hidden layers, if units on both sides move towards the kink, so that they
            slide along it, or if symbols in the slopes of phi leave the direction of the motion open.

        Notes
        -----
        ``v(t) = int Delta0`` must increase. The result integrates over the positions of the units at the kink
        and over their r. A unit moves in one direction; if that is towards the kink, it arrives at a ``v``
        proportional to its position and continues with the slope of the other side. This is exact for the
        flow, and for steps if units rest on the other side, as with relu.

        Examples
        --------
        >>> from derive import mean_field, mlp
        >>> series = expand_kinks(mean_field(mlp(1, "relu", "flow")))
        >>> series.one_sample("G"), series.one_sample("f")
        (sqrt(K_x)*(-dv - v)/pi, -K_x**(3/2)*v**2/(2*pi))
        """
        if name not in ("G", OUTPUT):
            raise KeyError(f"no closed form of {name!r}; there are closed forms of G and {OUTPUT}")
        if self.drifts:
            raise NotApplicable(
                f"one_sample({name!r}): with several hidden layers the source u of h moves at random during "
                "training, so that units reach the kink at random times and the average over them has no "
                "closed form; use a theory of one hidden layer, or the method coefficient, which leaves "
                "the average unevaluated"
            )
        body = self.jumps[name].cases[(True,) if name == OUTPUT else (True, True)]
        kernel = Symbol("K_x", positive=True)

        def numbered(e: Expr) -> Expr:
            """Return an expression with the number K_x in place of the kernel of the data."""
            return e.replace(lambda y: isinstance(y, AppliedUndef) and str(y.func) == "K_x", lambda _: kernel)

        # `remembered` is one summand of the change of h at fixed slopes. It is a factor `force` times
        # `inner`, where `inner` is an integral over the past, or `force` times the weight of a step times
        # `inner`, where `inner` is a sum over the past. If phi has the slope sigma and the error has the
        # integral v, the scaled distance X of h from the kink changes by ``force r sigma v``.
        remembered = numbered(self.moved(kappa, False).function)
        (inner,) = remembered.atoms(Integral, Sum)
        force = remembered / inner / (self.bulk.site.weight if isinstance(inner, Sum) else 1)
        halves = (
            _half(self, body, side, force * way * size, way * size) for side in (1, -1) for way in (1, -1)
        )
        weight = exp(-(size**2) / 2) / sqrt(2 * pi)
        total = integrate((Add(*halves) * weight).expand(), (size, 0, oo))
        return simplify(numbered(self.density) * total)

    def render(self, format: str = "text") -> str:
        """Return the equations of a unit at the kink and the coefficients.

        Parameters
        ----------
        format : {"text", "latex"}
            Format.

        Returns
        -------
        str
            The equations.

        Raises
        ------
        ValueError
            If the format is another one.
        """
        names = NAMES[format == "latex"]

        def show(e: Expr) -> str:
            return (latex if format == "latex" else text)(e, self.theory, names)

        kink, moves = (
            (r"\left\langle\delta(u_\kappa)\right\rangle", r"\left\langle\xi(t)\xi(s)\right\rangle")
            if format == "latex"
            else ("⟨δ(u_κ)⟩", "⟨ξ(t) ξ(s)⟩")
        )
        unit: list[tuple[str, list[str]]] = [(show(e.lhs), [show(e.rhs)]) for e in self.equations]
        unit += [(kink, [show(self.density)])] + ([(moves, [show(self.drift)])] if self.drifts else [])

        def coefficients() -> PrintedBlock:
            for name, n, place, e in self._entries():
                whole = show(Function(name)(*place))
                left = rf"\left[{whole}\right]_{{{n}}}" if format == "latex" else f"[{whole}]_{n}"
                yield left, [show(y) for y in Add.make_args(e)]

        head = (
            f"Expansion in |γ₀|: {self.theory.program.name}, φ(x) = {self.bulk.activation.expr}\n\n{LEGEND}"
        )
        head += "\n" + DEEP if self.drifts else ""
        return printed(format, head, {"Unit": unit, "Coefficients": coefficients()})

    def _entries(self) -> Iterator[tuple[str, int, tuple[Expr, ...], Expr]]:
        """Yield (name, order, arguments, value) of each coefficient to be printed, those of A and B last.

        ``arguments`` are the layer, samples and times on which the coefficient depends.
        """
        place = dict.fromkeys(("Phi", "G", "K"), (mu, alpha, t, s)) | {"loss": (t,)}
        for name, top in self.known.items():
            for n in range(top + 1):
                yield name, n, place.get(name, (mu, t)), self.coefficient(name, n)
        site = self.bulk.site
        for name, shift, n in (("A", site.forward, 1), ("B", site.backward, -1), ("B", site.backward, 0)):
            if shift is not None:
                yield name, n, (site.layer + shift, mu, alpha, t, s), self.response(name, n)


NAMES: dict[bool, dict[str, str]] = {
    False: {
        "Delta0": "Δ^(0)", "Delta1": "Δ^(1)", "kappa": "κ", "Xbar": "X̄", "Vbar": "V̄", "D_1": "D^(-1)",
        "t__": "t''", "upsilon": "υ",
    },
    True: {
        "Delta0": r"\Delta^{(0)}", "Delta1": r"\Delta^{(1)}", "K_x": "K^x", "v1": "v^{(1)}",
        "kappa": r"\kappa", "Xbar": r"\bar X", "Vbar": r"\bar V", "D_1": "D^{(-1)}", "turned": r"\dot\sigma",
        "t_": "t'", "t__": "t''",
    } | {"beta" + "_" * k: r"\beta" + "'" * k for k in range(1, 4)},
}  # fmt: skip

LEGEND = """\
[X]_n is the coefficient of |γ₀|ⁿ.  A unit at the kink of sample κ has u_κ = |γ₀| x, h_κ = |γ₀| X(t) and slope
σ_κ(t); X̄ and σ_κ are those without a change of slope.  V_μ, V̄_μ are its [h_μ - u_μ]_1 at the other samples,
whose slopes σ_μ and features φ(u_μ) keep their initial values.  Averages with δ(u_κ) are over these units and
their sources; those of φ and its slopes are over all units, with initial slopes.
v_β(t) = ∫ Δ^(0)_β and v1_β(t) = ∫ Δ^(1)_β, sums for rules in steps."""

DEEP = """\
ξ is the change of the source u_κ in time: Gaussian, independent of u and r.  ρ = G⁻¹ r and υ = Φ⁻¹ u, with
the covariances of r and u at order 0.  turned_κ(t,s) = ∂σ_κ(t)/∂ξ(s).  D^(-1) = B^(-1) and
D₀ = B₀ + k Δ^(0) G₀ are kernels of z.  A and B₀ are summed over s, and A is without the part from Δ^(1)."""


def expand_kinks(theory: Theory) -> KinkExpansion:
    """Expand in ``|gamma0|`` for a piecewise linear phi with a kink at zero.

    Parameters
    ----------
    theory : Theory
        Theory of one hidden layer, or of symbolic depth.

    Returns
    -------
    KinkExpansion
        Expansion. G, the tangent kernel, the error and the loss have a term linear in ``|gamma0|``; Phi
        changes at gamma0^2.

    Raises
    ------
    NotApplicable
        If phi is not piecewise linear with its only kink at zero, or if the theory is not that of a
        perceptron of one hidden layer or of symbolic depth.

    Examples
    --------
    >>> from derive import mean_field, mlp
    >>> series = expand_kinks(mean_field(mlp(1, "relu", "flow")))
    >>> print(series.moved(kappa))
    Sum(K_x(beta, kappa)*Integral(Delta0(beta, t_)*r(beta)*sigma(beta, t_), (t_, 0, t)), (beta, 1, P))
    """
    lazy = expand_nonlinear(theory, 0)
    (slot,) = lazy.activation.variables
    refused = NotApplicable(f"phi = {lazy.activation.expr} must be piecewise linear with its only kink at 0")
    try:
        parts = jumps(lazy.activation.expr, slot)
    except OtherKind as error:
        raise refused from error
    if not set(parts) <= {(0, 0, -1), (1, 0, -1), (1, 1, -1)} or (1, 1, -1) not in parts:
        raise refused
    even, odd = parts.get((1, 0, -1), S.Zero), parts[1, 1, -1]
    return KinkExpansion(theory, lazy, even + odd, even - odd, parts.get((0, 0, -1), S.Zero))


# -- the bulk ------------------------------------------------------------------------------------------------

REMEMBERED: Forest = (Node(-1, ROW), Node(0, COL, error=0, marked=True))
"""A kernel of order 0 that is a number for each pair of samples, beside ``k(t, s) Delta0(s)``."""

TermsByLaw = dict[tuple[str, int], Terms]


class _StraightFields(Fields):
    """Fields h, z, g and phi(h) of units that keep their initial slopes of phi, to order 2 in gamma0.

    ``known`` maps (order parameter, order) to its forests, which are iterated sums over times. The kernel C
    of order 0 is a number for each pair of samples; higher orders, and D if there is a response B, are
    functions of two times.
    """

    def __init__(self, site: Site, known: Mapping[tuple[str, int], list[Forest]]) -> None:
        self.known = known
        super().__init__(site, 2, lambda name, n: known.get((name, n), []), {0})

    def forests(self, name: str, n: int) -> dict[Forest, Terms]:
        """Return the forests in order n of the kernel ``C`` or ``D``, as keys; the values are empty.

        A forest is an iterated sum over times.
        """
        return {forest: {} for forest in self.known.get((name, n), [])}

    def phi(self, derivative: int, n: int) -> Terms:
        """Return order n in gamma0 of phi(h), or of a derivative of phi at h, as a sum of products.

        Slopes of phi are constant, so that the Taylor series around the source u ends after the linear term.
        """
        here, slope = ({Piece((Node(-1, ROW, phi=(derivative + k,)),)): Rational(1)} for k in (0, 1))
        if n == 0:
            return here
        return product(slope, self.moved[n]) if derivative == 0 else {}


def straight(site: Site) -> TermsByLaw:
    """Return the contributions of units that keep their initial slopes of phi, by (order parameter, order).

    They are Phi at order 2, G at 1, and with several layers A and f at 1 and B at -1 and 0. Each is a sum of
    products with their coefficients. The kernel C of order 1 in A and f is the response of the layer below; B
    at 0 is summed over s.

    >>> from derive.expansion.nonlinear.single_site import read
    >>> from derive import L, mean_field, mlp
    >>> laws = straight(read(mean_field(mlp(L, "relu"))))
    >>> {key: len(terms) for key, terms in laws.items()}
    {('Phi', 2): 6, ('G', 1): 3, ('A', 1): 2, ('B', -1): 1, ('B', 0): 2, ('f', 1): 1}
    """
    known: dict[tuple[str, int], list[Forest]] = {("C", 0): [REMEMBERED], ("D", 0): [REMEMBERED]}
    for kernel, orders in ((site.u, (0, 2)), (site.r, (0, 1))):
        known |= {(kernel.name, n): [PAIR] for n in orders if not kernel.given}
    deep = site.backward is not None
    if deep:
        known |= {("C", 1): [BETWEEN], ("D", LOWEST): [BETWEEN], ("D", 0): [BETWEEN]}
    fields = _StraightFields(site, known)
    phi, g = [fields.phi(0, n) for n in range(3)], [fields.g(n) for n in range(2)]

    def mean(series: TermsByOrder, n: int, fields: Fields = fields) -> Terms:
        """Return order n in gamma0 of the average of a field over the Gaussian sources.

        ``series[k]`` is order k of the field as a sum of products. ``fields`` gives the sums over times that
        the covariances of the sources contain.
        """
        return average(series, n, site.u, site.r, fields.shapes)

    def pair(series: TermsByOrder, n: int) -> Terms:
        """Return order n in gamma0 of the correlation of a field with itself, at two samples and two times.

        ``series[k]`` is order k of the field as a sum of products.
        """
        return mean([convolved(series, series, k, side_by_side) for k in range(n + 1)], n)

    contributions = {("Phi", 2): pair(phi, 2), ("G", 1): pair(g, 1)}
    if deep:
        contributions["A", 1] = mean([source_derivative(e, "r") for e in phi], 2)
        for n in (LOWEST, 0):
            contributions["B", n] = mean([source_derivative(e, "u") for e in g], n + 1)
        # At the last layer the backward response B does not exist. Therefore the series of the kernel D has
        # no order -1 there, and the source r of the backward field does not change in time.
        end = {key: x for key, x in known.items() if key not in (("D", LOWEST), (site.r.name, 1))}
        last = _StraightFields(site, end | {("D", 0): [REMEMBERED]})
        features = [last.phi(0, k) for k in range(3)]
        contributions[OUTPUT, 1] = mean([convolved(features, last.z, n) for n in range(3)], 2, last)
    return {key: _turning(terms, summed=key == ("B", 0)) for key, terms in contributions.items()}


def _turning(terms: Terms, summed: bool) -> Terms:
    """Remove from a sum of products those in which the kernel D of order -1 acts on a constant factor.

    D is the kernel in the equation of z, and its sum over the earlier time is zero at order -1, so that these
    products vanish. With ``summed`` the sum runs also over the time of the perturbation.
    """

    def rests(p: Piece) -> bool:
        """Return whether in a product the kernel D of order -1 acts on a factor that is constant in time.

        D is the kernel in the equation of z.
        """
        for i, y in enumerate(p.nodes):
            kernel = any(z.tensor.order == LOWEST and z.samples[1] == y.sample for z in p.statics)
            leaf = (
                not p.children()[i] and sum(y.sample in z.samples for z in p.statics if z.tensor.moves) == 1
            )
            if kernel and leaf and (summed or not y.marked):
                return True
        return False

    return {p: c for p, c in terms.items() if not rests(p)}


# -- one sample in closed form -------------------------------------------------------------------------------

v, dv = Symbol("v", positive=True), Symbol("dv", positive=True)
away = Symbol("x", positive=True)
"""Initial distance from the kink."""
size = Symbol("rho", positive=True)
"""Absolute value of r in units of its standard deviation."""


def _half(series: KinkExpansion, body: Expr, side: int, force: Expr, push: Expr) -> Expr:
    """Integrate the contribution ``body`` of one sample over the units that start on one side of the kink.

    ``side`` is 1 for units that start above the kink and -1 below. ``push`` is the value of r, the source of
    z, of all these units. Their position X obeys ``dX/dv = force * (slope of phi at X)``, where v is the time
    integral of the error and ``force`` is a number times ``push``. The result is a function of v at the
    earlier time and v + dv at the later one. Raises :class:`NotApplicable` if both sides move units onto the
    kink, or if the direction of the motion is not known.
    """
    near, far = (series.above, series.below)[::side]
    unknown = next((f for f in (force * near, force * far) if not sign(f).is_number), None)
    if unknown is not None:
        raise NotApplicable(
            f"the sign of {unknown}, the velocity of units at the kink, is not known; it must be positive, "
            "negative or zero for all values of its symbols"
        )
    start = side * away
    meets = solve(start + force * near * v, v)[0] if sign(force * near) == -side else None
    if meets is not None and sign(force * far) == side:
        raise NotApplicable(
            f"with the slope {series.above} above the kink and the slope {series.below} below it, units are "
            "pushed onto the kink from both sides"
        )

    def unit(crossed: bool, moved: Expr) -> tuple[Expr, Expr]:
        """Return (slope of phi, position) of a unit when the integrated error v has the value ``moved``.

        ``crossed`` says whether the unit has passed the kink before.
        """
        return (far, force * far * (moved - meets)) if crossed else (near, start + force * near * moved)

    segments = [((False, False), (S.Zero, oo))]
    if meets is not None:
        first, last = (solve(meets - q, away)[0] for q in (v, v + dv))
        segments = [
            ((True, True), (S.Zero, first)),
            ((False, True), (first, last)),
            ((False, False), (last, oo)),
        ]
    (sample,) = {q.args[0] for q in body.atoms(AppliedUndef) if str(q.func) == "sigma"}
    total: Expr = S.Zero
    for (early, late), (low, high) in segments:
        a, b, c = unit(early, v), unit(late, v + dv), unit(False, v)
        place: dict[Any, Any] = {X(t): a[1], Xbar(t): c[1], r(sample): push}
        place |= {sigma(sample, t): a[0], sigma(sample, s): b[0], sigma(sample): c[0]}
        change = body.subs(place, simultaneous=True).expand()
        if change != 0:
            total += integrate(change, (away, low, high))
    return total
