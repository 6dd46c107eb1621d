"""`dmft limits`: what derived theories say in closed form."""

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
    """The first step on isotropic data: by which factor the test loss changes, and at which rate it rises.

    network.depth may be "L", and FILE a program: then there are formulas, and numbers if --set gives one for
    each symbol.
    """
    program = load_program(file)
    from numerics.analysis import limits as of

    more: EarlySteps | None = None
    rates: Recovery | None = None
    if program is None:
        experiment = load_layers(file, settings, data)
        found = of.early_time(experiment)
        more = of.early_steps(experiment, steps) if steps else None
        rates = of.recovery(experiment) if recovery else None
    else:
        for option, given in (("--steps", steps or None), ("--recovery", recovery or None)):
            if given is not None:
                raise SpecError(option, given, "is not there for a program", f"a file, or no {option}")
        found = of.early_time(program, numbers_in(settings))
        refuse_arrays(data)
    parts = {"the first step": found, "--steps": more, "--recovery": rates}
    shown = {name: x for name, x in parts.items() if x is not None}
    if as_json:
        basis = list(dict.fromkeys(line for x in shown.values() for line in x.conditions()))
        print_json({**{k: v for x in shown.values() for k, v in x.numbers().items()}, "conditions": basis})
        return
    typer.echo(f"C_v(1)/C_v(0) = {found.formula}")
    if found.root is not None:
        typer.echo(f"            q = {found.root}")
    if found.growth_factor is not None:
        typer.echo(f"              = {found.growth_factor:.10g}")
    typer.echo(f"critical learning rate: {_words(found.critical_learning_rate, found.critical_formula)}")
    for line in (*_steps(more), *_rates(rates)):
        typer.echo(line)
    for name, x in shown.items():
        _conditions(x.conditions(), "" if len(shown) == 1 else f" of {name}")


def _conditions(sentences: Iterable[str], of: str = "") -> None:
    """Print what a limit rests on, one sentence a line."""
    typer.echo(f"conditions{of}")
    for sentence in sentences:
        typer.echo(f"  {sentence}")


def _words(number: float | None, formula: object) -> str:
    parts = [str(formula)] if formula is not None else []
    parts += [f"{number:.10g}"] if number is not None else []
    return " = ".join(parts) or "none in closed form"


def _steps(found: EarlySteps | None) -> list[str]:
    if found is None:
        return []
    lines = [f"test loss with label noise, first step: times {found.test_growth_factor:.10g}"]
    if found.train_growth_factor is not None:
        lines.append(f"training loss, first step: times {found.train_growth_factor:.10g}")
    recursion = found.memory_free
    lines.append("step  C_v" + (" " * 13 + "memory-free" if recursion else ""))
    for t, value in enumerate(found.C_v):
        lines.append(f"{t:4}  {value:<14.8g}" + (f"  {recursion[t]:.8g}" if recursion else ""))
    if found.dropped is None:
        return [*lines, f"no memory-free recursion: {found.refused}"]
    return [
        *lines,
        "dropped in the second step:",
        *[f"  {name}: {value:.6g}" for name, value in found.dropped.items()],
    ]


def _rates(found: Recovery | None) -> list[str]:
    if found is None:
        return []
    largest = found.largest
    lines = [f"largest learning rate over {largest.steps} steps: {largest.value:.4g}"]
    lines.append(f"a loss that rises first {'can' if found.recovers else 'does not'} recover")
    if found.lazy is None:
        return [*lines, f"no lazy limit: {found.refused}"]
    return [*lines, f"in the lazy limit: {found.lazy:.4g}, at most {found.ceiling:.4g}"]


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
    """The largest learning rate on the population of isotropic data, and its power of nu.

    network.depth may be "L", and FILE a program: then there are formulas and no numbers, and --regime is
    needed.
    """
    program = load_program(file)
    from numerics.analysis.limits import rate_limit

    found = rate_limit(load_layers(file, settings, data) if program is None else program, regime)
    if program is not None:
        refuse_arrays(data)
        if settings:
            reason = "is not put into the formulas of a program"
            raise SpecError("--set", settings[0], reason, "no --set, or an experiment file")
    if as_json:
        print_json(found.to_json())
        return
    form = found.form
    typer.echo(f"regime: {form.regime}")
    typer.echo(f"largest rate: {form.rate}")
    if found.rate is not None:
        typer.echo(f"            = {found.rate:.6g}")
    typer.echo(f"power of nu: {form.exponent}{_number(form.exponent, found.exponent)}")
    where = "none, at any nu"
    if form.crossover is not None:
        where = f"nu = {form.crossover}{_number(form.crossover, found.crossover)}"
    typer.echo(f"crossover between rich and lazy: {where}")
    typer.echo(f"neglected, beside one: {form.neglected}{_number(form.neglected, found.neglected)}")
    _warning(found.warning)
    _conditions(found.conditions())


def _warning(sentence: str | None) -> None:
    """A line that says where the numbers do not hold."""
    if sentence is not None:
        typer.echo(f"warning: {sentence}")


def _number(e: Expr, x: float | None) -> str:
    """`` = `` and the number, unless the formula is that number."""
    return "" if x is None or e.is_number else f" = {x:.4g}"


def depth(file: SpecFile, as_json: AsJson = False, data: DataIn = None, settings: Settings = None) -> None:
    """A residual linear network and its limit of infinite depth: loss, first correction, feature diversity.

    The depth may be a number, or "L": then network.branch is the branch times the square root of the depth,
    and only the limit is there; so it is with beta of a program, whose depth must be a symbol.
    """
    from numerics.analysis.limits import depth_limits
    from numerics.cli.arguments import is_program

    source = load_problem(file, data, settings) if is_program(file) else load(file, data, settings)
    with naming_the_key(source), progress("limits depth") as meter:
        found = depth_limits(source, progress=meter)
    if as_json:
        print_json(found.to_json())
        return
    power = "1/L" if found.order == -1 else f"L^({found.order:g})"
    typer.echo(f"limit: branch = {found.beta0:.10g}/sqrt(L), L -> infinity")
    named = "" if found.depth is None else f"{f'L = {found.depth}':>16}{'to first order':>16}"
    typer.echo(f"{'time':>8}{'limit':>16}{'coefficient':>16}{named}")
    rough = found.to_first_order
    for i, time in enumerate(found.time):
        line = f"{time:8g}{found.limit[i]:16.8g}{found.first[i]:16.8g}"
        if found.finite is not None and rough is not None:
            line += f"{found.finite[i]:16.8g}{rough[i]:16.8g}"
        typer.echo(line)
    typer.echo(
        f"{found.name} = limit + coefficient * {power}; errors of the layer grid: {found.limit_error:.1g}, "
        f"{found.first_error:.1g}"
    )
    _warning(found.warning)
    typer.echo(f"feature-diversity exponent kappa = {found.diversity.exponent}: {found.near}")
    _conditions(found.conditions())


def scaling(
    source: Annotated[str, typer.Option(help="beta: (w*_k)^2 lambda_k = k^(-a beta - 1), a the capacity.")],
    depth: Annotated[int | None, typer.Option(help="Hidden layers L; not of random features.")] = None,
    capacity: Annotated[str | None, typer.Option(help="a: lambda_k = k^-a. A symbol if left out.")] = None,
    regime: Annotated[
        str,
        typer.Option(
            help="lazy, leading (order gamma0^2), rich; batch, width or data: what finite ones do; features: "
            "random features, their number, data and label noise."
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
    """By which power of time the loss of gradient flow falls on power-law data, and when.

    Numbers may be fractions, such as 2/3.
    """
    found = _found(depth, source, capacity, regime, {"learning_rate": learning_rate, "batch": batch})
    if not found.exponent.is_number:
        raise SpecError("--capacity", None, f"is missing; the exponent is {found.exponent}", "a number")
    shown = _numbers(found, gamma0)
    sizes = [_bottleneck(x, _richness(gamma0)) for x in found.bottlenecks]
    if as_json:
        print_json(
            {
                "exponent": float(found.exponent),
                "formula": str(found.formula),
                "regime": found.regime,
                "conditions": list(found.conditions()),
                "crossover": {why: float(x) if x.is_number else str(x) for why, x in shown.items()},
                **({"bottlenecks": sizes} if sizes else {}),
                **({"compute_optimal": _optimum(found)} if found.optimum else {}),
            }
        )
        return
    what = {"leading": "order gamma0^2 of the loss", "width": "order 1/N of the loss"}.get(regime, "loss")
    of = "t"
    if regime == "data":
        what, of = "loss in the end", "P"
    typer.echo(f"{what} ~ {_power(of, found.exponent)}")
    typer.echo(f"loss = {_near(found.formula)}")
    _conditions(found.conditions())
    for why, when in shown.items():
        typer.echo(f"meets {why} at t = {_near(when)}")
    if found.optimum:
        best = _optimum(found)
        told = f"N ~ C^({best['features']}) and t ~ C^({best['time']})"
        typer.echo(f"at a compute C = N t: loss ~ C^({best['loss']}), at {told}")
    for x in sizes:
        typer.echo(f"\n{TITLES[x['name']]}")
        for name, words in WORDS.items():
            if x[name] is not None:
                typer.echo(f"  {words} {x[name]}")
        _conditions(x["conditions"])


TITLES = {
    "width": "finite width N",
    "batch": "fresh batches of B samples",
    "labels": "label noise on batches of B samples",
    "steps": "steps of size eta",
    "features": "N features",
    "samples": "the same P samples",
    "noise": "label noise on the same P samples",
}
"""Title of each bottleneck: the finite size that sets it."""
WORDS = {
    "share": "adds to the loss the share",
    "crossover": "takes over at t =",
    "after": "after this the loss is",
    "kernel": "and C_g(1,t,t) =",
}
"""Words before each power of a bottleneck."""


def _optimum(found: PowerLaw) -> dict[str, str]:
    """Powers of the compute at which the loss is smallest."""
    return {name: str(getattr(found.optimum, name)) for name in ("loss", "features", "time")}


def _bottleneck(found: Bottleneck, values: Mapping[Any, Expr]) -> dict[str, Any]:
    """What a finite size does to the law, with numbers to six digits."""
    from derive.scale.modes import time

    shown: dict[str, Any] = {"name": found.name}
    for name, power in (("share", found.share), ("after", found.after), ("kernel", found.kernel)):
        shown[name] = None if power is None else _rounded(power.at(time), values)
    shown["crossover"] = None if found.crossover is None else _rounded(found.crossover, values)
    sizes = sorted(found.crossover.free_symbols, key=str) if found.crossover is not None else ()
    shown["exponents"] = {str(x): str(found.exponent(x)) for x in sizes}
    shown["conditions"] = list(found.conditions())
    return shown


def _rounded(e: Expr, values: Mapping[Any, Expr]) -> str:
    """A product with its number to six digits."""
    from mpmath import workdps
    from sympy import Float, lambdify

    number, rest = e.subs(values).as_independent(*e.free_symbols, as_Add=False)
    with workdps(DIGITS):  # a hundred times faster than evalf, which bounds the error of each factor
        value = lambdify([], number, "mpmath")()
    return str(Float(value, 6) * rest)


DIGITS = 40
"""Digits with which constants are computed: their terms may cancel by some of them."""


def _power(of: str, exponent: Expr) -> str:
    """``of`` to minus the exponent, as a formula and as a number."""
    if exponent == 0:
        return f"a constant, which does not depend on {of}"
    formula = f"-({exponent})" if exponent > 0 else f"({-exponent})"
    return f"{of}^{formula} = {of}^{-float(exponent):.6g}"


REGIMES = ("lazy", "leading", "rich", "batch", "width", "data", "features")


def _found(
    depth: int | None, source: str, capacity: str | None, regime: str, more: Mapping[str, str | None]
) -> PowerLaw:
    from derive.errors import NotApplicable
    from derive.scale.modes import capacity as symbol

    if regime not in REGIMES:
        raise SpecError("--regime", regime, "is no regime", ", ".join(REGIMES))
    numbers = {name: x for name, x in more.items() if x is not None}
    for name, x in numbers.items():
        if regime != "batch":
            raise SpecError(
                f"--{name.replace('_', '-')}", x, f"is not used in the {regime} regime", "--regime batch"
            )
    shape = () if regime == "features" else (depth,)
    if depth is None and shape:
        raise SpecError("--depth", None, "is missing", "1, 2, 3, ...")
    if depth is not None and not shape:
        raise SpecError("--depth", depth, "is not used of random features, which have one layer", "no depth")
    try:
        return _law(regime)(*shape, source, symbol if capacity is None else capacity, **numbers)
    except (ValueError, NotApplicable) as error:
        name, _, said = str(error).partition(" = ")
        value, _, problem = said.partition(": ")
        if name not in ("depth", "source", "capacity", *numbers):
            raise
        accepted = "1, 2, 3, ..." if name == "depth" else "a positive number"
        if isinstance(error, NotApplicable):
            accepted += " other than this"
        raise SpecError(f"--{name.replace('_', '-')}", value.strip("'"), problem, accepted) from error


@cache
def _law(regime: str) -> Callable[..., PowerLaw]:
    """The law of a regime from a depth, source and capacity; what it is read from is derived once."""
    from derive.program.networks import mlp, random_features, structured
    from derive.reduce.data import mode_sums
    from derive.scale import bottlenecks, finite_batch, finite_width, modes, power_laws
    from derive.scale import random_features as features_of
    from derive.scale.rich import rank_one
    from derive.theory import mean_field

    if regime == "features":
        program = random_features(noise=True)
        found = features_of.eliminated(mode_sums(mean_field(program)))
        return partial(features_of.features_law, found)
    if regime == "batch":
        return partial(power_laws.batch_law, finite_batch.batch_noise(mean_field(structured(noise=True))))
    flow = mean_field(structured(data="population", rule="flow"))
    if regime == "rich":
        one = rank_one(flow)
        more = structured(noise=True), structured(data="population")
        finite = bottlenecks.resources(one, flow, *map(mean_field, more))
        return partial(power_laws.rich_law, one, modes.lazy_modes(flow), finite=finite)
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


def _near(e: Expr) -> str:
    """``e``, and where that is shorter what it is with numbers to six digits; a number as one."""
    from sympy import Add

    if e.is_number:
        return str(float(e))
    terms = Add.make_args(e.expand() if e.is_Add else e)
    parts = (x.as_independent(*e.free_symbols, as_Add=False) for x in terms)
    near = str(Add(*[number.evalf(6) * rest for number, rest in parts]))
    return f"{e}\n     ≈ {near}" if len(near) < len(str(e)) else str(e)


def _richness(given: str | None) -> dict[Any, Expr]:
    """The number that stands for gamma0, if one is given."""
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


def _numbers(found: PowerLaw, given: str | None) -> dict[str, Expr]:
    """Crossover times."""
    values = _richness(given)
    out: dict[str, Expr] = {why: when.subs(values) for why, when in found.crossover.items()}
    require_finite({why: float(when) for why, when in out.items() if when.is_number})
    return out


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
    """Which powers of the width (without options) or of the depth (with both) train well.

    Width: weights N^-a W with variances N^-b, rate eta gamma^2 N^-c, gamma = gamma0 N^d.  Depth: branches
    times L^-alpha, updates of size L^-gamma.  With --optimizer the powers of N and of L in learning rates,
    epsilon and weight decay of each kind of weight, and what breaks if they scale otherwise.
    """
    if optimizer is not None:
        _optimizer(optimizer, alpha, gamma, as_json)
        return
    if (alpha is None) != (gamma is None):
        key, value = ("--alpha", alpha) if gamma is None else ("--gamma", gamma)
        raise SpecError(
            key, value, "stands alone", "--alpha and --gamma for the depth, neither for the width"
        )
    if alpha is not None and gamma is not None:
        _depth(alpha, gamma, as_json)
        return
    found = width()
    if as_json:
        print_json(found)
        return
    typer.echo("weights N^-a W, variances N^-b, rate eta gamma^2 N^-c, gamma = gamma0 N^d")
    for requirement, equations in found["requirements"].items():
        typer.echo(f"\n{requirement}:")
        for equation in equations:
            typer.echo(f"  {equation}")
    typer.echo("\nfamily:         " + _listed(found["family"]))
    typer.echo("muP:            " + _listed(found["maximal_update"]))
    for shift in found["symmetries"]:
        typer.echo("same network:   " + _listed(shift))
    typer.echo("")
    for name, row in found["named"].items():
        broken = f": {'; '.join(row['broken'])}" if row["broken"] else ""
        typer.echo(f"{name:20}{row['regime']}{broken}")
    _conditions(found["conditions"])


def _optimizer(name: str, alpha: str | None, gamma: str | None, as_json: bool) -> None:
    """Print powers of width and depth for an optimiser."""
    from numerics.cli.optimizers import optimizer_tables, print_tables

    if gamma is not None:
        raise SpecError("--gamma", gamma, "follows from the optimiser", "--optimizer with --alpha or alone")
    found = optimizer_tables(name, alpha)
    if as_json:
        print_json(found)
        return
    print_tables(found)
    _conditions(found["conditions"])


def width() -> dict[str, Any]:
    """What `--json` prints: conditions, their solution, and what common parametrisations do."""
    from sympy import Function

    from derive.program import mlp
    from derive.scale.width import REQUIREMENTS, named, width_class, width_constraints

    program = mlp(HIDDEN, Function("phi"))
    constraints = width_constraints(program)
    rows, basis = {}, list(constraints.conditions())
    for name, exponents in named(program, constraints).items():
        found = width_class(program, exponents)
        basis += found.conditions()
        powers = {"start": found.start, "rates": found.rates, "changes": found.changes}
        rows[name] = {
            "exponents": _text(exponents),
            "regime": found.regime,
            "broken": list(found.broken),
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
    from derive.depth import balance
    from derive.errors import NotApplicable
    from derive.program import depth_program
    from derive.scale.depth import DepthParametrization
    from derive.theory import mean_field

    program = depth_program(alpha=balance.alpha, gamma=balance.gamma)
    try:
        found = DepthParametrization(mean_field(program)).classify(alpha, gamma).as_json()
    except NotApplicable as reason:
        raise SpecError("--alpha, --gamma", f"{alpha}, {gamma}", str(reason), "numbers") from None
    if as_json:
        print_json(found)
        return
    statements, conditions = found.pop("statements"), found.pop("conditions")
    exponents = found.pop("exponents")
    for key, value in found.items():
        typer.echo(f"{key.replace('_', ' '):24}{value}")
    typer.echo("powers of L:            " + _listed(exponents))  # type: ignore[arg-type]
    for x in statements:  # type: ignore[attr-defined]
        leading = f"; first step {x['leading']}" if x["leading"] else ""
        typer.echo(f"  {x['name']}: L^({x['exponent']}){leading} [{x['how']}]")
    _conditions(conditions)  # type: ignore[arg-type]


def _called(node: tuple[str, Any]) -> str:
    name, site = node
    return name if site is None else f"{name}({site})"


def _text(table: Any) -> dict[str, str]:
    return {str(k): str(v) for k, v in table.items()}


def _listed(table: dict[str, Any]) -> str:
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
    """The equations of a network at rest: equilibrium of noise and decay, or ridge regression without noise.

    They are solved for linear networks on one sample (without noise: with one hidden layer).  FILE may be a
    program: then there are equations and no numbers.
    """
    program = load_program(file)
    from numerics.analysis.equilibrium import rest_point

    found = rest_point(load(file, data, settings) if program is None else program)
    if program is not None:
        refuse_arrays(data)
        if settings:
            reason = "is not put into the equations of a program"
            raise SpecError("--set", settings[0], reason, "no --set, or an experiment file")
    if as_json:
        print_json(found.to_json())
        return
    told = {"equilibrium": "the density of weights that noise and decay end in", "ridge": "ridge regression"}
    typer.echo(f"at rest: {told[found.kind]}")
    for line in [found.latex()] if form == "latex" else found.numbers()["equations"]:
        typer.echo(f"  {line}")
    for name, value in found.values.items():
        typer.echo(f"{name} = {value:.10g}")
    if found.others:
        typer.echo(f"other rest points: f = {', '.join(f'{x:.10g}' for x in found.others)}")
    _conditions(found.conditions())


def finite_width(
    file: SpecFile, as_json: AsJson = False, data: DataIn = None, settings: Settings = None
) -> None:
    """Widths from which the limit holds to 1 % in loss and kernels, by time, and where order 1/N fails.

    Of each there are two widths: from the first one on the mean over networks is within 1 % of the limit,
    from the second one on a single network is, by one standard deviation. Below the last column networks
    fluctuate as much as the error itself, and the expansion in 1/N does not hold. N counts the neurons of the
    widest hidden layer. FILE may be a program.
    """
    from numerics.analysis.finite_width import SHARE, finite_width_limit

    source = load_problem(file, data, settings)
    with naming_the_key(source), progress("limits finite-width") as meter:
        found = finite_width_limit(source, progress=meter, say=say)
    if as_json:
        print_json(found.to_json())
        return
    columns = {
        found.name: found.loss,
        "loss, mean": found.loss_mean,
        "loss, network": found.loss_network,
        "kernels, mean": found.kernel_mean,
        "kernels, network": found.kernel_network,
        "1/N fails below": found.failing,
    }
    shown = {name: x for name, x in columns.items() if x is not None}
    typer.echo(
        f"widths N from which the limit is right to {100 * SHARE:g} %, and below which order 1/N fails"
    )
    typer.echo("".join(f"{name:>18}" for name in ("time", *shown)))
    count = len(found.time)
    for i in sorted({round(k * (count - 1) / max(ROWS - 1, 1)) for k in range(ROWS)}):
        cells = [f"{found.time[i]:18.6g}", *(_width(x[i], name == found.name) for name, x in shown.items())]
        typer.echo("".join(cells))
    for key in ("no_shift", "variance_error", "shift_error"):
        if key in found.notes:
            known = found.notes[key]
            what = f"relative error of {key.removesuffix('_error')}s"
            typer.echo(known if key == "no_shift" else f"{what}: {known:.1e}")
    for sentence in found.statements:
        typer.echo(f"in the lazy limit {sentence}")
    _conditions(found.conditions())


ROWS = 9
"""Times that a table shows."""


def _width(x: float, exact: bool) -> str:
    """A loss, or a width, which is a dash where the limit is zero."""
    if x != x:
        return f"{'-':>18}"
    return f"{x:18.8g}" if exact else f"{x if x > ROUNDED else 0:18.3g}"


ROUNDED = 1e-6
"""A width that is printed as zero: it comes from rounding."""


limits = typer.Typer(help="Limits of the derived theory in closed form.", no_args_is_help=True)
for command in (early_time, largest_rate, scaling, parametrization, depth, finite_width, equilibrium):
    limits.command()(command)
