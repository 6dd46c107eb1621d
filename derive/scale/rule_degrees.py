"""Degrees of entrywise training rules in the gradient, and powers of a large number in their steps.

A rule changes an entry by the rate times ``Q``, a function of the history of its gradient A. If all gradients
are multiplied by c, states by the powers of c that follow from their recursions, and parameters in units of
the gradient (the epsilon of Adam) by theirs, then Q is multiplied by ``c^degree``. Power counting in the
width and the depth uses the degree; the powers of single steps give the effect of a parameter that scales
differently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from sympy import Abs, Add, Dummy, Expr, Heaviside, Max, Min, Mul, Pow, Rational, S, Symbol, sign, solve
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import t
from derive.errors import NotApplicable
from derive.program.entrywise import A, Entrywise
from derive.reduce.homogeneous import NotHomogeneous

PowerOfNumber = Callable[[Expr], Expr]
"""Function that returns the power of the large number in an expression without gradients and states."""
ROUNDING = Rational(1, 10**12)
"""Difference below which two numbers of order one, evaluated to 15 digits, are equal."""


@dataclass(frozen=True)
class RuleDegrees:
    """Powers of c in the parts of a rule if gradients are multiplied by c.

    Parameters
    ----------
    degree : Expr
        Power of c in Q.
    states : Mapping[Symbol, Expr]
        Power of c of each state.
    parameters : Mapping[Symbol, Expr]
        Power of c by which each parameter must be multiplied, if it is not zero.
    """

    degree: Expr
    states: Mapping[Symbol, Expr]
    parameters: Mapping[Symbol, Expr]


@lru_cache(maxsize=64)
def rule_degrees(rule: Entrywise) -> RuleDegrees:
    """Return the degrees of a rule in the gradient.

    Parameters
    ----------
    rule : Entrywise
        Entrywise rule whose parameters in units of the gradient are symbols.

    Returns
    -------
    RuleDegrees
        Degrees of the rule, its states and its parameters, which are numbers.

    Raises
    ------
    NotHomogeneous
        If no degrees exist, for example because epsilon is a number.
    NotApplicable
        If Q is not odd in the gradient.

    Notes
    -----
    Terms of one sum must have the same degree, and so must a state before and after its step. These are
    linear equations for the degrees.

    Examples
    --------
    >>> from sympy import symbols, tanh
    >>> from derive.program import adam
    >>> eta, epsilon = symbols("eta epsilon", positive=True)
    >>> found = rule_degrees(adam(eta, epsilon=epsilon))
    >>> found.degree, found.states, found.parameters
    (0, {m: 1, v: 2}, {epsilon: 1})
    >>> rule_degrees(Entrywise(eta, A)).degree, rule_degrees(Entrywise(eta, tanh(A / epsilon))).degree
    (1, 0)
    """
    _require_odd(rule)
    units = _Units(rule)
    degree = units.of(rule.Q)
    for x, e in rule.states:
        units.require_equal(units.unknown[x], units.of(e))
    names = [*units.unknown.values()]
    conditions = [e for e in (x.expand() for x in units.conditions) if e != 0]
    solutions = solve(conditions, names, dict=True) if conditions else [{}]
    if not solutions or degree is None:
        raise NotHomogeneous(
            f"{rule.name}: no power of c is found by which Q = {rule.Q} is multiplied if gradients are "
            "multiplied by c; a number in units of the gradient, such as epsilon, must be a symbol, and an "
            "exponent must be a number"
        )
    free = dict.fromkeys(names, S.Zero)
    value = {x: solutions[0].get(d, d).xreplace(free) for x, d in units.unknown.items()}
    states = [x for x, _ in rule.states]
    return RuleDegrees(
        degree.xreplace({units.unknown[x]: p for x, p in value.items()}).expand(),
        {x: value[x] for x in states},
        {x: p for x, p in value.items() if x not in states and p != 0},
    )


class _Units:
    """Linear system for the degrees of a training rule in the gradient.

    The degree of a quantity is its power of c if all gradients are multiplied by c. ``unknown`` has the
    degree of each state and parameter as a symbol, and the expressions in ``conditions`` must vanish.
    """

    def __init__(self, rule: Entrywise) -> None:
        names = [*(x for x, _ in rule.states), *sorted(rule.parameters, key=str)]
        self.unknown = {x: Dummy(str(x)) for x in names}
        self.conditions: list[Expr] = []

    def require_equal(self, first: Expr | None, *others: Expr | None) -> Expr | None:
        """Add the conditions that degrees in the gradient are equal, and return the common degree.

        None stands for the degree of the number zero, which equals all others; the result is None if all are
        None.
        """
        degrees = [p for p in (first, *others) if p is not None]
        self.conditions += [p - degrees[0] for p in degrees[1:]]
        return degrees[0] if degrees else None

    def require_zero(self, degrees: Iterable[Expr | None]) -> Expr:
        """Add the conditions that degrees in the gradient are zero, and return zero.

        It is used for arguments of functions that are not homogeneous. None, the degree of the number zero,
        is left out.
        """
        self.conditions += [p for p in degrees if p is not None]
        return S.Zero

    def of(self, e: Expr) -> Expr | None:
        """Return the degree of an expression in gradients, states and parameters of a rule; None for zero.

        The degree is the power of c if all gradients are multiplied by c.
        """
        if e == 0:
            return None
        if e == A:
            return S.One
        if e in self.unknown:
            return self.unknown[e]
        if not e.free_symbols & {A, *self.unknown} or isinstance(e, AppliedUndef):
            return S.Zero
        return self.of_function(e, [self.of(x) for x in e.args])

    def of_function(self, e: Expr, argument_degrees: list[Expr | None]) -> Expr | None:
        """Return the degree in the gradient of a function ``e`` from the degrees of its arguments.

        None stands for an argument, or a result, that is zero. Conditions on the degrees are added to the
        system.
        """
        if isinstance(e, Add | Max | Min):
            return self.require_equal(*argument_degrees)
        if isinstance(e, Mul):
            return None if None in argument_degrees else Add(*argument_degrees)
        if isinstance(e, Pow) and e.exp.is_number:
            return None if argument_degrees[0] is None else e.exp * argument_degrees[0]
        if isinstance(e, Abs):
            return argument_degrees[0]
        return S.Zero if isinstance(e, sign | Heaviside) else self.require_zero(argument_degrees)


def _require_odd(rule: Entrywise) -> None:
    """Raise :class:`NotApplicable` unless Q changes sign with the gradients and some of the states.

    The symmetry is tested at rational values of all symbols.
    """
    states = [x for x, _ in rule.states]
    symbols = sorted(
        {x for e in rule.coefficients for x in e.atoms(Symbol, AppliedUndef)} - {A, t, *states}, key=str
    )
    points = [
        {x: Rational(2 * k + i + 1, 3 * k + i + 7) for i, x in enumerate((*symbols, A, *states))} | {t: S(k)}
        for k in (1, 2, 5)
    ]
    for signs in product((1, -1), repeat=len(states)):
        flip = {A: -A, **{x: k * x for x, k in zip(states, signs, strict=True)}}
        pairs = [(rule.Q, -1), *((e, k) for (_, e), k in zip(rule.states, signs, strict=True))]
        gaps = (e.xreplace(flip).subs(at) - k * e.subs(at) for e, k in pairs for at in points)
        if all(abs(gap.evalf()) < ROUNDING for gap in gaps):
            return
    raise NotApplicable(
        f"{rule.name} is not odd in the gradient: if the gradient changes its sign, Q = {rule.Q} must change "
        "its sign, and each state must change its sign or keep its value"
    )


def is_linear(rule: Entrywise) -> bool:
    """Return whether the update Q and all new states are linear in gradients and states.

    Constants may be added.

    >>> from derive.program import sign_descent
    >>> is_linear(Entrywise(Symbol("eta"), 2 * A)), is_linear(sign_descent(Symbol("eta")))
    (True, False)
    """
    variables = [A, *(x for x, _ in rule.states)]
    bodies = [rule.Q, *(e for _, e in rule.states)]
    return all(e.diff(x, y) == 0 for e in bodies for x in variables for y in variables)


# -- powers of steps -----------------------------------------------------------------------------------------


def step_powers(
    rule: Entrywise, gradients: Sequence[Expr | None], number: PowerOfNumber
) -> tuple[Expr | None, ...]:
    """Return the exponent of a large number in Q at each step; None where Q is zero.

    Parameters
    ----------
    rule : Entrywise
        Entrywise rule.
    gradients : Sequence[Expr | None]
        Exponents of the gradient at the steps 0, 1, ...; None for a gradient that is zero.
    number : PowerOfNumber
        Function that returns the power in an expression without gradients and states.

    Returns
    -------
    tuple[Expr | None, ...]
        One power for each step. A sum has the largest power of its terms.

    Raises
    ------
    NotApplicable
        If symbols do not determine which of two powers is larger, or the power of a function is not known,
        for example because its argument may grow or is zero.

    Examples
    --------
    >>> from derive.program import adam
    >>> step_powers(adam(Symbol("eta"), epsilon=1), (-S.One, -S.One), lambda _: S.Zero)
    (-1, -1)
    >>> step_powers(adam(Symbol("eta"), epsilon=0), (-S.One, -S.One), lambda _: S.Zero)
    (0, 0)
    """
    states: dict[Expr, Expr | None] = dict.fromkeys((x for x, _ in rule.states), None)
    powers = []
    for time, gradient in enumerate(gradients):
        before = {**states, A: gradient}
        states = {x: _power(e.subs(t, time), before, number) for x, e in rule.states}
        available = before if rule.before else {**states, A: gradient}
        powers.append(_power(rule.Q.subs(t, time), available, number))
    return tuple(powers)


def _power(e: Expr, powers: Mapping[Expr, Expr | None], number: PowerOfNumber) -> Expr | None:
    """Return the exponent of a large number, such as the width, in an expression; None for zero.

    ``powers`` has the powers of the rule's gradients and states, None for those that are zero, and ``number``
    is a function that returns the power of other expressions.
    """
    if e == 0:
        return None
    if e in powers:
        return powers[e]
    if not e.free_symbols & {*powers}:
        return number(e)
    return _power_of_function(e, [_power(x, powers, number) for x in e.args])


def _power_of_function(e: Expr, argument_powers: list[Expr | None]) -> Expr | None:
    """Return the exponent of a large number in a function ``e`` from the exponents in its arguments.

    None stands for an argument, or a result, that is zero. Raises NotApplicable if the power is not known.
    """
    if isinstance(e, Add):
        return _largest(argument_powers)
    if isinstance(e, Mul):
        return None if None in argument_powers else Add(*argument_powers).expand()
    if isinstance(e, Pow) and e.exp.is_number:
        return None if argument_powers[0] is None else (e.exp * argument_powers[0]).expand()
    if isinstance(e, Abs | Max | Min):
        if len({*argument_powers}) > 1:
            powers = ", ".join("none (argument 0)" if p is None else str(p) for p in argument_powers)
            raise NotApplicable(
                f"the power of a large number (width or depth) in {e} is not known if its arguments have "
                f"different powers; they have the powers {powers}"
            )
        return argument_powers[0]
    if isinstance(e, sign):
        return None if argument_powers[0] is None else S.Zero
    return _power_near_zero(e, argument_powers)


def _power_near_zero(e: Expr, argument_powers: list[Expr | None]) -> Expr:
    """Return the exponent of a large number in a smooth function ``e`` of one small argument.

    It is the lowest order of the series of the function, times the exponent of the argument, the only entry
    of ``argument_powers``. Orders up to 3 are tried, and a series that starts later counts as order 0. Raises
    NotApplicable for several arguments, and for an argument that is zero or may grow.
    """
    if len(argument_powers) != 1:
        raise NotApplicable(
            f"the power of a large number (width or depth) in {e} is not known: it is derived for functions "
            "of one argument and for powers whose exponent is a number"
        )
    (argument,) = argument_powers
    if argument is None or argument.is_nonpositive is not True:
        raise NotApplicable(
            f"the power of a large number (width or depth) in {e} is not known, because the argument of this "
            "function is zero or may grow; the argument must be nonzero, and its power of the large number "
            "must be known to be zero or negative"
        )
    variable = Dummy("x", real=True)
    function = e.func(variable)
    lowest = next((k for k in range(4) if function.diff(variable, k).subs(variable, 0) != 0), 0)
    return lowest * argument


def _largest(powers: Iterable[Expr | None]) -> Expr | None:
    """Return the largest of some exponents of a large number, which is the exponent of a sum.

    None stands for a term that is zero; the result is None if all terms are. Raises NotApplicable if symbols
    do not decide.
    """
    best: Expr | None = None
    for p in powers:
        if p is None:
            continue
        gap = S.One if best is None else (p - best).expand()
        if gap.is_positive:
            best = p
        elif not gap.is_nonpositive:
            raise NotApplicable(
                f"it cannot be decided which of the powers {p} and {best} of a large number (width or depth) "
                "is larger: give numbers for the exponents"
            )
    return best
