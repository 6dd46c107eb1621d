"""Expansion of a nonlinear theory in gamma0, with symbolic layer and depth.

Decorated trees are written as SymPy expressions with sums over samples and earlier times and Gaussian
averages. Kernels at order 0 are static tensors, ``Phi0(ell, mu, alpha)``: ``C0`` and ``D0`` multiply ``k(t,
s) Delta0_alpha(s)`` in the kernels of h and z, where k is the weight of an update. ``D0_now`` multiplies
``v`` in the part of D at equal times. Higher orders are functions of two times, ``Phi2(ell, mu, alpha, t,
s)``. With samples a, b,

    v(a, b, ..., t) = int_0^t dt' Delta0_a(t') int_0^t' dt'' Delta0_b(t'') ... ,

or sums in discrete time, with the weight k in each of them; ``v_since(a, ..., t, s)`` starts at s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sympy import (
    Abs,
    Add,
    DiracDelta,
    Eq,
    Expr,
    Function,
    Heaviside,
    Integral,
    KroneckerDelta,
    Lambda,
    Max,
    Min,
    Mul,
    Piecewise,
    S,
    Sum,
    Symbol,
    sign,
    sympify,
)

from derive.calculus.gaussian import GaussianAverage
from derive.calculus.sums import drawn_out
from derive.calculus.symbols import L, P, alpha, ell, gamma0, mu, s, t
from derive.errors import NotApplicable, require_integer
from derive.expansion.errors import ErrorLaw
from derive.expansion.expansion import Expansion, placed_layer, printed
from derive.expansion.nonlinear.depth import AtCriticality, AtFixedPoint
from derive.expansion.nonlinear.single_site import Neighbour, Site, Summand, read
from derive.expansion.nonlinear.trees import (
    COL,
    CORRELATIONS,
    KERNELS,
    OPAQUE,
    OUTPUT,
    PAIR,
    ROW,
    Forest,
    ForestCoefficient,
    Laws,
    OpaqueFields,
    Piece,
    StaticTensor,
    Terms,
    coefficient,
    leads,
    order_parameters,
    oriented,
    samples_of,
    solved_laws,
)
from derive.show import latex, text
from derive.theory import Theory

SampleIndices = tuple[Symbol, ...]

DATA = "K_x"
"""Name of the kernel of given data."""


class Writer:
    """Converter of the terms of the nonlinear expansion at one layer to SymPy expressions.

    A term is a product of tensors (numbers for each layer and choice of samples), Gaussian averages and sums
    over times. ``site`` are the equations of a layer, and ``layer`` is the layer at which terms are written.
    ``numbers`` maps the tensors of an order parameter at an order above 0 to 1, 2, ...; they are written
    ``Phi2_1``, ``Phi2_2``, ....
    """

    def __init__(
        self, site: Site, layer: Expr, numbers: Mapping[ForestCoefficient, int] | None = None
    ) -> None:
        self.site, self.layer, self.numbers = site, layer, dict(numbers or {})

    # -- quantities that do not depend on time ---------------------------------------------------------

    def sample(self, i: int) -> Symbol:
        """Return the symbol of a sample: mu for number 0 (row), alpha for 1 (column), else beta, ...."""
        if i in (ROW, COL):
            return (mu, alpha)[i]
        return Symbol("beta" + "_" * (i - COL - 1), integer=True, positive=True)

    def given(self, name: str, samples: Iterable[Symbol]) -> Expr:
        """Return the data kernel ``name`` as a function of two samples; the name "1" gives the number 1."""
        return S.One if name == "1" else Function(name)(*sorted(samples, key=str))

    def known(self, name: str, at: Expr, samples: SampleIndices) -> Expr:
        """Return order 0 in gamma0 of an order parameter at the layer ``at``, for two samples.

        Before the first and after the last layer it is the given value, elsewhere a symbol such as
        ``Phi0(ell, mu, alpha)``.
        """
        base = self.site.bases.get((name, at))
        if base is not None:
            return base if not base.free_symbols else self.given(DATA, samples)
        return Function(f"{name}0")(at, *samples)

    def static(self, x: StaticTensor, times: Mapping[int, Expr]) -> Expr:
        """Return a tensor of the expansion as a function of layer and samples, such as ``Phi2_1(ell, ...)``.

        A tensor that is an unexpanded function of two times has these as arguments too; ``times`` maps the
        number of each sample to its time. Tensors beyond the ends of the network have their given values.
        """
        at, samples = sympify(self.layer + x.shift), tuple(map(self.sample, x.samples))
        name, n = x.tensor.name, x.tensor.order
        if name in (DATA, "1"):
            return self.given(DATA, samples)
        if x.tensor.shape == PAIR and n == 0:
            return self.known(name, at, _in_order(samples))
        if (name, at) in self.site.bases:
            return S.Zero
        if x.tensor.moves:
            order = f"{n}" if n >= 0 else f"_{-n}"
            return Function(name + order)(at, *samples, *(times[i] for i in x.samples))
        if name in KERNELS and n == 0 and (value := self.at_end(x.tensor, at, samples)) is not None:
            return value
        return Function(self.name(x.tensor))(at, *samples)

    def at_end(self, x: ForestCoefficient, at: Expr, samples: SampleIndices) -> Expr | None:
        """Return order 0 of the kernel C or D in terms of order parameters, if ``at`` is an end layer.

        An end is a layer at which one of the order parameters in the kernel has a given value. Returns None
        at other layers, where C or D is written as a symbol.
        """
        edges = self.site.edges(x.name)
        if not any(e.kernel.given or (e.kernel.name, at + e.kernel.shift) in self.site.bases for e in edges):
            return None
        parts = [e.kernel for e in edges if not (x.shape[0].marked and e.memory)]
        return Add(*[self.kernel(k, at, samples) for k in parts])

    def kernel(self, k: Neighbour, at: Expr, samples: SampleIndices) -> Expr:
        """Return order 0 of the order parameter ``k`` for two samples; its layer is ``at`` plus its shift."""
        return self.given(k.name, samples) if k.given else self.known(k.name, at + k.shift, samples)

    def name(self, x: ForestCoefficient) -> str:
        """Return the printed name of a tensor of the expansion, such as ``C0``, ``D0_now`` or ``Phi2_1``.

        It is made of the order parameter and the order in gamma0. Above order 0 a number among the tensors
        of this order parameter and order follows.
        """
        if x.order:
            return f"{x.name}{x.order}_{self.numbers[x]}"
        return f"{x.name}0" + ("_now" if x.shape[0].marked else "")

    def symbol(self, x: ForestCoefficient, at: Expr, samples: SampleIndices) -> Expr:
        """Return a tensor of the expansion as an undefined function of a layer and samples."""
        return Function(self.name(x))(
            at, *(_in_order(samples) if x.order == 0 and x.shape == PAIR else samples)
        )

    def source(self, i: int, time: Expr | None = None) -> Expr:
        """Return the Gaussian source u of h as a function of the layer, the sample number i, and ``time``.

        Without ``time`` it is the source at gamma0 = 0, which does not depend on time.
        """
        return Function("u")(self.layer, self.sample(i), *(() if time is None else (time,)))

    def derivative(self, order: int, u: Expr) -> Expr:
        """Return the derivative of the activation phi of the given order at u."""
        x = self.site.activation.variables[0]
        if self.site.activation.expr == Function("phi")(x):
            return Function("phi")(u).diff(u, order) if order else Function("phi")(u)
        return self.site.activation.expr.diff(x, order).doit().xreplace({x: u})

    def average(self, p: Piece) -> Expr:
        """Return the Gaussian average in one product of the expansion as an unevaluated expression.

        It is an average of derivatives of phi at the sources u at gamma0 = 0, whose covariances are order
        parameters of the neighbouring layer. Without such derivatives it is 1.
        """
        body = Mul(*[self.derivative(a, self.source(i)) for i, orders in p.averages for a in orders])
        labels = [i for i, _ in p.averages if body.has(self.source(i))]
        if not labels:
            return body

        def entry(i: int, j: int) -> Expr:
            return self.kernel(self.site.u, self.layer, _in_order((self.sample(i), self.sample(j))))

        return GaussianAverage(
            body,
            {(self.source(i), self.source(j)): entry(i, j) for k, i in enumerate(labels) for j in labels[k:]},
        )

    def number(self, p: Piece, coefficient: Expr) -> Expr:
        """Return the product of the factors of a term that do not depend on time.

        They are the coefficient, the tensors and the Gaussian average.
        """
        return Mul(coefficient, *[self.static(x, {}) for x in p.statics], self.average(p))

    # -- functions of time -----------------------------------------------------------------------------

    def piece(self, p: Piece, coefficient: Expr, row: Expr = t, col: Expr = s) -> Expr:
        """Return one product of the expansion with all factors, summed over samples and earlier times.

        ``coefficient`` is its numerical factor; ``row`` and ``col`` are the two times on which it depends.
        """
        body = Mul(coefficient, self.average(p), self.time(p, row, col))
        bound = sorted(i for i in p.labels() if i > COL)
        return Sum(body, *[(self.sample(i), 1, P) for i in bound]) if bound and body != 0 else body

    def time(self, p: Piece, row: Expr = t, col: Expr = s) -> Expr:
        """Return the product of tensors and of factors that depend on time, summed over all times but two.

        The two times are ``row`` and ``col``. Factors that depend on time are iterated integrals of the
        error, derivatives of phi and sources r, and the delta of equal times and samples of a response. The
        coefficient and the Gaussian average are left out, and samples are not summed over.
        """
        tree = _Tree(self, p, row, col)
        times = {x.sample: tree.times[i] for i, x in reversed(list(enumerate(p.nodes)))}
        parts = [self.static(x, times) for x in p.statics]
        parts += [tree.hanging(i) for i in p.roots]
        if p.nodes and p.nodes[0].marked:
            same = KroneckerDelta(row, col) if self.site.discrete else DiracDelta(row - col)
            parts.append(KroneckerDelta(mu, alpha) * same)
        return tree.over_times(Mul(*parts))

    def weight(self, now: Expr, past: Expr) -> Expr:
        """Return the factor k(now, past) of an update at the time ``past`` in the weights at ``now``."""
        return self.site.weight.subs({t: now, s: past}, simultaneous=True)

    def terms(self, terms: Terms, row: Expr = t, col: Expr = s) -> Expr:
        """Return a sum of products of the expansion as a SymPy expression in the times ``row`` and ``col``.

        ``terms`` maps each product to its coefficient.
        """
        return Add(*[self.piece(p, c, row, col) for p, c in terms.items()])


class _Tree:
    """Converter of the time dependence of one product, a forest of times, to a SymPy expression.

    Nodes of the forest are times; the children of a node are earlier times. The roots are the times ``row``
    and ``col``, and the time of a perturbation (the marked node) is ``col``. All other times are summed over.
    """

    def __init__(self, writer: Writer, p: Piece, row: Expr, col: Expr) -> None:
        self.writer, self.p, self.col = writer, p, col
        self.children = p.children()
        self.opaque = {i for x in p.statics if x.tensor.moves for i in x.samples}
        self.times: list[Expr] = []
        self.limits: list[tuple[Expr, Expr, Expr]] = []
        count = 0
        for i, x in enumerate(p.nodes):
            if x.parent < 0:
                self.times.append(col if i else row)
            elif x.marked:
                self.times.append(col)
            else:
                count += 1
                self.times.append(Symbol("t" + "_" * count, nonnegative=True))

    def chain(self, i: int, marked: bool = False) -> list[Symbol] | None:
        """Return the samples a, b, ... if the subtree of node i is an iterated integral ``v(a, b, ..., t)``.

        A node is a time, its children are earlier times; v is the iterated integral of the error at order 0.
        Returns None for a subtree that branches or has other factors. With ``marked`` the integral must end
        at the time of the perturbation, that of the marked node.
        """
        x = self.p.nodes[i]
        if marked and x.marked:
            return []
        if x.error != 0 or x.phi or x.r or x.marked or x.sample in self.opaque or len(self.children[i]) > 1:
            return None
        if not self.children[i]:
            return None if marked else [self.writer.sample(x.sample)]
        rest = self.chain(self.children[i][0], marked)
        return None if rest is None else [self.writer.sample(x.sample), *rest]

    def hanging(self, i: int) -> Expr:
        """Return the product of all factors of the subtree that begins at node i.

        A node stands for a time, and its children for earlier times. Factors are the derivatives of phi and
        the sources r at each time, and the kernels between the time of a node and that of its children.
        """
        x, writer, now = self.p.nodes[i], self.writer, self.times[i]
        u = writer.source(x.sample, now)
        factors = [writer.derivative(a, u) for a in x.phi]
        factors += [Function("r")(writer.layer, writer.sample(x.sample), now)] * x.r
        return Mul(*factors, *[self.below(j, now) for j in self.children[i]])

    def below(self, i: int, now: Expr) -> Expr:
        """Return the kernel between ``now``, the parent's time, and that of node i, times the subtree of i.

        An unbranched subtree that contains only the error at order 0 is written as the iterated integral
        ``v``, and with the time of the perturbation as ``v_since`` if the weight of an update is constant.
        """
        x, writer = self.p.nodes[i], self.writer
        if (samples := self.chain(i)) is not None:
            return Function("v")(*samples, now)
        if not writer.site.weight.has(t, s) and (samples := self.chain(i, marked=True)):
            mark = next(j for j, y in enumerate(self.p.nodes) if y.marked)
            return Function("v_since")(*samples, now, self.col) * self.below(mark, now)
        weight: Expr = S.One
        if x.error != OPAQUE:
            weight = writer.weight(now, self.times[i])
            weight *= Function(f"Delta{x.error}")(writer.sample(x.sample), self.times[i])
        if not x.marked:
            lead = next((j for j in self.children[i] if leads(self.p.nodes, j)), None)
            start = S.Zero if lead is None else self.col if self.reaches(lead) else self.col + 1
            self.limits.append((self.times[i], start, now if self.reaches(i) else now - 1))
        return weight * self.hanging(i)

    def reaches(self, i: int) -> bool:
        """Return whether the sum over the time of node i includes the next later time, of its parent.

        An integral does. In steps, only a sum over an undefined kernel D does, because D has a part at equal
        times.
        """
        x = self.p.nodes[i]
        kernels = {y.tensor.name for y in self.p.statics if x.sample in y.samples and y.tensor.moves}
        return not self.writer.site.discrete or (x.error == OPAQUE and "D" in kernels)

    def over_times(self, e: Expr) -> Expr:
        """Return the sum or integral of e over all times of the tree that are neither ``row`` nor ``col``.

        Factors that do not depend on a summed time are moved in front of its sum.
        """
        if not self.limits or e == 0:
            return e
        add = Sum if self.writer.site.discrete else Integral
        return drawn_out(add(e, *reversed(self.limits)))


def _in_order(samples: SampleIndices) -> SampleIndices:
    """Return samples sorted by name."""
    return tuple(sorted(samples, key=str))


KINKS = (Abs, Heaviside, Max, Min, Piecewise, sign)


EARLIER = Heaviside(t - s, 0)
"""Causality factor of responses: one at s < t, else zero; it is not printed."""


@dataclass(frozen=True, repr=False)
class NonlinearExpansion(Laws, Expansion):
    """Order parameters of a nonlinear theory as power series in gamma0.

    Each coefficient is a sum of tensors, which depend on samples and the layer, times forests, which depend
    on time: iterated sums (integrals) of the error. Compare selfconsistent2023 (P.9)-(P.26).

    Parameters
    ----------
    site : Site
        Equations of one layer.
    order : int
        Highest order.
    laws : dict
        Recursion over layers of each tensor, with averages of derivatives of phi over the static sources.
    errors : tuple of int
        Orders at which the error has a coefficient.
    theory : Theory
        Theory.
    """

    theory: Theory

    variable = gamma0

    @property
    def names(self) -> tuple[str, ...]:
        """Names of order parameters, kernels C and D, ``f``, ``Delta``, ``K`` and ``loss``."""
        return (*sorted({x.name for x in self.laws}), "Delta", "K", "loss")

    @property
    def activation(self) -> Lambda:
        """Activation phi, a function of one variable."""
        return self.site.activation

    def coefficient(self, name: str, n: int, layer: Any = None) -> Expr:
        """Return the coefficient of gamma0^n of a quantity at a layer.

        Parameters
        ----------
        name : str
            Order parameter (``Phi``, ``G``, ``A``, ``B``), kernel (``C``, ``D`` of h and z), ``f``,
            ``Delta``, ``K`` (the tangent kernel) or ``loss``, the mean of Delta^2 over samples.
        n : int
            Order.
        layer : Any, optional
            Layer of an order parameter or kernel, from 1 to L, for B from 0 to L - 1; symbolic by default.

        Returns
        -------
        Expr
            Averages over static sources, and kernels of the neighbouring layers. K and the loss are given
            in undefined functions: orders of Phi and G at each layer, and orders of Delta.

        Raises
        ------
        KeyError
            If there is no quantity of that name.
        IndexError
            If ``n`` is negative or beyond the order.
        NotApplicable
            For the loss, if the error is not affine in the output; for Delta at orders above 0, if the error
            jumps.
        ValueError
            If the layer is outside the network.

        Notes
        -----
        Static tensors have samples only, ``Phi0(ell, mu, alpha)``; ``C0``, ``D0`` and ``D0_now`` obey
        :meth:`recursions`. Coefficients of higher order at other layers are functions of two times,
        ``Phi2(ell - 1, ...)``. ``v(alpha, beta, t)`` are iterated integrals of the error at order 0, and
        ``v_since(.., t, s)`` start at s. Responses and kernels vanish for s > t, which the factor
        ``Heaviside(t - s, 0)`` states.

        Examples
        --------
        >>> from sympy import Function
        >>> from derive import L, mean_field, mlp
        >>> series = expand_nonlinear(mean_field(mlp(L, Function("phi"), "flow")), 2)
        >>> series.coefficient("Phi", 0)
        <phi(u(ell, alpha))*phi(u(ell, mu))>_{u(ell, mu),u(ell, alpha)}
        >>> series.coefficient("Phi", 1), series.coefficient("K", 1)
        (0, 0)
        """
        self.check_order(n)
        law = next((x for x in self.laws.values() if x.tensor.name == name), None)
        if name in KERNELS or (law is not None and name != OUTPUT):
            layer = self._placed(name, layer, 0 if law is None or name in KERNELS else law.shift)
        if name in KERNELS:
            return self._kernel(name, n, layer)
        if name == "Delta":
            return ErrorLaw.of(self.theory).order([self.coefficient(OUTPUT, k) for k in range(n + 1)])
        if name == "loss":
            if not (errors := ErrorLaw.of(self.theory)).affine:
                raise NotApplicable(f"the loss is not the mean square of the error {errors.body}")
            products = (self._error(k) * self._error(n - k) for k in range(n + 1))
            return Add(*[Sum(x, (mu, 1, P)) / P for x in products if x != 0])
        if name == "K":
            return tangent_kernel(self.site.tangent, n, self._order_parameter)
        if law is None:
            raise self.unknown(name)
        fields = OpaqueFields(self.site, n + 1, self._shapes, set(self.errors))
        writer = self.writer(self._last if name == OUTPUT else layer - law.shift)
        value = writer.terms(order_parameters(fields, n)[name], t, t if name == OUTPUT else s)
        return _causal(value) if name in ("A", "B") else value

    def field(self, name: str, n: int, layer: Any = None) -> Expr:
        """Return the coefficient of gamma0^n of a field, at mu and t.

        Parameters
        ----------
        name : str
            ``h``, ``z``, ``g`` or ``phi`` (of h).
        n : int
            Order; it may exceed that of the series. Orders of kernels and of the error above that of the
            series are then undefined functions, also those that vanish.
        layer : Any, optional
            Layer, symbolic by default.

        Returns
        -------
        Expr
            Expression in the sources u and r at all times and the kernels C and D, as in
            selfconsistent2023 (P.9).

        Raises
        ------
        KeyError
            If there is no field of that name.
        ValueError
            If the order is negative or not an integer, or if the layer is outside the network.

        Examples
        --------
        >>> from sympy import Function
        >>> from derive import L, mean_field, mlp
        >>> series = expand_nonlinear(mean_field(mlp(L, Function("phi"), "flow")), 0)
        >>> series.field("h", 0), series.field("z", 0)
        (u(ell, mu, t), r(ell, mu, t))
        """
        require_integer("n", n, 0)
        layer = self._placed(name, layer)
        fields, writer = self.fields(n), self.writer(layer)
        if name == "h":
            start = Function("u")(layer, mu, t) if n == 0 else S.Zero
            return start + writer.terms(fields.moved[n])
        if name == "z":
            return writer.terms(fields.z[n])
        if name in ("g", "phi"):
            return writer.terms(fields.of(name, n))
        raise KeyError(f"no field {name!r}; there are h, z, g, phi")

    def fields(self, n: int) -> OpaqueFields:
        """Return the fields h, z, g and phi(h) of one layer up to order n in gamma0, as sums of products.

        Kernels of order 1 and higher in them are undefined functions of two times.

        Parameters
        ----------
        n : int
            Order.

        Returns
        -------
        OpaqueFields
            Fields.

        Raises
        ------
        ValueError
            If ``n`` is negative or not an integer.
        """
        require_integer("n", n, 0)
        known = set(self.errors) | set(range(self.order + 1, n + 1))

        def shapes(kernel: str, k: int) -> list[Forest]:
            """Return the forests (iterated sums over times) in order k of the order parameter ``kernel``.

            Beyond the order of the series the order parameter is one unexpanded function of two times.
            """
            return self._shapes(kernel, k) or ([PAIR] if k > self.order else [])

        return OpaqueFields(self.site, n, shapes, known)

    def recursions(self, n: int = 0) -> tuple[Eq, ...]:
        """Return the recursions over layers of the tensors of one order.

        A tensor is the factor of an iterated sum over times in an order parameter. Layers are written with
        the symbol ell; the output is at the last layer, L. With one hidden layer all are at layer 1.

        Parameters
        ----------
        n : int, optional
            Order.

        Returns
        -------
        tuple[Eq, ...]
            Equations for tensors such as ``Phi2_1``. :meth:`factors` gives the function of time that each
            of them multiplies.

        Raises
        ------
        IndexError
            If ``n`` is negative or beyond the order.

        Examples
        --------
        >>> from sympy import Function
        >>> from derive import L, mean_field, mlp
        >>> series = expand_nonlinear(mean_field(mlp(L, Function("phi"), "flow")), 0)
        >>> print(next(e for e in series.recursions() if e.lhs.func.__name__ == "C0").rhs)
        A0(ell - 1, mu, alpha) + Phi0(ell - 1, alpha, mu)
        """
        self.check_order(n)
        equations = []
        for x in self.tensors(n):
            law, writer = self.laws[x], self.writer(self._last if x.name == OUTPUT else self.site.layer)
            samples = tuple(map(writer.sample, samples_of(x.shape)))
            rhs = Add(*[writer.number(p, c) for p, c in law.terms.items()])
            equations.append(Eq(writer.symbol(x, writer.layer + law.shift, samples), rhs, evaluate=False))
        return tuple(equations)

    def tensors(self, n: int) -> tuple[ForestCoefficient, ...]:
        """Return the keys of all tensors of order n; of two that are equal by symmetry, only one.

        A tensor is the factor of an iterated sum over times in an order parameter.

        Parameters
        ----------
        n : int
            Order.

        Returns
        -------
        tuple[ForestCoefficient, ...]
            Tensors.

        Raises
        ------
        IndexError
            If ``n`` is negative or beyond the order.
        """
        self.check_order(n)
        return tuple(x for x in self.laws if x.order == n and oriented(x)[0] == x)

    def factors(self, name: str, n: int) -> tuple[tuple[Expr, Expr], ...]:
        """Return order n in gamma0 of an order parameter as pairs (tensor, function of time).

        A tensor depends on the layer and on samples. Order n is the sum of the products tensor times
        function of time over all pairs, and over all samples except mu and alpha. In responses and kernels
        the terms without a delta of equal times hold for ``s < t`` only.

        Parameters
        ----------
        name : str
            Name of an order parameter, of a kernel (``C``, ``D``), or of the output ``f``.
        n : int
            Order.

        Returns
        -------
        tuple[tuple[Expr, Expr], ...]
            Pairs (tensor, function of time); empty if the order vanishes.

        Raises
        ------
        KeyError
            If there is no order parameter of that name.
        IndexError
            If ``n`` is negative or beyond the order.

        Examples
        --------
        >>> from sympy import Function
        >>> from derive import L, mean_field, mlp
        >>> series = expand_nonlinear(mean_field(mlp(L, Function("phi"), "flow")), 2)
        >>> for pair in series.factors("Phi", 2)[:2]: print(pair)
        (Phi2_1(ell, alpha, mu, beta, beta_), v(beta, beta_, t))
        (Phi2_2(ell, alpha, mu, beta, beta_), v(beta, t)*v(beta_, t))
        """
        self.check_order(n)
        law = next((x for x in self.laws.values() if x.tensor.name == name), None)
        if law is None:
            names = ", ".join(dict.fromkeys(x.name for x in self.laws))
            raise KeyError(f"no order parameter or output {name!r} with factors; there are {names}")
        writer = self.writer(self._last if name == OUTPUT else self.site.layer - law.shift)
        pairs = []
        for forest in self.forests(name, n):
            x = ForestCoefficient(name, n, forest)
            same, places = oriented(x)
            samples = tuple(writer.sample(samples_of(forest)[i]) for i in places)
            tensor = writer.symbol(same, writer.layer + law.shift, samples)
            pairs.append((tensor, writer.time(Piece(forest), t, t if name == OUTPUT else s)))
        return tuple(pairs)

    def depth_dependence(
        self, where: str = "fixed point", names: tuple[str, ...] = ("Phi", "G")
    ) -> AtFixedPoint | AtCriticality:
        """Return the tensors of one sample as functions of layer and depth, from their recursions.

        A tensor is the factor of an iterated sum over times in an order parameter.

        Parameters
        ----------
        where : {"fixed point", "critical"}
            ``"fixed point"``: the variance of the sample is the same at each layer; exact, for any phi.
            ``"critical"``: phi is known, odd, with slope 1 and a negative third derivative at zero; the
            result is the leading powers of ell and L.
        names : tuple[str, ...], optional
            Names of the order parameters whose tensors are solved (Phi, G), also ``C``, ``D`` or ``f``; the
            tensors that their recursions need are solved too.

        Returns
        -------
        AtFixedPoint | AtCriticality
            Solution for ``"fixed point"`` or ``"critical"``. Its methods ``expression`` and ``tangent``
            return a tensor, and a coefficient of the tangent kernel, in ell and L.

        Raises
        ------
        ValueError
            If ``where`` is another one, if there are no ``names``, or if a name has no recursion. Responses
            are written in the kernels C and D and have none.
        NotApplicable
            If the network has one hidden layer, if the recursions have no solution of this form, or if phi is
            not as ``"critical"`` requires.

        Examples
        --------
        >>> from sympy import tanh
        >>> from derive import L, mean_field, mlp
        >>> series = expand_nonlinear(mean_field(mlp(L, tanh)), 0)
        >>> series.depth_dependence("critical").tangent(0)  # order 0 of the tangent kernel, in the limit
        1/2
        >>> series.depth_dependence().tangent(0)  # q = <phi^2>, x = <phi'^2>
        q*x*x**L/(x - 1) - q/(x - 1)
        """
        if where == "fixed point":
            return AtFixedPoint(self, names=names)
        if where == "critical":
            return AtCriticality(self, names)
        raise ValueError(f"where = {where!r}: must be 'fixed point' or 'critical'")

    def render(self, format: str = "text") -> str:
        """Return the fields, static recursions and coefficients as text or LaTeX.

        Parameters
        ----------
        format : {"text", "latex"}
            Format.

        Returns
        -------
        str
            Equations of h, z and g at each order, recursions over layers of the tensors of order 0 (except
            f), and each order of the order parameters, the tangent kernel and the error.

        Raises
        ------
        ValueError
            If the format is another one.
        """
        shown, program = _Shown(self, format == "latex"), self.theory.program
        head = (
            f"Expansion in γ₀ to order {self.order}: {program.name}, {program.depth} hidden layers, "
            f"φ(x) = {self.activation.expr}\n\n{LEGEND}"
        )
        blocks = {"Fields": shown.fields(), "Static": shown.static(), "Coefficients": shown.coefficients()}
        return printed(format, head, blocks)

    def truncate(self, n: int) -> NonlinearExpansion:
        """Return the expansion up to a lower order.

        Parameters
        ----------
        n : int
            New order.

        Returns
        -------
        NonlinearExpansion
            Truncated expansion.

        Raises
        ------
        IndexError
            If ``n`` is negative or beyond the order.
        """
        self.check_order(n)
        laws = {x: law for x, law in self.laws.items() if x.order <= n}
        return replace(self, order=n, laws=laws, errors=tuple(m for m in self.errors if m <= n))

    # -- parts -----------------------------------------------------------------------------------------

    @property
    def _last(self) -> Expr:
        """The last layer: L, or 1 for a theory with one hidden layer."""
        return L if self.site.layer == ell else S.One

    def _placed(self, name: str, layer: Any, shift: int = 0) -> Expr:
        """Return the layer of a quantity, by default the symbolic one; raise ValueError outside the network.

        ``shift`` is -1 for the response B, whose equation at layer ell gives its value at ell - 1.
        """
        if layer is None:
            return self.site.layer
        return placed_layer(name, layer, S.One + shift, self._last + shift, self._last == L)

    def writer(self, layer: Expr) -> Writer:
        """Return the object that converts terms of the expansion at a layer to SymPy expressions.

        Parameters
        ----------
        layer : Expr
            Layer.

        Returns
        -------
        Writer
            Writer.
        """
        numbers: dict[ForestCoefficient, int] = {}
        for x in (x for n in range(1, self.order + 1) for x in self.tensors(n)):
            numbers[x] = 1 + sum((y.name, y.order) == (x.name, x.order) for y in numbers)
        return Writer(self.site, layer, numbers)

    def _shapes(self, name: str, n: int) -> list[Forest]:
        """Return the forests in order n of an order parameter, an empty list if that order vanishes.

        A forest is an iterated sum over times that multiplies a tensor.
        """
        return list(self.forests(name, n))

    def _kernel(self, name: str, n: int, layer: Expr) -> Expr:
        """Return order n in gamma0 of the kernel C in the equation of h, or D in that of z, at a layer.

        Order 0 is written with the tensors ``C0``, ``D0`` and ``D0_now``, higher orders with undefined
        functions of two times.
        """
        writer = self.writer(layer)
        if n == 0:
            return _causal(writer.terms(coefficient(Neighbour(name), 0, self._shapes)))
        total = S.Zero
        for edge in self.site.edges(name):
            at = sympify(layer + edge.kernel.shift)
            if not edge.memory:
                total += self._order_parameter(edge.kernel, n, at)
                continue
            for m in self.errors:
                if m <= n:
                    body = Function(f"Delta{m}")(alpha, s) * self._order_parameter(edge.kernel, n - m, at)
                    total += EARLIER * writer.weight(t, s) * body
        return total

    def _order_parameter(self, kernel: Neighbour, n: int, at: Expr) -> Expr:
        """Return order n in gamma0 of an order parameter at layer ``at`` as an undefined function.

        It is zero if that order vanishes. ``kernel`` has its name. The result is a function of two samples
        and two times; correlations at order 0 do not depend on time, and beyond the ends of the network the
        given value is returned.
        """
        name = kernel.name
        if kernel.given:
            value = S.One if name == "1" else Function(name)(mu, alpha)
            return value if n == 0 else S.Zero
        base = self.site.bases.get((name, at))
        if base is not None:
            return base if n == 0 else S.Zero
        if n == 0 and name in CORRELATIONS:
            return Function(f"{name}0")(at, *sorted((mu, alpha), key=str))
        return Function(f"{name}{n}")(at, mu, alpha, t, s) if self.forests(name, n) else S.Zero

    def _error(self, n: int) -> Expr:
        """Return the symbol ``Delta_n(mu, t)`` of order n of the error, zero if it vanishes."""
        return Function(f"Delta{n}")(mu, t) if n in self.errors else S.Zero


def expand_nonlinear(theory: Theory, order: int = 2) -> NonlinearExpansion:
    """Expand a theory with a nonlinearity in gamma0.

    Parameters
    ----------
    theory : Theory
        Theory of perceptrons.
    order : int, optional
        Highest order.

    Returns
    -------
    NonlinearExpansion
        The expansion.

    Raises
    ------
    NotApplicable
        If the theory has another form, of which the message names the part, or if the order is above 0 and
        phi contains a function that may have a kink, such as Abs or Max.
    ValueError
        If the order is negative or not an integer.

    Notes
    -----
    phi may be a symbol, ``Function("phi")``, or known; the averages then hold for a phi with as many
    derivatives as they contain. Odd orders are computed and vanish. A phi with a kink has order 0 only,
    because units that cross it add terms of order ``|gamma0|``.

    Examples
    --------
    >>> from sympy import Function
    >>> from derive import L, mean_field, mlp
    >>> series = expand_nonlinear(mean_field(mlp(L, Function("phi"))), 2)
    >>> series.errors, [len(series.forests("Phi", n)) for n in range(3)]
    ((0, 2), [1, 0, 5])
    """
    order = require_integer("order", order, 0)
    site = read(theory)
    if order > 0 and site.activation.expr.has(*KINKS):
        with_kinks = ", ".join(sorted({str(x.func) for x in site.activation.expr.atoms(*KINKS)}))
        raise NotApplicable(
            f"phi = {site.activation.expr} contains {with_kinks}, and orders above 0 are not "
            "derived for such functions, which may have a kink: units that cross a kink add terms of order "
            "|gamma0|; order 0 exists, and expand_kinks gives the next orders for a phi that is piecewise "
            "linear with a kink at 0"
        )
    solution = solved_laws(site, order)
    return NonlinearExpansion(site, order, solution.laws, solution.errors, theory)


def _causal(e: Expr) -> Expr:
    """Multiply the part of a response e at s < t by the causality factor ``Heaviside(t - s, 0)``.

    The part at equal times has a delta and stays as it is.
    """
    before, now = e.as_independent(KroneckerDelta(s, t), DiracDelta(t - s), as_Add=True)
    return Add(*[EARLIER * x for x in Add.make_args(before)], now)


def tangent_kernel(
    summands: Iterable[Summand], n: int, order_parameter: Callable[[Neighbour, int, Expr], Expr]
) -> Expr:
    """Return order n in gamma0 of the tangent kernel, a sum of products of order parameters.

    ``summands`` are these products. ``order_parameter(x, k, layer)`` returns order k of the order parameter
    that x names, at a layer.
    """
    total: Expr = S.Zero
    for x in summands:
        parts: list[Expr] = [x.given, *[S.Zero] * n]
        for name, at in x.factors:
            series = [order_parameter(Neighbour(name), k, at) for k in range(n + 1)]
            parts = [Add(*[parts[j] * series[k - j] for j in range(k + 1)]) for k in range(n + 1)]
        if parts[n] != 0:
            total += Sum(parts[n], x.layers.limits) if x.layers else parts[n]
    return total


# -- printing ------------------------------------------------------------------------------------------------

LONGEST = 45
"""Largest number of terms of an entry that is printed; of longer ones the number is stated."""

LEGEND = """\
[X]_n is the coefficient of γ₀ⁿ.  u and r are the sources at γ₀ = 0, which do not depend on time;
averages are over them.  C₀, D₀ multiply Δ^(0) and the weight of an update in the kernels of h and
z; D̄₀ is the part of D at equal times.  v_αβ..(t) are iterated integrals of Δ^(0), or sums."""


class _Shown:
    """Writer of the coefficients of an expansion as strings: LaTeX if ``latex`` is true, else text."""

    def __init__(self, expansion: NonlinearExpansion, latex: bool) -> None:
        self.x, self.latex, self.orders = expansion, latex, range(expansion.order + 1)
        self.names = {f"Delta{n}": rf"\Delta^{{({n})}}" for n in self.orders} | {"K_x": "K^x"}
        self.names |= {f"D{n}_now": rf"\bar{{D}}_{{{n}}}" for n in self.orders}
        for base, shown in (("beta", r"\beta"), ("t", "t")):
            self.names |= {base + "_" * k: shown + "'" * k for k in range(1, 9)}

    def show(self, e: Expr) -> str:
        """Return an expression as text or LaTeX."""
        return (latex if self.latex else text)(e, self.x.theory, self.names)

    def label(self, name: str, n: int, rest: tuple[Expr, ...]) -> str:
        """Return the text ``[X]_n`` of order n of the quantity X = ``name``, with its arguments.

        These are the layer, except for ``K`` and ``Delta``, and then ``rest``: samples and times.
        """
        whole = self.show(Function(name)(*(() if name in ("K", "Delta") else (ell,)), *rest))
        return rf"\left[{whole}\right]_{{{n}}}" if self.latex else f"[{whole}]_{n}"

    def terms(self, e: Expr) -> list[str]:
        """Return the texts of the terms of a sum, shortest first.

        For a sum of more than 45 terms the result is one text, such as "50 terms". The causality factors of
        responses are left out, and ``v_since`` is written as ``v``.
        """
        terms = Add.make_args(e.subs(EARLIER, 1).replace(Function("v_since"), Function("v")))
        if len(terms) > LONGEST:
            return [rf"\text{{{len(terms)} terms}}" if self.latex else f"{len(terms)} terms"]
        return [self.show(x) for x in sorted(terms, key=lambda x: (len(str(x)), str(x)))]

    def fields(self) -> Iterator[tuple[str, list[str]]]:
        """Yield (left-hand side, terms) of each order in gamma0 of the fields h, z and g."""
        for name in ("h", "z", "g"):
            for n in self.orders:
                yield self.label(name, n, (mu, t)), self.terms(self.x.field(name, n))

    def static(self) -> Iterator[tuple[str, list[str]]]:
        """Yield (left-hand side, terms) of the recursion over layers of each tensor of order 0, except f.

        Tensors of order 0 do not depend on time.
        """
        for tensor, e in zip(self.x.tensors(0), self.x.recursions(0), strict=True):
            if tensor.name != OUTPUT:
                yield self.show(e.lhs), self.terms(e.rhs)

    def coefficients(self) -> Iterator[tuple[str, list[str]]]:
        """Yield (name, terms) for each order of the order parameters, the tangent kernel and the error."""
        for name in ("Phi", "G", "A", "B", "K", "Delta"):
            if name in ("A", "B") and not self.x.forests(name, 0):
                continue
            for n in self.orders:
                rest = (mu, t) if name == "Delta" else (mu, alpha, t, s)
                yield self.label(name, n, rest), self.terms(self.x.coefficient(name, n))
