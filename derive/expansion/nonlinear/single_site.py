"""Input of the nonlinear expansion: the kernels in the equations of h and z, and the covariances of sources.

`read` takes them from the terms of a theory at one layer ``ell``. It raises for theories of another form,
with the name of the unexpected part.
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
    """Name of an order parameter and its layer, ``ell + shift``, in the equations of layer ell.

    With ``given`` it is a kernel of the data or the number one, which has order 0 in gamma0 only.
    """

    name: str
    shift: int = 0
    given: bool = False


@dataclass(frozen=True)
class Edge:
    """One term of the equation of the field h or z: ``gamma0 sum_alpha sum_s kernel(t, s) field_alpha(s)``.

    ``kernel`` names an order parameter. If ``memory`` is true, it is multiplied by ``k(t, s)
    Delta_alpha(s)``, the weight of an update times the error signal; if false, the order parameter is a
    response. ``field`` is ``g`` or ``phi``, the field summed over earlier times s and samples alpha.
    """

    kernel: Neighbour
    memory: bool
    field: str


@dataclass(frozen=True)
class Summand:
    """One term of the tangent kernel: a product of order parameters and of the factor ``given``.

    ``factors`` are pairs of the name of an order parameter and its layer. ``layers`` is the range of the
    layer ell if the term is summed over layers, else None.
    """

    factors: tuple[tuple[str, Expr], ...]
    given: Expr
    layers: IndexRange | None


@dataclass(frozen=True)
class Site:
    """Equations of the units of one layer of a perceptron: those of h and z, and of their order parameters.

    ``h`` and ``z`` are the terms of their equations besides the Gaussian sources u and r. The members ``u``
    and ``r`` name the order parameters that are the covariances of these sources. ``activation`` is phi, a
    function of h. ``weight`` is k(t, s), the weight of an update. ``forward`` is the layer of the response A
    minus that of its source r, ``backward`` the same for B and u; both are None if there are no responses.
    ``bases`` maps (order parameter, layer) to given values before the first and after the last layer.
    ``layer`` is ell, or 1 for one hidden layer. ``tangent`` are the terms of the tangent kernel. ``discrete``
    is true if past times are summed and not integrated.
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
        """Return the terms of the equation of h for the kernel name ``C``, or of that of z for ``D``.

        Sources are left out.
        """
        return self.h if name == "C" else self.z


def read(theory: Theory) -> Site:
    """Return the single-site equations of one layer of a theory (of the family of layers, if there is one).

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
            "the series in gamma0 of a nonlinear theory needs the fields g, h and z and no others (those "
            "of a perceptron with a nonlinear activation whose hidden layers are one layered field with "
            "one family of matrices between them); this theory has the fields "
            f"{', '.join(sorted(set(names)))}"
        )
    deep = len(names) > 3
    families = {e.name for e in theory.equations if e.layers}
    if deep and (not {"h", "z"} <= families or sympify(theory.program.depth).is_Integer):
        raise NotApplicable(
            "the expansion of several layers needs a family of layers: derive the theory at symbolic depth; "
            "recurrent networks have no such family"
        )
    return _Reader(theory, deep).site()


class _Reader:
    """Reader of the equations of one layer's units from a theory of a perceptron.

    ``deep`` is true for a theory of several hidden layers, with a family of layers of symbolic index.
    """

    def __init__(self, theory: Theory, deep: bool) -> None:
        self.theory, self.deep = theory, deep
        self.known = {q.name for q in theory.order_parameters}
        self.weights: set[Expr] = set()

    def site(self) -> Site:
        """Convert the theory to the equations of one layer's units.

        Raises NotApplicable if past updates enter with different weights.
        """
        self.phi = self.activation()
        u, r = self.source("u"), self.source("r")
        h, z = self.edges(self.family("h")), self.edges(self.family("z"))
        if len(self.weights) != 1:
            raise NotApplicable(
                f"past updates must enter all memories with the same weight; the weights are "
                f"{', '.join(sorted(map(str, self.weights))) or 'none'}"
            )
        A, B = self.response("r", "phi"), self.response("u", "g")
        tangent = tuple(self.summand(x) for e in self.theory.observables[:1] for x in e.terms)
        bases = self.ends() if self.deep else {}
        layer, discrete = ell if self.deep else S.One, all(x.reach != "flow" for x in self.family("h").terms)
        return Site(
            h, z, u, r, self.phi, self.weights.pop(), A, B, bases, layer, tangent, discrete
        )  # fmt: skip

    # -- one layer -------------------------------------------------------------------------------------

    def family(self, name: str) -> Equation:
        """Return the equation of the field ``name`` at a general layer, or its only equation."""
        equations = [e for e in self.theory.equations if e.name == name]
        return next((e for e in equations if e.layers), equations[0])

    def activation(self) -> Lambda:
        """Return the activation phi, read off from the output ``f = <phi(h) z>/gamma0`` of the theory.

        Raises NotApplicable unless f has this form, Phi is the correlation of phi(h), and g is the slope of
        phi times z.
        """
        f = self.theory.equation("f")
        (average,) = f.rhs.atoms(Average) or (None,)
        z = next((a for a in f.rhs.atoms(AppliedUndef) if str(a.func) == "z"), None)
        number = f.rhs * gamma0 / average if average is not None else x
        if average is None or z is None or not number.is_number:
            raise NotApplicable(f"the output {f.lhs} = {f.rhs} is not of the form <phi(h) z>/{gamma0}")
        value = (number * average.body / z).xreplace({Function("h")(*z.args): x})
        if value.free_symbols - {x}:
            raise NotApplicable(
                f"the output {f.lhs} = {f.rhs} must be the average of {z} times a function of "
                f"{Function('h')(*z.args)}, divided by {gamma0}; the constants of this function must be "
                "numbers"
            )
        activation = Lambda(x, value)
        Phi = self.theory.order_parameter("Phi")
        now, past = Function("h")(*Phi.symbol.args[:2], t), Function("h")(Phi.symbol.args[0], alpha, s)
        if Phi.definition != Average(activation(now) * activation(past)):
            raise NotApplicable(
                f"the order parameter {Phi.symbol} = {Phi.definition} is not the correlation of "
                f"{activation(now)}"
            )
        for e in self.theory.equations:
            if e.name == "g":
                h, z = (Function(n)(*e.lhs.args) for n in ("h", "z"))
                zeta = Dummy("z")
                body = e.rhs.xreplace({h: x, z: zeta}).doit()
                slope = body.diff(zeta)
                if slope.has(zeta) or body.subs(zeta, 0) != 0 or not _alike(slope, activation.expr.diff(x)):
                    raise NotApplicable(
                        f"the gradient {e.lhs} = {e.rhs} is not the slope of {activation(h)} times {z}"
                    )
        return activation

    def source(self, name: str) -> Neighbour:
        """Return the order parameter that is the covariance of the Gaussian source ``name`` (u or r).

        A data kernel or the number 1 counts as one. Its layer is given relative to that of the source. Raises
        NotApplicable if there is no such source or if the covariance is another expression.
        """
        sources = [u for u in self.theory.sources if str(u.symbol.func) == name]
        u = next((u for u in sources if u.layers), sources[0] if sources else None)
        if u is None:
            raise NotApplicable(
                f"the theory has no Gaussian source {name}, through which the initial weights enter a field"
            )
        kernel = self.kernel(u.covariance, u.symbol.args[0])
        if kernel is None:
            raise NotApplicable(
                f"the covariance <{u.symbol} {u.partner}> = {u.covariance} must be one order parameter, one "
                "kernel of the data or the number 1, as with initial variance 1 and without weight decay and "
                "noise"
            )
        return kernel

    def kernel(self, e: Expr, layer: Expr) -> Neighbour | None:
        """Return the order parameter that ``e`` consists of, with its layer relative to ``layer``.

        Kernels of the data and the number one are marked as given. Returns None if ``e`` is another number, a
        sum or a product.
        """
        if e == 1:
            return Neighbour("1", 0, True)
        if not isinstance(e, AppliedUndef):
            return None
        name = str(e.func)
        return Neighbour(name, int(e.args[0] - layer)) if name in self.known else Neighbour(name, 0, True)

    def edges(self, e: Equation) -> tuple[Edge, ...]:
        """Convert the equation of h or z, without its source, to terms: kernels applied to fields."""
        sources = [Function(n)(*e.lhs.args) for n in ("u", "r")]
        return tuple(self.edge(x, e.lhs) for x in e.terms if x.kind != "source" or x.expr not in sources)

    def edge(self, term: Term, lhs: Expr) -> Edge:
        """Return one term of the equation of h or z as a kernel that is applied to g or phi(h).

        ``lhs`` is the left-hand side of the equation. The weight of past updates in a memory is noted in
        ``weights``. Raises :class:`NotApplicable` for a term of another form.
        """
        memory = term.kind == "memory"
        if not (memory or term.kind == "response") or len(term.over) != 1 or not term.remembers:
            raise NotApplicable(
                f"the equation of {lhs} has the term {term.expr}; each term must be a source u or r, or a "
                "sum of a response or memory over the past and over one index of samples"
            )
        sample, site = term.over[0].index, lhs.args[0]
        g, h = (Function(n)(site, sample, s) for n in ("g", "h"))
        field, value = ("g", g) if term.field.has(g) else ("phi", self.phi(h))
        rest = term.coefficient * term.field / value
        if rest.has(g, h):
            raise NotApplicable(f"the term {term.expr} is not linear in g or phi(h) at an earlier time")
        factors = list(Mul.make_args(term.kernel * rest))
        error = Function("Delta")(sample, s)
        if (error in factors) != memory or gamma0 not in factors:
            raise NotApplicable(
                f"the term {term.expr} must contain gamma0 times a response, or gamma0 Delta times a "
                "correlation"
            )
        kernels = [f for f in factors if isinstance(f, AppliedUndef) and {sample, mu} <= set(f.args)]
        if len(kernels) > 1:
            raise NotApplicable(f"the term {term.expr} must have at most one order parameter of two samples")
        kernel = self.kernel(Mul(*kernels), site)
        assert kernel is not None
        weight = Mul(*[f for f in factors if f not in (*kernels, gamma0, error)])
        if weight.has(mu, sample, ell) or not (memory or weight == 1):
            raise NotApplicable(
                f"the term {term.expr} has the factor {weight}; a term with a response must not have a "
                "further factor, and the factor of a memory must not depend on samples or on the layer"
            )
        if memory:
            self.weights.add(weight)
        return Edge(kernel, memory, field)

    def ends(self) -> dict[tuple[str, Expr], Expr]:
        """Return the given values of order parameters before the first and after the last layer.

        Keys are (name of the order parameter, layer). Raises NotApplicable if an equation at an end of the
        network differs from that of the other layers.
        """
        joined = families(self.theory)
        items: tuple[Equation | Source, ...] = (*joined.equations, *joined.sources)
        for x in items:
            if not x.layers:
                raise NotApplicable(
                    f"the equation or source {x.symbol} at an end of the network differs from its family "
                    "of layers"
                )
        return {(x.name, x.lhs.args[0]): x.rhs for x in joined.base_cases}

    # -- responses and the tangent kernel --------------------------------------------------------------

    def response(self, source: str, what: str) -> int | None:
        """Return the layer of the response to a source minus that of the source; None if the theory has none.

        ``what`` is the field that responds, ``phi`` or ``g``; raises NotApplicable if another quantity
        responds.
        """
        for q in self.theory.responses():
            (atom,) = q.definition.atoms(Response)
            if str(atom.source.func) != source:
                continue
            site = atom.source.args[0]
            body = self.phi(Function("h")(site, mu, t)) if what == "phi" else Function("g")(site, mu, t)
            if atom.body != body or q.definition != Average(atom) / gamma0:
                raise NotApplicable(
                    f"the order parameter {q.symbol} = {q.definition} is not the average response of {body} "
                    f"to {atom.source}, divided by gamma0"
                )
            return int(q.symbol.args[0] - site)
        return None

    def summand(self, term: Term) -> Summand:
        """Convert a term of the tangent kernel to order parameters, other factors, and range of layers."""
        factors = Mul.make_args(term.coefficient * term.kernel * term.field)
        order_parameters = [f for f in factors if isinstance(f, AppliedUndef) and str(f.func) in self.known]
        given = Mul(*[f for f in factors if f not in order_parameters])
        (layers,) = term.over or (None,)
        return Summand(tuple((str(f.func), f.args[0]) for f in order_parameters), given, layers)


def _alike(a: Expr, b: Expr) -> bool:
    """Return whether two functions of x are equal; if not in form, they are compared at six values of x.

    Functions with a kink can be written in several forms.
    """
    if a == b or (a - b).expand() == 0:
        return True
    points = [Rational(n, 7) for n in (-17, -5, -2, 3, 8, 19)]
    return all(bool(abs((a - b).subs(x, p).evalf()) < 1e-12) for p in points)
