"""The commands `dmft limits ...`: limits and closed forms of derived theories.

Each command takes an experiment file, a program or exponents, calls an analysis of `derive` or
`numerics.analysis`, and prints formulas, numbers and the conditions under which they hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from numerics.cli.common import (
    AsJson,
    DataIn,
    Settings,
    SpecFile,
    load,
    load_layers,
    load_problem,
    load_program,
    naming_the_key,
    numbers_in,
    print_json,
    progress,
    refuse_arrays,
    refuse_settings,
    refuse_unused,
    say,
)
from numerics.errors import SpecError, require_finite

if TYPE_CHECKING:
    from sympy import Expr

    from derive.scale.bottlenecks import Bottleneck
    from derive.scale.power_laws import PowerLaw
    from numerics.analysis.limits import EarlySteps, Recovery

StepsOption = Annotated[
    int, typer.Option("--steps", help="Also the loss after 1, 2, ... steps, and the memory-free recursion.")
]
Recovers = Annotated[
    bool,
    typer.Option(
        "--recovery", help="Also the largest rate at which training.steps steps succeed, and its lazy limit."
    ),
]


def early_time(
    file: SpecFile,
    steps: StepsOption = 0,
    recovery: Recovers = False,
    as_json: AsJson = False,
    data: DataIn = None,
    settings: Settings = None,
) -> None:
    """Print the factor by which the first step on isotropic data changes the test loss without label noise.

    The critical learning rate is printed too: above it, the test loss rises in the first step. If
    network.depth is "L", only formulas are printed. FILE may be a program: then numbers are printed if --set
    gives one for each symbol. A formula with the root q of an equation takes no numbers; give the program an
    integer depth or center=True.
    """
    program = load_program(file)
    from numerics.analysis import limits as of

    early_steps: EarlySteps | None = None
    rates: Recovery | None = None
    if program is None:
        experiment = load_layers(file, settings, data)
        first_step = of.early_time(experiment)
        early_steps = of.early_steps(experiment, steps) if steps else None
        rates = of.recovery(experiment) if recovery else None
    else:
        given = {"--steps": steps or None, "--recovery": recovery or None}
        refuse_unused(given, "is not available for a program", "an experiment file, or no such option")
        refuse_arrays(data)
        first_step = of.early_time(program, numbers_in(settings))
    parts = {"the first step": first_step, "--steps": early_steps, "--recovery": rates}
    shown = {name: x for name, x in parts.items() if x is not None}
    if as_json:
        basis = list(dict.fromkeys(line for x in shown.values() for line in x.conditions()))
        print_json({**{k: v for x in shown.values() for k, v in x.numbers().items()}, "conditions": basis})
        return
    typer.echo(f"C_v(1)/C_v(0) = {first_step.formula}")
    if first_step.root is not None:
        typer.echo(f"            q = {first_step.root}")
    if first_step.growth_factor is not None:
        typer.echo(f"              = {first_step.growth_factor:.10g}")
    typer.echo(
        f"critical learning rate: {_words(first_step.critical_learning_rate, first_step.critical_formula)}"
    )
    for line in (*_steps(early_steps), *_rates(rates)):
        typer.echo(line)
    for name, x in shown.items():
        _conditions(x.conditions(), "" if len(shown) == 1 else f" of {name}")


def _conditions(sentences: Iterable[str], of: str = "") -> None:
    """Print the heading "conditions" followed by ``of``, and below it one sentence on each line."""
    typer.echo(f"conditions{of}")
    for sentence in sentences:
        typer.echo(f"  {sentence}")


def _words(number: float | None, formula: object) -> str:
    """Return the text of a critical learning rate, "formula = number".

    If one of them is None, the text is the other one; if both are, it is "none in closed form".
    """
    parts = [str(formula)] if formula is not None else []
    parts += [f"{number:.10g}"] if number is not None else []
    return " = ".join(parts) or "none in closed form"


def _steps(steps: EarlySteps | None) -> list[str]:
    """Return the printed lines about the test loss after the first steps; [] for None.

    They are the factors of the losses in the first step, a table of ``C_v`` by step, exact and by the
    recursion that neglects the memory of earlier steps, and the terms that this recursion neglects in the
    second step, or the reason why there is no such recursion.
    """
    if steps is None:
        return []
    lines = [f"first step: test loss with label noise is multiplied by {steps.test_growth_factor:.10g}"]
    if steps.train_growth_factor is not None:
        lines.append(f"first step: training loss is multiplied by {steps.train_growth_factor:.10g}")
    recursion = steps.memory_free
    lines.append("step  C_v" + (" " * 13 + "memory-free" if recursion else ""))
    for t, value in enumerate(steps.C_v):
        lines.append(f"{t:4}  {value:<14.8g}" + (f"  {recursion[t]:.8g}" if recursion else ""))
    if steps.dropped is None:
        return [*lines, f"no memory-free recursion: {steps.refused}"]
    return [
        *lines,
        "terms that the recursion neglects in the second step:",
        *[f"  {name}: {value:.6g}" for name, value in steps.dropped.items()],
    ]


def _rates(recovery: Recovery | None) -> list[str]:
    """Return the printed lines about the largest learning rate of successful training; [] for None.

    They state this rate, measured over several steps, whether a loss that rises in the first step can fall
    below its initial value later, and upper bounds of the rate in the lazy limit, or the reason why there are
    none.
    """
    if recovery is None:
        return []
    largest = recovery.largest
    lines = [f"largest learning rate over {largest.steps} steps: {largest.value:.4g}"]
    falls = "can" if recovery.recovers else "cannot"
    lines.append(f"a loss that rises in the first step {falls} fall below its initial value later")
    if recovery.lazy is None:
        return [*lines, f"no lazy limit: {recovery.refused}"]
    return [*lines, f"in the lazy limit: {recovery.lazy:.4g}, at most {recovery.ceiling:.4g}"]


Regime = Annotated[
    str | None, typer.Option("--regime", help="rich or lazy; where it is not given, that of the file.")
]


def largest_rate(
    file: SpecFile,
    regime: Regime = None,
    as_json: AsJson = False,
    data: DataIn = None,
    settings: Settings = None,
) -> None:
    """Print the largest learning rate on the population of isotropic data, and how it scales with nu.

    nu is the ratio of the width to the input dimension; "power of nu" is the exponent of the largest rate.
    The crossover in nu between rich and lazy training is printed too. If network.depth is "L" or FILE is a
    program, formulas are printed without numbers, and --regime is needed.
    """
    program = load_program(file)
    from numerics.analysis.limits import rate_limit

    if program is not None:
        refuse_arrays(data)
        refuse_settings(settings)
    limit = rate_limit(load_layers(file, settings, data) if program is None else program, regime)
    if as_json:
        print_json(limit.to_json())
        return
    form = limit.form
    typer.echo(f"regime: {form.regime}")
    typer.echo(f"largest rate: {form.rate}")
    if limit.rate is not None:
        typer.echo(f"            = {limit.rate:.6g}")
    typer.echo(f"power of nu: {form.exponent}{_number(form.exponent, limit.exponent)}")
    where = "none, at any nu"
    if form.crossover is not None:
        where = f"nu = {form.crossover}{_number(form.crossover, limit.crossover)}"
    typer.echo(f"crossover between rich and lazy: {where}")
    typer.echo(f"size of neglected terms: {form.neglected}{_number(form.neglected, limit.neglected)}")
    _warning(limit.warning)
    _conditions(limit.conditions())


def _warning(sentence: str | None) -> None:
    """Print a sentence as a warning on stdout, unless it is None."""
    if sentence is not None:
        typer.echo(f"warning: {sentence}")


def _number(formula: Expr, number: float | None) -> str:
    """Return the text " = number", to be printed behind a formula.

    It is "" if there is no number, or if the formula itself is a number.
    """
    return "" if number is None or formula.is_number else f" = {number:.4g}"


def depth(file: SpecFile, as_json: AsJson = False, data: DataIn = None, settings: Settings = None) -> None:
    """Print the loss of a residual linear network over time, in the limit of infinite depth L.

    The table holds the limit and the coefficient of the first correction, which is proportional to a power of
    L. For the depth of the file it also holds the loss, and its value to first order. The exponent of feature
    diversity is printed too. Branches have the factor beta0/sqrt(L). If network.depth is "L", network.branch
    is beta0, and no loss at a finite depth is printed. For a program the depth must be a symbol, and the
    number for beta is beta0.
    """
    from numerics.analysis.limits import depth_limits
    from numerics.cli.arguments import is_program

    source = load_problem(file, data, settings) if is_program(file) else load(file, data, settings)
    with naming_the_key(source), progress("limits depth") as meter:
        result = depth_limits(source, progress=meter)
    if as_json:
        print_json(result.to_json())
        return
    power = "1/L" if result.order == -1 else f"L^({result.order:g})"
    typer.echo(f"limit: branch = {result.beta0:.10g}/sqrt(L), L -> infinity")
    named = "" if result.depth is None else f"{f'L = {result.depth}':>16}{'to first order':>16}"
    typer.echo(f"{'time':>8}{'limit':>16}{'coefficient':>16}{named}")
    first_order = result.to_first_order
    for i, time in enumerate(result.time):
        line = f"{time:8g}{result.limit[i]:16.8g}{result.first[i]:16.8g}"
        if result.finite is not None and first_order is not None:
            line += f"{result.finite[i]:16.8g}{first_order[i]:16.8g}"
        typer.echo(line)
    typer.echo(
        f"{result.name} = limit + coefficient * {power}; errors of the layer grid: {result.limit_error:.1g}, "
        f"{result.first_error:.1g}"
    )
    _warning(result.warning)
    typer.echo(f"feature-diversity exponent kappa = {result.diversity.exponent}: {result.near}")
    _conditions(result.conditions())


def scaling(  # noqa: PLR0913 - the arguments are the options of the command
    source: Annotated[str, typer.Option(help="beta: (w*_k)^2 lambda_k = k^(-a beta - 1), a the capacity.")],
    depth: Annotated[int | None, typer.Option(help="Hidden layers L; not of random features.")] = None,
    capacity: Annotated[str | None, typer.Option(help="a: lambda_k = k^-a. A symbol if left out.")] = None,
    regime: Annotated[
        str,
        typer.Option(
            help="lazy, leading (order gamma0^2), rich; batch, width or data: effects of finite ones; "
            "features: random features, their number, data and label noise."
        ),
    ] = "lazy",
    gamma0: Annotated[
        str | None, typer.Option(help="A number for gamma0 in crossover times. A symbol if left out.")
    ] = None,
    learning_rate: Annotated[
        str | None, typer.Option(help="A number for eta, in the batch regime. A symbol if left out.")
    ] = None,
    batch: Annotated[
        str | None, typer.Option(help="A number for B, in the batch regime. A symbol if left out.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the power law by which the loss falls on power-law data, and the crossover times to other laws.

    The loss is a power of the time t of gradient flow; in the batch regime t counts steps. In the data
    regime, the final loss is a power of the number P of samples. In the leading and the width regime, the
    term of the loss of order gamma0^2 or 1/N takes the place of the loss. Numbers may be fractions, such as
    2/3.
    """
    law = _power_law(depth, source, capacity, regime, {"learning_rate": learning_rate, "batch": batch})
    if not law.exponent.is_number:
        raise SpecError("--capacity", None, f"is missing; the exponent is {law.exponent}", "a number")
    crossovers = _crossover_times(law, gamma0)
    sizes = [_bottleneck(x, _gamma0_value(gamma0)) for x in law.bottlenecks]
    if as_json:
        print_json(
            {
                "exponent": float(law.exponent),
                "formula": str(law.formula),
                "regime": law.regime,
                "conditions": list(law.conditions()),
                "crossover": {name: float(x) if x.is_number else str(x) for name, x in crossovers.items()},
                **({"bottlenecks": sizes} if sizes else {}),
                **({"compute_optimal": _optimum(law)} if law.optimum else {}),
            }
        )
        return
    quantity = {"leading": "order gamma0^2 of the loss", "width": "order 1/N of the loss"}.get(regime, "loss")
    base = "t"
    if regime == "data":
        quantity, base = "loss in the end", "P"
    typer.echo(f"{quantity} ~ {_power(base, law.exponent)}")
    typer.echo(f"loss = {_near(law.formula)}")
    _conditions(law.conditions())
    for name, time in crossovers.items():
        typer.echo(f'crossover to the law "{name}" at t = {_near(time)}')
    if law.optimum:
        best = _optimum(law)
        powers = f"N ~ C^({best['features']}) and t ~ C^({best['time']})"
        typer.echo(f"at a compute C = N t: loss ~ C^({best['loss']}), at {powers}")
    for size in sizes:
        typer.echo(f"\n{TITLES[size['name']]}")
        for name, words in LABELS.items():
            if size[name] is not None:
                typer.echo(f"  {words} {size[name]}")
        _conditions(size["conditions"])


TITLES = {
    "width": "finite width N",
    "batch": "fresh batches of B samples",
    "labels": "label noise on batches of B samples",
    "steps": "steps of size eta",
    "features": "N features",
    "samples": "the same P samples",
    "noise": "label noise on the same P samples",
}
"""Printed title of each bottleneck: the finite size that limits the loss."""
LABELS = {
    "share": "relative increase of the loss:",
    "crossover": "takes over at t =",
    "after": "loss after the crossover:",
    "kernel": "correlation C_g(1,t,t) =",
}
"""Printed text before each power of a bottleneck, by the name of the power."""


def _optimum(law: PowerLaw) -> dict[str, str]:
    """Return the exponents of the compute C at the optimum of a power law, as text by name.

    The optimum is the smallest loss at a given compute ``C = N t``, with N features and time t. The key
    "loss" has the exponent of this loss, "features" that of N, and "time" that of t. The law must have an
    optimum.
    """
    return {name: str(getattr(law.optimum, name)) for name in ("loss", "features", "time")}


def _bottleneck(bottleneck: Bottleneck, values: Mapping[Any, Expr]) -> dict[str, Any]:
    """Return the effect of a finite size, such as the width, on the loss as a power law, as text by name.

    The dictionary holds the name of the bottleneck, the added loss divided by the loss of the law
    (``share``), the loss after the crossover (``after``), a kernel after it (``kernel``), the crossover time,
    its exponents by size (a dictionary), and a list of conditions. A power or a crossover time that does not
    exist or is not known is None.
    ``values`` are numbers for symbols, such as gamma0; numerical factors have six digits.
    """
    from derive.scale.bottlenecks import SIZES
    from derive.scale.modes import time

    shown: dict[str, Any] = {"name": bottleneck.name}
    for name, power in (
        ("share", bottleneck.share),
        ("after", bottleneck.after),
        ("kernel", bottleneck.kernel),
    ):
        shown[name] = None if power is None else _rounded(power.at(time), values)
    shown["crossover"] = None if bottleneck.crossover is None else _rounded(bottleneck.crossover, values)
    crossover = set() if bottleneck.crossover is None else bottleneck.crossover.free_symbols
    sizes = sorted(crossover & {*SIZES}, key=str)
    shown["exponents"] = {str(x): str(bottleneck.exponent(x)) for x in sizes}
    shown["conditions"] = list(bottleneck.conditions())
    return shown


def _rounded(expression: Expr, values: Mapping[Any, Expr]) -> str:
    """Return a product as text; its numerical factor has six digits.

    ``values`` are numbers for symbols, such as gamma0, which are inserted first.
    """
    from mpmath import workdps
    from sympy import Float, lambdify

    number, symbols = expression.subs(values).as_independent(*expression.free_symbols, as_Add=False)
    # mpmath computes with a fixed number of digits. SymPy's evalf is slower, because it bounds the error of
    # each factor.
    with workdps(DIGITS):
        value = lambdify([], number, "mpmath")()
    return str(Float(value, 6) * symbols)


DIGITS = 40
"""Decimal digits with which constants are computed, because their terms may cancel."""


def _power(base: str, exponent: Expr) -> str:
    """Return the text of ``base`` to the power minus ``exponent``, as a formula and as a number.

    For the exponent zero the text says that the quantity is a constant.
    """
    if exponent == 0:
        return f"a constant, which does not depend on {base}"
    formula = f"-({exponent})" if exponent > 0 else f"({-exponent})"
    return f"{base}^{formula} = {base}^{-float(exponent):.6g}"


REGIMES = ("lazy", "leading", "rich", "batch", "width", "data", "features")


def _power_law(
    depth: int | None, source: str, capacity: str | None, regime: str, more: Mapping[str, str | None]
) -> PowerLaw:
    """Return the power law of the loss in a regime, at the numbers of the command line.

    ``source`` and ``capacity`` are the exponents of the data as text; None leaves the capacity a symbol.
    ``more`` maps the options of the batch regime, such as ``learning_rate``, to their texts or None. Raises
    SpecError for an unknown regime, for an option that the regime does not use, for a missing depth, and for
    a number that the law refuses.
    """
    from derive.errors import NotApplicable
    from derive.scale.modes import capacity as symbol

    if regime not in REGIMES:
        raise SpecError("--regime", regime, "is not a regime", ", ".join(REGIMES))
    numbers = {name: number for name, number in more.items() if number is not None}
    for name, number in numbers.items():
        if regime != "batch":
            raise SpecError(
                f"--{name.replace('_', '-')}", number, f"is not used in the {regime} regime", "--regime batch"
            )
    shape = () if regime == "features" else (depth,)
    if depth is None and shape:
        raise SpecError("--depth", None, "is missing", "1, 2, 3, ...")
    if depth is not None and not shape:
        raise SpecError(
            "--depth", depth, "is not used for random features, which have one layer", "no --depth"
        )
    try:
        return _law(regime)(*shape, source, symbol if capacity is None else capacity, **numbers)
    except (ValueError, NotApplicable) as error:
        name, _, remainder = str(error).partition(" = ")
        value, _, problem = remainder.partition(": ")
        if name not in ("depth", "source", "capacity", *numbers):
            raise
        accepted = "1, 2, 3, ..." if name == "depth" else "a positive number"
        if isinstance(error, NotApplicable):
            accepted += " other than this"
        raise SpecError(f"--{name.replace('_', '-')}", value.strip("'"), problem, accepted) from error


@cache
def _law(regime: str) -> Callable[..., PowerLaw]:
    """Return the power law of a regime as a function of the depth and of the exponents source and capacity.

    The law of random features has no depth; that of finite batches also takes ``learning_rate`` and
    ``batch``. The theories from which the laws follow are derived once in a process.
    """
    if regime == "features":
        return _features_law()
    if regime == "batch":
        return _batch_law()
    return _flow_law(regime)


def _features_law() -> Callable[..., PowerLaw]:
    """Return a function that gives the power law of the loss of random features.

    Its arguments are the exponents of the data: source and capacity.
    """
    from derive.program.networks import random_features
    from derive.reduce.data import mode_sums
    from derive.scale import random_features as features_of
    from derive.theory import mean_field

    theory = mode_sums(mean_field(random_features(noise=True)))
    return partial(features_of.features_law, features_of.eliminated(theory))


def _batch_law() -> Callable[..., PowerLaw]:
    """Return the law of training on finite batches as a function of depth, source and capacity.

    The function also takes the keywords ``learning_rate`` and ``batch``, which are symbols if they are not
    given.
    """
    from derive.program.networks import structured
    from derive.scale import finite_batch, power_laws
    from derive.theory import mean_field

    return partial(power_laws.batch_law, finite_batch.batch_noise(mean_field(structured(noise=True))))


def _flow_law(regime: str) -> Callable[..., PowerLaw]:
    """Return the power law of the loss in gradient flow, as a function of depth, source and capacity.

    ``regime`` is "lazy", "leading", "rich", "width" or "data". Source and capacity are the exponents of the
    data.
    """
    from derive.program.networks import mlp, structured
    from derive.scale import bottlenecks, finite_width, modes, power_laws
    from derive.scale.rich import rank_one
    from derive.theory import mean_field

    flow = mean_field(structured(data="population", rule="flow"))
    if regime == "rich":
        rank_one_theory = rank_one(flow)
        programs = structured(noise=True), structured(data="population")
        finite = bottlenecks.resources(rank_one_theory, flow, *map(mean_field, programs))
        return partial(power_laws.rich_law, rank_one_theory, modes.lazy_modes(flow), finite=finite)
    if regime == "data":
        fixed = mean_field(structured(data="full-batch", noise=True, rule="flow"))
        return partial(power_laws.data_law, power_laws.fixed_data(fixed), modes.lazy_modes(flow))
    samples = mean_field(mlp(rule="flow", loss="sum"))
    if regime == "width":
        return partial(power_laws.width_law, finite_width.width_noise(flow, samples, modes.lazy_modes(flow)))
    order = modes.leading_order(flow, samples)
    if regime == "leading":
        return partial(power_laws.leading_law, order)
    return partial(power_laws.lazy_law, order.modes, order=order)


def _near(expression: Expr) -> str:
    """Return an expression as text; a number is converted to a decimal.

    If the text with numerical factors rounded to six digits is shorter, it is added as a second line after
    "≈".
    """
    from sympy import Add

    if expression.is_number:
        return str(float(expression))
    terms = Add.make_args(expression.expand() if expression.is_Add else expression)
    parts = (x.as_independent(*expression.free_symbols, as_Add=False) for x in terms)
    rounded = str(Add(*[number.evalf(6) * symbols for number, symbols in parts]))
    return f"{expression}\n     ≈ {rounded}" if len(rounded) < len(str(expression)) else str(expression)


def _gamma0_value(given: str | None) -> dict[Any, Expr]:
    """Return the substitution {gamma0: number} for the option --gamma0, or {} if it is not given.

    Raises SpecError if it is not a positive number.
    """
    from derive.calculus.symbols import exact, gamma0

    values: dict[Any, Expr] = {}
    if given is not None:
        try:
            values = {gamma0: exact("gamma0", given)}
        except ValueError as error:
            problem = str(error).rpartition(": ")[2]
            raise SpecError("--gamma0", given, problem, "a positive number") from error
        if not values[gamma0] > 0:
            raise SpecError("--gamma0", given, "must be positive", "a positive number")
    return values


def _crossover_times(law: PowerLaw, given: str | None) -> dict[str, Expr]:
    """Return the times at which the law begins or ends, by the name of the other law or of the cause.

    ``given`` is the number for gamma0, the option --gamma0; None leaves gamma0 a symbol. Raises SpecError if
    it is not a positive number, and Diverged if a time overflows.
    """
    values = _gamma0_value(given)
    times: dict[str, Expr] = {name: time.subs(values) for name, time in law.crossover.items()}
    require_finite({name: float(time) for name, time in times.items() if time.is_number})
    return times


ExponentOption = Annotated[
    str | None, typer.Option(metavar="NUMBER", help="A number or a fraction such as 1/2.")
]
HIDDEN = 2
OptimizerOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="sgd, momentum, sign, adam, adamw, rmsprop, lion or muon; --alpha may go with it.",
    ),
]


def parametrization(
    alpha: ExponentOption = None,
    gamma: ExponentOption = None,
    optimizer: OptimizerOption = None,
    as_json: AsJson = False,
) -> None:
    """Print powers of the width, or of the depth, with which a network trains well.

    Without options: conditions on the powers of the width N, for weights N^-a W with variances N^-b, rate eta
    gamma^2 N^-c and gamma = gamma0 N^d. With both --alpha and --gamma: the regime of training at great depth
    L, for branches times L^-alpha and updates of size L^-gamma. With --optimizer: powers of N and of L in
    learning rates, epsilon and weight decay of each kind of weight, and the effects of other powers.
    """
    if optimizer is not None:
        _optimizer(optimizer, alpha, gamma, as_json)
        return
    if (alpha is None) != (gamma is None):
        key, value = ("--alpha", alpha) if gamma is None else ("--gamma", gamma)
        raise SpecError(
            key,
            value,
            "is given without the other option",
            "both --alpha and --gamma for powers of the depth, or neither for powers of the width",
        )
    if alpha is not None and gamma is not None:
        _depth(alpha, gamma, as_json)
        return
    conditions = width()
    if as_json:
        print_json(conditions)
        return
    typer.echo("weights N^-a W, variances N^-b, rate eta gamma^2 N^-c, gamma = gamma0 N^d")
    for requirement, equations in conditions["requirements"].items():
        typer.echo(f"\n{requirement}:")
        for equation in equations:
            typer.echo(f"  {equation}")
    typer.echo("\nfamily:         " + _listed(conditions["family"]))
    typer.echo("muP:            " + _listed(conditions["maximal_update"]))
    for shift in conditions["symmetries"]:
        typer.echo("same network:   " + _listed(shift))
    typer.echo("")
    for name, row in conditions["named"].items():
        broken = f": {'; '.join(row['broken'])}" if row["broken"] else ""
        typer.echo(f"{name:20}{row['regime']}{broken}")
    _conditions(conditions["conditions"])


def _optimizer(name: str, alpha: str | None, gamma: str | None, as_json: bool) -> None:
    """Print with which powers of width and depth the settings of an optimiser scale.

    ``name`` is the optimiser, ``alpha`` the power of the depth in branches, or None. ``as_json`` prints JSON
    in place of tables. Raises SpecError if ``gamma`` is given, because it follows from the optimiser.
    """
    from numerics.cli.optimizers import optimizer_tables, print_tables

    if gamma is not None:
        problem = "cannot be combined with --optimizer, which determines the powers in updates"
        raise SpecError("--gamma", gamma, problem, "--optimizer alone or with --alpha")
    tables = optimizer_tables(name, alpha)
    if as_json:
        print_json(tables)
        return
    print_tables(tables)
    _conditions(tables["conditions"])


def width() -> dict[str, Any]:
    """Return the conditions on powers of the width under which a network trains well, as text by name.

    The powers a, b, c, d are those of :func:`parametrization`. Beside the conditions are their solutions, and
    the regimes and powers of known parametrizations.
    """
    from sympy import Function

    from derive.program import mlp
    from derive.scale.width import REQUIREMENTS, named, width_class, width_constraints

    program = mlp(HIDDEN, Function("phi"))
    constraints = width_constraints(program)
    rows, basis = {}, list(constraints.conditions())
    for name, exponents in named(program, constraints).items():
        scaling = width_class(program, exponents)
        basis += scaling.conditions()
        powers = {"start": scaling.start, "rates": scaling.rates, "changes": scaling.changes}
        rows[name] = {
            "exponents": _text(exponents),
            "regime": scaling.regime,
            "broken": list(scaling.broken),
            **{
                k: {_called(x): None if v is None else str(v) for x, v in table.items()}
                for k, table in powers.items()
            },
        }
    return {
        "requirements": {
            r: list(dict.fromkeys(f"{x.power} = 0" for x in constraints.of(r))) for r in REQUIREMENTS
        },
        "family": _text(constraints.family()),
        "maximal_update": _text(constraints.maximal_update()),
        "symmetries": [_text(x) for x in constraints.symmetries],
        "named": rows,
        "conditions": list(dict.fromkeys(basis)),
    }


def _depth(alpha: str, gamma: str, as_json: bool) -> None:
    """Print the regime of training of a residual network whose branches and updates scale with its depth.

    Branches have the factor L^-alpha, updates the size L^-gamma; both exponents are given as text.
    ``as_json`` prints JSON in place of lines of text. Raises SpecError for exponents that have no regime,
    such as text that is not a number.
    """
    from derive.depth import balance
    from derive.errors import NotApplicable
    from derive.program import depth_program
    from derive.scale.depth import DepthParametrization
    from derive.theory import mean_field

    program = depth_program(alpha=balance.alpha, gamma=balance.gamma)
    try:
        classes = DepthParametrization(mean_field(program)).classify(alpha, gamma).as_json()
    except NotApplicable as reason:
        raise SpecError("--alpha, --gamma", f"{alpha}, {gamma}", str(reason), "numbers") from None
    if as_json:
        print_json(classes)
        return
    statements, conditions = classes.pop("statements"), classes.pop("conditions")
    exponents = classes.pop("exponents")
    for key, value in classes.items():
        typer.echo(f"{key.replace('_', ' '):24}{value}")
    typer.echo("powers of L:            " + _listed(exponents))  # type: ignore[arg-type]
    for x in statements:  # type: ignore[attr-defined]
        leading = f"; first step {x['leading']}" if x["leading"] else ""
        typer.echo(f"  {x['name']}: L^({x['exponent']}){leading} [{x['how']}]")
    _conditions(conditions)  # type: ignore[arg-type]


def _called(node: tuple[str, Any]) -> str:
    """Return a quantity of the program as text: "name", or "name(layer)" if it belongs to a layer.

    ``node`` is the pair of the name and the layer, which is None for quantities without one.
    """
    name, site = node
    return name if site is None else f"{name}({site})"


def _text(table: Any) -> dict[str, str]:
    """Return a table with its keys and values converted to text."""
    return {str(k): str(v) for k, v in table.items()}


def _listed(table: dict[str, Any]) -> str:
    """Return a dictionary as the text "key = value, key = value, ..."."""
    return ", ".join(f"{k} = {v}" for k, v in table.items())


RestForm = Annotated[
    Literal["text", "latex"], typer.Option("--format", help="The form to print the equations in.")
]


def equilibrium(
    file: SpecFile,
    form: RestForm = "text",
    as_json: AsJson = False,
    data: DataIn = None,
    settings: Settings = None,
) -> None:
    """Print the equations of a network at rest: equilibrium of noise and decay, or ridge regression.

    Ridge regression is the case without noise. The equations are solved for flows of linear networks on one
    sample (without noise: with one hidden layer). For a program only the equations are printed.
    """
    program = load_program(file)
    from numerics.analysis.equilibrium import rest_point

    if program is not None:
        refuse_arrays(data)
        refuse_settings(settings)
    if as_json and form != "text":
        raise SpecError("--format", form, "is not used with --json", "one of them")
    rest = rest_point(load(file, data, settings) if program is None else program)
    if as_json:
        print_json(rest.to_json())
        return
    titles = {
        "equilibrium": "the stationary density of weights under noise and decay",
        "ridge": "ridge regression",
    }
    typer.echo(f"at rest: {titles[rest.kind]}")
    for line in [rest.latex()] if form == "latex" else rest.numbers()["equations"]:
        typer.echo(f"  {line}")
    for name, value in rest.values.items():
        typer.echo(f"{name} = {value:.10g}")
    if rest.others:
        typer.echo(f"other rest points: f = {', '.join(f'{x:.10g}' for x in rest.others)}")
    _conditions(rest.conditions())


def finite_width(
    file: SpecFile, as_json: AsJson = False, data: DataIn = None, settings: Settings = None
) -> None:
    """Print the widths N from which the limit holds to 1 % in loss and kernels, by time.

    Each quantity has two widths: from the first one the mean over networks is within 1 % of the limit, from
    the second one a single network is, by one standard deviation. Below the width in the last column,
    networks fluctuate as much as the error itself, and the expansion in 1/N does not hold. N counts the
    neurons of the widest hidden layer. FILE may be a program; then N is the width in its theory.
    """
    from numerics.analysis.finite_width import SHARE, finite_width_limit

    source = load_problem(file, data, settings)
    with naming_the_key(source), progress("limits finite-width") as meter:
        widths = finite_width_limit(source, progress=meter, say=say)
    if as_json:
        print_json(widths.to_json())
        return
    columns = {
        widths.name: widths.loss,
        "loss, mean": widths.loss_mean,
        "loss, network": widths.loss_network,
        "kernels, mean": widths.kernel_mean,
        "kernels, network": widths.kernel_network,
        "1/N fails below": widths.failing,
    }
    shown = {name: x for name, x in columns.items() if x is not None}
    typer.echo(
        f"widths N from which the limit is right to {100 * SHARE:g} %, and below which order 1/N fails"
    )
    typer.echo("".join(f"{name:>18}" for name in ("time", *shown)))
    count = len(widths.time)
    for i in sorted({round(k * (count - 1) / max(ROWS - 1, 1)) for k in range(ROWS)}):
        cells = [f"{widths.time[i]:18.6g}", *(_width(x[i], name == widths.name) for name, x in shown.items())]
        typer.echo("".join(cells))
    for key in ("no_shift", "variance_error", "shift_error"):
        if key in widths.notes:
            known = widths.notes[key]
            what = f"relative error of {key.removesuffix('_error')}s"
            typer.echo(known if key == "no_shift" else f"{what}: {known:.1e}")
    for sentence in widths.statements:
        typer.echo(f"in the lazy limit {sentence}")
    _conditions(widths.conditions())


ROWS = 9
"""Number of times that a table shows."""


def _width(x: float, exact: bool) -> str:
    """Return a number as a cell of 18 columns in the table of widths; a dash for nan.

    ``exact`` is true for losses, which have eight digits; widths have three.
    """
    if x != x:
        return f"{'-':>18}"
    return f"{x:18.8g}" if exact else f"{x if x > ROUNDED else 0:18.3g}"


ROUNDED = 1e-6
"""Width below which zero is printed, because it is a rounding error."""


limits = typer.Typer(help="Limits of the derived theory in closed form.", no_args_is_help=True)
for command in (early_time, largest_rate, scaling, parametrization, depth, finite_width, equilibrium):
    limits.command()(command)
