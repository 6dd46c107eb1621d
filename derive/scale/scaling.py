"""Exponents of the loss on power-law data: lazy, at leading order in gamma0, and rich, and when each holds.

Eigenvalues are ``k^-capacity``, targets ``w_star(k)^2 lamda(k) = k^(-capacity source - 1)``; the depth, the
source and the capacity may be numbers or symbols.  Flow on the population's loss, infinitely wide layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sympy import Expr, Gt, Symbol, false, nan, simplify, sympify, zoo

from derive.calculus.symbols import exact
from derive.errors import NotApplicable
from derive.program.networks.random_data import N, P
from derive.program.words import L, eta, gamma0
from derive.scale.mode_sums import Powers
from derive.scale.rich_scaling import rich_scaling
from derive.scale.scaling_data import fixed_data
from derive.scale.scaling_lazy import alpha, beta, lazy_modes, time
from derive.scale.scaling_leading import given, leading_order
from derive.scale.scaling_noise import batch_noise, width_noise, width_order

_MORE = Symbol("p", positive=True)


@dataclass(frozen=True)
class Scaling:
    """``loss ~ constant t^-exponent`` at late times.

    At leading order in gamma0 it is the term ``gamma0^2 c t^-exponent`` that is meant, and ``constant`` has
    its sign.  On finite data it is the loss in the end, ``constant P^-exponent``.  ``formula`` is the loss
    with all terms that are known, ``conditions`` say when it holds, and ``crossover`` where it meets another
    regime, by what that is.  ``series`` is what the exponent was read from, if it is a sum of powers.
    """

    regime: str
    formula: Expr
    exponent: Expr
    constant: Expr
    conditions: tuple[str, ...]
    crossover: Mapping[str, Expr] = field(default_factory=dict)
    series: Powers | None = None


def lazy(depth: Any = L, source: Any = beta, capacity: Any = alpha, *, rule: str = "flow") -> Scaling:
    """The regime in which features stand still: ``loss ~ t^-beta`` at any depth.

    ``rule`` is ``flow``, or ``gd`` for exact steps, whose t counts steps.
    Raises ValueError for numbers that are not possible.

    >>> found = lazy()
    >>> print(found.exponent, found.formula)
    beta gamma(beta)/(alpha*t**beta*(2*L + 2)**beta)
    >>> print(*found.crossover)
    last mode
    >>> from sympy import Rational
    >>> print(lazy(2, "1/2", 2).crossover["features"].subs(gamma0, Rational(1, 100)).n(4))
    7.939e+8
    """
    values = numbers(depth, source, capacity)
    modes = lazy_modes(rule)
    series = modes.loss().subs(values)
    crossover = {"last mode": modes.cutoff().subs(values)}
    conditions = [
        "gamma0 -> 0, or gamma0 > 0 and t below the crossover to feature learning",
        f"1 << t << {crossover['last mode']}, M the number of modes",
    ]
    if series.conditions == false:
        raise ValueError(f"rule = {rule!r}: the first mode diverges")
    if rule != "flow":
        bound = Gt(2, modes.kernel.subs(values))
        if bound == false:
            raise ValueError(f"{eta} = {values.get(eta)}: must be below {2 / (modes.kernel / eta)}")
        conditions.append(f"{modes.kernel.subs(values)} < 2: the first mode does not diverge")
    task = task_of(values[beta])
    if rule == "flow" and task == "hard":
        crossover["features"] = leading_order().crossover().subs(values)
    if task == "easy":
        share = leading_order().relative("easy").coefficient.subs(values)
        conditions.append(f"features change the constant by the share gamma0**2*({share}), not the power")
    top = series.terms[0]
    return Scaling("lazy", series.expr, -top.power, top.coefficient, tuple(conditions), crossover, series)


def leading(depth: Any = L, source: Any = beta, capacity: Any = alpha, *, task: str | None = None) -> Scaling:
    """Order gamma0^2: what the first movement of the features adds to the lazy loss.

    ``task`` (``hard``: source below 1, or ``easy``) is needed where the source is a symbol, and is ``hard``
    if left out.  Raises ValueError for numbers that are not possible, and
    :class:`~derive.errors.NotApplicable` for a source of 1, where there is a
    logarithm.

    >>> print(leading().exponent, leading(task="easy").exponent)
    2*beta - 1 beta
    >>> found = leading(1, "1/2", 2)
    >>> print(found.exponent, found.constant.n(5), found.series.terms[1].power)
    0 -0.072230 -1/2
    """
    values = numbers(depth, source, capacity)
    kind = _kind(values[beta], task, "the order gamma0^2")
    order = leading_order()
    series = order.correction.sorted(given(kind)).subs(values)
    top = series.terms[0]
    conditions = [
        "source < 1" if kind == "hard" else "source > 1",
        "gamma0**2 times the term is small beside the lazy loss; the next order is gamma0**4",
        f"corrections are smaller by t**({simplify(series.terms[1].power - top.power)})",
        f"1 << t << {lazy_modes().cutoff().subs(values)}, M the number of modes",
    ]
    crossover = {"features": order.crossover().subs(values)} if kind == "hard" else {}
    formula = order.lazy.subs(values).expr + gamma0**2 * series.expr
    return Scaling("leading", formula, -top.power, top.coefficient, tuple(conditions), crossover, series)


def rich(depth: Any = L, source: Any = beta, capacity: Any = alpha, *, task: str | None = None) -> Scaling:
    """The regime in which features have outgrown their start: see :mod:`derive.scale.rich_scaling`.

    On hard tasks the power depends on depth.  ``crossover`` says when the regime begins: where its loss meets
    the lazy one.  Raises as :func:`leading` does, and NotApplicable where the constant has no closed form.

    >>> found = rich()
    >>> begin = found.crossover["lazy"]
    >>> print(found.exponent, simplify(gamma0 * begin.diff(gamma0) / begin))
    beta*(L + 1)/(L*beta + 1) 2/(beta - 1)
    """
    values = numbers(depth, source, capacity)
    kind = _kind(values[beta], task, "the norm of what is learnt")
    found = rich_scaling(values[L], values[beta], values[alpha], task=kind)
    if found.constant.has(nan, zoo):
        raise NotApplicable(f"source = {values[beta]}: the closed form of the constant is 0/0 there")
    before = lazy_modes().loss().subs(values).expr
    crossover = {"lazy": found.crossover(before)} if kind == "hard" else {}
    return Scaling("rich", found.loss, found.exponent, found.constant, found.conditions, crossover)


def finite_batch(depth: Any = L, source: Any = beta, capacity: Any = alpha) -> Scaling:
    """Descent on fresh batches, lazy and infinitely wide, without label noise: ``t`` counts steps.

    Where targets are learnt faster than ``t^-(2 - 1/capacity)``, that is the power of the loss: each batch
    stirs modes that had been learnt, and these forget it no faster.  Raises NotApplicable where symbols
    leave open which of the two it is, ValueError for a capacity of 1 or less.

    >>> print(finite_batch(1, "1/2", 2).exponent, finite_batch(1, 2, "3/2").exponent)
    1/2 4/3
    """
    values = numbers(depth, source, capacity)
    if values[alpha].is_number and values[alpha] <= 1:
        raise ValueError(f"capacity = {values[alpha]}: must be above 1, or the eigenvalues have no sum")
    noise = batch_noise()
    gap = simplify(values[beta] + noise.gain.terms[0].power.subs(values))
    if gap.is_positive is None or gap == 0:
        raise NotApplicable(f"source = {values[beta]}: must be below or above 2 - 1/capacity")
    top = noise.decay(bool(gap.is_positive))
    power, constant = top.power.subs(values), sympify(top.coefficient).subs(values)
    amplification = noise.amplification.subs(values)
    conditions = (
        "gamma0 -> 0, N -> oo, no label noise; with it the loss ends at "
        f"{noise.floor().xreplace({noise.amplification: Symbol('q')})}",
        f"q = {amplification} < 1",
        "kernels that fall as a power: the renewal theorem is used, not derived",
    )
    return Scaling("batch", constant * time**power, -power, constant, conditions)


def finite_width(
    depth: Any = L, source: Any = beta, capacity: Any = alpha, *, task: str | None = None
) -> Scaling:
    """Order 1/N of the lazy loss: the variance of what N units learn, ``c t^-exponent/N``.

    On easy tasks it falls slower than the loss of infinite width and takes over long before ``N^capacity``.
    Raises as :func:`leading` does, and ValueError for a capacity of 1 or less.

    >>> found = finite_width(task="easy")
    >>> print(found.exponent, simplify(N * found.crossover["width"].diff(N) / found.crossover["width"]))
    1 - 1/alpha alpha/(alpha*(beta - 1) + 1)
    """
    values = numbers(depth, source, capacity)
    if values[alpha].is_number and values[alpha] <= 1:
        raise ValueError(f"capacity = {values[alpha]}: must be above 1, or the eigenvalues have no sum")
    kind = _kind(values[beta], task, "the variance at order 1/N")
    noise = width_noise()
    top = noise.variance.sorted(width_order(kind)).terms[0]
    power, constant = top.power.subs(values), top.coefficient.subs(values)
    conditions = (
        "source < 1" if kind == "hard" else "source > 1",
        f"1 << t << N**({values[alpha]}): beyond, order 1/N is not enough",
        "the mean error has an order 1/N too: "
        + ("of the same power, so that the constant is not all" if kind == "hard" else "a smaller power"),
    )
    formula = noise.lazy.subs(values).expr + constant * time**power / N
    crossover = {"width": noise.crossover(kind).subs(values)}
    return Scaling("width", formula, -power, constant, conditions, crossover)


def finite_data(
    depth: Any = L, source: Any = beta, capacity: Any = alpha, *, steep: bool | None = None
) -> Scaling:
    """The same P samples at every step, lazy and infinitely wide: the test loss ends at ``c P^-exponent``.

    With a source below 2 the exponent is ``capacity source``, and the loss is that of the population until
    it meets this floor at ``t ~ P^capacity``.  ``steep`` tasks, of a source above 2, have the floor of a
    source of 2, and a power of their own before it, ``t^-(2 - 1/capacity)/P``.  ``steep`` is needed where
    the source is a symbol; it is False if left out.  Raises NotApplicable for a source of 2, where there is
    a logarithm, ValueError for a capacity of 1 or less.

    >>> found = finite_data()
    >>> when = found.crossover["lazy"]
    >>> print(found.exponent, simplify(P * when.diff(P) / when))
    alpha*beta alpha
    >>> found = finite_data(1, 3, 2)
    >>> print(found.exponent, *[simplify(P * x.diff(P) / x) for x in found.crossover.values()])
    4 2/3 2
    """
    values = numbers(depth, source, capacity)
    if values[alpha].is_number and values[alpha] <= 1:
        raise ValueError(f"capacity = {values[alpha]}: must be above 1, or the eigenvalues have no sum")
    b = values[beta]
    if b == 2:
        raise NotApplicable("source = 2: two powers of P meet, and there is a logarithm")
    if b.is_number:
        if steep is not None and steep != bool(b > 2):
            raise ValueError(f"steep = {steep}: a source of {b} makes it {bool(b > 2)}")
        steep = bool(b > 2)
    data = fixed_data()
    found = data.floor.sorted({beta: 2 + _MORE} if steep else {beta: 2 / (1 + _MORE)}).subs(values)
    top = found.terms[0]
    end, before = top.at(P), lazy_modes().loss().terms[0]
    if steep:
        middle = data.stirred
        rise = simplify(before.power - middle.power)
        meets = (middle.coefficient / before.coefficient / P) ** (1 / rise)
        own = (end * P / middle.coefficient) ** (1 / middle.power)
        crossover = {"lazy": meets.subs(values), "end": own.subs(values)}
        first = f"{(middle.coefficient * time**middle.power / P).subs(values)} between the two crossovers"
    else:
        crossover = {"lazy": ((end / before.coefficient) ** (1 / before.power)).subs(values)}
        first = f"{before.at(time).subs(values)} before it"
    fit = data.label_fit
    conditions = (
        "source > 2" if steep else "source < 2",
        "gamma0 -> 0, N -> oo, 1 << P << M, M the number of modes",
        f"t beyond the last crossover; the loss is {first}",
        f"no label noise; with it {data.label_floor.subs(values)} is added at the end, and "
        f"{(fit.coefficient * time**fit.power / P).subs(values)} before",
        "the final value theorem is used: the limit of late times is taken to exist",
    )
    return Scaling("data", end, -top.power, top.coefficient, conditions, crossover, found)


def _kind(source: Expr, task: str | None, where: str) -> str:
    """``hard`` or ``easy``, from the source where it is a number."""
    kind = task_of(source)
    if source == 1:
        raise NotApplicable(f"source = 1: two powers of {where} meet, and there is a logarithm")
    if kind and task not in (None, kind):
        raise ValueError(f"task = {task!r}: a source of {source} makes the task {kind!r}")
    return kind or task or "hard"


def numbers(depth: Any, source: Any, capacity: Any) -> dict[Symbol, Expr]:
    """What stands for L, beta and alpha.  Raises ValueError for what they cannot be."""
    values = {L: exact("depth", depth), beta: exact("source", source), alpha: exact("capacity", capacity)}
    least = {L: ("depth", 1), beta: ("source", None), alpha: ("capacity", None)}
    for x, (name, low) in least.items():
        v = values[x]
        if not v.is_number:
            continue
        if low is not None and (v < low or not v.is_Integer):
            raise ValueError(f"{name} = {v}: must be a whole number, {low} or more")
        if not v > 0:
            raise ValueError(f"{name} = {v}: must be positive")
    return values


def task_of(source: Expr) -> str | None:
    """``hard`` below 1, ``easy`` above, None at 1 or for a symbol."""
    if not source.is_number or source == 1:
        return None
    return "hard" if source < 1 else "easy"


REGIMES: dict[str, Callable[..., Scaling]] = {
    "lazy": lazy,
    "leading": leading,
    "rich": rich,
    "batch": finite_batch,
    "width": finite_width,
    "data": finite_data,
}
"""What `dmft limits scaling --regime` offers."""

__all__ = [
    "REGIMES",
    "Scaling",
    "alpha",
    "beta",
    "exact",
    "finite_batch",
    "finite_data",
    "finite_width",
    "lazy",
    "leading",
    "numbers",
    "task_of",
]
