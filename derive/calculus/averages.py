"""Averages over a single-site process and responses to its sources, as unevaluated SymPy expressions.

They print folded.  ``.doit()`` unfolds an average by linearity, and takes a response apart by the chain rule.
What needs a theory is said there: its equations put in (:func:`derive.theory.unfold.unfold`), Stein's lemma
over its sources and Gaussian integrals of them (:mod:`derive.theory.unfold`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sympy import Add, Derivative, DiracDelta, Dummy, Expr, Integral, KroneckerDelta, Mul, S, Subs, Sum
from sympy.core.function import AppliedUndef

from derive.calculus.sums import all_apart, apart, bound, factors

Names = Iterable[str] | None


class Average(Expr):
    """``<x>``: the mean of ``x`` over the single-site process of the population that its fields live on.

    Substitution acts inside, and so does differentiation: with respect to a plain symbol it is the
    derivative of what is written, not of how the fields inside depend on it.

    >>> from sympy.abc import a, t, s
    >>> from sympy import Function
    >>> h, phi, r = (Function(n) for n in ("h", "phi", "r"))
    >>> Average(h(t) * h(s))
    <h(s)*h(t)>
    >>> Average(2 * a * Response(phi(h(t)), r(s)) + 1).doit()
    2*a*<Derivative(phi(h(t)), h(t))*d h(t) / d r(s)> + 1
    """

    is_commutative = True
    is_averaged = True

    def __new__(cls, body: Any) -> Average:
        node: Average = Expr.__new__(cls, S(body))
        return node

    @property
    def body(self) -> Expr:
        """What is averaged."""
        return self.args[0]

    def doit(self, **hints: Any) -> Expr:
        """Carry out derivatives, and the chain rule of responses inside; then linearity: see :meth:`linear`.

        ``random`` names the fields; without it every applied undefined function is random, so that only
        numbers, plain symbols, sums, integrals and averages come out.  Other hints go to
        :meth:`Response.doit`.
        """
        return Average(carried_out(self.body, **hints)).linear(hints.get("random"))

    def linear(self, random: Names = None) -> Expr:
        """Expand by linearity; functions not named in ``random`` are deterministic and come out.

        >>> from sympy.abc import t
        >>> from sympy import Function
        >>> Average(2 * Function("y")(t) * Function("h")(t)).linear(frozenset({"h"}))
        2*y(t)*<h(t)>
        """
        return _linear(self.body.expand(), None if random is None else frozenset(map(str, random)))

    def _eval_derivative(self, x: Expr) -> Expr:
        body = self.body.diff(x)
        return S.Zero if body == 0 else Average(body)

    def _latex(self, printer: Any, *_: Any) -> str:
        return rf"\left\langle {printer._print(self.body)} \right\rangle"

    def _sympystr(self, printer: Any, *_: Any) -> str:
        return f"<{printer._print(self.body)}>"


def _linear(body: Expr, random: frozenset[str] | None) -> Expr:
    if isinstance(body, Add):
        return Add(*[_linear(x, random) for x in body.args])
    if isinstance(body, Sum | Integral):
        return body.func(_linear(body.function.expand(), random), *body.limits)
    fixed: list[Expr] = []
    moving: list[Expr] = []
    for x in factors(body):
        (moving if is_random(x, random) else fixed).append(x)
    if not moving:
        return body
    sums = [x for x in moving if isinstance(x, Sum | Integral)]
    if sums:
        others = list(moving)
        others.remove(sums[0])
        rest = Mul(*others)
        first = apart(sums[0], rest.free_symbols | bound(rest))
        inner = _linear((rest * first.function).expand(), random)
        return Mul(*fixed) * first.func(inner, *first.limits)
    return Mul(*fixed) * Average(Mul(*moving))


def is_random(x: Expr, random: frozenset[str] | None = None) -> bool:
    """Does ``x`` contain one of the random fields (any, without a list), outside averages already taken?"""
    if getattr(x, "is_averaged", False):
        return False
    if isinstance(x, AppliedUndef) and (random is None or str(x.func) in random):
        return True
    return any(is_random(y, random) for y in x.args)


# -- responses -----------------------------------------------------------------------------------------------


class Response(Expr):
    """``delta x / delta r``: how ``x`` moves when the source ``r`` is pushed; zero unless r comes first.

    It prints folded, and substitution and differentiation with respect to plain symbols act inside.
    ``.doit()`` applies the chain rule as far as fields; the response of a field itself stays folded, and
    :meth:`Theory.unfold <derive.theory.theory.Theory.unfold>` puts the field's equation into it.

    >>> from sympy import Function
    >>> from sympy.abc import s, t
    >>> h, phi, r = (Function(n) for n in ("h", "phi", "r"))
    >>> Response(phi(h(t)), r(s)).doit()
    Derivative(phi(h(t)), h(t))*d h(t) / d r(s)
    >>> Response(r(t), r(s)).doit(), Response(r(t), r(s)).doit(discrete=False)
    (KroneckerDelta(s, t), DiracDelta(s - t))
    """

    is_commutative = True

    def __new__(cls, body: Any, source: Any) -> Response:
        node: Response = Expr.__new__(cls, S(body), S(source))
        return node

    @property
    def body(self) -> Expr:
        """What responds."""
        return self.args[0]

    @property
    def source(self) -> Expr:
        """What is pushed."""
        return self.args[1]

    def doit(self, **hints: Any) -> Expr:
        """The chain rule through functions, products, sums and integrals.

        ``fields`` names what can respond (default: every applied undefined function), ``sources`` the
        Gaussian fields, which respond to themselves only.  With ``discrete`` (the default) a source's
        response to itself is a Kronecker delta in every argument, else a Dirac delta in its last one, time.
        Derivatives, responses and averages inside are carried out, sums are not.
        """
        fields, discrete = hints.get("fields"), bool(hints.get("discrete", True))
        moved = None if fields is None else frozenset(map(str, fields))
        sources = frozenset(map(str, hints.get("sources", ())))
        return chain_rule(carried_out(self.body, **hints), self.source, moved, sources, discrete)

    def _eval_derivative(self, x: Expr) -> Expr | None:
        if x in self.source.free_symbols:
            return None  # the place where it is pushed moves: that stays unevaluated
        body = self.body.diff(x)
        return S.Zero if body == 0 else Response(body, self.source)

    def _latex(self, printer: Any, *_: Any) -> str:
        return rf"\frac{{\delta {printer._print(self.body)}}}{{\delta {printer._print(self.source)}}}"

    def _sympystr(self, printer: Any, *_: Any) -> str:
        return f"d {printer._print(self.body)} / d {printer._print(self.source)}"


def chain_rule(
    body: Expr,
    source: Expr,
    fields: frozenset[str] | None = None,
    sources: frozenset[str] = frozenset(),
    discrete: bool = True,
) -> Expr:
    """``delta body / delta source`` in terms of responses of fields, see :meth:`Response.doit`.

    >>> from sympy import Function
    >>> from sympy.abc import s, t
    >>> g, K, r = (Function(n) for n in ("g", "K", "r"))
    >>> chain_rule(Sum(K(t, s) * g(s), (s, 0, t - 1)), r(s), frozenset({"g", "r"}))
    Sum(K(t, s_)*d g(s_) / d r(s), (s_, 0, t - 1))
    """

    def respond(e: Expr) -> Expr:
        e = all_apart(e, source.free_symbols)
        found = leaves(e)
        slots = {x: Dummy(f"slot{i}") for i, x in enumerate(found)}
        back = {d: x for x, d in slots.items()}
        flat = e.xreplace(slots)
        total = []
        for x, slot in slots.items():
            moved = of_leaf(x)
            if moved != 0:
                total.append(flat.diff(slot).xreplace(back) * moved)
        return Add(*total)

    def of_leaf(x: Expr) -> Expr:
        if isinstance(x, Sum | Integral):
            inner = respond(x.function)
            return S.Zero if inner == 0 else x.func(inner, *x.limits)
        if isinstance(x, Response):
            return Response(x, source)
        atom = x.expr if isinstance(x, Derivative) else x
        name = str(atom.func)
        if name == str(source.func) and len(atom.args) == len(source.args) and x is atom:
            return delta(x, source, discrete)
        if name in sources or (fields is not None and name not in fields):
            return S.Zero
        return Response(x, source)

    return respond(body)


def carried_out(e: Expr, **hints: Any) -> Expr:
    """``e`` with the derivatives, responses and averages in it evaluated as far as they can be.

    Sums and integrals are left as they are written.

    >>> from sympy import Function, sin
    >>> from sympy.abc import s, t
    >>> h, r = Function("h"), Function("r")
    >>> carried_out(h(0) * Derivative(sin(h(t)), h(t)) * Response(h(t) ** 2, r(s)))
    2*h(0)*h(t)*cos(h(t))*d h(t) / d r(s)
    """
    if isinstance(e, Derivative | Subs | Response) or getattr(e, "is_averaged", False):
        return e.doit(**hints)
    args = [carried_out(x, **hints) if isinstance(x, Expr) else x for x in e.args]
    return e if args == list(e.args) else e.func(*args)


def delta(x: Expr, y: Expr, discrete: bool = True) -> Expr:
    """1 where the arguments of ``x`` and ``y`` agree: Kronecker in each, or Dirac in the last of a flow."""
    pairs = list(zip(x.args, y.args, strict=True))
    if not discrete:
        *pairs, (time, past) = pairs
        return Mul(DiracDelta(past - time), *[KroneckerDelta(a, b) for a, b in pairs])
    return Mul(*[KroneckerDelta(a, b) for a, b in pairs])


def leaves(e: Expr, formal: frozenset[Expr] = frozenset()) -> list[Expr]:
    """What the chain rule ends at: fields, their rates of change, responses, and whole sums and integrals.

    A field is an applied undefined function of plain indices; one of fields, ``phi(h(t))``, is an ordinary
    function.  Averages are deterministic.  ``formal`` are the slots of derivatives such as ``phi'(2 h)``.

    >>> from sympy import Function
    >>> from sympy.abc import t
    >>> h, z, phi = (Function(n) for n in ("h", "z", "phi"))
    >>> leaves(phi(h(t)) ** 2 * z(t))
    [h(t), z(t)]
    """
    found: dict[Expr, None] = {}

    def walk(x: Any, formal: frozenset[Expr]) -> None:
        if getattr(x, "is_averaged", False) or not getattr(x, "args", ()):
            return
        if isinstance(x, Response | Sum | Integral) or is_field(x, formal):
            found[x] = None
            return
        if isinstance(x, Derivative) and is_field(x.expr, formal) and set(x.variables) <= x.expr.free_symbols:
            found[x] = None
            return
        inside = formal | frozenset(x.variables) if isinstance(x, Subs) else formal
        for y in x.args:
            walk(y, inside)

    walk(e, formal)
    return sorted(found, key=str)


def is_field(x: Any, formal: frozenset[Expr] = frozenset()) -> bool:
    """Is ``x`` a field at its indices, rather than a function of fields?"""
    if not isinstance(x, AppliedUndef):
        return False
    return not any(a.atoms(AppliedUndef) for a in x.args) and not (formal & x.free_symbols)
