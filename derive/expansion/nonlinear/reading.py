"""What the expansion needs of a theory: the kernels in the equations of h and z, and the averages.

Everything is read off the theory's equations at one layer ``ell``.  What is not of the expected form is
refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass

from sympy import (
    Dummy,
    Expr,
    Function,
    Integral,
    Lambda,
    Mul,
    Rational,
    S,
    Sum,
    Symbol,
    sympify,
)
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average, Response
from derive.errors import NotApplicable
from derive.program.words import alpha, ell, gamma0, mu, s, t
from derive.theory import Equation, Source, Theory

x = Symbol("x", real=True)


@dataclass(frozen=True)
class Kernel:
    """An order parameter ``name`` at layer ``ell + shift``; with ``order 0`` only if it is given data."""

    name: str
    shift: int = 0
    given: bool = False


@dataclass(frozen=True)
class Edge:
    """A term ``gamma0 sum_alpha sum_s kernel(t, s) field_alpha(s)``.

    ``memory`` says that the kernel stands with ``k(t, s) Delta_alpha(s)``; ``field`` is ``g`` or ``phi``.
    """

    kernel: Kernel
    memory: bool
    field: str


@dataclass(frozen=True)
class Site:
    """One population: the terms of h and z, the covariances of u and r, where responses are stored.

    ``forward`` and ``backward`` are the shifts of A and B (None if there is none); ``weight`` is k(t, s);
    ``bases`` the values of kernels beyond the ends.
    """

    h: tuple[Edge, ...]
    z: tuple[Edge, ...]
    u: Kernel
    r: Kernel
    activation: Lambda
    weight: Expr
    forward: int | None
    backward: int | None
    bases: dict[tuple[str, Expr], Expr]
    layer: Expr


def read(theory: Theory) -> Site:
    """Read the equations of one layer (of the family, if there is one).

    Raises :class:`NotApplicable` for a theory of another form.

    >>> from derive.theory import mean_field
    >>> from derive.program import L, mlp
    >>> site = read(mean_field(mlp(L, Function("phi"))))
    >>> [(e.kernel.name, e.kernel.shift, e.memory, e.field) for e in site.h]
    [('A', -1, False, 'g'), ('Phi', -1, True, 'g')]
    >>> [(e.kernel.name, e.kernel.shift, e.memory, e.field) for e in site.z]
    [('B', 0, False, 'phi'), ('G', 1, True, 'phi')]
    """
    return _Reader(theory).site()


class _Reader:
    def __init__(self, theory: Theory) -> None:
        self.theory = theory
        names = [e.name for e in theory.equations]
        if set(names) != {"h", "z", "g"}:
            raise NotApplicable(
                f"single-site equations for {', '.join(sorted(set(names)))}: the expansion is for networks "
                "with equations for h, z and g, such as mlp"
            )
        families = [e for e in theory.equations if any(r.index == ell for r in e.ranges)]
        self.deep = len(names) > 3
        if self.deep and (
            not {"h", "z"} <= {e.name for e in families} or sympify(theory.program.depth).is_Integer
        ):
            raise NotApplicable("the expansion needs a family of layers: derive the theory at symbolic depth")
        self.layer = ell if self.deep else S.One
        self.bases: dict[tuple[str, Expr], Expr] = {}
        self.weights: set[Expr] = set()

    def site(self) -> Site:
        activation = self.activation()
        u, r = self.source("u"), self.source("r")
        h, z = self.edges("h"), self.edges("z")
        if self.deep:
            self.read_ends()
        if len(self.weights) != 1:
            raise NotApplicable(f"updates enter with different weights: {sorted(map(str, self.weights))}")
        A, B = self.response("r", "phi"), self.response("u", "g")
        return Site(h, z, u, r, activation, self.weights.pop(), A, B, self.bases, self.layer)

    # -- one layer -------------------------------------------------------------------------------------

    def family(self, name: str) -> Equation:
        """The equation of ``name`` written at layer ``ell``."""
        found = [e for e in self.theory.equations if e.name == name]
        return next((e for e in found if any(r.index == ell for r in e.ranges)), found[0])

    def moved(self, e: Equation | Source) -> int:
        site = (e.lhs if isinstance(e, Equation) else e.symbol).args[0]
        return int(site - self.layer) if self.deep else 0

    def at_layer(self, e: Expr, moved: int) -> Expr:
        return e.subs(ell, ell - moved) if moved else e

    def activation(self) -> Lambda:
        """phi, read off ``f = <phi(h) z>/gamma0``; Phi must be its correlation and g its slope times z."""
        f = self.theory.equation("f")
        (average,) = f.rhs.atoms(Average) or (None,)
        z = next((a for a in f.rhs.atoms(AppliedUndef) if str(a.func) == "z"), None)
        if average is None or z is None or f.rhs != average / gamma0:
            raise NotApplicable(f"{f.lhs} = {f.rhs} is not <phi(h) z>/{gamma0}")
        own = Function("h")(*z.args)
        value = average.body / z
        found = Lambda(x, value.xreplace({own: x}))
        if value.xreplace({own: x}).free_symbols - {x}:
            raise NotApplicable(f"{f.lhs} = {f.rhs} is not linear in {z}")
        Phi = self.theory.order_parameter("Phi")
        now, past = Function("h")(*Phi.symbol.args[:2], t), Function("h")(Phi.symbol.args[0], alpha, s)
        if Phi.definition != Average(found(now) * found(past)):
            raise NotApplicable(f"{Phi.symbol} = {Phi.definition} is no correlation of {found(now)}")
        for e in self.theory.equations:
            if e.name == "g":
                h, z = (Function(n)(*e.lhs.args) for n in ("h", "z"))
                zeta = Dummy("z")
                body = e.rhs.xreplace({h: x, z: zeta}).doit()
                slope = body.diff(zeta)
                if slope.has(zeta) or body.subs(zeta, 0) != 0 or not _alike(slope, found.expr.diff(x)):
                    raise NotApplicable(f"{e.lhs} = {e.rhs} is not the slope of {found(h)} times {z}")
        self.phi = found
        return found

    def source(self, name: str) -> Kernel:
        """The kernel that is the covariance of a source."""
        found = [u for u in self.theory.sources if str(u.symbol.func) == name]
        u = next((u for u in found if any(r.index == ell for r in u.ranges)), found[0] if found else None)
        if u is None:
            raise NotApplicable(f"no source {name}")
        kernel = self.kernel(self.at_layer(u.covariance, self.moved(u)))
        if kernel is None:
            raise NotApplicable(
                f"<{u.symbol} {u.partner}> = {u.covariance}: must be one order parameter: sources rest "
                "while the kernels do (no weight decay, no noise)"
            )
        return kernel

    def kernel(self, e: Expr) -> Kernel | None:
        """An order parameter or given data."""
        if e == 1:
            return Kernel("1", 0, True)
        if not isinstance(e, AppliedUndef):
            return None
        name = str(e.func)
        if name in {q.name for q in self.theory.order_parameters}:
            return Kernel(name, int(e.args[0] - self.layer) if self.deep else int(e.args[0]) - 1)
        return Kernel(name, 0, True)

    def edges(self, name: str) -> tuple[Edge, ...]:
        e = self.family(name)
        return self.edges_of(e, self.moved(e))

    def edges_of(self, e: Equation, moved: int) -> tuple[Edge, ...]:
        found = []
        for term in e.terms:
            expr = self.at_layer(term.expr, moved)
            place = (self.at_layer(x, moved) for x in e.lhs.args)
            here = tuple(place)
            if expr in (Function("u")(*here), Function("r")(*here)):
                continue
            if term.kind not in ("memory", "response"):
                raise NotApplicable(
                    f"{e.lhs} has the term {expr}: the expansion knows u or r, responses and memory"
                )
            found.append(self.edge(expr, term.kind == "memory"))
        return tuple(found)

    def edge(self, expr: Expr, memory: bool) -> Edge:
        body, sample, past = _inside(expr)
        site = self.layer
        g = Function("g")(site, sample, past)
        h = Function("h")(site, sample, past)
        factors = list(Mul.make_args(body))
        if g in factors:
            field = "g"
            factors.remove(g)
        else:
            field = "phi"
            factors = list(Mul.make_args(body / self.phi(h)))
        if any(f.has(h) for f in factors):
            raise NotApplicable(f"{expr} is not linear in g or phi(h) at an earlier time")
        error = Function("Delta")(sample, past)
        if (error in factors) != memory or gamma0 not in factors:
            raise NotApplicable(
                f"{expr}: must be gamma0 times a response, or gamma0 Delta times a correlation"
            )
        factors.remove(gamma0)
        if memory:
            factors.remove(error)
        kernels = [f for f in factors if isinstance(f, AppliedUndef) and sample in f.args and mu in f.args]
        if len(kernels) > 1:
            raise NotApplicable(f"{expr} has more than one kernel")
        kernel = self.kernel(kernels[0]) if kernels else Kernel("1", 0, True)
        assert kernel is not None
        weight = Mul(*[f for f in factors if f not in kernels])
        if memory:
            weight = weight.subs(past, s)
            if weight.has(mu, sample, ell):
                raise NotApplicable(f"{expr}: the weight {weight} must not depend on the sample or the layer")
            self.weights.add(weight)
        elif weight != 1:
            raise NotApplicable(f"{expr}: a response must stand alone, not with {weight}")
        return Edge(kernel, memory, field)

    # -- both ends -------------------------------------------------------------------------------------

    def read_ends(self) -> None:
        """The equations at the ends are the family's with given values of some kernels; find which."""
        for name in ("h", "z"):
            inner = self.edges(name)
            for e in self.theory.equations:
                if e.name == name and not any(r.index == ell for r in e.ranges):
                    self.compare(inner, e)
        for u in self.theory.sources:
            if not any(r.index == ell for r in u.ranges):
                kernel = self.source(str(u.symbol.func))
                self.note(kernel, u.symbol.args[0], u.covariance)

    def compare(self, inner: tuple[Edge, ...], e: Equation) -> None:
        site = e.lhs.args[0]
        self.layer, kept = site, self.layer
        ends = list(self.edges_of(e, 0))
        self.layer = kept
        for edge in inner:
            twin = next((y for y in ends if (y.memory, y.field) == (edge.memory, edge.field)), None)
            if twin is None:
                self.note(edge.kernel, site, S.Zero)
                continue
            ends.remove(twin)
            if twin.kernel.given:
                value = S.One if twin.kernel.name == "1" else Function(twin.kernel.name)(mu, alpha)
                self.note(edge.kernel, site, value)
        if ends:
            raise NotApplicable(f"the equation of {e.lhs} has a term that its family has not")

    def note(self, kernel: Kernel, site: Expr, value: Expr) -> None:
        key = (kernel.name, sympify(site) + kernel.shift)
        if self.bases.setdefault(key, value) != value:
            raise NotApplicable(f"{key[0]} at layer {key[1]} is {self.bases[key]} and {value}")

    # -- responses -------------------------------------------------------------------------------------

    def response(self, source: str, what: str) -> int | None:
        """At which layer, relative to its population, a response to ``source`` is stored."""
        for q in self.theory.responses():
            (atom,) = q.definition.atoms(Response)
            if str(atom.source.func) != source:
                continue
            site = atom.source.args[0]
            body = self.phi(Function("h")(site, mu, t)) if what == "phi" else Function("g")(site, mu, t)
            if atom.body != body or q.definition != Average(atom) / gamma0:
                raise NotApplicable(f"{q.symbol} = {q.definition} is no response of {what}")
            return int(q.symbol.args[0] - site)
        return None


def _alike(a: Expr, b: Expr) -> bool:
    """Are these the same function of x?  Kinks are written in several ways, and compared at numbers."""
    if a == b or (a - b).expand() == 0:
        return True
    points = [Rational(n, 7) for n in (-17, -5, -2, 3, 8, 19)]
    return all(bool(abs((a - b).subs(x, p).evalf()) < 1e-12) for p in points)


def _inside(e: Expr) -> tuple[Expr, Symbol, Symbol]:
    """The body of nested sums over one sample and one time, with both."""
    limits: list[tuple[Expr, ...]] = []
    factor: Expr = S.One
    while True:
        if isinstance(e, Sum | Integral):
            limits += list(e.limits)
            e = e.function
        elif isinstance(e, Mul) and any(isinstance(f, Sum | Integral) for f in e.args):
            inner = next(f for f in e.args if isinstance(f, Sum | Integral))
            factor *= e / inner
            e = inner
        else:
            break
    samples = [v for v, *_ in limits if v.is_integer]
    times = [v for v, *_ in limits if not v.is_integer]
    if len(samples) != 1 or len(times) != 1:
        raise NotApplicable(f"{e} must be summed over one sample and one earlier time")
    return factor * e, samples[0], times[0]


__all__ = ["Edge", "Kernel", "Site", "read"]
