"""From an experiment file to its theory: the right program, with symbols for the numbers of the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sympy import Expr, Function, Integer, Sum, Symbol, symbols, tanh

from derive.program import L, P, alpha, ell, eta, gamma0, mu, s, t
from derive.theory import Theory
from derive.theory.document import namespace
from derive.theory.fluctuations.coefficients import Influence
from derive.theory.fluctuations.document import namespace as fluctuation_names
from numerics.cli import run
from numerics.errors import SpecError
from numerics.experiment import Experiment
from numerics.experiment.theory import WIDE, path_integral_of, program_of, theory_of
from tests.derive.once import isotropic, mean_field, mlp, structured

EXAMPLES = sorted((Path(__file__).parents[2] / "docs" / "examples").glob("*.toml"))
SHOWN = ("single-site", "order-parameters", "responses", "action", "saddle-point", "all")

beta, sigma, nu, decay, T, m, tau = symbols("beta sigma nu lambda T m tau", positive=True)
sample_ratio, batch_ratio = symbols("alpha alpha_B", positive=True)
C = Symbol("C", integer=True, positive=True)


def experiment(network: dict[str, Any], data: dict[str, Any] | None = None, **training: Any) -> Experiment:
    tables = {"network": {"depth": 2, **network}, "training": training}
    return Experiment.from_dict(tables if data is None else {**tables, "data": data})


def expressions(theory: Theory) -> list[Expr]:
    found = [e.rhs for e in (*theory.equations, *theory.scalars)]
    return [*found, *(u.covariance for u in theory.sources), *(q.definition for q in theory.order_parameters)]


def symbols_of(theory: Theory) -> set[Symbol]:
    return set().union(*(x.free_symbols for x in expressions(theory)))


def functions(theory: Theory) -> set[str]:
    return {str(a.func) for x in expressions(theory) for a in x.atoms(Function)}


@pytest.mark.parametrize(
    ("depth", "rule", "loss"),
    [(1, "gd", "mean"), (3, "flow", "sum"), ("L", "gd", "sum"), ("L", "flow", "mean")],
)
def test_a_linear_network_is_the_one_that_is_solved(depth: int | str, rule: str, loss: str) -> None:
    found = program_of(experiment({"depth": depth}, rule=rule, loss=loss))
    assert found == mlp(L if depth == "L" else depth, "linear", rule, loss)


@pytest.mark.parametrize(
    ("network", "training", "present"),
    [
        ({}, {}, {eta, gamma0, P}),
        ({"branch": 0.5}, {}, {beta}),
        ({"branch": 1.0}, {}, {beta}),
        ({"init_variance": 2.0}, {}, {sigma}),
        ({"outputs": 3}, {}, {C}),
        ({}, {"weight_decay": 0.1, "temperature": 0.5}, {decay, T}),
        ({}, {"momentum": 0.5}, {m}),
        ({"activation": "tanh"}, {"momentum": 0.5, "rule": "flow"}, {tau}),
    ],
)
def test_numbers_are_symbols_and_what_is_plain_is_not_there(
    network: dict[str, Any], training: dict[str, Any], present: set[Symbol]
) -> None:
    optional = {beta, sigma, C, decay, T, m, tau}
    found = symbols_of(theory_of(experiment(network, **training)))
    assert present <= found
    assert found & optional == present & optional


@pytest.mark.parametrize("key", ["init_variance", "relative_widths", "width_ratio"])
def test_lists_are_functions_of_the_layer(key: str) -> None:
    name, data = {"init_variance": "sigma", "relative_widths": "a", "width_ratio": "nu"}[key], None
    if key == "width_ratio":
        data = {"kind": "isotropic", "sample_ratio": 1.0}
    values = [1.0, 2.0, 3.0][: 3 if key == "init_variance" else 2]
    theory = theory_of(experiment({key: values}, data))
    assert name in functions(theory)
    assert not any(symbol.name == name for symbol in symbols_of(theory))


def test_biases_and_activations_are_those_of_the_file() -> None:
    given = experiment({"bias": True, "activation": "tanh(0.8*h)/0.8"}, loss="sum")
    x = Symbol("x", real=True)
    assert program_of(given) == mlp(2, 5 * tanh(4 * x / 5) / 4, bias=True)
    theory = theory_of(given)
    assert {str(u.symbol.func) for u in theory.sources} == {"u", "r", "b"}
    now, then = Function("h")(ell, mu, t), Function("h")(ell, alpha, s)
    kernel = theory.order_parameter("Phi").definition
    assert {a.args[0] for a in kernel.atoms(tanh)} == {4 * now / 5, 4 * then / 5}
    plain = theory_of(experiment({"activation": "tanh"}))
    assert {str(u.symbol.func) for u in plain.sources} == {"u", "r"}
    assert {a.args[0] for a in plain.order_parameter("Phi").definition.atoms(tanh)} == {now, then}


@pytest.mark.parametrize("network", [{}, {"activation": "relu", "bias": True, "branch": 0.5}], ids=str)
def test_centring_changes_nothing_on_fixed_data_as_the_function_starts_at_zero(
    network: dict[str, Any],
) -> None:
    centred = experiment(network, center=True)
    assert program_of(centred) == program_of(experiment(network))
    theory = theory_of(centred)

    def at_start(name: str, layer: object) -> Expr:
        return (
            theory.equation(name, layer)
            .rhs.subs(t, 0)
            .replace(lambda x: isinstance(x, Sum) and x.limits[-1][1:] == (0, -1), lambda x: Integer(0))
        )

    readout = at_start("z" if network else "g", 2)  # f is the average of its product with phi(h^L)
    assert str(readout.func) == "r"
    for layer in (1, ell + 1):
        assert "r" not in {str(a.func) for a in at_start("h", layer).atoms(Function)}


@pytest.mark.parametrize(
    ("data", "rule", "built"),
    [
        ({"sample_ratio": 2.0}, "flow", {"data": "full-batch", "rule": "flow"}),
        ({"sample_ratio": 2.0, "noise": 0.1}, "gd", {"data": "full-batch", "noise": True}),
        ({"batch_ratio": 2.0, "noise": 0.1}, "sgd", {"data": "online", "noise": True}),
        ({"noise": 0.1}, "gd", {"data": "population"}),
    ],
)
def test_isotropic_data(data: dict[str, Any], rule: str, built: dict[str, Any]) -> None:
    given = experiment({"width_ratio": 1.0}, {"kind": "isotropic", **data}, rule=rule)
    assert program_of(given) == isotropic(2, **built)
    centred = experiment({"width_ratio": 1.0}, {"kind": "isotropic", **data}, rule=rule, center=True)
    assert program_of(centred) == isotropic(2, center=True, **built)


@pytest.mark.parametrize(
    ("network", "built"),
    [
        ({"outputs": 2}, {"outputs": C}),
        ({"branch": 0.5}, {"branch": beta}),
        ({"parametrization": "ntk"}, {"parametrization": "ntk"}),
        ({"width_ratio": [1.0, 2.0]}, {"widths": Function("nu")}),
    ],
)
def test_networks_on_isotropic_data(network: dict[str, Any], built: dict[str, Any]) -> None:
    given = experiment({"width_ratio": 1.0, **network}, {"kind": "isotropic", "sample_ratio": 2.0})
    assert program_of(given) == isotropic(2, **built)
    assert program_of(given) != isotropic(2)


@pytest.mark.parametrize(("network", "rule"), [({"outputs": 2}, "flow"), ({"branch": 0.5}, "gd")], ids=str)
def test_without_a_width_ratio_layers_are_infinitely_wide(network: dict[str, Any], rule: str) -> None:
    data = {"kind": "isotropic", "sample_ratio": 2.0}
    finite, wide = (
        theory_of(experiment({**network, **n}, data, rule=rule)) for n in ({"width_ratio": 1.0}, {})
    )
    assert nu in symbols_of(finite)
    assert nu not in symbols_of(wide)
    assert "r0" in {str(u.symbol.func) for u in finite.sources}
    assert "r0" not in {str(u.symbol.func) for u in wide.sources}
    assert sample_ratio in symbols_of(wide)
    assert nu in symbols_of(path_integral_of(experiment(network, data)))


def test_fresh_batches_have_no_memory_in_the_data() -> None:
    data = {"kind": "isotropic", "batch_ratio": 2.0}
    theory = theory_of(experiment({"width_ratio": 1.0}, data, rule="sgd"))
    v, u0 = Function("v"), Function("u0")
    assert theory.equation("h0").rhs - v(t) - u0(t) / batch_ratio == 0
    assert "R_Delta" not in {q.name for q in theory.order_parameters}


def test_power_law_data_is_centred_and_sums_over_modes() -> None:
    given = experiment({}, {"kind": "power-law", "noise": 0.1}, rule="sgd")
    assert program_of(given) == structured(2, noise=True)
    theory = theory_of(given)
    assert theory.order_parameter("C_v").definition.has(Sum)
    assert not any(x.has(Symbol("M", integer=True, positive=True)) for x in (e.rhs for e in theory.equations))
    lazier = experiment({"parametrization": "ntk"}, {"kind": "power-law"}, rule="sgd")
    assert program_of(lazier) == structured(2, parametrization="ntk") != structured(2)
    free = experiment({}, {"kind": "power-law"}, rule="sgd", center=False)
    assert program_of(free) == structured(2, center=False)
    assert mean_field(program_of(free)).equivalent(path_integral_of(free))


def test_power_law_data_without_batches_are_a_population_and_without_a_width_wide() -> None:
    N = Symbol("N", positive=True)
    for rule in ("gd", "flow"):
        finite = experiment({"width": 8}, {"kind": "power-law"}, rule=rule)
        assert program_of(finite).name.endswith("(population)")
        assert theory_of(finite).equation("xi").rhs.has(N)
        wide = theory_of(experiment({}, {"kind": "power-law"}, rule=rule))
        assert wide.reduction == WIDE
        assert not any(e.rhs.has(N) for e in wide.equations)
        assert {u.matrix for u in wide.sources} == {"W0", "W", "w"}
    program = program_of(finite)
    assert mean_field(program).equivalent(path_integral_of(finite))


def test_there_is_an_example_of_each_kind() -> None:
    loaded = {path.stem: Experiment.load(path) for path in EXAMPLES}
    assert {"digits", "digits_flow", "tanh", "isotropic", "online", "power_law", "residual"} <= set(loaded)
    assert {e.spec.kind for e in loaded.values()} == {"fixed", "isotropic", "power-law"}
    assert {e.training.rule for e in loaded.values()} == {"gd", "flow", "sgd", "adam"}


TITLES = {
    "single-site": "Gaussian sources",
    "order-parameters": "Order parameters",
    "responses": "Response functions",
    "action": "Action",
    "saddle-point": "Saddle point",
}


def printed(path: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert run(["derive", str(path), *options]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


SHORT = ("tanh", "power_law")


@pytest.mark.parametrize(
    "path", [pytest.param(x, id=x.stem, marks=() if x.stem in SHORT else pytest.mark.slow) for x in EXAMPLES]
)
def test_derive_prints_every_example(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(path, capsys)
    latex = printed(path, capsys, "--format", "latex")
    for title in ("Gaussian sources", "Single-site process", "Order parameters", "Response functions"):
        assert title in text.splitlines() or f"{title} (" in text
        assert title in latex
    for raw in ("Function(", "Symbol(", "Sum(", "Piecewise(", "Integral(", "Subs("):
        assert raw not in text + latex
    assert latex.count(r"\begin{align*}") == latex.count(r"\end{align*}") > 3
    assert latex.count("{") == latex.count("}")


@pytest.mark.parametrize(
    ("name", "show"), [*(("digits", x) for x in TITLES), ("power_law", "action"), ("power_law", "responses")]
)
def test_each_part_can_be_asked_for(name: str, show: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = next(path for path in EXAMPLES if path.stem == name)
    lines = printed(path, capsys, "--show", show).splitlines()
    found = [title for title in TITLES.values() if any(line.startswith(title) for line in lines)]
    assert found == [TITLES[show]]
    assert TITLES[show] in printed(path, capsys, "--show", show, "--format", "latex")


@pytest.mark.parametrize("name", ["tanh", "isotropic", "adam"])
def test_derive_gives_data_that_other_programs_read(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = next(path for path in EXAMPLES if path.stem == name)
    theory = theory_of(Experiment.load(path))
    found = json.loads(printed(path, capsys, "--format", "json", "--show", "single-site"))
    assert len(found["equations"]) == len(theory.equations)
    pairs = eval(printed(path, capsys, "--format", "srepr", "--show", "single-site"), namespace())
    for (lhs, rhs), equation in zip(pairs["equations"], theory.equations, strict=True):
        assert lhs == equation.lhs
        assert rhs == equation.rhs


SMALL = "[network]\ndepth = 1\n"


def test_derive_shows_fluctuations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Output as text, LaTeX and JSON, of centred outputs if the file has them."""
    path = tmp_path / "small.toml"
    path.write_text(SMALL + "[training]\ncenter = true\n")
    told = printed(path, capsys, "--show", "fluctuations")
    assert "f_raw,μ(t)" in told
    assert "κ[G^1(t,s), G^1(t',s')]" in told
    found = json.loads(printed(path, capsys, "--show", "fluctuations", "--format", "json"))
    lhs = eval(found["influences"][0]["lhs"]["srepr"], fluctuation_names())
    assert lhs == Influence(Function("Delta")(mu, t))
    path.write_text(SMALL)
    assert r"\hat{\xi}^{1}" in printed(path, capsys, "--show", "fluctuations", "--format", "latex")


def test_derive_says_why_fluctuations_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "small.toml"
    path.write_text(SMALL + '[training]\nrule = "sign"\n')
    assert run(["derive", str(path), "--show", "fluctuations"]) == 2
    assert "pairs of units interact" in capsys.readouterr().err
    path.write_text(SMALL)
    assert run(["derive", str(path), "--show", "fluctuations", "--format", "srepr"]) == 2
    assert "expressions as srepr text" in capsys.readouterr().err


def test_deriving_needs_no_arrays_but_reads_those_that_are_named(tmp_path: Path) -> None:
    spec = tmp_path / "spec.toml"
    spec.write_text("[network]\ndepth = 2\n")
    assert theory_of(Experiment.load(spec)).program.depth == Integer(2)
    spec.write_text('[network]\ndepth = 2\n[data]\nkernel = "no.npy"\ntargets = "no.npy"\n')
    with pytest.raises(SpecError, match="no such file"):
        Experiment.load(spec)
