"""How the output of a network moves when its weights follow noisy, decaying gradient flow (K.3, J.1).

By Ito's rule the output gains the tangent kernel times the errors, loses the decay rate times ``theta . grad
f``, and gains half the noise strength times the trace of the Hessian.  Both contractions are read off the
program: the gradient with respect to a weight is what its update multiplies the error with, and a unit's
field is linear in the weights that enter it.
"""

from __future__ import annotations

from dataclasses import dataclass

from sympy import Derivative, Eq, Expr, Function, S, Sum, Symbol, simplify
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average
from derive.errors import NotApplicable
from derive.program.program import Definition, Program, parameter
from derive.program.training import TrainedMatrix, TrainedVector, TrainingRule
from derive.program.words import IndexRange, s, t
from derive.reduce.homogeneous import output
from derive.theory.applications import Application, read
from derive.theory.conditioning import mean_field
from derive.theory.names import vector

Weight = TrainedMatrix | TrainedVector


@dataclass(frozen=True)
class Share:
    """What one weight (or a family, ``layers``) contributes to the change of the output.

    ``site`` is the layer of the field that the weight gives, None for a readout.  ``contraction`` is ``W .
    df/dW``, a typed average; ``curvature`` the sum of ``d^2 f/dW_ij^2`` over its entries, each in units in
    which noise of strength D adds ``D dt`` to its variance.
    """

    weight: str
    site: Expr | None
    contraction: Expr
    curvature: Expr
    layers: tuple[IndexRange, ...]

    def total(self, value: Expr) -> Expr:
        """``value`` summed over the members of the family."""
        return Sum(value, *[r.limits for r in self.layers]) if self.layers and value != 0 else value


@dataclass(frozen=True)
class OutputRate:
    """``df/dt = gain - decay sum contraction + diffusion/2 sum curvature``.

    ``slope(ell, mu, t)`` is the average of ``d g_i/d h_i``, how a backward field answers within the same
    moment to its own forward field; ``slopes`` are its equations, from the last layer down.
    """

    output: AppliedUndef
    gain: Expr
    shares: tuple[Share, ...]
    decay: Expr
    diffusion: Expr
    slopes: tuple[Eq, ...]

    @property
    def eq(self) -> Eq:
        """All of it as one equation."""
        lost = sum((x.total(x.contraction) for x in self.shares), S.Zero)
        curved = sum((x.total(x.curvature) for x in self.shares), S.Zero)
        return Eq(
            Derivative(self.output, t),
            self.gain - self.decay * lost + self.diffusion / 2 * curved,
            evaluate=False,
        )


def output_rate(program: Program) -> OutputRate:
    """The rate of the output of ``program`` under gradient flow with decay and noise, at any depth.

    Raises :class:`NotApplicable` for counted steps, for memory that is not exponential, for updates that are
    no gradients, for unequal widths, for weights shared by positions, and for noise with skip connections.

    >>> from derive.program import mlp
    >>> lam, T = Symbol("lam", positive=True), Symbol("T", positive=True)
    >>> rate = output_rate(mlp(1, Function("phi"), "flow", weight_decay=lam, temperature=T))
    >>> for x in rate.shares: print(x.weight, x.contraction, x.curvature)
    W0 <g(1, mu, t)*h(1, mu, t)>/gamma0 K_x(mu, mu)*slope(1, mu, t)/gamma0
    w <phi(h(1, mu, t))*z(1, mu, t)>/gamma0 0
    >>> print(rate.slopes[0].rhs)
    <z(ell, mu, t)*Derivative(phi(h(ell, mu, t)), (h(ell, mu, t), 2))>
    """
    return _Rate(program).rate()


def exponential(rule: TrainingRule) -> tuple[Expr, Expr, Expr]:
    """Rate of updates, decay and diffusion of a rule in continuous time that forgets exponentially.

    Raises :class:`NotApplicable` for others.

    >>> from derive.program import GradientFlow
    >>> exponential(GradientFlow(decay=Symbol("a", positive=True), diffusion=Symbol("D", positive=True)))
    (1, a, D)
    """
    if rule.discrete:
        raise NotApplicable("differential equations need gradient flow: the rule counts steps")
    past, lag = Symbol("past", nonnegative=True), Symbol("lag", positive=True)
    kept, fed = rule.memory(past + lag, past)
    decay = simplify(-kept.diff(lag) / kept)
    if decay.free_symbols & {past, lag} or simplify(fed.diff(lag) + decay * fed) != 0:
        raise NotApplicable(f"{rule!r} does not forget its start and its updates at one rate")
    variance = rule.noise(past, past)
    diffusion = simplify(variance.diff(past) + 2 * decay * variance)
    return simplify(fed.subs(lag, 0)), decay, diffusion


class _Rate:
    def __init__(self, program: Program) -> None:
        self.program, self.reading = program, read(program)
        kernel = mean_field(program).observables
        if not kernel:
            raise NotApplicable(f"{program.name}: its updates are no gradients of its output")
        if any(x.population.ratio != 1 for x in program.fields):
            raise NotApplicable("the layers must be equally wide")
        self.kernel = kernel[0]
        self.scale = program.scale

    def rate(self) -> OutputRate:
        strength, decay, diffusion = exponential(self.program.rule)
        names = {x.matrix for x in self.kernel.terms}
        if diffusion != 0 and self.skips():
            raise NotApplicable(
                "backward fields pass layers by: their answer to their own layer is not read off"
            )
        shares = tuple(self.share(w) for w in self.program.trained() if w.name in names)
        error = self.error(next(iter(self.program.trained())))
        there = [r for r in self.kernel.ranges if r.index not in self.output.args]
        gain = self.kernel.lhs.func(*[t if x == s else x for x in self.kernel.lhs.args])
        past = dict(zip(self.output.args[:-1], [r.index for r in there], strict=True))
        summed = Sum(
            strength * gain * error.func(*self.output.args).xreplace(past), *[r.limits for r in there]
        )
        return OutputRate(self.output, summed, shares, decay, diffusion, tuple(self.slopes()))

    @property
    def output(self) -> AppliedUndef:
        return output(self.program).lhs

    def error(self, w: Weight) -> AppliedUndef:
        """The error in an update."""
        atoms = w.update.coefficient.atoms(AppliedUndef)
        found = [a for a in atoms if str(a.func) in self.program.scalars]
        if len(found) != 1:
            raise NotApplicable(f"the update of {w.name} holds {len(found)} errors")
        return found[0]

    def share(self, w: Weight) -> Share:
        error = self.error(w)
        here = dict(zip(error.args, self.output.args, strict=True))
        if any(r.index not in here for r in w.update.over):
            raise NotApplicable(f"{w.name} is shared between positions")
        factor = w.update.coefficient / (self.scale**2 * error)
        if isinstance(w, TrainedVector):
            return self.vector_share(w, factor, here)
        left, right = w.update.left.xreplace(here), w.update.right.xreplace(here)
        d, a = self.use(w, right)
        coefficient = d.rhs.coeff(a.product)
        pushed = ((d.lhs - (d.rhs - coefficient * a.product)) / coefficient).expand()
        if any(v.uses(pushed) for v in map(parameter, self.program.vectors)):
            raise NotApplicable(f"{d.lhs} adds a vector parameter to the product with {w.name}")
        layers = (w.initial.index,) if w.initial.index else ()
        held = vector(self.program, right, d.ranges)
        squared = self.reading.registry.correlation(held, held, t, t)
        slope = self.slope(d.lhs) / coefficient
        return Share(
            w.name,
            d.lhs.args[0],
            factor * Average(left * pushed).linear(),
            factor * w.initial.variance * slope * coefficient**2 * squared if self.answers() else S.Zero,
            layers,
        )

    def vector_share(self, w: TrainedVector, factor: Expr, here: dict[Expr, Expr]) -> Share:
        """The output is linear in a readout."""
        for d in self.reading.definitions:
            for member in w.initial.uses(d.rhs):
                rest = d.rhs - d.rhs.coeff(member) * member
                if rest != 0 or d.lhs.args[0] != self.program.site_of(w.update.vector).site:
                    raise NotApplicable(f"{w.name} is no readout")
                body = w.update.vector.xreplace(here) * d.lhs / d.rhs.coeff(member)
                return Share(w.name, None, factor * Average(body), S.Zero, ())
        raise NotApplicable(f"{w.name} is not used")

    def use(self, w: TrainedMatrix, right: Expr) -> tuple[Definition, Application]:
        """The definition in which the matrix meets the vector of its own gradient."""
        for d in self.reading.definitions:
            for a in self.reading.products[d]:
                if a.matrix == w.initial and not a.transposed and a.product.vector == right and not a.summed:
                    return d, a
        raise NotApplicable(f"no definition applies {w.name} to {right}")

    def skips(self) -> bool:
        """Does a backward field hold that of another layer, other than by a product?"""
        own = [d for d in self.reading.definitions if d.name == "g"]
        return any(a.func == d.lhs.func and a != d.lhs for d in own for a in d.rhs.atoms(AppliedUndef))

    # -- the answer of a backward field to its own forward field ---------------------------------------------

    def answers(self) -> bool:
        """A linear network's backward fields do not know its forward fields."""
        return any(eq.rhs != 0 for eq in self.slopes())

    def slope(self, field: AppliedUndef) -> Expr:
        return Function("slope")(field.args[0], *field.args[1:])

    def slopes(self) -> list[Eq]:
        """``<dg/dh>``: directly, and through the layer above, whose weights are used again on the way down.

        Beyond the last layer it is zero.
        """
        h = next(
            d.lhs for d in self.reading.definitions for a in self.reading.products[d] if not a.transposed
        )
        found = []
        for d in self.reading.definitions:
            if d.name != "g" or any((r.upper - r.lower).is_negative for r in d.ranges):
                continue
            point = h.func(d.lhs.args[0], *h.args[1:])
            direct = d.rhs.diff(point)
            value = (Average(direct).linear() if direct != 0 else S.Zero) + self.through(d, point)
            found.append(Eq(Function("slope")(*point.args), value, evaluate=False))
        if not any(x.rhs.has(Average) for x in found):
            return [Eq(x.lhs, S.Zero, evaluate=False) for x in found]
        return found

    def through(self, d: Definition, point: AppliedUndef) -> Expr:
        """``<dg/dz dz/dh>``: z applies the transpose of the matrix that h goes up with."""
        forward = [b for f in self.reading.definitions for b in self.reading.products[f] if not b.transposed]
        total = S.Zero
        for e in self.reading.definitions:
            used = [a for a in d.rhs.atoms(AppliedUndef) if a.func == e.lhs.func]
            if not used or e == d or e.lhs.args[0] != d.lhs.args[0]:
                continue
            for a in (a for a in self.reading.products[e] if a.transposed):
                up = next((b.product.vector for b in forward if b.matrix == a.matrix), S.Zero)
                inner = next((x for x in up.atoms(AppliedUndef) if x.func == point.func), None)
                if inner is None:
                    continue
                above = Function("slope")(point.args[0] + 1, *point.args[1:])
                variance = simplify(a.matrix.variance * a.entries(t, t))
                total += variance * Average(d.rhs.diff(used[0]) * up.diff(inner)).linear() * above
        return total


__all__ = ["OutputRate", "Share", "exponential", "output_rate"]
