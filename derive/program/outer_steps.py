"""Nonlinear training rules whose steps are sums of outer products, written as updates of a linear rule.

Three kinds of steps need no average over pairs of units:

- rules without states, such as sign descent, whose function has ``Q(a b) Q(1) = Q(a) Q(b)``, if the gradient
  is a single outer product (one sample): the step is the outer product of Q of the two vectors;
- rules without states whose step is a polynomial of the gradient: outer products of products of the vectors;
- functions of the singular values of the gradient: outer products of the same vectors, with coefficients that
  are functions of their inner products (:mod:`derive.program.spectral`).

A program in which these steps are written as updates has the same weights, and a theory with finitely many
order parameters. Both derivations of the theory use this program.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

from sympy import Dummy, Expr, Function, Poly, PolynomialError, S, Symbol, simplify
from sympy.core.function import AppliedUndef

from derive.calculus.sums import over
from derive.calculus.symbols import IndexRange, mu, primed, t
from derive.errors import NotApplicable
from derive.program.entrywise import A, Entrywise
from derive.program.language import Mean
from derive.program.naming import unique_names
from derive.program.nonlinear import NonlinearRule, RewrittenSteps
from derive.program.parts import Definition
from derive.program.program import Program
from derive.program.spectral import Spectral, SpectralEntry, require_matrix
from derive.program.training import Along, Outer, TrainedMatrix, TrainedVector

MOST_TERMS = 64
"""Largest number of outer products that the expanded step of a rule may have."""


def outer_products(program: Program) -> Program:
    """Return the program with steps of nonlinear rules as updates, if they are sums of outer products.

    Weights whose steps have no such form, such as those of Adam, are unchanged; if no weight changes, the
    same object is returned. A rule on singular values raises :class:`~derive.errors.NotApplicable` if its
    matrix is used in several places or at several positions, belongs to a family over other indices than
    layers, or is trained on a loss without an index of samples. It raises ProgramError if its weight is a
    vector.

    >>> from derive.program import adam, eta, mlp, muon
    >>> program = outer_products(mlp(2, "tanh", rule=adam(eta), rules={"W": muon(eta)}))
    >>> program.matrices[1].update.coefficient
    gamma0*Delta(alpha, t)*X_W(ell, alpha, alpha_2, t)
    """
    rewriting = _Rewriting(program)
    matrices = tuple(map(rewriting.weight, program.matrices))
    vectors = tuple(map(rewriting.weight, program.vectors))
    if not rewriting.changed:
        return program
    return replace(
        program,
        matrices=matrices,
        vectors=vectors,
        definitions=(*program.definitions, *rewriting.definitions),
        scalars=(*program.scalars, *rewriting.scalars),
        descent=None,
        loss=program.loss,
    )


class _Rewriting:
    """Rewriting of the weights of a program; collects the scalars and definitions that their updates need."""

    def __init__(self, program: Program) -> None:
        """Store the program; no weight is rewritten yet."""
        self.program = program
        self.definitions: list[Definition] = []
        self.scalars: list[str] = []
        self.changed = False

    def weight(self, w: Any) -> Any:
        """Return a weight whose nonlinear step is the update of a linear rule, a sum of outer products.

        The weight is returned unchanged if its rule is linear, or if its step has no such form.
        """
        if not isinstance(w, TrainedMatrix | TrainedVector) or not isinstance(w.rule, NonlinearRule):
            return w
        require_matrix(w)
        if isinstance(w.rule, Spectral):
            assert isinstance(w, TrainedMatrix)
            update: Any = self._spectral(w, w.rule)
        elif isinstance(w.rule, Entrywise) and not w.rule.states:
            update = self._polynomial(w, w.rule) or self._separable(w, w.rule)
        else:
            return w
        if update is None:
            return w
        self.changed = True
        rule = RewrittenSteps(1 - w.rule.decay, w.rule.rate, name=w.rule.name)
        return replace(w, update=update, rule=rule)

    # -- functions of single entries ---------------------------------------------------------------------

    def _separable(self, w: TrainedMatrix | TrainedVector, rule: Entrywise) -> Outer | Along | None:
        """Return the step of an entrywise rule as one term, if its function Q is multiplicative.

        The gradient of the weight must have a single term (one sample): an outer product for a matrix, a
        number times a vector for a vector of weights. If ``Q(a b) = Q(a) Q(b)/Q(1)``, such as for the sign,
        the step is this term with Q of its factors in place of the factors. The result is None for other
        functions, for gradients with several terms and for gradients that contain data, of which only inner
        products are known.
        """
        (u, *more) = w.update.terms
        if more or any(r.lower != r.upper for r in u.over) or self._of_data(u):
            return None
        one = rule.Q.xreplace({A: S.One})
        if one == 0 or not _is_multiplicative(rule.Q):
            return None
        here = {r.index: r.lower for r in u.over}
        parts = [u.coefficient / u.outside, *((u.left, u.right) if isinstance(u, Outer) else (u.vector,))]
        c, *sides = (rule.Q.xreplace({A: x.xreplace(here)}) / one for x in parts)
        coefficient = u.outside * one * c
        if isinstance(u, Outer):
            return Outer(coefficient, sides[0], sides[1], outside=u.outside)
        return Along(coefficient, sides[0], outside=u.outside)

    def _polynomial(self, w: TrainedMatrix | TrainedVector, rule: Entrywise) -> Outer | Along | None:
        """Return the step of an entrywise rule whose function Q of the gradient is a polynomial, or None.

        A power of an outer product is the outer product of the powers of its vectors. The result is None if Q
        is not a polynomial or has a constant term, or if it is not linear and the gradient has several terms
        or contains data, of which only inner products are known. It is None also if there are more than
        MOST_TERMS outer products, or more than one term for a vector of weights.
        """
        try:
            powers = Poly(rule.Q, A).terms()
        except PolynomialError:
            return None
        terms = w.update.terms
        linear = [n for (n,), _ in powers] == [1]
        # The step is a polynomial Q of the gradient. The result is None if Q has a constant term (n = 0),
        # because this term is not a product of vectors of the program. If Q is not linear, the result is None
        # also for a gradient with several terms, and for a gradient that contains data, of which only inner
        # products are known.
        if any(c.has(A) or n == 0 for (n,), c in powers) or (
            not linear and (len(terms) > 1 or self._of_data(terms[0]))
        ):
            return None
        if linear:
            ((_, slope),) = powers
            products: list[Any] = [replace(u, coefficient=slope * u.coefficient) for u in terms]
        else:
            products = [x for (n,), c in powers for x in self._power(terms[0], n, c)]
        if len(products) > MOST_TERMS or (isinstance(w, TrainedVector) and len(products) > 1):
            return None
        first, *more = products
        if not more:
            return first  # type: ignore[no-any-return]
        return replace(first, more=tuple(replace(x, more=()) for x in more))  # type: ignore[no-any-return]

    def _power(self, u: Outer | Along, n: int, c: Expr) -> Iterator[Outer | Along]:
        """Yield one term: ``c`` times the entrywise power ``A^n`` of the gradient A in the update ``u``.

        A is a sum of outer products over indices; the power is one sum over n copies of these indices.
        """
        coefficient, sides = c * u.outside, [S.One, S.One]
        ranges: list[IndexRange] = []
        bodies = (u.left, u.right) if isinstance(u, Outer) else (u.vector,)
        for place in range(1, n + 1):
            names: dict[Any, Any] = {r.index: _numbered(r.index, place) for r in u.over}
            ranges += [IndexRange(names[r.index], r.lower, r.upper) for r in u.over]
            coefficient *= (u.coefficient / u.outside).xreplace(names)
            sides = [x * y.xreplace(names) for x, y in zip(sides, bodies, strict=False)]
        every = tuple(ranges)
        if isinstance(u, Outer):
            yield Outer(coefficient, sides[0], sides[1], every, outside=u.outside)
        else:
            yield Along(coefficient, sides[0], every, outside=u.outside)

    def _of_data(self, u: Outer | Along) -> bool:
        """Return whether an update contains a given vector, whose entries are not known to the theory."""
        given = {x.name for x in self.program.given}
        sides = (u.left, u.right) if isinstance(u, Outer) else (u.vector,)
        return any(str(a.func) in given for x in sides for a in x.atoms(AppliedUndef))

    # -- singular values ---------------------------------------------------------------------------------

    def _spectral(self, w: TrainedMatrix, rule: Spectral) -> Outer:
        """Return the step of a rule on singular values, such as Muon, as a double sum of outer products.

        The gradient is a sum over samples mu of ``left(mu) right(mu)^T``. The step is a sum over mu and nu of
        ``X(mu, nu) left(mu) right(nu)^T``, where X is a function of the inner products of the vectors.
        Indices of the left vector only, such as that of several outputs, are summed inside of it. Raises
        NotApplicable if the gradient is not one sum over samples, or if the matrix is one of a family over
        other indices than layers.
        """
        u, *more = w.update.terms
        samples = [r for r in u.over if u.right.has(r.index)]
        inner = [r for r in u.over if r not in samples]
        if more or len(samples) != 1:
            raise NotApplicable(
                f"{w.name} moves by {rule.name}: its gradient must be one sum over an index of samples; it "
                "is not if the matrix is used in several places or at several positions, if the loss has no "
                "samples, or if its samples are a population of random data"
            )
        (row,) = samples
        column = row.renamed(_numbered(row.index, 2))
        # `one` and `two` are the sample indices of a scalar, formed from the sample index of the update. If
        # this index is the primed mu, mu is used in its place, so that no index of a scalar is the primed
        # form of another one.
        one = mu if primed(mu) == row.index else row.index
        two = _numbered(one, 2)
        others = [r.renamed(_numbered(r.index, 2)) for r in inner]
        c = u.coefficient / u.outside
        here = {row.index: one}
        there = {row.index: two, **{r.index: q.index for r, q in zip(inner, others, strict=True)}}
        family = () if w.initial.index is None else (w.initial.index,)
        if w.initial.others:
            raise NotApplicable(
                f"{w.name} moves by {rule.name}, which is supported for single matrices and for families of "
                "matrices over layers only"
            )
        names = self._names(w.name)

        def entry(name: str, *places: Symbol) -> Expr:
            """Return the scalar ``name`` at the weight's layer, the indices ``places`` and the time."""
            return Function(name)(*(r.index for r in family), *places, t)

        left, right, step = names
        gram = c.xreplace(here) * c.xreplace(there) * self._inner(u.left, here, there)
        whole = SpectralEntry(rule.F, entry(left, one, two), entry(right, one, two), one, two)
        bodies = {
            left: over(gram, (*inner, *others)),
            right: self._inner(u.right, here, there),
            step: whole,
        }
        ranges = (*family, row.renamed(one), row.renamed(two))
        self.scalars += names
        self.definitions += [Definition(entry(name, one, two), e, ranges) for name, e in bodies.items()]
        factor = u.outside * entry(step, row.index, column.index) * c
        other = u.right.xreplace({row.index: column.index})
        return Outer(factor, u.left, other, (row, *inner, column), outside=u.outside)

    def _inner(self, body: Expr, here: dict[Any, Any], there: dict[Any, Any]) -> Expr:
        """Return the mean of the product of a vector ``body`` at two choices of its indices.

        ``here`` and ``there`` map its indices to the two choices. For a given vector of the data the result
        is the entry of the input kernel.
        """
        given = self.program.given_of(str(body.func)) if isinstance(body, AppliedUndef) else None
        one, two = body.xreplace(here), body.xreplace(there)
        return Mean(one * two) if given is None else Function(given.kernel)(*one.args, *two.args)

    def _names(self, weight: str) -> list[str]:
        """Return three unused names for the scalars that the step of a weight needs.

        They are the inner products of its left vectors, those of its right vectors, and the coefficients of
        the outer products in the step.
        """
        wanted = [f"{x}_{weight}" for x in ("Gram", "Overlap", "X")]
        taken = {*self.program.names_in_theory, *(x.name for x in self.program.given), *self.scalars}
        return list(unique_names([(x, x) for x in wanted], taken).values())


def _numbered(index: Symbol, place: int) -> Symbol:
    """Return the symbol of an index in copy number ``place`` of a sum: ``mu``, ``mu_2``, ``mu_3``, ..."""
    return index if place == 1 else Symbol(f"{index.name}_{place}", **index.assumptions0)


def _is_multiplicative(Q: Expr) -> bool:
    """Return whether ``Q(a b) Q(1) = Q(a) Q(b)`` for real a and b of either sign, and ``Q(0) = 0``."""
    p, q = (Dummy(x, positive=True) for x in "pq")
    if Q.xreplace({A: S.Zero}) != 0:
        return False
    one = Q.xreplace({A: S.One})

    def gap(a: Expr, b: Expr) -> Expr:
        """Return ``Q(a b) Q(1) - Q(a) Q(b)`` for the outer function Q; zero if Q is multiplicative."""
        return Q.xreplace({A: a * b}) * one - Q.xreplace({A: a}) * Q.xreplace({A: b})

    signs = product((1, -1), repeat=2)
    return all(simplify(gap(x * p, y * q)) == 0 for x, y in signs)
