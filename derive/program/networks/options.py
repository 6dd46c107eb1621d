"""Options of the builders: activations, constants of layers, indices, rules and losses by name.

The functions convert what a user or an experiment file gives into expressions and rules; they raise
:class:`ProgramError` with the name of the option.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from sympy import (
    Abs,
    Dummy,
    Expr,
    Function,
    Integer,
    Lambda,
    Max,
    S,
    Sum,
    Symbol,
    erf,
    exp,
    log,
    sin,
    sqrt,
    tanh,
)

from derive.calculus.intervals import POSITIVE, REAL
from derive.calculus.symbols import IndexRange, IndexRanges, P, ell, eta, expression, s, t
from derive.errors import ProgramError
from derive.program.entrywise import (
    KEPT,
    MEAN,
    SMALL,
    SQUARE,
    Entrywise,
    adam,
    adamw,
    lion,
    rmsprop,
    sign_descent,
)
from derive.program.program import Program
from derive.program.rules import (
    GradientDescent,
    GradientFlow,
    Momentum,
    MomentumFlow,
    Multistep,
    TrainingRule,
    of_gradient,
)

NAMED: dict[str, Callable[[Expr], Expr]] = {
    "linear": lambda x: x,
    "relu": lambda x: Max(0, x),
    "tanh": lambda x: tanh(x),
    "erf": lambda x: erf(x),
    "abs": lambda x: Abs(x),
    "softplus": lambda x: log(1 + exp(x)),
    "gelu": lambda x: x * (1 + erf(x / sqrt(2))) / 2,
    "sin": lambda x: sin(x),
    "quadratic": lambda x: x**2,
    "cubic": lambda x: x**3,
    "hermite2": lambda x: (x**2 - 1) / sqrt(2),
    "hermite3": lambda x: (x**3 - 3 * x) / sqrt(6),
}
"""Activations by their names in programs and experiment files, as functions of an expression."""


@dataclass(frozen=True)
class Activation:
    """Activation function ``phi``, which maps an expression to an expression.

    ``linear`` is true if it is the identity.
    """

    phi: Callable[[Expr], Expr]
    linear: bool = False

    def __call__(self, e: Expr) -> Expr:
        """Return ``phi(e)``, the activation function applied to an expression."""
        return self.phi(e)


def activation_of(activation: str | Any) -> Activation:
    """Return the activation of a name, function or expression in one symbol.

    ``activation`` is a name in ``NAMED``, a SymPy function (``tanh``, ``Function("phi")``), a ``Lambda``, any
    function of an expression, or an expression in one symbol. Raises :class:`ProgramError` for anything else,
    and for a constant.

    >>> from sympy import Function, Symbol
    >>> y = Symbol("y")
    >>> for a in ("sin", y**2, Function("phi")): print(activation_of(a)(y))
    sin(y)
    y**2
    phi(y)
    """
    function: Any = activation
    if isinstance(activation, str):
        if activation not in NAMED:
            raise ProgramError(
                f"activation = {activation!r}: must be one of {', '.join(NAMED)}; in Python also a SymPy "
                "function such as tanh, or an expression in one symbol"
            )
        x = Symbol("x", real=True)
        function = Lambda(x, NAMED[activation](x))
    elif isinstance(activation, Expr) and not isinstance(activation, Lambda):
        free = sorted(activation.free_symbols, key=str)
        if len(free) != 1:
            raise ProgramError(
                f"activation = {activation}: must contain exactly one symbol, which stands for the field; "
                f"its symbols are {free}"
            )
        function = Lambda(free[0], activation)
    elif not callable(activation):
        raise ProgramError(
            f"activation = {activation!r}: must be a name or a SymPy function such as tanh, "
            "or an expression in one symbol"
        )
    slot = Dummy("x", real=True)
    try:
        body = function(slot)
    except (TypeError, ValueError, AttributeError) as error:
        raise ProgramError(
            f"activation = {activation!r}: is not a function of one SymPy expression; write it with "
            "functions of SymPy, such as sympy.tanh"
        ) from error
    if not isinstance(body, Expr) or not body.has(slot):
        raise ProgramError(
            f"activation = {activation!r}: must depend on the field, its argument, and return one SymPy "
            "expression"
        )
    return Activation(function, linear=body == slot)


# -- numbers that differ from layer to layer -----------------------------------------------------------------

PerLayer: TypeAlias = Expr | float | int | str | Sequence[Expr | float | int] | None


class Listed(Function):
    """Entry ``i`` of a list that starts with the entry number ``first``: ``Listed(i, first, x, y, ...)``.

    While ``i`` is a symbol, the expression is left unevaluated; with a number for i it becomes the entry.

    >>> from sympy.abc import i
    >>> Listed(i, 1, 5, 7).subs(i, 2)
    7
    """

    @classmethod
    def eval(cls, index: Expr, first: Expr, *entries: Expr) -> Expr | None:
        """Return the entry at ``index`` of the list ``entries``, whose first entry has the index ``first``.

        Returns None, which leaves the function unevaluated, if ``index - first`` is not a number or is
        outside of the list.
        """
        place = index - first
        return entries[int(place)] if place.is_Integer and 0 <= place < len(entries) else None

    def _sympystr(self, printer: Any, *_: Any) -> str:
        return f"[{', '.join(map(printer._print, self.args[2:]))}]({printer._print(self.args[0])})"

    def _latex(self, printer: Any, *_: Any) -> str:
        entries = ", ".join(map(printer._print, self.args[2:]))
        return rf"\left({entries}\right)_{{{printer._print(self.args[0])}}}"


def per_layer(key: str, value: PerLayer, first: int, last: Expr) -> Expr:
    """Return ``value`` as an expression in ``ell`` for the layers ``first..last``; 1 for None.

    A name stands for a function of the layer, a sequence lists the values of all layers (the depth must then
    be an integer), anything else is the value of every layer. Raises :class:`ProgramError`, naming ``key``,
    for text that is not a name, a sequence of the wrong length or at symbolic depth, and a value that is
    known to be at most zero.

    >>> from sympy import Integer
    >>> per_layer("relative_widths", "a", 1, Integer(2)), per_layer("relative_widths", [2, 1], 1, Integer(2))
    (a(ell), [2, 1](ell))
    """
    if value is None:
        return S.One
    if isinstance(value, str):
        if not value.isidentifier():
            raise ProgramError(
                f"{key} = {value!r}: text must be the name of a function of the layer, such as 'a'; give a "
                "number, an expression or a list without quotes"
            )
        return Function(value)(ell)
    if not isinstance(value, Sequence):
        return _positive(key, value)
    if not isinstance(last, Integer):
        raise ProgramError(f"{key} = {list(value)}: a list needs a depth that is a number, not {last}")
    wanted = int(last) - first + 1
    if len(value) != wanted:
        raise ProgramError(
            f"{key} has {len(value)} entries: must have {wanted}, for layers {first} to {last}"
        )
    entries = [_positive(key, x) for x in value]
    return entries[0] if len(set(entries)) == 1 else Listed(ell, first, *entries)


def _positive(key: str, value: Any) -> Expr:
    """Return a value as an expression; raise ProgramError, naming ``key``, if it is known to be <= 0."""
    number = expression(value, key)
    if not isinstance(number, Expr) or number.is_nonpositive:
        raise ProgramError(f"{key} = {value}: must be positive")
    return number


# -- indices -------------------------------------------------------------------------------------------------

c, c_, p, p_ = (Symbol(n, integer=True, positive=True) for n in ("c", "c_", "p", "p_"))
k = Symbol("k", integer=True)

SymbolicCount: TypeAlias = int | Expr


def indices(
    outputs: SymbolicCount = 1, positions: SymbolicCount = 1, receptive: SymbolicCount = 0
) -> tuple[IndexRanges, IndexRanges, IndexRanges]:
    """Return the ranges of channels ``c``, positions ``p`` and offsets ``k``; none for a single value.

    Each is a tuple with one range, or an empty tuple. ``receptive`` is the number of neighbours on each side,
    so that offsets are from ``-receptive`` to ``receptive``. Raises :class:`ProgramError` for numbers that
    are too small or not integers, and for a filter wider than the ring.

    >>> indices(outputs=3)[:2]
    ((IndexRange(index=c, lower=1, upper=3),), ())
    """
    counts = {"outputs": outputs, "positions": positions, "receptive": receptive}
    for key, value in counts.items():
        least = 0 if key == "receptive" else 1
        number = expression(value, key)
        REAL.require(number, key)
        if number.is_integer is False or (number - least).is_negative:
            raise ProgramError(f"{key} = {value}: must be an integer, at least {least}")
    channels, size, reach = map(expression, counts.values())
    if (size - 2 * reach - 1).is_negative:
        raise ProgramError(
            f"receptive = {reach} with positions = {size}: a filter needs {2 * reach + 1} different positions"
        )
    return _run(c, S.One, channels), _run(p, S.One, size), _run(k, -reach, reach)


def _run(index: Symbol, first: Expr, last: Expr) -> IndexRanges:
    """Return the range of an index in a tuple, empty if the index has one value only."""
    return () if first == last else (IndexRange(index, first, last),)


# -- rules ---------------------------------------------------------------------------------------------------

NumberOrExpression: TypeAlias = Expr | float | int

ENTRYWISE: dict[str, dict[str, Expr]] = {
    "sign": {},
    "adam": {"beta1": MEAN, "beta2": SQUARE, "epsilon": SMALL},
    "adamw": {"beta1": MEAN, "beta2": SQUARE, "epsilon": SMALL},
    "rmsprop": {"beta2": SQUARE, "epsilon": SMALL},
    "lion": {"beta1": MEAN, "beta2": KEPT},
}
"""The entrywise rules that have a name, each with its constants and their usual values."""

ADAPTIVE = "amsgrad nadam adagrad adadelta adafactor lamb signsgd"
"""Names of optimizers that are not known here; the error message for them points to ``Entrywise``."""


def entrywise_rule(
    rule: str,
    loss: str = "sum",
    *,
    weight_decay: NumberOrExpression = 0,
    samples: Expr = P,
    **constants: NumberOrExpression,
) -> Entrywise:
    """Return the entrywise rule of an experiment file, for the summed loss or its mean over samples.

    A step of length ``eta`` subtracts the fraction ``eta weight_decay`` of a weight, and the mean loss
    divides the gradient A by the number of ``samples``. ``constants`` are those of ``beta1``, ``beta2`` and
    ``epsilon`` that the rule has. Raises :class:`ProgramError` for an unknown rule, loss or constant, for a
    number out of its range, and for decay with Adam.

    >>> entrywise_rule("sign", weight_decay=2).decay
    2*eta
    >>> entrywise_rule("rmsprop", "mean", beta2=0, epsilon=0).states
    ((v, A**2/P**2),)
    """
    if rule not in ENTRYWISE:
        raise ProgramError(f"rule = {rule!r}: must be one of {', '.join(ENTRYWISE)}")
    given = {key: x for key, x in constants.items() if key not in ENTRYWISE[rule]}
    if given:
        known = ", ".join(ENTRYWISE[rule]) or "none"
        raise ProgramError(
            f"{', '.join(given)} with rule = {rule!r}: the rule has no constant of this name; its constants: "
            f"{known}"
        )
    decay = expression(weight_decay, "weight_decay")
    if rule == "adam" and decay != 0:
        raise ProgramError(
            f"weight_decay = {weight_decay} with rule = 'adam': the rule has no decay here; use the rule "
            "'adamw', whose decay does not enter the means of gradients"
        )
    POSITIVE.require(samples, "samples")
    makers: dict[str, Callable[..., Entrywise]] = {
        "sign": sign_descent,
        "adam": adam,
        "adamw": adamw,
        "rmsprop": rmsprop,
        "lion": lion,
    }
    numbers: dict[str, Any] = {**ENTRYWISE[rule], **constants}
    if rule != "adam":
        numbers["decay"] = eta * decay
    return makers[rule](eta, **numbers).of_gradient(_share_of_loss(loss, samples))


def _share_of_loss(loss: str, samples: Expr) -> Expr:
    """Return the factor of the loss of each sample in the trained loss: 1 for "sum", 1/samples for "mean".

    Raises :class:`ProgramError` for another word.
    """
    shares = {"sum": S.One, "mean": 1 / samples}
    if not isinstance(loss, str) or loss not in shares:
        raise ProgramError(f"loss = {loss!r}: must be 'sum' or 'mean'")
    return shares[loss]


def training_rule(
    rule: str = "gd",
    loss: str = "sum",
    *,
    weight_decay: NumberOrExpression = 0,
    momentum: NumberOrExpression = 0,
    temperature: NumberOrExpression = 0,
    samples: Expr = P,
) -> TrainingRule:
    """Return the training rule of a name, on the summed loss or on its mean over samples.

    Parameters
    ----------
    rule : str
        "gd", "flow", "multistep", or the name of an entrywise rule ("sign", "adam", ...) with its usual
        constants.
    loss : str
        "sum" or "mean".
    weight_decay : number or Expr
        The weight decay lam.
    momentum : number or Expr
        For "gd" the fraction of the velocity that heavy-ball steps keep, with ``Q <- momentum Q + U`` and
        ``theta <- (1 - eta lam) theta + eta Q``; for "flow" and "multistep" the time constant tau of L.1,
        with ``tau dQ/dt = -Q + U`` and ``d theta/dt = Q``.
    temperature : number or Expr
        The temperature T of Langevin noise.
    samples : Expr
        The number of samples, for the mean loss.

    Returns
    -------
    TrainingRule
        The rule.

    Raises
    ------
    ProgramError
        If ``rule`` or ``loss`` is unknown, no rule has this combination of options, or a number is out of
        its range.

    Notes
    -----
    With ``U = -gamma0^2 N grad(loss)``, weights theta with entries N(0, 1) at initialisation follow

    - ``"flow"``: ``d theta = (U - lam theta) dt + sqrt(2 T) dB`` (selfconsistent2023 J; K.1 is this with
      ``lam = lam_K/beta_K`` and ``T = 1/beta_K``, so that its ridge is ``lam_K = lam/T``);
    - ``"gd"``: steps of length ``eta``, ``theta += eta (U - lam theta) + sqrt(2 eta T) xi``;
    - ``"multistep"``: the flow discretised by an explicit multistep integrator, with tables ``w(t, s)`` of
      its memory of updates, which contains the momentum, ``m(t)`` of that of initial weights, and
      ``n(t, s)`` of its noise.

    Examples
    --------
    >>> training_rule("gd", "mean").rate
    eta/P
    >>> from sympy.abc import s, t
    >>> training_rule("flow", weight_decay=2).memory(t, s)
    (exp(-2*t), exp(2*s - 2*t))
    """
    if not isinstance(rule, str):
        raise ProgramError(f"rule = {rule!r}: must be {RULE_NAMES}")
    POSITIVE.require(samples, "samples")
    share = _share_of_loss(loss, samples)
    numbers: dict[str, Any] = {
        "weight_decay": weight_decay,
        "momentum": momentum,
        "temperature": temperature,
    }
    decay, kept, heat = (expression(x, key) for key, x in numbers.items())
    if kept != 0 and heat != 0:
        raise ProgramError(
            f"momentum = {momentum} with temperature = {temperature}: noise that enters through a velocity "
            "(underdamped Langevin dynamics) is not a training rule here; leave one of them out"
        )
    if rule in ENTRYWISE:
        _require_zero(rule, {"momentum": kept, "temperature": heat})
        return entrywise_rule(rule, loss, weight_decay=weight_decay, samples=samples)
    if rule == "gd" and kept != 0:
        return Momentum(eta * share, kept, decay=eta * decay)
    if rule == "gd":
        return GradientDescent(eta * share, decay=eta * decay, diffusion=2 * eta * heat)
    if rule == "flow" and kept == 0:
        return GradientFlow(share, decay=decay, diffusion=2 * heat)
    if rule == "flow" and decay == 0:
        return MomentumFlow(kept, share)
    if rule == "flow":
        raise ProgramError(
            f"momentum = {momentum} with weight_decay = {weight_decay}: the rules 'flow' and 'multistep' "
            "have momentum or weight decay, but not both; use 'gd'"
        )
    if rule == "multistep":
        flow = training_rule("flow", **numbers)
        forgets, noisy = flow.memory(t, s)[0] != 1, flow.noise(t, s) != 0
        return Multistep(
            share,
            left="m" if forgets else None,
            heat="n" if noisy else None,
            diffusion=S.One if noisy else S.Zero,
        )
    why = (
        "is not known by name (derive.program.Entrywise makes a rule that acts on each entry of a gradient); "
    )
    why = why if rule.lower() in ADAPTIVE.split() else ""
    raise ProgramError(f"rule = {rule!r}: {why}must be {RULE_NAMES}")


RULE_NAMES = f"'gd', 'flow', 'multistep', or one of {', '.join(ENTRYWISE)}"
"""The names of rules, in words."""


def _require_zero(rule: str, numbers: dict[str, Expr]) -> None:
    """Raise :class:`ProgramError` for an option that is not zero, because the rule does not have it."""
    for key, value in numbers.items():
        if value != 0:
            raise ProgramError(
                f"{key} = {value} with rule = {rule!r}: this rule has no option {key}; use {key} = 0, or "
                "rule = 'gd'"
            )


def rule_of(
    rule: str | TrainingRule, loss: str, samples: Expr = P, **numbers: NumberOrExpression
) -> TrainingRule:
    """Return the rule of a name (see :func:`training_rule`), or the rule itself.

    The mean loss divides the gradient that a rule object receives by the number of ``samples``, as that of a
    named rule. Raises :class:`ProgramError` for an unknown name of a rule, for an unknown loss, and if one of
    ``numbers``, the options of a named rule, is not zero and comes with a rule object. An object that is not
    a rule is returned unchanged, because :meth:`.Network.train` refuses it.

    >>> rule_of(GradientDescent(eta), "sum", momentum=0).rate
    eta
    >>> rule_of(GradientDescent(eta), "mean").rate
    eta/P
    """
    if isinstance(rule, str):
        return training_rule(rule, loss, samples=samples, **numbers)
    given = [key for key, value in numbers.items() if value != 0]
    if given:
        raise ProgramError(
            f"{', '.join(given)} with rule = {rule!r}: only for rules that are given by their names; leave "
            f"{' and '.join(given)} out, and state decay, momentum or noise in the rule object instead, as "
            "in GradientDescent(eta, decay=...)"
        )
    trained_by: TrainingRule = _on_loss(rule, loss, samples)
    return trained_by


def rules_of(rules: Any, loss: str, samples: Expr = P) -> Any:
    """Return the rules of single weights, by name of the weight, for the summed loss or its mean.

    The mean loss divides the gradients that the rules receive by the number of ``samples``. ``rules`` is a
    mapping, or a sequence of pairs (name, rule). Another argument is returned unchanged, because
    :meth:`.Network.train` refuses it.

    >>> rules_of({"W": GradientDescent(eta)}, "mean")["W"].rate
    eta/P
    """
    if isinstance(rules, Mapping):
        return {name: _on_loss(rule, loss, samples) for name, rule in rules.items()}
    pairs = rules if isinstance(rules, tuple | list) else ()
    if not pairs or any(not isinstance(x, tuple | list) or len(x) != 2 for x in pairs):
        return rules
    return tuple((name, _on_loss(rule, loss, samples)) for name, rule in pairs)


def _on_loss(rule: Any, loss: str, samples: Expr) -> Any:
    """Return a rule object for the gradient of the summed loss, or of its mean over ``samples``.

    An object that is not a rule is returned unchanged, because :meth:`.Network.train` refuses it.
    """
    share = _share_of_loss(loss, samples)
    return of_gradient(rule, share) if hasattr(rule, "memory") and not isinstance(rule, type) else rule


# -- losses of an output -------------------------------------------------------------------------------------

OBJECTIVES: dict[str, Callable[[Expr, Expr, IndexRanges], Expr]] = {
    "square": lambda y, f, _: (y - f) ** 2 / 2,
    "logistic": lambda y, f, _: log(1 + exp(-y * f)),
    "hinge": lambda y, f, _: Max(0, 1 - y * f),
    "cross-entropy": lambda y, f, channels: _cross_entropy(y, f, channels),
}
"""Losses by name, as functions of a target, an output and the ranges of channels. For logistic and hinge the
target is a sign, 1 or -1. For cross-entropy each channel is a class, and the target its probability."""


def objective_of(name: str, target: Expr, output: Expr, channels: IndexRanges = ()) -> Expr:
    """Return the loss of one sample by name, as an expression of target and output.

    With several channels the expression of "square", "logistic" and "hinge" is the loss of one channel,
    because training sums the loss over its indices; that of "cross-entropy" contains the sums over the index
    in ``channels``. Raises :class:`ProgramError` for an unknown name, and for "cross-entropy" without
    channels.

    >>> y, f = Symbol("y"), Symbol("f")
    >>> objective_of("square", y, f), objective_of("logistic", y, f)
    ((-f + y)**2/2, log(1 + exp(-f*y)))
    """
    if not isinstance(name, str) or name not in OBJECTIVES:
        raise ProgramError(f"objective = {name!r}: must be one of {', '.join(OBJECTIVES)}")
    if name == "cross-entropy" and not channels:
        raise ProgramError(
            "objective = 'cross-entropy': must have several outputs, one for each class, and the network has "
            "one; give their number if the network has the option outputs, or use 'logistic' for two classes"
        )
    return OBJECTIVES[name](target, output, channels)


def _cross_entropy(y: Expr, f: Expr, channels: IndexRanges) -> Expr:
    """Return the cross-entropy ``log sum_c e^{f_c} - sum_c y_c f_c`` of one sample.

    The sums are over the index c in ``channels``, and ``y`` and ``f`` are target and output at this index.
    """
    (classes,) = channels
    return log(Sum(exp(f), classes.limits)) - Sum(y * f, classes.limits)


# -- weights of samples in the loss; the weight of a test point is zero -------------------------------------

SAMPLE_WEIGHT = "rho"
"""Name of the function of a sample that multiplies its loss; zero for a test point."""


def has_sample_weights(program: Program) -> bool:
    """Return whether the loss of each sample of the program is multiplied by a weight ``rho(mu)``.

    The weight is recognised by its name: the result is whether the program has a given function ``rho``.

    >>> from derive.program import mlp
    >>> has_sample_weights(mlp(2)), has_sample_weights(mlp(2, sample_weights=True))
    (False, True)
    """
    return SAMPLE_WEIGHT in program.constants
