"""`dmft limits parametrization`: of the width, or of the depth with --alpha and --gamma."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from numerics.commands.common import AsJson, print_json
from numerics.errors import SpecError

Power = Annotated[str | None, typer.Option(metavar="NUMBER", help="A number or a fraction such as 1/2.")]
HIDDEN = 2


def parametrization(alpha: Power = None, gamma: Power = None, as_json: AsJson = False) -> None:
    """Which powers of the width (without options) or of the depth (with both) train well.

    Width: weights N^-a W with variances N^-b, rate eta gamma^2 N^-c, gamma = gamma0 N^d.  Depth: branches
    times L^-alpha, updates of size L^-gamma.
    """
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


def width() -> dict[str, Any]:
    """What `--json` prints: conditions, their solution, and what common parametrisations do."""
    from sympy import Function

    from derive.program import mlp
    from derive.scale.width import REQUIREMENTS, named, width_class, width_constraints

    program = mlp(HIDDEN, Function("phi"))
    constraints = width_constraints(program)
    rows = {}
    for name, exponents in named(program).items():
        found = width_class(program, exponents)
        powers = {"start": found.start, "rates": found.rates, "changes": found.changes}
        rows[name] = {
            "exponents": _text(exponents),
            "regime": found.regime,
            "broken": list(found.broken),
            **{k: {_called(x): _power(v) for x, v in table.items()} for k, table in powers.items()},
        }
    return {
        "requirements": {
            r: list(dict.fromkeys(f"{x.power} = 0" for x in constraints.of(r))) for r in REQUIREMENTS
        },
        "family": _text(constraints.family()),
        "maximal_update": _text(constraints.maximal_update()),
        "symmetries": [_text(x) for x in constraints.symmetries],
        "named": rows,
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
    for x in conditions:  # type: ignore[attr-defined]
        typer.echo(f"assumed: {x}")


def _called(node: tuple[str, Any]) -> str:
    name, site = node
    return name if site is None else f"{name}({site})"


def _power(x: Any) -> str | None:
    return None if x is None else str(x)


def _text(table: Any) -> dict[str, str]:
    return {str(k): str(v) for k, v in table.items()}


def _listed(table: dict[str, Any]) -> str:
    return ", ".join(f"{k} = {v}" for k, v in table.items())
