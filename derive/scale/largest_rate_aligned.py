"""Weights of rank one that are aligned: what a deep linear network is at the end of rich training.

If every weight is one number times the outer product of two directions that neighbours share, it stays so
under the program's updates, at any width: a matrix of rank one that acts on its own direction, with updates
along it, is a number.  The definitions and updates of the program become equations between numbers, from
which the minimum, its sharpness and the rate that it bears are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sympy import Expr, Function, Integer, Mul, S, Sum, Symbol, cancel, powdenest, powsimp, simplify, sqrt
from sympy import Product as Repeated
from sympy.core.function import AppliedUndef

from derive.errors import NotApplicable
from derive.program.program import Program, gaussian, parameter
from derive.program.training import TrainedMatrix, TrainedVector
from derive.program.words import Product, ell, t

size = Symbol("S", positive=True)
"""The square of every weight over its strength, in a balanced network."""


@dataclass(frozen=True)
class Aligned:
    """A deep linear network with aligned weights of rank one, ``s_M`` their singular values.

    Under small steps ``s_M ds_M/dt = strengths[M] xi v``, so that ``s_M^2/strengths[M]`` of any two weights
    differ by a constant: in a balanced network they are all ``size``.  ``output`` is what the network has
    learnt then, as a function of ``size``; ``end`` the size at which that is the target.  There an error
    decays at ``sharpness`` times the learning rate in a step.
    """

    program: Program
    strengths: Mapping[str, Expr]
    output: Expr
    end: Expr
    sharpness: Expr

    @property
    def rate(self) -> Expr:
        """The rate above which the step overshoots by more than the error: ``|1 - rate sharpness| = 1``.

        No other aligned network that has learnt the target bears a larger one.  The sharpness is the sum of
        ``strengths[M]/s_M^2``, whose product the target fixes: it is smallest where all are equal.
        """
        return 2 / self.sharpness


def aligned(program: Program) -> Aligned:
    """The rank-one reduction of a deep linear network on the population's loss; its depth may be ``L``.

    Raises :class:`NotApplicable` for data of finitely many samples, several outputs, a branch, layers of
    different widths, and weights that decay or remember.

    >>> from derive.program import isotropic
    >>> found = aligned(isotropic(data="population", center=True))
    >>> print(found.sharpness, found.strengths["W"])
    gamma0**(2*L/(L + 1))*(L + 1) gamma0**2/nu**2
    """
    return _Aligned(program).found()


class _Aligned:
    def __init__(self, program: Program) -> None:
        self.program = program
        weights = tuple(program.trained())
        self.matrices = [w for w in weights if isinstance(w, TrainedMatrix)]
        self.readouts = [w for w in weights if isinstance(w, TrainedVector)]
        memories = {w.rule.memory(t, S.Zero) for w in weights}
        if (
            not program.rule.discrete
            or len(memories) != 1
            or memories.pop() != (1, program.rule.memory(t, t - 1)[1])
        ):
            raise NotApplicable("the weights must move by plain steps, without decay or memory")
        trained = {w.name for w in weights}
        if fixed := [gaussian(m).name for m in program.matrices if gaussian(m).name not in trained]:
            raise NotApplicable(f"{', '.join(fixed)} is not trained: give the loss of the population")
        if any(w.update.over for w in weights) or len(self.readouts) != 1:
            raise NotApplicable("a network of several outputs does not become one of rank one")
        self.known = {self.amplitude(d.lhs): self.number(d.rhs) for d in program.definitions}

    def found(self) -> Aligned:
        (readout,) = self.readouts
        families = [(w, w.initial.index) for w in self.matrices if w.initial.index]
        singles = [w for w in self.matrices if not w.initial.index]
        if len(families) > 1 or len(singles) != 1:
            raise NotApplicable("not a chain of one first matrix, a family of matrices, and a readout")
        (first,) = singles
        h, g = (self.amplitude(x).func for x in (readout.update.vector, first.update.left))
        depth = self.program.depth
        error, target = self.target()
        learnt = self.put(target - self.known[error], error)
        unit = self.put(g(1) * self.known[h(1)], error)
        pushes = {first.name: (self.push(first), unit)}
        output = learnt / g(1) * self.known[g(depth)]
        for w, layers in families:
            below, above = self.known[g(ell)] * h(ell), g(ell + 1) * self.known[h(ell + 1)]
            if self.same(below / above) != 1:
                raise NotApplicable("weights do not learn in step: give layers of one width in a chain")
            pushes[w.name] = self.push(w), above
            output *= Repeated(self.known[g(ell)] / g(ell + 1), layers.limits)
        pushes[readout.name] = self.push(readout), self.known[g(depth)] * h(depth)
        per = learnt * error / unit
        strengths = {name: self.same(self.put(a, error) / b / per) for name, (a, b) in pushes.items()}
        output = self.balanced(output, strengths)
        inner = [Sum(S.One, layers.limits).doit() for _, layers in families]
        count = sum(inner, Integer(len(singles) + 1))
        factor = simplify(output / size ** (count / 2))
        if factor.has(size):
            raise NotApplicable(f"what a balanced network has learnt is {output}, no power of the weights")
        end = _powers(factor ** (-2 / count))
        return Aligned(self.program, strengths, output, end, _powers(count / end))

    # -- the program between numbers -----------------------------------------------------------------------

    def amplitude(self, a: Expr) -> Expr:
        """The amplitude of a field along its direction."""
        assert isinstance(a, AppliedUndef)
        if a.args[-1] == 0:
            return S.Zero
        return a.func(*a.args[:-1]) if len(a.args) > 1 else Symbol(str(a.func))

    def number(self, e: Expr) -> Expr:
        """A vector expression along the shared directions."""
        if isinstance(e, Product):
            matrix = gaussian(self.program.matrix_of(e))
            other = (matrix.rows if e.transposed else matrix.cols).ratio
            place = {ell: e.matrix.args[0]} if e.matrix.args else {}
            return _value(matrix.name, *place.values()) * other.xreplace(place) * self.number(e.vector)
        if isinstance(e, AppliedUndef):
            return self.amplitude(e)
        for v in self.program.vectors:
            if e == parameter(v).symbol:
                return _value(v.name) if isinstance(v, TrainedVector) else sqrt(v.variance)
        return e.func(*map(self.number, e.args)) if e.args else e

    def target(self) -> tuple[Expr, Expr]:
        """The amplitude of the error, and that of the target in it."""
        fixed = [v for v in self.program.vectors if not isinstance(v, TrainedVector)]
        for d in self.program.definitions:
            if len(fixed) == 1 and d.rhs.has(fixed[0].symbol):
                return self.amplitude(d.lhs), sqrt(fixed[0].variance)
        raise NotApplicable("there must be one target")

    def push(self, w: TrainedMatrix | TrainedVector) -> Expr:
        """A weight times its update."""
        if isinstance(w, TrainedVector):
            return _value(w.name) * w.update.coefficient * self.number(w.update.vector)
        u, place = w.update, (ell,) if w.initial.index else ()
        return _value(w.name, *place) * u.coefficient * self.number(u.left) * self.number(u.right)

    def put(self, e: Expr, error: Expr) -> Expr:
        """``e`` with the amplitudes on features in terms of the error."""
        names = {a for a in self.known if a.is_Symbol and a != error}
        for _ in names:
            e = e.xreplace({a: self.known[a] for a in names})
        return e

    def same(self, e: Expr) -> Expr:
        """``e``, which must depend neither on weights nor on fields."""
        e = cancel(e)
        if e.atoms(AppliedUndef) or e.free_symbols & {a for a in self.known if a.is_Symbol}:
            raise NotApplicable(f"weights do not learn in step: {e}; give layers of one width in a chain")
        return e

    def balanced(self, output: Expr, strengths: Mapping[str, Expr]) -> Expr:
        for name, strength in strengths.items():
            output = output.replace(Function(f"s_{name}"), lambda *_, k=strength: sqrt(k * size))
        return Mul(*[x.doit() for x in Mul.make_args(output)])


def _value(name: str, *place: Expr) -> Expr:
    return Function(f"s_{name}")(*(place or (S.Zero,)))


def _powers(e: Expr) -> Expr:
    """A product of powers of positive numbers, each base once."""
    return simplify(powsimp(powdenest(e, force=True), force=True))
