"""First derivation of the mean-field theory: Gaussian conditioning, applied to every matrix of a program.

Input is a program, output its `Theory`; `mean_field` is the public function. For a random matrix M with iid
entries N(0, s2/N), used forwards on fields a_i of its columns C and backwards on fields b_j of its rows R,

    (M a_i)(t)   = u_i(t) + sum_j sum_s s2 c <d a_i(t)/d r_j(s)> b_j(s),
    (M^T b_j)(t) = r_j(t) + sum_i sum_s s2 r <d b_j(t)/d u_i(s)> a_i(s),
    <u_i(t) u_k(s)> = s2 c <a_i(t) a_k(s)>,   <r_j(t) r_k(s)> = s2 r <b_j(t) b_k(s)>

with c = ``|C|``/N and r = ``|R|``/N. These cases are covered as well:

- Entries that change in time: s2 is multiplied by m(t, s), the covariance of an entry at two times over
  s2/N. A batch that is drawn anew has delta_ts; weights that decay and diffuse have m(t) m(s) + noise.
- A family of matrices whose products are summed acts as one matrix on stacked vectors. If its members act
  separately, u and r carry the index of the member, and different members are independent.
- A square M whose entries M_ij and M_ji have the correlation tau: responses to uses of the same orientation
  are added with the factor tau, and ``<u_i(t) r_j(s)> = tau s2 c <a_i(t) b_j(s)>``.
- A trained weight adds its memory term: an order parameter times the vector of the update. If the rule acts
  on each entry, the memory is an average over an independent unit of the other population.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations
from typing import Any

from sympy import Add, Expr, KroneckerDelta, S, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.pairs import Copy, EntryStep, PairMean
from derive.calculus.sums import over
from derive.calculus.symbols import IndexRange, ell, s, t
from derive.errors import require_type
from derive.program.entrywise import Entrywise
from derive.program.program import Program
from derive.program.rules import TrainingRule
from derive.program.training import TrainedMatrix
from derive.theory.applications import (
    Application,
    Parameter,
    earlier,
    overlap,
    read,
    rename_taken,
    tangent_kernel,
)
from derive.theory.data import Source, Term
from derive.theory.names import spelled_with_slots, unused_primed
from derive.theory.shifted_products import products_at_plain_indices
from derive.theory.theory import Theory


def mean_field(program: Program) -> Theory:
    """Derive the mean-field theory of a program in the limit of infinite width.

    Parameters
    ----------
    program : Program
        Program, such as `mlp` returns.

    Returns
    -------
    Theory
        Theory by Gaussian conditioning.

    Raises
    ------
    NotApplicable
        If ``program`` is not a `Program`.
    ProgramError
        If an index has no range where it stands, if a vector of weights is read beyond its family, if a
        matrix is applied to one vector at several places or to vectors of different layers, if two products
        use a matrix for layers that overlap in part, if ranges of one product in several definitions cannot
        be compared, or if no kernel gives the inner product of given vectors to which a matrix is applied.

    Examples
    --------
    >>> from derive.program import mlp
    >>> print(mean_field(mlp()).equation("g").rhs)
    r(L, t) + Sum(eta*gamma0*Delta(alpha, s)*h(L, alpha, s), (alpha, 1, P), (s, 0, t - 1))
    """
    require_type(program, Program, "mean_field", "a program")
    return _Derivation(products_at_plain_indices(program)).theory()


def theory_of(source: Theory | Program, what: str) -> Theory:
    """Return a theory as it is, or derive the mean-field theory if a program is given.

    Parameters
    ----------
    source : Theory | Program
        Theory or program.
    what : str
        Name of the calling function, for the error message.

    Returns
    -------
    Theory
        The theory.

    Raises
    ------
    NotApplicable
        If ``source`` is neither a theory nor a program.
    """
    if isinstance(source, Program):
        return mean_field(source)
    require_type(source, Theory, what, "a theory, or a program")
    return source


class _Derivation:
    """Derivation of the mean-field theory of one program by Gaussian conditioning of each of its matrices."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.reading = read(program)
        self.registry = self.reading.registry
        self.definitions = self.reading.definitions
        self.uses = self.reading.uses
        self.sources: dict[str, Source] = {}

    def theory(self) -> Theory:
        """Return the theory: equations, sources with covariances, order parameters and tangent kernel."""
        equations, scalars = self.reading.equations(self.condition, self.parameter)
        # Sources of two different uses a and b of one random matrix are correlated if they use the same
        # members of its family, and if both have the same orientation or the matrix is correlated with its
        # transpose (`symmetry`).
        for a, b in combinations([x.canonical() for x in self.uses], 2):
            strength = sympify(1 if a.transposed == b.transposed else a.matrix.symmetry)
            if strength != 0 and a.is_random and a.meets(b):
                self.sources[f"{a.source()}, {b.source()}"] = self.covariance(a, b, strength)
        for v, x in combinations(self.reading.entries, 2):
            if v.meets(x) and v.source() != x.source():
                self.sources[f"{v.source()}, {x.source()}"] = self.parameter_source(v, x)
        self.registry.name_all()
        observables = tangent_kernel(self.reading)  # before `found` is read, to which it may add correlations
        return Theory(
            program=self.program,
            sources=tuple(self.sources.values()),
            equations=equations,
            order_parameters=tuple(self.registry.found.values()),
            scalars=scalars,
            observables=observables,
        )

    # -- one matrix product ----------------------------------------------------------------------------------

    def condition(self, a: Application) -> list[Term]:
        """Return the terms that replace a product ``M(t) a(t)`` of matrix and vector at infinite width.

        They are a Gaussian source, responses to other products with the matrix or its transpose, and memory
        of the updates. The source and its covariance are recorded in ``sources``. A matrix without random
        initial entries gives memory alone, and no term if it is not trained.
        """
        # A matrix without random initial entries consists of its updates alone: it gives memory as the only
        # term, and no term if it is not trained.
        if not a.is_random:
            return self.memory(a, a.trained) if a.trained is not None else []
        if (key := _with_slots(a.source(), a.ranges)) not in self.sources:
            self.sources[key] = self.covariance(a, a, S.One)
        terms = [Term.local(a.source(), "source", a.matrix.name, "Gaussian part of the product")]
        for b in self.partners(a):
            terms += self.response(a, b)
        if a.trained is not None:
            terms += self.memory(a, a.trained)
        return terms

    def partners(self, a: Application) -> list[Application]:
        """Return the products with the same matrix to whose Gaussian sources the vector of ``a`` may respond.

        These are products with the transpose if ``a`` is one with the matrix, and the other way round; if the
        matrix is correlated with its transpose, all products with it. The list is empty if the vector
        contains no field.
        """
        if not any(self.program.field_of(str(x.func)) for x in a.vector.body.atoms(AppliedUndef)):
            return []
        return [
            b for b in self.uses if (b.transposed != a.transposed or a.matrix.symmetry != 0) and a.meets(b)
        ]

    def covariance(self, a: Application, b: Application, strength: Expr) -> Source:
        """Return the Gaussian sources of two products ``M a`` and ``M b``, and their covariance.

        The covariance is ``strength * v * n * m(t, s) * <a(t) b(s)>``: v/N is the initial variance of the
        entries of M, n the number of entries of the vectors over N, and m the covariance of an entry at two
        times over its initial variance. For given vectors of D entries, D replaces N. ``strength`` is 1,
        or the correlation of M with its transpose if one of the products is with the transpose.
        """
        w = b.past(a.indices)
        each = a.variance * a.acts_on.ratio * self.registry.correlation(a.vector, w.beside(a).vector)
        whole = over(each, a.summed)
        for x, y in zip(a.separate, w.separate, strict=True):
            whole *= KroneckerDelta(x.index, y.index)
        ranges = (*a.layers, *a.ranges, *w.ranges)
        return Source(a.source(), w.source(s), strength * a.entries() * whole, ranges, a.matrix.name)

    def response(self, a: Application, b: Application) -> list[Term]:
        """Return a list with the response term of ``M a`` to a product of the same matrix with a vector b.

        The term is ``sum_s v n m(t, s) <d a(t)/d source_b(s)> b(s)``, also summed over the indices of b: v/N
        is the initial variance of the entries of M, n the number of entries of a over N, and m the covariance
        of an entry at two times over its initial variance. If both products apply M, or both its transpose,
        the term is multiplied by the correlation of M with its transpose. If M is drawn anew at each step,
        the term contains s = t alone, and the list is empty if a does not respond at equal time.
        """
        past = b.at(a.member).past(a.indices)
        instant = (a.key, b.key) in self.reading.instant
        if a.matrix.fresh and not instant:
            return []
        sign = 1 if a.transposed != b.transposed else a.matrix.symmetry
        name, index = self.reading.response_name(a, b)
        layers, causal = a.layers[0] if a.layers else None, "past" if instant else "strict"
        function = self.registry.response(name, index, layers, a.vector, past.source(s), past.ranges, causal)
        same = {y.index: x.index for x, y in zip(a.separate, past.separate, strict=True)}
        kernel = a.variance * a.acts_on.ratio * sign * function.xreplace(same)
        ranges = (*a.summed, *(r for r in past.ranges if r.index not in same))
        rule = "response of the vector to the opposite use of the matrix"
        field = past.beside(a).vector.body
        term = Term("response", field, kernel=kernel, over=ranges, matrix=a.matrix.name, rule=rule)
        # A matrix that is drawn anew at each step responds only within this step, so that s is replaced by t.
        if a.matrix.fresh:
            now = term.map(lambda e: e.xreplace({s: t}))
            return [replace(now, rule=f"{rule}, at the step at which it is drawn")]
        description = rule + (", equal time included" if instant else "")
        reach = _reach(self.program.rule, instant)
        return [replace(term, kernel=earlier(a.entries()) * kernel, reach=reach, rule=description)]

    def memory(self, a: Application, trained: TrainedMatrix) -> list[Term]:
        """Return the terms ``sum_s k(t, s) U(s) a(t)`` that updates U of a matrix add to its product with a.

        k is the factor of the update of time s in the weight at time t, by the training rule. An update of
        rank one gives a term in which one of its vectors is multiplied by the inner product of the other with
        a(t). A rule that acts on each entry gives the single term of `pair` instead.
        """
        weight = a.at_member(trained.rule.memory(t, s)[1])
        if isinstance(trained.rule, Entrywise):
            return [self.pair(a, trained, weight)]
        terms = []
        for u in trained.update.terms:
            if u.coefficient.xreplace(a.chosen) == 0:
                continue  # the update belongs to other members of the family than that of `a`
            value, coefficient, stays, over = overlap(self.reading, a, u)
            kernel, ranges = weight * coefficient * a.acts_on.ratio * value, (*a.summed, *over)
            origin = (ranges, _reach(trained.rule), a.matrix.name, "update applied to the vector")
            terms.append(Term("memory", stays, S.One, kernel, *origin))
        return terms

    def pair(self, a: Application, trained: TrainedMatrix, weight: Expr) -> Term:
        """Return the memory term of a matrix whose training rule acts on each entry, such as Adam.

        The term is ``sum_s k(t, s) E~[Q_s a~(t)]``. Q_s is the step of the entry between a unit of the row
        and one of the column; one of the two, marked by ~, is an independent copy over which E~ averages.
        They are independent because the initial value of an entry changes both only by ``O(N^(-1/2))``.
        ``weight`` is the factor k(t, s) of the training rule.
        """
        at: dict[Any, Any] = {**a.chosen, t: s}
        outside, gradient = trained.update.outside, []
        for u in trained.update.terms:
            names, ranges = rename_taken(u.over, a.indices)
            vector, partner = (u.right, u.left) if a.transposed else (u.left, u.right)
            entry = (u.coefficient / outside).xreplace(names) * vector.xreplace(names)
            gradient.append(over((entry * Copy(partner.xreplace(names))).xreplace(at), ranges))
        step = EntryStep(trained.name, Add(*gradient), s)
        kernel = weight * outside.xreplace(at) * a.acts_on.ratio
        description = "entrywise steps applied to the vector, averaged over an independent unit"
        return Term(
            "pair",
            PairMean(step * Copy(a.vector.body)),
            S.One,
            kernel,
            a.summed,
            *_entrywise_origin(a, description),
        )

    def parameter(self, v: Parameter) -> list[Term]:
        """Return the terms of a vector of weights: Gaussian initial value, and updates if it is trained."""
        self.sources[_with_slots(v.source(), v.ranges)] = self.parameter_source(v, v)
        name = v.initial.name
        terms = [Term.local(v.source(), "source", name, "value at initialisation")]
        if v.trained is not None:
            weight = v.at_member(v.trained.rule.memory(t, s)[1])
            ranges, coefficient, moved = v.update(t, s)
            if isinstance(v.trained.rule, Entrywise):
                outside = v.at_member(v.trained.update.outside).xreplace({t: s})
                moved = EntryStep(name, over(coefficient / outside * moved, ranges), s)
                coefficient, ranges = outside, ()
            origin = (ranges, _reach(v.trained.rule), name, "updates so far")
            terms.append(Term("memory", moved, S.One, weight * coefficient, *origin))
        return terms

    @staticmethod
    def parameter_source(v: Parameter, x: Parameter) -> Source:
        """Return the initial weights in two uses of one weight vector as correlated Gaussian sources.

        ``v`` and ``x`` are the uses. The covariance depends on times only if the weights decay, have noise,
        or are drawn anew at each step, and on indices only if there is a family of weight vectors.
        """
        names = {i: unused_primed(i, v.indices) for i in x.indices}
        doubled = tuple(IndexRange(names[r.index], r.lower, r.upper) for r in x.ranges if r.index in names)
        partner = x.source(s, v.indices)
        return Source(v.source(), partner, v.covariance(x, names), (*v.ranges, *doubled), v.initial.name)


def _with_slots(source: Expr, ranges: Iterable[IndexRange]) -> str:
    """Return a source with standard indices and their ends as text, equal for ``u(p, t)`` and ``u(r, t)``.

    The steps of an ordered field may have several definitions, whose sources differ in these ends only.
    """
    runs = [r for r in ranges if r.index != ell]
    ends = [(r.lower, r.upper) for r in runs]
    return f"{spelled_with_slots(source, (r.index for r in runs))} at {ends}"


def _entrywise_origin(a: Application, description: str) -> tuple[str, str, str]:
    """Return ``reach``, ``matrix`` and ``rule`` of a `Term` for a training rule that acts on each entry.

    They are "strict" (the sum over the past is s = 0..t-1), the name of the matrix of the product ``a``, and
    ``description``, the text on the rule.
    """
    return "strict", a.matrix.name, description


def _reach(rule: TrainingRule, inclusive: bool = False) -> str:
    """Return the range of a sum over the past, as in `Term.reach`.

    In discrete time it is "past" if s = t is included and "strict" if not; in continuous time it is "flow".
    """
    return ("past" if inclusive else "strict") if rule.discrete else "flow"
