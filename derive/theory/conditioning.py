"""The conditioning rule, applied to every matrix of a program: the first route to its mean-field theory.

For iid M with entries N(0, s2/N), used forwards on fields a_i of its columns C and backwards on b_j of its
rows R,

    (M a_i)(t)   = u_i(t) + sum_j sum_s s2 c <d a_i(t)/d r_j(s)> b_j(s),
    (M^T b_j)(t) = r_j(t) + sum_i sum_s s2 r <d b_j(t)/d u_i(s)> a_i(s),
    <u_i(t) u_k(s)> = s2 c <a_i(t) a_k(s)>,   <r_j(t) r_k(s)> = s2 r <b_j(t) b_k(s)>

with c = |C|/N, r = |R|/N.  Where the random part of M changes in time, entries with covariance c(t, s) put
c(t, s) beside s2 (a batch drawn anew: delta_ts; weights that decay and diffuse: m(t) m(s) + noise), and a
family of matrices that acts through the sum of its products counts as one on stacked vectors.  Where its
members act apart, u and r have the member as an index; different members are independent.  When M is
square and M_ij is correlated with M_ji by tau, every use sees tau times the same terms from uses of the
same orientation.  A trained weight adds its memory, whose product with a field is an order parameter times
the update's own vector.  The memory of a weight whose rule acts on each entry is an average over an
independent unit of the other population.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

from sympy import Add, Expr, KroneckerDelta, S, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.pairs import Copy, EntryStep, PairMean
from derive.calculus.sums import over
from derive.calculus.symbols import IndexRange, s, t
from derive.errors import require_type
from derive.program.entrywise import Entrywise
from derive.program.program import Program
from derive.program.rules import TrainingRule
from derive.program.training import TrainedMatrix
from derive.theory.applications import Application, Parameter, apart, earlier, overlap, read, tangent_kernel
from derive.theory.data import Source, Term
from derive.theory.names import primed_apart
from derive.theory.theory import Theory


def mean_field(program: Program) -> Theory:
    """The mean-field theory of ``program`` as N grows, by the conditioning rule.

    >>> from derive.program import mlp
    >>> print(mean_field(mlp()).equation("g").rhs)
    r(L, t) + Sum(eta*gamma0*Delta(alpha, s)*h(L, alpha, s), (alpha, 1, P), (s, 0, t - 1))
    """
    require_type(program, Program, "mean_field", "a program")
    return _Derivation(program).theory()


def theory_of(source: Theory | Program, what: str) -> Theory:
    """Return a theory as it is, and the theory of a program.

    Raises :class:`~derive.errors.NotApplicable`, which says ``what`` was called, for anything else.
    """
    if isinstance(source, Program):
        return mean_field(source)
    require_type(source, Theory, what, "a theory, or a program")
    return source


class _Derivation:
    """One run of the conditioning rule over a program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.reading = read(program)
        self.registry = self.reading.registry
        self.definitions = self.reading.definitions
        self.uses = self.reading.uses
        self.sources: dict[str, Source] = {}

    def theory(self) -> Theory:
        equations, scalars = self.reading.equations(self.condition, self.parameter)
        # uses of one matrix, of a symmetric one and its transpose, or of one vector: correlated sources
        for a, b in combinations([x.canonical() for x in self.uses], 2):
            strength = sympify(1 if a.transposed == b.transposed else a.matrix.symmetry)
            if strength != 0 and a.is_random and a.meets(b):
                self.sources[f"{a.source()}, {b.source()}"] = self.covariance(a, b, strength)
        for v, x in combinations(self.reading.entries, 2):
            if v.meets(x) and v.source() != x.source():
                self.sources[f"{v.source()}, {x.source()}"] = self.parameter_source(v, x)
        self.registry.name_all()
        observables = tangent_kernel(self.reading)  # may meet correlations that no equation needed
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
        """The source, the responses and the memory that stand for ``M(t) a(t)``."""
        if not a.is_random:  # the updates are all that the weight does
            return self.memory(a, a.trained) if a.trained is not None else []
        if (key := str(a.source())) not in self.sources:
            self.sources[key] = self.covariance(a, a, S.One)
        terms = [Term.local(a.source(), "source", a.matrix.name, "Gaussian part of the product")]
        for b in self.partners(a):
            terms += self.response(a, b)
        if a.trained is not None:
            terms += self.memory(a, a.trained)
        return terms

    def partners(self, a: Application) -> list[Application]:
        """The uses of the same matrix whose source ``a`` may respond to; fixed vectors respond to none."""
        if not any(self.program.field_of(str(x.func)) for x in a.vector.body.atoms(AppliedUndef)):
            return []
        return [
            b for b in self.uses if (b.transposed != a.transposed or a.matrix.symmetry != 0) and a.meets(b)
        ]

    def covariance(self, a: Application, b: Application, strength: Expr) -> Source:
        """``<u_a(t) u_b(s)> = s2 c c(t, s) <a(t) b(s)>``, summed over the members that act together."""
        w = b.past(a.indices)
        each = a.variance * a.acts_on.ratio * self.registry.correlation(a.vector, w.beside(a).vector)
        whole = over(each, a.summed)
        for x, y in zip(a.apart, w.apart, strict=True):
            whole *= KroneckerDelta(x.index, y.index)
        ranges = (*a.layers, *a.ranges, *w.ranges)
        return Source(a.source(), w.source(s), strength * a.entries() * whole, ranges, a.matrix.name)

    def response(self, a: Application, b: Application) -> list[Term]:
        """``sum_j sum_s s2 c c(t, s) <d a(t)/d source_b(s)> b_j(s)``; nothing for a matrix already lost."""
        past = b.at(a.member).past(a.indices)
        instant = (a.key, b.key) in self.reading.instant
        if a.matrix.fresh and not instant:
            return []
        sign = 1 if a.transposed != b.transposed else a.matrix.symmetry
        name, index = self.reading.response_name(a, b)
        layers, causal = a.layers[0] if a.layers else None, "past" if instant else "strict"
        function = self.registry.response(name, index, layers, a.vector, past.source(s), past.ranges, causal)
        same = {y.index: x.index for x, y in zip(a.apart, past.apart, strict=True)}
        kernel = a.variance * a.acts_on.ratio * sign * function.xreplace(same)
        ranges = (*a.summed, *(r for r in past.ranges if r.index not in same))
        rule = "response of the vector to the opposite use of the matrix"
        field = past.beside(a).vector.body
        term = Term("response", field, kernel=kernel, over=ranges, matrix=a.matrix.name, rule=rule)
        if a.matrix.fresh:  # only the step at which the matrix was drawn knows it
            now = term.map(lambda e: e.xreplace({s: t}))
            return [replace(now, rule=f"{rule}, at the step at which it is drawn")]
        told = rule + (", equal time included" if instant else "")
        reach = _reach(self.program.rule, instant)
        return [replace(term, kernel=earlier(a.entries()) * kernel, reach=reach, rule=told)]

    def memory(self, a: Application, trained: TrainedMatrix) -> list[Term]:
        """``sum_s k(t, s) U(s) a(t)``: the update's vector times the overlap of the other one with ``a``, for
        each place in which the matrix is used.
        """
        weight = a.here(trained.rule.memory(t, s)[1])
        if isinstance(trained.rule, Entrywise):
            return [self.pair(a, trained, weight)]
        found = []
        for u in trained.update.terms:
            value, coefficient, stays, over = overlap(self.reading, a, u)
            kernel, ranges = weight * coefficient * a.acts_on.ratio * value, (*a.summed, *over)
            told = (ranges, _reach(trained.rule), a.matrix.name, "update met by the vector")
            found.append(Term("memory", stays, S.One, kernel, *told))
        return found

    def pair(self, a: Application, trained: TrainedMatrix, weight: Expr) -> Term:
        """``sum_s k(t, s) E~[Q_s copy(a(t))]``: the steps of a row's entries met by the vector.

        An entry depends on its row and its column.  Its initial value moves both by ``O(N^(-1/2))``, which is
        lost in the sum over N of them: row and column are independent, and the sum becomes an average over
        one of them.
        """
        at: dict[Any, Any] = {**a.chosen, t: s}
        outside, gradient = trained.update.outside, []
        for u in trained.update.terms:
            names, ranges = apart(u.over, a.indices)
            own, other = (u.right, u.left) if a.transposed else (u.left, u.right)
            entry = (u.coefficient / outside).xreplace(names) * own.xreplace(names)
            gradient.append(over((entry * Copy(other.xreplace(names))).xreplace(at), ranges))
        step = EntryStep(trained.name, Add(*gradient), s)
        kernel = weight * outside.xreplace(at) * a.acts_on.ratio
        told = "steps of entries met by the vector, averaged over an independent unit"
        return Term("pair", PairMean(step * Copy(a.vector.body)), S.One, kernel, a.summed, *_reached(a, told))

    def parameter(self, v: Parameter) -> list[Term]:
        """A vector parameter: its Gaussian start and what training has added."""
        self.sources[str(v.source())] = self.parameter_source(v, v)
        name = v.initial.name
        terms = [Term.local(v.source(), "source", name, "value at initialisation")]
        if v.trained is not None:
            weight = v.here(v.trained.rule.memory(t, s)[1])
            ranges, coefficient, moved = v.update(t, s)
            if isinstance(v.trained.rule, Entrywise):
                outside = v.here(v.trained.update.outside).xreplace({t: s})
                moved = EntryStep(name, over(coefficient / outside * moved, ranges), s)
                coefficient, ranges = outside, ()
            told = (ranges, _reach(v.trained.rule), name, "updates so far")
            terms.append(Term("memory", moved, S.One, weight * coefficient, *told))
        return terms

    @staticmethod
    def parameter_source(v: Parameter, x: Parameter) -> Source:
        """The same numbers at all times and for all samples."""
        names = {i: primed_apart(i, v.indices) for i in x.indices}
        doubled = tuple(IndexRange(names[r.index], r.lower, r.upper) for r in x.ranges if r.index in names)
        partner = x.source(s, v.indices)
        return Source(v.source(), partner, v.covariance(x, names), (*v.ranges, *doubled), v.initial.name)


def _reached(a: Application, told: str) -> tuple[str, str, str]:
    """How far a sum of steps goes, the name of the matrix and the reason for a term."""
    return "strict", a.matrix.name, told


def _reach(rule: TrainingRule, inclusive: bool = False) -> str:
    """How far a sum over the past goes: up to the present, or to the step before it."""
    return ("past" if inclusive else "strict") if rule.discrete else "flow"
