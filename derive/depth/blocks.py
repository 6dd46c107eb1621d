"""Infinite depth of residual networks whose blocks have inner layers, by a balance of powers of L.

The responses of units inside of a block to sources of another block vanish, because only the weights of a
block connect its units; on the residual stream responses connect all blocks. Every function ``X`` is written
as ``L**p X`` with the power p at which its equation balances. The limit of the rescaled system is taken as
for blocks of one layer (:mod:`.infinite`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from sympy import Add, Eq, Expr, Integral, KroneckerDelta, S, Sum, sympify
from sympy.core.function import AppliedUndef
from sympy.utilities.iterables import strongly_connected_components

from derive.calculus.sums import evaluate_deltas, placed, without_empty
from derive.calculus.symbols import L
from derive.depth.balance import CountedTerm, as_expression, balance, counted
from derive.depth.infinite import LayerTime, Scaling, aligned, layer_time
from derive.depth.layers import neighbour, tau, tau_
from derive.depth.rescale import ends_apart, in_units
from derive.errors import NotApplicable
from derive.linear.propagators import CrossLayer, k
from derive.show.conditions import ConditionalResult
from derive.theory import Equation, Source, Theory


@dataclass(frozen=True, repr=False)
class BlockLimit(ConditionalResult):
    """Limit of infinite depth of a network whose blocks have inner layers.

    There are no single-site equations, because fields within a block are not functions of layer time.

    Parameters
    ----------
    orders : dict of str to Expr
        The power p of L of each function; functions that are zero are missing.
    cross : CrossLayer
        The recursions over layers of all functions divided by ``L**p``, at any depth.
    limit : LayerTime
        The limit of these recursions in layer time. In its integrals, correlations and scalars functions
        within a block are eliminated from right-hand sides; its differential equations still contain them.
    """

    orders: dict[str, Expr]
    cross: CrossLayer
    limit: LayerTime

    def conditions(self) -> tuple[str, ...]:
        """Return what is assumed and what is derived in the limit of infinite depth.

        Returns
        -------
        tuple of str
            One sentence per condition, which begins with "assumed:" or "derived:": first those of the
            equations in layer time, then those of the powers of L.
        """
        return (
            *self.limit.conditions(),
            "derived: each function is divided by the power of L of the largest terms of its equation",
            "assumed: terms of the same power do not cancel",
        )

    def _repr_latex_(self) -> str:
        return self.limit._repr_latex_()


def without_silent(theory: Theory) -> Theory:
    """Return a theory without sources of covariance zero, such as those of matrices that start from zero.

    Parameters
    ----------
    theory : Theory
        A theory.

    Returns
    -------
    Theory
        The theory without these sources, and without terms and order parameters that contain them. A source
        that has a covariance other than zero at some layers is kept at all layers.

    Examples
    --------
    >>> from derive import mean_field
    >>> from derive.program.networks.residual import block_program
    >>> theory = without_silent(mean_field(block_program(linearised=True)))
    >>> [str(u.symbol) for u in theory.sources]
    ['U(0, t)', 'u_W(ell, t)', 'u_Z(ell, t)', 'V(t)', 'r_W(ell - 1, t)', 'r_Z(ell, t)']
    """
    silent = {str(u.symbol.func) for u in theory.sources if sympify(u.covariance) == 0}
    silent -= {str(u.symbol.func) for u in theory.sources if sympify(u.covariance) != 0}

    def speaks(e: Expr) -> bool:
        """Return whether an expression contains no source whose covariance is zero."""
        return not any(str(a.func) in silent for a in e.atoms(AppliedUndef))

    def spoken(x: Any) -> Iterator[Any]:
        """Yield an item of the theory without the parts that contain a source of covariance zero.

        A source counts if all its covariances in the theory are zero. Items are equations of fields and of
        scalars, sources, and order parameters. An equation loses the terms that contain such a source; a
        source or order parameter that contains one is not yielded.
        """
        if isinstance(x, Equation):
            kept = tuple(y for y in x.terms if speaks(y.expr) and without_empty(y.expr) != 0)
            yield replace(x, terms=kept)
        elif speaks(x.symbol if isinstance(x, Source) else x.definition):
            yield x

    return theory.each(spoken)


def within_blocks(cross: CrossLayer) -> CrossLayer:
    """Write responses within a block as functions of the block: ``R(ell, k) = delta(ell, k) R(ell)``.

    They are the responses of fields inside of blocks; those of fields on the residual stream keep two layers.

    Parameters
    ----------
    cross : CrossLayer
        The recursions over layers of a linear theory.

    Returns
    -------
    CrossLayer
        The same equations with one layer argument in responses within a block. Responses to the sources of
        the first and last layer have individual names (:func:`~derive.depth.rescale.ends_apart`).
    """
    cross = ends_apart(cross)
    layered = {f.name for f in cross.theory.program.fields if f.layered and not f.population.shared}
    two_layered = {str(e.lhs.func) for e in cross.responses if len(e.lhs.args) >= 4}
    local = two_layered & {f"R_{f}{p.name}" for f in layered for p in cross.perturbed_sources}

    def is_local(x: Expr) -> bool:
        """Return whether an expression is a response of a field in block ell to a source in block k.

        Only responses of fields inside of blocks count, not those of the residual stream.
        """
        return isinstance(x, AppliedUndef) and str(x.func) in local and len(x.args) >= 4

    def one(x: AppliedUndef) -> Expr:
        """Return a response ``R(ell, k, ...)`` within one block as ``R(ell, ...)``."""
        return x.func(x.args[0], *x.args[2:])

    def summed(x: Sum) -> Expr:
        """Return a sum over the blocks k of responses within a block as its only nonzero term.

        There k is the block of the field. A sum without such responses is returned unchanged.
        """
        inside = [a for a in x.function.atoms(AppliedUndef) if is_local(a) and a.args[1] == k]
        if not inside:
            return x
        body = x.function.xreplace({a: one(a) for a in inside}).xreplace({k: inside[0].args[0]})
        other_limits = [lim for lim in x.limits if lim[0] != k]
        return Sum(body, *other_limits) if other_limits else body

    def put(e: Expr) -> Expr:
        """Return an expression in which all responses within a block have one layer argument."""
        e = e.replace(lambda x: isinstance(x, Sum) and any(lim[0] == k for lim in x.limits), summed)
        return e.replace(is_local, one)

    def alone(e: Expr) -> Expr:
        """Return a term in the equation of a response ``R(ell, k)`` within one block at k = ell.

        The Kronecker delta of ell and k in the term becomes one.
        """
        return put(e.replace(lambda y: isinstance(y, KroneckerDelta) and y.has(k), lambda _: S.One))

    def row(e: Equation) -> Equation:
        """Return the equation of a response, with one layer argument for a response within a block."""
        if str(e.lhs.func) not in local:
            return replace(e, terms=tuple(x.rewrite(put) for x in e.terms))
        ranges = tuple(r for r in e.ranges if r.index != k)
        return Equation(one(e.lhs), tuple(x.rewrite(alone) for x in e.terms), ranges)

    return replace(cross.map(put), responses=tuple(map(row, cross.responses)))


def balanced(cross: CrossLayer, scaling: Scaling | None = None) -> tuple[CrossLayer, dict[str, Expr]]:
    """Return (system, powers): all functions divided by their powers of L, and these powers by name.

    The system consists of the recursions over layers. The power of a function is the largest among the
    terms of its equation (see :mod:`.balance`); a function that is zero is removed. ``scaling`` is the
    dependence of symbols on L, by default none. Raises :class:`NotApplicable` if an exponent of L contains
    a symbol after ``scaling``, and if sizes grow without bound.
    """
    scaling = scaling or Scaling()
    terms: dict[str, list[CountedTerm]] = {}

    def count(name: str, e: Expr, moving: bool = False) -> None:
        """Append the terms of the equation ``name = e``, with their powers of L, to ``terms[name]``.

        With ``moving`` the equation is a recursion over layers, so that terms are added in every layer.
        """
        addends = Add.make_args(scaling(e).expand())
        terms.setdefault(name, []).extend(counted(x, moving) for x in addends if x != 0)

    for e in cross.responses:
        near = neighbour(e)
        for x in e.terms:
            if x.expr != near:
                count(str(e.lhs.func), x.expr, near is not None)
    for q in (*cross.correlations, *cross.scalars):
        count(str(q.lhs.func), q.rhs)
    for counted_term in chain.from_iterable(terms.values()):
        exponent = as_expression(frozenset({counted_term.power}))
        if free := exponent.free_symbols:
            name = min(map(str, free))
            raise NotApplicable(
                f"a term of the recursions over layers has the factor L**({exponent}): a balance of powers "
                f"needs a number in place of {name}, such as Scaling({{{name}: 1}})"
            )
    sizes = balance(terms)
    orders = {n: as_expression(p) for n, p in sizes.exponents.items() if p}
    zero = {n: S.Zero for n, p in sizes.exponents.items() if not p}
    units = {n: L**p for n, p in orders.items()} | zero
    return in_units(cross, units), orders


def block_limit(cross: CrossLayer, scaling: Scaling | None = None) -> BlockLimit:
    """Return the limit of infinite depth of a system whose functions scale with different powers of L.

    Parameters
    ----------
    cross : CrossLayer
        The recursions over layers from :func:`within_blocks`.
    scaling : Scaling, optional
        The dependence of symbols on L; by default symbols do not depend on L.

    Returns
    -------
    BlockLimit
        The equations in layer time, with the power of L of each function.

    Raises
    ------
    NotApplicable
        If an exponent of L contains a symbol after ``scaling``, if the powers of L do not balance, or if
        :func:`~derive.depth.infinite.layer_time` refuses the rescaled equations, as for a term that grows
        with L.

    Examples
    --------
    >>> from derive import mean_field
    >>> from derive.depth import cross_layer
    >>> from derive.program.networks.residual import block_program
    >>> found = block_limit(within_blocks(cross_layer(mean_field(block_program()))))
    >>> found.limit.correlation("C_h")
    Eq(C_h(tau, t, s), C_x(tau, t, s))
    """
    system, orders = balanced(cross, scaling)
    system = aligned(system)
    bare = replace(system, theory=replace(system.theory, equations=(), sources=()))
    return BlockLimit(orders, bare, without_blocks(layer_time(bare, scaling)))


def without_blocks(limit: LayerTime) -> LayerTime:
    """Eliminate quantities within a block from the integral equations, correlations and scalars of a limit.

    A function of one layer time whose equation has no integral is replaced by its right-hand side in the
    right-hand sides of these equations, unless its equation contains the function itself, directly or through
    others. A function at a fixed layer time, such as 0, is not replaced. The differential equations
    and initial values are left unchanged. A delta that fixes the time in a sum over times removes the sum
    without a check of its range, because functions in the summand are causal and vanish outside of it.
    """
    inside = {
        str(e.lhs.func): e
        for e in (*limit.integrals, *limit.correlations)
        if e.lhs.args and e.lhs.args[0] == tau and not e.rhs.has(Integral) and e.lhs.args[1:2] != (tau_,)
    }
    # A function whose equation contains the function itself, directly or through other functions, cannot be
    # eliminated. Such a function is in a cycle of the graph with the edges `edges`, each from a function to a
    # function in its equation. Examples are updates of two weights of one block, each of which contains the
    # other.
    needs = [(n, str(x.func)) for n, e in inside.items() for x in e.rhs.atoms(AppliedUndef)]
    edges = [(n, m) for n, m in needs if m in inside]
    parts = strongly_connected_components((list(inside), edges))
    inside = {n: inside[n] for p in parts for n in p if len(p) == 1 and (n, n) not in edges}

    def known(x: Expr) -> bool:
        """Return whether an expression is a function within a block, to be replaced by its equation.

        A function at a fixed layer time, such as 0, is not.
        """
        return isinstance(x, AppliedUndef) and str(x.func) in inside and not x.args[0].is_number

    def value(x: AppliedUndef) -> Expr:
        """Return the right-hand side that replaces a function, at the function's arguments."""
        e = inside[str(x.func)]
        return placed(e.rhs, e.lhs, x)

    def put(e: Expr) -> Expr:
        """Replace functions within a block by their right-hand sides, until none of ``inside`` is left.

        A function at a fixed layer time, such as 0, is not replaced.
        """
        # A sum over times in which a delta fixes the time leaves the condition that this time is in the range
        # of the sum. The condition is set to one, because causal functions in the summand vanish where it
        # does not hold.
        while (substituted := evaluate_deltas(e.replace(known, value), lambda *_: S.One)) != e:
            e = substituted
        return e

    def rows(items: tuple[Eq, ...]) -> tuple[Eq, ...]:
        """Eliminate the functions within a block from the right-hand sides of equations."""
        return tuple(Eq(e.lhs, put(e.rhs), evaluate=False) for e in items)

    return replace(
        limit,
        integrals=rows(limit.integrals),
        correlations=rows(limit.correlations),
        scalars=rows(limit.scalars),
    )
