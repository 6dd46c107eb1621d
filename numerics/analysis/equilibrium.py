"""Equations of an experiment at rest: the equilibrium of noisy weights, or ridge regression without noise.

Weights that decay and meet noise end in a Gibbs density (:mod:`derive.reduce.equilibrium`); without noise the
output of a homogeneous network ends at ridge regression (:mod:`derive.reduce.ridge`).  Both are derived, and
solved where they close: for linear networks on one sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from sympy import Eq, Expr, Function, Poly, Rational, Symbol, exp, sympify

from derive.calculus.symbols import ell, s, t
from derive.errors import NotApplicable
from derive.program import Program
from derive.reduce.equilibrium import Equilibrium, equilibrium
from derive.reduce.ridge import representer, rest_points
from derive.show import aligned_latex, text
from derive.theory import Theory, mean_field
from numerics.analysis.limits import Finite
from numerics.errors import NotConverged, SpecError
from numerics.experiment import Experiment
from numerics.experiment.numbers import numbers_of
from numerics.experiment.theory import program_of, served
from numerics.names import OUTPUT

WANTED = {
    "network.branch": None,
    "network.bias": False,
    "network.init_variance": 1.0,
    "training.momentum": 0.0,
    "training.objective": "square",
    "network.relative_widths": None,
    "network.outputs": 1,
}
"""Values of keys with which networks have a rest point that is derived."""
NOISY = {"training.rule": "flow", "data.test_kernel": None, "data.test_inputs": None, **WANTED}
"""The same with noise, where steps of finite length have a density of their own."""
HOMOGENEOUS = {"network.activation": ("linear", "relu", "abs"), **WANTED}
"""The same without noise."""

DIGITS = 30
"""Digits of the roots of polynomials, of which kernels are quotients of small differences."""


@dataclass(frozen=True)
class RestPoint(Finite):
    """The ``equations`` of an experiment at rest, ``kind`` is ``"equilibrium"`` or ``"ridge"``.

    ``values`` are numbers of the rest point that is nearest to the target, where the equations close;
    ``others`` the outputs at further rest points.  ``basis`` are the conditions of the equations and of the
    solution.
    """

    kind: str
    theory: Theory
    equations: tuple[Eq, ...]
    basis: tuple[str, ...]
    values: Mapping[str, float] = field(default_factory=dict)
    others: tuple[float, ...] = ()

    def conditions(self) -> tuple[str, ...]:
        """Return what the rest point rests on."""
        return self.basis

    def numbers(self) -> dict[str, Any]:
        """Return the equations as text, and the numbers of the rest points."""
        lines = [text(e, self.theory) for e in self.equations]
        return {
            "kind": self.kind,
            "equations": lines,
            "values": dict(self.values),
            "others": list(self.others),
        }

    def latex(self) -> str:
        """Return the equations in LaTeX."""
        return aligned_latex(self.equations, self.theory)


def rest_point(source: Experiment | Program) -> RestPoint:
    """Derive the rest point of an experiment or of a program, and solve its equations where they close.

    Parameters
    ----------
    source : Experiment or Program
        Weights must decay.  With noise (``training.temperature``) rest is the equilibrium of a flow.

    Returns
    -------
    RestPoint
        Numbers are there for files of a linear network on one sample whose depth is a number; without noise
        it has one hidden layer.

    Raises
    ------
    SpecError
        If weights do not decay, or where there is no rest point that is derived, with the key.
    NotConverged
        If no stationary point has positive kernels.

    Examples
    --------
    >>> tables = {"network": {"depth": 1}, "training": {"rule": "flow", "time": 1.0, "loss": "sum",
    ...     "weight_decay": 0.8, "temperature": 0.6}}
    >>> found = rest_point(Experiment.from_dict(tables, kernel=[[1.0]], targets=[1.5]))
    >>> found.kind, sorted(found.values)
    ('equilibrium', ['Phi1', 'f'])
    """
    if isinstance(source, Program):
        try:
            return _of_theory(mean_field(source))
        except NotApplicable as error:
            accepted = "a chain of layers whose weights decay"
            raise SpecError("program", source.name, f"no rest point is derived: {error}", accepted) from None
    training = source.training
    source.require_linear_rule("a rest point in closed form")
    source.require_moving_features("a rest point in closed form")
    if source.spec.kind != "fixed":
        raise SpecError("data.kind", source.spec.kind, "has no rest point that is derived", '"fixed"')
    if not training.weight_decay:
        reason = "leaves no rest point: weights that do not decay keep their start"
        raise SpecError("training.weight_decay", training.weight_decay, reason, "a positive number")
    source.require_constant("a rest point")
    wanted = NOISY if training.temperature else HOMOGENEOUS
    found = served(source, lambda e: _of_theory(mean_field(program_of(e))), "the rest point", wanted)
    return _solved(found, source)


def _of_theory(theory: Theory) -> RestPoint:
    """The equations at rest: with noise those of the equilibrium."""
    if any(w.rule.noise(t, s) != 0 for w in theory.program.trained()):
        gibbs = equilibrium(theory)
        weight = Eq(Function("rho")(ell), exp(gibbs.exponent, evaluate=False), evaluate=False)
        return RestPoint("equilibrium", theory, (*gibbs.solved.values(), weight), gibbs.conditions())
    ridge = representer(theory)
    rate = () if ridge.rate is None else (ridge.rate,)
    matrices = ((OUTPUT, ridge.trained), (f"{OUTPUT}_star", ridge.anywhere))
    outputs = (Eq(Symbol(name), value, evaluate=False) for name, value in matrices)
    return RestPoint("ridge", theory, (ridge.balance, *rate, *outputs), ridge.conditions())


# -- solutions -----------------------------------------------------------------------------------------------


def _solved(found: RestPoint, experiment: Experiment) -> RestPoint:
    """The rest point with numbers, of a linear network on one sample."""
    samples = experiment.samples
    if experiment.symbolic or samples is None or samples.targets.shape != (1,):
        return found
    numbers = {x.name: Rational(str(value)) for x, value in numbers_of(experiment).items()}
    numbers |= {"K": Rational(str(samples.kernel[0, 0])), "y": Rational(str(samples.targets[0]))}
    with suppress(NotApplicable):
        if found.kind == "equilibrium":
            values, others = _stationary(equilibrium(found.theory), numbers)
            told = "derived: all stationary points with positive kernels, roots of a polynomial in the output"
            return replace(found, values=values, others=others, basis=(*found.basis, told))
        return _at_rest(found, numbers)
    return found


def _put(e: Expr, numbers: Mapping[str, Expr]) -> Expr:
    """An expression with the numbers of the symbols that have one."""
    return sympify(e).subs({x: numbers[x.name] for x in e.free_symbols if x.name in numbers})


def _at_rest(found: RestPoint, numbers: Mapping[str, Expr]) -> RestPoint:
    """Outputs at which the moments of one hidden layer rest, the one that is nearest to the target first.

    The target is taken to be positive, as moments and outputs are odd in it; second moments are not negative.
    """
    sign = -1.0 if numbers["y"].is_negative else 1.0
    known = {**numbers, "y": abs(numbers["y"])}
    points = [[float(_put(x, known)) for x in point] for point in rest_points(found.theory)]
    real = sorted(
        (f for h, z, f in points if h * z >= 0 and h >= 0), key=lambda f: abs(f - float(known["y"]))
    )
    told = "derived: all outputs at which the second moments of the hidden layer rest"
    values, others = {OUTPUT: sign * real[0]}, tuple(sign * f for f in real[1:])
    return replace(found, values=values, others=others, basis=(*found.basis, told))


def _stationary(
    gibbs: Equilibrium, numbers: Mapping[str, Expr]
) -> tuple[dict[str, float], tuple[float, ...]]:
    """The stationary points whose kernels are positive: the one nearest to the target, and other outputs."""
    polynomial, kernels = gibbs.linear_output(numbers)
    (out,) = polynomial.free_symbols
    points = []
    for root in Poly(polynomial, out).real_roots():
        at = root.evalf(DIGITS)
        values = {OUTPUT: at, **{str(x): e.subs(out, at) for x, e in kernels.items()}}
        if all(values[str(x)].is_positive for x in kernels):
            points.append({name: float(x) for name, x in values.items()})
    if not points:
        raise NotConverged("the equations of the kernels have no solution with positive kernels")
    target = float(numbers["y"])
    nearest, *others = sorted(points, key=lambda x: abs(x[OUTPUT] - target))
    return nearest, tuple(x[OUTPUT] for x in others)
