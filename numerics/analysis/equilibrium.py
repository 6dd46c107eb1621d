"""Equations of an experiment at rest: the equilibrium of noisy weights, or ridge regression without noise.

Weights with decay and noise converge to a Gibbs density (:mod:`derive.reduce.equilibrium`); without noise the
output of a homogeneous network converges to ridge regression (:mod:`derive.reduce.ridge`).  Both are derived,
and solved for linear networks on one sample, where the equations close.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sympy import Eq, Expr, Function, Poly, Rational, Symbol, cancel, exp, sympify

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
from numerics.experiment.theory import derive_or_raise, program_of
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
"""Values of keys for which a rest point is derived."""
NOISY = {"training.rule": "flow", "data.test_kernel": None, "data.test_inputs": None, **WANTED}
"""Values of keys for which a rest point with noise is derived.

Only flows are among them, because finite steps change the density."""
HOMOGENEOUS = {"network.activation": ("linear", "relu", "abs"), **WANTED}
"""Values of keys for which a rest point without noise is derived; activations must be homogeneous."""

DIGITS = 30
"""Decimal digits of the roots of polynomials, because kernels are quotients of small differences of them."""


@dataclass(frozen=True)
class RestPoint(Finite):
    """Stationary state of training with weight decay: its equations and, if known, their solution.

    Attributes
    ----------
    kind : str
        ``"equilibrium"`` (with noise) or ``"ridge"`` (without noise).
    theory : Theory
        The theory that the equations are derived from.
    equations : tuple of Eq
        Equations at rest.
    basis : tuple of str
        Conditions of the equations and of the solution.
    values : mapping of str to float
        The output ``f`` at the rest point whose output is nearest to the target, and with noise also the
        kernels; empty for a program, and where :func:`rest_point` solves no equations.
    others : tuple of float
        Outputs at further rest points.
    """

    kind: str
    theory: Theory
    equations: tuple[Eq, ...]
    basis: tuple[str, ...]
    values: Mapping[str, float] = field(default_factory=dict)
    others: tuple[float, ...] = ()

    def conditions(self) -> tuple[str, ...]:
        """Return the conditions of the stationary state's equations and of their solution, as sentences."""
        return self.basis

    def numbers(self) -> dict[str, Any]:
        """Return, by name, the equations as text, and the numbers of the stationary states."""
        lines = [text(e, self.theory) for e in self.equations]
        return {
            "kind": self.kind,
            "equations": lines,
            "values": dict(self.values),
            "others": list(self.others),
        }

    def latex(self) -> str:
        """Return the equations of the stationary state in LaTeX."""
        return aligned_latex(self.equations, self.theory)


def rest_point(source: Experiment | Program | str | Path) -> RestPoint:
    """Derive the rest point of an experiment or a program, and solve simple cases.

    Parameters
    ----------
    source : Experiment, Program, str or Path
        Experiment, its file, or a program, whose weights decay.  With noise (``training.temperature``) it
        must be a flow.

    Returns
    -------
    RestPoint
        It has numbers for experiments with one sample and a linear network whose depth is a number; without
        noise, only for a flow with one hidden layer. Otherwise it has equations only.

    Raises
    ------
    SpecError
        If weights do not decay, if the kernel of the sample is zero, or where no rest point is derived;
        names the key.
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
            raise SpecError(
                "program",
                source.name,
                f"no rest point is derived: {error}",
                "a chain of layers whose weights decay",
            ) from None
    source = Experiment.of(source)
    training = source.training
    source.require_linear_rule("a rest point in closed form")
    source.require_moving_features("a rest point in closed form")
    if source.spec.kind != "fixed":
        raise SpecError("data.kind", source.spec.kind, "has no derived rest point", '"fixed"')
    if not training.weight_decay:
        raise SpecError(
            "training.weight_decay",
            training.weight_decay,
            "has no rest point: without decay the limit of long times depends on the initial weights",
            "a positive number",
        )
    source.require_constant("a rest point")
    wanted = NOISY if training.temperature else HOMOGENEOUS
    equations = derive_or_raise(
        source, lambda e: _of_theory(mean_field(program_of(e))), "the rest point", wanted
    )
    return _solved(equations, source)


def _of_theory(theory: Theory) -> RestPoint:
    """Return the equations of a theory's stationary state, without numbers.

    With noise they are those of the equilibrium (Gibbs) density of weights, without noise those of ridge
    regression.
    """
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


def _solved(rest: RestPoint, experiment: Experiment) -> RestPoint:
    """Return a stationary state with its numbers, where these are known.

    They are known for a flow with one sample and a linear network whose depth is a number, and without noise
    only for one hidden layer. Otherwise ``rest``, which holds the equations, is returned unchanged. Raises
    SpecError if the kernel of the sample is zero, and NotConverged as :func:`_stationary` does.
    """
    samples = experiment.samples
    if experiment.symbolic or samples is None or samples.targets.shape != (1,):
        return rest
    if samples.kernel[0, 0] == 0:
        key = "data.kernel" if samples.inputs is None else "data.inputs"
        reason = "is a sample whose kernel x.x/D is 0, so that its output is zero for all weights"
        raise SpecError(key, None, reason, "a sample that is not zero")
    numbers = {x.name: Rational(str(value)) for x, value in numbers_of(experiment).items()}
    numbers |= {"K": Rational(str(samples.kernel[0, 0])), "y": Rational(str(samples.targets[0]))}
    with suppress(NotApplicable):
        if rest.kind == "equilibrium":
            values, others = _stationary(equilibrium(rest.theory), numbers)
            basis = (
                "derived: all stationary points with positive kernels, roots of a polynomial in the output"
            )
            return replace(rest, values=values, others=others, basis=(*rest.basis, basis))
        return _at_rest(rest, numbers)
    return rest


def _put(expression: Expr, numbers: Mapping[str, Expr]) -> Expr:
    """Return an expression with numbers in place of symbols; ``numbers`` maps names of symbols to numbers."""
    return sympify(expression).subs(
        {x: numbers[x.name] for x in expression.free_symbols if x.name in numbers}
    )


def _at_rest(rest: RestPoint, numbers: Mapping[str, Expr]) -> RestPoint:
    """Return the stationary state with the outputs of a network of one hidden layer without noise.

    The output nearest to the target is in ``values``, further ones are ``others``. The target is taken to be
    positive, because the outputs are odd in it and the second moments even. Solutions with negative second
    moments are left out.
    """
    sign = -1.0 if numbers["y"].is_negative else 1.0
    known = {**numbers, "y": abs(numbers["y"])}
    points = [[float(_put(x, known)) for x in point] for point in rest_points(rest.theory)]
    real = sorted(
        (f for h, z, f in points if h * z >= 0 and h >= 0), key=lambda f: abs(f - float(known["y"]))
    )
    basis = "derived: all outputs at which the second moments of the hidden layer are stationary"
    values, others = {OUTPUT: sign * real[0]}, tuple(sign * f if f else 0.0 for f in real[1:])
    return replace(rest, values=values, others=others, basis=(*rest.basis, basis))


def _stationary(
    gibbs: Equilibrium, numbers: Mapping[str, Expr]
) -> tuple[dict[str, float], tuple[float, ...]]:
    """Return output and kernels at the stationary point nearest to the target, and outputs at the others.

    Only points with positive kernels count; NotConverged is raised without such a point. If the target is
    zero, kernels at the output zero are the quotients 0/0, so that their limit for small targets is taken.
    """
    names = {x.name for e in gibbs.linear_saddle() for x in e.free_symbols}
    known = {x: numbers[x] for x in names & numbers.keys()}
    polynomial, kernels = gibbs.linear_output(known)
    points = _positive_points(polynomial, kernels)
    if numbers["y"] == 0:
        points = [x for x in points if x[OUTPUT] != 0] + _at_small_targets(gibbs, known)
    if not points:
        raise NotConverged(
            "no stationary state is found: no stationary value of the output is known at which all kernels, "
            f"{', '.join(map(str, kernels))}, are positive"
        )
    target = float(numbers["y"])
    nearest, *others = sorted(points, key=lambda x: abs(x[OUTPUT] - target))
    return nearest, tuple(x[OUTPUT] for x in others)


def _positive_points(polynomial: Expr, kernels: Mapping[Symbol, Expr]) -> list[dict[str, float]]:
    """Return the real roots of a polynomial at which all kernels are positive.

    Each root is a dictionary with the values of the unknown of the polynomial, under the name OUTPUT, and of
    the kernels under their own names. ``kernels`` gives each kernel as a function of the unknown, which is
    the output or takes its place.
    """
    (unknown,) = polynomial.free_symbols
    points = []
    for root in Poly(polynomial, unknown).real_roots():
        at = root.evalf(DIGITS)
        values = {OUTPUT: at, **{str(x): e.subs(unknown, at) for x, e in kernels.items()}}
        if all(values[str(x)].is_positive for x in kernels):
            points.append({name: float(x) for name, x in values.items()})
    return points


def _at_small_targets(gibbs: Equilibrium, known: Mapping[str, Expr]) -> list[dict[str, float]]:
    """Return the stationary points at the output zero for a target y that goes to zero.

    The output is ``f = r y`` there, and the equations are solved for the ratio r.
    """
    polynomial, kernels = gibbs.linear_output({x: value for x, value in known.items() if x != "y"})
    (out,) = (x for x in polynomial.free_symbols if x.name == OUTPUT)
    (y,) = polynomial.free_symbols - {out}
    ratio = Symbol("ratio", real=True)
    # In the limit y -> 0 only the term with the lowest power of y in the polynomial counts.
    in_y = Poly(polynomial.subs(out, ratio * y), y)
    limits = {x: cancel(e.subs(out, ratio * y)).subs(y, 0) for x, e in kernels.items()}
    return [{**x, OUTPUT: 0.0} for x in _positive_points(in_y.EC(), limits)]
