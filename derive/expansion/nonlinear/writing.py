"""Decorated trees as SymPy expressions: sums over samples and earlier times, Gaussian averages.

Kernels at order 0 are static tensors, ``Phi0(ell, mu, alpha)``: ``C0`` and ``D0`` are what stands beside
``k(t, s) Delta0_alpha(s)`` in the kernels of h and z, ``D0_now`` what multiplies ``v`` in the part of D at
equal times.  Higher orders are functions of two times, ``Phi2(ell, mu, alpha, t, s)``.  With samples a, b,

    v(a, b, ..., t) = int_0^t dt' Delta0_a(t') int_0^t' dt'' Delta0_b(t'') ... ,

sums with the rule's weights in discrete time; ``v_since(a, ..., t, s)`` starts at s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sympy import Add, DiracDelta, Expr, Function, Integral, KroneckerDelta, Mul, S, Sum, Symbol, sympify

from derive.calculus.gaussian import GaussianAverage
from derive.calculus.symbols import P, alpha, mu, s, t
from derive.expansion.nonlinear.site import Neighbour, Site
from derive.expansion.nonlinear.trees import (
    COL,
    KERNELS,
    OPAQUE,
    PAIR,
    ROW,
    Piece,
    Static,
    Tensor,
    Terms,
    leads,
)

Samples = tuple[Symbol, ...]

DATA = "K_x"
"""What given data are called."""


class Writer:
    """Writes the pieces of one layer; ``numbers`` tell tensors of the same name and order apart."""

    def __init__(self, site: Site, layer: Expr, numbers: Mapping[Tensor, int] | None = None) -> None:
        self.site, self.layer, self.numbers = site, layer, dict(numbers or {})

    # -- what does not depend on time ------------------------------------------------------------------

    def sample(self, i: int) -> Symbol:
        """mu, alpha, beta, beta', ..."""
        if i in (ROW, COL):
            return (mu, alpha)[i]
        return Symbol("beta" + "_" * (i - COL - 1), integer=True, positive=True)

    def given(self, name: str, samples: Iterable[Symbol]) -> Expr:
        """Given data, which are symmetric."""
        return S.One if name == "1" else Function(name)(*sorted(samples, key=str))

    def known(self, name: str, at: Expr, samples: Samples) -> Expr:
        """A tensor of order 0 at a layer, or what it is beyond the ends."""
        base = self.site.bases.get((name, at))
        if base is not None:
            return base if not base.free_symbols else self.given(DATA, samples)
        return Function(f"{name}0")(at, *samples)

    def static(self, x: Static, times: Mapping[int, Expr]) -> Expr:
        """A number that depends on samples, or an opaque function of two times."""
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

    def at_end(self, x: Tensor, at: Expr, samples: Samples) -> Expr | None:
        """C and D where one of the kernels that they are made of is given."""
        edges = self.site.edges(x.name)
        if not any(e.kernel.given or (e.kernel.name, at + e.kernel.shift) in self.site.bases for e in edges):
            return None
        parts = [e.kernel for e in edges if not (x.shape[0].marked and e.memory)]
        return Add(*[self.kernel(k, at, samples) for k in parts])

    def kernel(self, k: Neighbour, at: Expr, samples: Samples) -> Expr:
        """Order 0 of a kernel."""
        return self.given(k.name, samples) if k.given else self.known(k.name, at + k.shift, samples)

    def name(self, x: Tensor) -> str:
        """What a tensor is called: those of higher order are numbered."""
        if x.order:
            return f"{x.name}{x.order}_{self.numbers[x]}"
        return f"{x.name}0" + ("_now" if x.shape[0].marked else "")

    def symbol(self, x: Tensor, at: Expr, samples: Samples) -> Expr:
        """A tensor at a layer."""
        return Function(self.name(x))(
            at, *(_in_order(samples) if x.order == 0 and x.shape == PAIR else samples)
        )

    def source(self, i: int, time: Expr | None = None) -> Expr:
        """u at a sample; at a time too where it is not averaged."""
        return Function("u")(self.layer, self.sample(i), *(() if time is None else (time,)))

    def derivative(self, order: int, u: Expr) -> Expr:
        """A derivative of phi at u."""
        x = self.site.activation.variables[0]
        if self.site.activation.expr == Function("phi")(x):
            return Function("phi")(u).diff(u, order) if order else Function("phi")(u)
        return self.site.activation.expr.diff(x, order).doit().xreplace({x: u})

    def average(self, p: Piece) -> Expr:
        """The average over the sources at order 0, whose covariances are the neighbour's."""
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
        """The part of a product that does not depend on time."""
        return Mul(coefficient, *[self.static(x, {}) for x in p.statics], self.average(p))

    # -- functions of time -----------------------------------------------------------------------------

    def piece(self, p: Piece, coefficient: Expr, row: Expr = t, col: Expr = s) -> Expr:
        """All of a product, samples summed over."""
        body = Mul(coefficient, self.average(p), self.time(p, row, col))
        bound = sorted(i for i in p.labels() if i > COL)
        return Sum(body, *[(self.sample(i), 1, P) for i in bound]) if bound and body != 0 else body

    def time(self, p: Piece, row: Expr = t, col: Expr = s) -> Expr:
        """A product without its average: a function of time, samples not summed over."""
        tree = _Tree(self, p, row, col)
        times = {x.sample: tree.times[i] for i, x in reversed(list(enumerate(p.nodes)))}
        parts = [self.static(x, times) for x in p.statics]
        parts += [tree.hanging(i) for i in p.roots]
        if p.nodes and p.nodes[0].marked:
            same = KroneckerDelta(row, col) if self.site.discrete else DiracDelta(row - col)
            parts.append(KroneckerDelta(mu, alpha) * same)
        return tree.over_times(Mul(*parts))

    def weight(self, now: Expr, past: Expr) -> Expr:
        """k(t, s)."""
        return self.site.weight.subs({t: now, s: past}, simultaneous=True)

    def terms(self, terms: Terms, row: Expr = t, col: Expr = s) -> Expr:
        """A sum of products."""
        return Add(*[self.piece(p, c, row, col) for p, c in terms.items()])


class _Tree:
    """The times of one product."""

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
        """The samples of an iterated integral of the error at order 0 that begins here; None if it is more.

        With ``marked`` it must end at the pushed time.
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
        """What stands at a node, and at all earlier ones that hang on it."""
        x, writer, now = self.p.nodes[i], self.writer, self.times[i]
        u = writer.source(x.sample, now)
        own = [writer.derivative(a, u) for a in x.phi]
        own += [Function("r")(writer.layer, writer.sample(x.sample), now)] * x.r
        return Mul(*own, *[self.below(j, now) for j in self.children[i]])

    def below(self, i: int, now: Expr) -> Expr:
        """A node and what hangs on it."""
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
        """Does the kernel that leads to node i reach equal times?"""
        x = self.p.nodes[i]
        kernels = {y.tensor.name for y in self.p.statics if x.sample in y.samples and y.tensor.moves}
        return not self.writer.site.discrete or (x.error == OPAQUE and "D" in kernels)

    def over_times(self, e: Expr) -> Expr:
        """Summed over earlier times, what does not depend on them in front."""
        if not self.limits or e == 0:
            return e
        dummies = {x for x, _, _ in self.limits}
        inside = [f for f in Mul.make_args(e) if f.free_symbols & dummies]
        outside = [f for f in Mul.make_args(e) if not f.free_symbols & dummies]
        add = Sum if self.writer.site.discrete else Integral
        return Mul(*outside, add(Mul(*inside), *reversed(self.limits)))


def _in_order(samples: Samples) -> Samples:
    return tuple(sorted(samples, key=str))


__all__ = ["Writer"]
