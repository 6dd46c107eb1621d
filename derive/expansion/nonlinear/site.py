"""What the expansion needs of a theory: the kernels in the equations of h and z, and the averages.

Everything is read off the theory's terms at one layer ``ell``.  What is not of the expected form is refused
by name.
"""

from __future__ import annotations

from dataclasses import dataclass

from sympy import Dummy, Expr, Function, Lambda, Mul, Rational, S, Symbol, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average, Response
from derive.calculus.symbols import IndexRange, alpha, ell, gamma0, mu, s, t
from derive.errors import NotApplicable
from derive.program.nonlinear import require_linear_rules
from derive.theory import Equation, Source, Term, Theory
from derive.theory.families import families

x = Symbol("x", real=True)


@dataclass(frozen=True)
class Neighbour:
    """An order parameter ``name`` at layer ``ell + shift``; with ``order 0`` only if it is given data."""

    name: str
    shift: int = 0
    given: bool = False


@dataclass(frozen=True)
class Edge:
    """A term ``gamma0 sum_alpha sum_s kernel(t, s) field_alpha(s)``.

    ``memory`` says that the kernel stands with ``k(t, s) Delta_alpha(s)``; ``field`` is ``g`` or ``phi``.
    """

    kernel: Neighbour
    memory: bool
    field: str


@dataclass(frozen=True)
class Summand:
    """A term of the tangent kernel: ``given`` times order parameters, each a name and a layer.

    ``layers`` is the range of ell over which it is summed, if it is.
    """

    factors: tuple[tuple[str, Expr], ...]
    given: Expr
    layers: IndexRange | None


@dataclass(frozen=True)
class Site:
    """One population: the terms of h and z, the covariances of u and r, where responses are stored.

    ``forward`` and ``backward`` are the shifts of A and B (None if there is none); ``weight`` is k(t, s);
    ``bases`` the values of kernels beyond the ends; ``tangent`` the terms of the tangent kernel; ``discrete``
    says that the past is summed, not integrated.
    """

    h: tuple[Edge, ...]
    z: tuple[Edge, ...]
    u: Neighbour
    r: Neighbour
    activation: Lambda
    weight: Expr
    forward: int | None
    backward: int | None
    bases: dict[tuple[str, Expr], Expr]
    layer: Expr
    tangent: tuple[Summand, ...]
    discrete: bool

    def edges(self, name: str) -> tuple[Edge, ...]:
        """What the kernel of h (``C``) or of z (``D``) is made of."""
        return self.h if name == "C" else self.z


def read(theory: Theory) -> Site:
    """Read the equations of one layer (of the family, if there is one).

    Raises :class:`NotApplicable` for a theory of another form.

    >>> from derive import L, mean_field, mlp
    >>> site = read(mean_field(mlp(L, Function("phi"))))
    >>> [(e.kernel.name, e.kernel.shift, e.memory, e.field) for e in site.h]
    [('A', -1, False, 'g'), ('Phi', -1, True, 'g')]
    >>> [(e.kernel.name, e.kernel.shift, e.memory, e.field) for e in site.z]
    [('B', 0, False, 'phi'), ('G', 1, True, 'phi')]
    """
    require_linear_rules(theory.program, "the series in gamma0")
    names = [e.name for e in theory.equations]
    if set(names) != {"h", "z", "g"}:
        raise NotApplicable(
            "the series of nonlinear networks is that of perceptrons, with one field, one backpropagated "
            f"vector and one gradient a layer; this theory has {', '.join(sorted(set(names)))}"
        )
    deep = len(names) > 3
    families = {e.name for e in theory.equations if e.layers}
    if deep and (not {"h", "z"} <= families or sympify(theory.program.depth).is_Integer):
        raise NotApplicable("the expansion needs a family of layers: derive the theory at symbolic depth")
    return _Reader(theory, deep).site()


class _Reader:
    def __init__(self, theory: Theory, deep: bool) -> None:
        self.theory, self.deep = theory, deep
        self.known = {q.name for q in theory.order_parameters}
        self.weights: set[Expr] = set()

    def site(self) -> Site:
        self.phi = self.activation()
        u, r = self.source("u"), self.source("r")
        h, z = self.edges(self.family("h")), self.edges(self.family("z"))
        if len(self.weights) != 1:
            raise NotApplicable(f"updates enter with different weights: {sorted(map(str, self.weights))}")
        A, B = self.response("r", "phi"), self.response("u", "g")
        tangent = tuple(self.summand(x) for e in self.theory.observables[:1] for x in e.terms)
        bases = self.ends() if self.deep else {}
        layer, discrete = ell if self.deep else S.One, all(x.reach != "flow" for x in self.family("h").terms)
        return Site(
            h, z, u, r, self.phi, self.weights.pop(), A, B, bases, layer, tangent, discrete
        )  # fmt: skip

    # -- one layer -------------------------------------------------------------------------------------

    def family(self, name: str) -> Equation:
        """The equation of ``name`` of the family, or the only one."""
        found = [e for e in self.theory.equations if e.name == name]
        return next((e for e in found if e.layers), found[0])

    def activation(self) -> Lambda:
        """phi, read off ``f = <phi(h) z>/gamma0``; Phi must be its correlation and g its slope times z."""
        f = self.theory.equation("f")
        (average,) = f.rhs.atoms(Average) or (None,)
        z = next((a for a in f.rhs.atoms(AppliedUndef) if str(a.func) == "z"), None)
        number = f.rhs * gamma0 / average if average is not None else x
        if average is None or z is None or not number.is_number:
            raise NotApplicable(f"{f.lhs} = {f.rhs} is not <phi(h) z>/{gamma0}")
        value = (number * average.body / z).xreplace({Function("h")(*z.args): x})
        if value.free_symbols - {x}:
            raise NotApplicable(f"{f.lhs} = {f.rhs} is not linear in {z}")
        found = Lambda(x, value)
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
        return found

    def source(self, name: str) -> Neighbour:
        """The kernel that is the covariance of a source."""
        found = [u for u in self.theory.sources if str(u.symbol.func) == name]
        u = next((u for u in found if u.layers), found[0] if found else None)
        if u is None:
            raise NotApplicable(f"no source {name}")
        kernel = self.kernel(u.covariance, u.symbol.args[0])
        if kernel is None:
            raise NotApplicable(
                f"<{u.symbol} {u.partner}> = {u.covariance}: must be one order parameter: sources rest "
                "while the kernels do (no weight decay, no noise)"
            )
        return kernel

    def kernel(self, e: Expr, layer: Expr) -> Neighbour | None:
        """An order parameter, seen from a layer, or given data."""
        if e == 1:
            return Neighbour("1", 0, True)
        if not isinstance(e, AppliedUndef):
            return None
        name = str(e.func)
        return Neighbour(name, int(e.args[0] - layer)) if name in self.known else Neighbour(name, 0, True)

    def edges(self, e: Equation) -> tuple[Edge, ...]:
        """The terms of an equation but its source."""
        sources = [Function(n)(*e.lhs.args) for n in ("u", "r")]
        return tuple(self.edge(x, e.lhs) for x in e.terms if x.kind != "source" or x.expr not in sources)

    def edge(self, term: Term, lhs: Expr) -> Edge:
        memory = term.kind == "memory"
        if not (memory or term.kind == "response") or len(term.over) != 1 or not term.remembers:
            raise NotApplicable(
                f"{lhs} has the term {term.expr}: the expansion knows u or r, and responses and memory "
                "summed over one sample"
            )
        sample, site = term.over[0].index, lhs.args[0]
        g, h = (Function(n)(site, sample, s) for n in ("g", "h"))
        field, value = ("g", g) if term.field.has(g) else ("phi", self.phi(h))
        rest = term.coefficient * term.field / value
        if rest.has(g, h):
            raise NotApplicable(f"{term.expr} is not linear in g or phi(h) at an earlier time")
        factors = list(Mul.make_args(term.kernel * rest))
        error = Function("Delta")(sample, s)
        if (error in factors) != memory or gamma0 not in factors:
            raise NotApplicable(
                f"{term.expr}: must be gamma0 times a response, or gamma0 Delta times a correlation"
            )
        kernels = [f for f in factors if isinstance(f, AppliedUndef) and {sample, mu} <= set(f.args)]
        if len(kernels) > 1:
            raise NotApplicable(f"{term.expr} has more than one kernel")
        kernel = self.kernel(Mul(*kernels), site)
        assert kernel is not None
        weight = Mul(*[f for f in factors if f not in (*kernels, gamma0, error)])
        if weight.has(mu, sample, ell) or not (memory or weight == 1):
            raise NotApplicable(
                f"{term.expr}: a response must stand alone, and a memory's weight must depend on no sample "
                f"and no layer, but there is {weight}"
            )
        if memory:
            self.weights.add(weight)
        return Edge(kernel, memory, field)

    def ends(self) -> dict[tuple[str, Expr], Expr]:
        """The values of kernels beyond both ends, with which the equations there are the family's."""
        joined = families(self.theory)
        items: tuple[Equation | Source, ...] = (*joined.equations, *joined.sources)
        for x in items:
            if not x.layers:
                raise NotApplicable(f"{x.symbol} does not continue its family of layers")
        return {(x.name, x.lhs.args[0]): x.rhs for x in joined.base_cases}

    # -- responses and the tangent kernel --------------------------------------------------------------

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

    def summand(self, term: Term) -> Summand:
        """A term of the tangent kernel, its order parameters apart from what is given."""
        factors = Mul.make_args(term.coefficient * term.kernel * term.field)
        own = [f for f in factors if isinstance(f, AppliedUndef) and str(f.func) in self.known]
        given = Mul(*[f for f in factors if f not in own])
        (layers,) = term.over or (None,)
        return Summand(tuple((str(f.func), f.args[0]) for f in own), given, layers)


def _alike(a: Expr, b: Expr) -> bool:
    """Are these the same function of x?  Kinks are written in several ways, and compared at numbers."""
    if a == b or (a - b).expand() == 0:
        return True
    points = [Rational(n, 7) for n in (-17, -5, -2, 3, 8, 19)]
    return all(bool(abs((a - b).subs(x, p).evalf()) < 1e-12) for p in points)
