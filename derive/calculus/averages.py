"""Averages over a single-site process and responses to its sources, as unevaluated SymPy expressions.

``.doit()`` expands an average by linearity and applies the chain rule to a response. Steps that need the
equations of a theory are in :mod:`derive.theory.unfold`: substitution of equations, Stein's lemma over
sources, Gaussian integrals.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sympy import Add, Derivative, DiracDelta, Dummy, Expr, Integral, KroneckerDelta, Mul, S, Subs, Sum
from sympy.core.function import AppliedUndef

from derive.calculus.sums import bound, factors, rename_all_bound, rename_bound

Names = Iterable[str] | None


class Average(Expr):
    """The mean ``<x>`` over the single-site process of the population to which the fields in ``x`` belong.

    Substitution and differentiation act on ``x`` inside of the average. The derivative by a symbol acts only
    where the symbol is written in ``x``, and not on parameters in the equations of the fields.

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
        """Return the unevaluated average of an expression."""
        node: Average = Expr.__new__(cls, S(body))
        return node

    @property
    def body(self) -> Expr:
        """The averaged expression."""
        return self.args[0]

    def doit(self, **hints: Any) -> Expr:
        """Carry out derivatives and the chain rule of responses inside, then expand by linearity.

        Parameters
        ----------
        **hints
            ``random``: names of the random functions, see :meth:`linear`; by default every applied undefined
            function, such as ``h(t)``, is random. Other hints are those of :meth:`Response.doit`.

        Returns
        -------
        Expr
            A sum of averages. Factors without random functions, and averages inside, are in front; a sum or
            integral that is a factor is outside of the average.
        """
        return Average(carried_out(self.body, **hints)).linear(hints.get("random"))

    def linear(self, random: Names = None) -> Expr:
        """Expand the average by linearity; derivatives and responses inside are not carried out.

        Parameters
        ----------
        random : iterable of str, optional
            Names of the random functions; functions with other names are deterministic and are moved out of
            the average. By default all functions are random.

        Returns
        -------
        Expr
            A sum of averages with deterministic factors in front. A sum or integral that is a factor is
            outside of the average.

        Examples
        --------
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
    """Return the average of the expanded expression ``body``, expanded by linearity.

    Factors that are not random are in front of the averages. A sum or integral that is a factor is outside
    of the average.
    ``random`` are the names of random functions; None if all functions are random.
    """
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
        first = rename_bound(sums[0], rest.free_symbols | bound(rest))
        inner = _linear((rest * first.function).expand(), random)
        return Mul(*fixed) * first.func(inner, *first.limits)
    return Mul(*fixed) * Average(Mul(*moving))


def is_random(x: Expr, random: frozenset[str] | None = None) -> bool:
    """Return whether ``x`` contains a random function outside of averages and copies.

    ``random`` are the names of random functions; None if all functions are random. A copy
    (:class:`~derive.calculus.pairs.Copy`) is a constant under the average.
    """
    if getattr(x, "is_averaged", False):
        return False
    if isinstance(x, AppliedUndef) and (random is None or str(x.func) in random):
        return True
    return any(is_random(y, random) for y in x.args)


# -- responses -----------------------------------------------------------------------------------------------


class Response(Expr):
    """The response ``delta x / delta r`` of ``x`` to a source ``r``.

    By causality it is zero if r is later than x, but this class does not compare times. Substitution acts on
    x and r. Differentiation by a plain symbol acts on x; it stays unevaluated if the symbol is an index or
    time of r. ``.doit()`` applies the chain rule down to fields; the response of a field stays unevaluated,
    and :meth:`Theory.unfold <derive.theory.theory.Theory.unfold>` substitutes the equation of the field.

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
        """Return the unevaluated response ``delta body / delta source``."""
        node: Response = Expr.__new__(cls, S(body), S(source))
        return node

    @property
    def body(self) -> Expr:
        """The quantity (a field, or a function of fields) that responds to the source."""
        return self.args[0]

    @property
    def source(self) -> Expr:
        """The source, a field at one time, whose perturbation causes the response."""
        return self.args[1]

    def doit(self, **hints: Any) -> Expr:
        """Apply the chain rule through functions, products, sums and integrals.

        Derivatives, responses and averages inside are carried out. Sums are kept, except inside of an
        unevaluated derivative or ``Subs``. Averages do not respond.

        Parameters
        ----------
        **hints
            ``fields``: names of the functions that respond (default: every applied undefined function);
            ``sources``: names of the Gaussian sources, which respond to themselves only (default: none; the
            response of a source's time derivative to this source stays unevaluated);
            ``discrete`` (default True): the response of a source to itself is a product of Kronecker deltas,
            one for each argument; otherwise the delta of the last argument, time, is a Dirac delta. The
            source responds to itself also if neither list contains its name.

        Returns
        -------
        Expr
            The response in terms of responses of fields.
        """
        fields, discrete = hints.get("fields"), bool(hints.get("discrete", True))
        moved = None if fields is None else frozenset(map(str, fields))
        sources = frozenset(map(str, hints.get("sources", ())))
        return chain_rule(carried_out(self.body, **hints), self.source, moved, sources, discrete)

    def _eval_derivative(self, x: Expr) -> Expr | None:
        if x in self.source.free_symbols:
            # x, by which the response is differentiated, is an index or a time of its source. The derivative
            # by x also changes the source, and is therefore not the response of the differentiated body. The
            # result None makes SymPy leave the derivative unevaluated.
            return None
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
    """Return ``delta body / delta source`` in terms of responses of fields, see :meth:`Response.doit`.

    >>> from sympy import Function
    >>> from sympy.abc import s, t
    >>> g, K, r = (Function(n) for n in ("g", "K", "r"))
    >>> chain_rule(Sum(K(t, s) * g(s), (s, 0, t - 1)), r(s), frozenset({"g", "r"}))
    Sum(K(t, s_)*d g(s_) / d r(s), (s_, 0, t - 1))
    """

    def respond(e: Expr) -> Expr:
        e = rename_all_bound(e, source.free_symbols)
        atoms = leaves(e)
        slots = {x: Dummy(f"slot{i}") for i, x in enumerate(atoms)}
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
        if name == str(source.func) and len(atom.args) == len(source.args):
            return delta(x, source, discrete) if x is atom else Response(x, source)
        if name in sources or (fields is not None and name not in fields):
            return S.Zero
        return Response(x, source)

    return respond(body)


def carried_out(e: Expr, **hints: Any) -> Expr:
    """Return ``e`` with its derivatives, responses and averages evaluated as far as possible.

    ``hints`` are those of :meth:`Average.doit`. Sums are kept, except inside of an unevaluated derivative or
    ``Subs``.

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
    """Return the product of deltas that sets the arguments of applied functions ``x`` and ``y`` equal.

    Both have the same number of arguments; the functions themselves are not compared. With ``discrete`` all
    deltas are Kronecker deltas; otherwise that of the last argument, time, is a Dirac delta.
    """
    pairs = list(zip(x.args, y.args, strict=True))
    if not discrete:
        *pairs, (time, past) = pairs
        return Mul(DiracDelta(past - time), *[KroneckerDelta(a, b) for a, b in pairs])
    return Mul(*[KroneckerDelta(a, b) for a, b in pairs])


def leaves(e: Expr, formal: frozenset[Expr] = frozenset()) -> list[Expr]:
    """Return the quantities in ``e`` at which the chain rule ends, sorted by name.

    They are fields, derivatives of fields by their indices or time, responses, sums and integrals. A field is
    an applied undefined function of plain indices; a function of fields, such as ``phi(h(t))``, is an
    ordinary function. Averages are left out because they are deterministic. ``formal`` holds the bound
    variables of derivatives such as ``phi'(2 h)``; a function of these is not a field.

    >>> from sympy import Function
    >>> from sympy.abc import t
    >>> h, z, phi = (Function(n) for n in ("h", "z", "phi"))
    >>> leaves(phi(h(t)) ** 2 * z(t))
    [h(t), z(t)]
    """
    collected: dict[Expr, None] = {}

    def walk(x: Any, formal: frozenset[Expr]) -> None:
        """Append to the result the quantities in x at which the chain rule ends, such as fields.

        ``formal`` are the variables that derivatives around the subexpression bind.
        """
        if getattr(x, "is_averaged", False) or not getattr(x, "args", ()):
            return
        if isinstance(x, Response | Sum | Integral) or is_field(x, formal):
            collected[x] = None
            return
        if isinstance(x, Derivative) and is_field(x.expr, formal) and set(x.variables) <= x.expr.free_symbols:
            collected[x] = None
            return
        inside = formal | frozenset(x.variables) if isinstance(x, Subs) else formal
        for y in x.args:
            walk(y, inside)

    walk(e, formal)
    return sorted(collected, key=str)


def is_field(x: Any, formal: frozenset[Expr] = frozenset()) -> bool:
    """Return whether ``x`` is a field at its indices, such as ``h(mu, t)``, not a function of fields.

    Functions of the variables in ``formal`` (bound by a derivative) are not fields.
    """
    if not isinstance(x, AppliedUndef):
        return False
    return not any(a.atoms(AppliedUndef) for a in x.args) and not (formal & x.free_symbols)
