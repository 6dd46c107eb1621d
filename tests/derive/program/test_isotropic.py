"""Tests of the programs of linear2025 and depth2023: their contents and refusals."""

from __future__ import annotations

import pytest
from sympy import Function, Rational, Symbol, simplify, sqrt

from derive.program import GradientFlow, L, Program, ProgramError, ell, gamma0, t
from derive.program.networks.random_data import B, M, N, P, alpha, alpha_B, nu, sigma
from derive.program.parts import gaussian
from tests.derive.once import depth_program, isotropic, structured

beta = Symbol("beta", positive=True)
width = Function("nu", positive=True)
K = Symbol("K", integer=True, positive=True)


def updates(program: Program) -> dict[str, object]:
    return {w.name: w.update.coefficient for w in program.trained()}


def test_full_batch_is_equation_26_in_the_reference_size_of_features() -> None:
    """Sizes, variances and updates of eq. 5, 25 and 26 divided by the D that the language keeps outside."""
    program = isotropic(noise=True)
    m = {gaussian(x).name: gaussian(x) for x in program.matrices}
    assert (m["X"].rows.ratio, m["X"].cols.ratio, m["X"].variance) == (alpha, 1, 1)
    assert (m["W0"].rows.ratio, m["W0"].variance, m["W"].variance) == (nu, 1, 1 / nu)
    assert updates(program) == {"W0": gamma0, "W": gamma0 / nu, "w": gamma0}
    delta = next(d for d in program.definitions if d.name == "Delta")
    assert delta.rhs.coeff(Symbol("eps")) == sigma


def test_update_coefficients_undo_the_scaling_of_each_weight() -> None:
    """W/sqrt(N_l) moves by (eta gamma0/N_l) g h^T, written as coefficient/D: gamma0/nu_l."""
    uneven = updates(isotropic(widths=width))
    assert uneven["W"] == gamma0 / width(ell)
    assert updates(isotropic(branch=beta))["W"] == gamma0 * beta / nu
    assert updates(structured()) == {"W0": gamma0 * M, "W": gamma0 * M / N, "w": gamma0}
    with_width = {gaussian(x).name: gaussian(x) for x in isotropic(widths=width).matrices}
    assert with_width["W"].variance == 1 / width(ell)
    assert with_width["W"].rows.ratio == width(ell + 1)


def test_ntk_divides_gamma0_by_the_root_of_the_last_width() -> None:
    assert updates(isotropic(parametrization="ntk"))["w"] == gamma0 / sqrt(nu)
    assert updates(isotropic(parametrization="ntk", widths=width))["w"] == gamma0 / sqrt(width(L))
    assert updates(structured(parametrization="ntk"))["w"] == gamma0 / sqrt(N)


def test_center_adds_the_function_as_a_field_and_its_first_value() -> None:
    program = isotropic(center=True)
    xi = Function("xi")
    v = next(d for d in program.definitions if d.name == "v")
    assert simplify(v.rhs - (Symbol("w_star") - xi(t) + xi(0))) == 0
    assert program.field_of("xi") is not None
    assert isotropic().field_of("xi") is None


def test_fresh_batches_have_their_own_ratio_and_noise() -> None:
    program = isotropic(data="online", noise=Rational(1, 2))
    m = {gaussian(x).name: gaussian(x) for x in program.matrices}
    assert m["X"].fresh
    assert m["X"].rows.ratio == alpha_B
    assert next(v for v in program.vectors if v.name == "eps").fresh  # type: ignore[union-attr]
    assert not m["W0"].fresh


def test_population_has_no_samples() -> None:
    program = isotropic(data="population")
    assert {gaussian(x).name for x in program.matrices} == {"W0", "W"}
    assert program.field_of("Delta") is None


def test_channels_and_depths_are_symbols_or_numbers() -> None:
    program = isotropic(outputs=K)
    assert program.definitions[0].ranges[0].upper == K
    assert isotropic(3).depth == 3
    assert isotropic().at_depth(3).depth == 3
    assert isotropic(1).causal_order()
    assert isotropic(rule="flow").rule == GradientFlow()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data": "batch"}, "data = 'batch'"),
        ({"parametrization": "mup"}, "parametrization = 'mup'"),
        ({"depth": 0}, "depth = 0: must be an integer of at least 1"),
        (
            {"depth": Symbol("d", integer=True)},
            r'depth = d: .* write Symbol\("d", integer=True, positive=True',
        ),
        ({"data": "population", "noise": True}, "no samples"),
        ({"branch": beta, "widths": width}, "same units"),
        ({"data": "online", "rule": "flow"}, "the rule is a flow"),
        ({"rule": "nonsense"}, "nonsense"),
    ],
)
def test_refused_with_the_reason(options: dict[str, object], message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        isotropic(**options)  # type: ignore[arg-type]


def test_modes_carry_their_eigenvalue_and_target() -> None:
    program = structured(noise=True)
    assert {a.name for a in program.attributes} == {"lamda", "w_star"}
    samples = next(x.population for x in program.fields if x.name == "Delta")
    layer = next(x.population for x in program.fields if x.name == "h")
    assert (samples.ratio, layer.ratio) == (B / M, N / M)
    with pytest.raises(ProgramError, match="parametrization"):
        structured(parametrization="mup")
    with pytest.raises(ProgramError, match="the rule is a flow"):
        structured(rule="flow")


def test_samples_that_are_used_again_are_drawn_once() -> None:
    program = structured(data="full-batch", noise=True, rule="flow")
    samples = next(x.population for x in program.fields if x.name == "Delta")
    drawn = {x.name: x.fresh for x in (*program.matrices, *program.vectors) if hasattr(x, "fresh")}
    assert samples.ratio == P / M
    assert not drawn["Z"]
    assert not drawn["eps"]
    with pytest.raises(ProgramError, match="full-batch"):
        structured(data="batch")


def test_program_1_has_the_multipliers_of_appendix_d() -> None:
    a, b = Symbol("a"), Symbol("b")
    program = depth_program(alpha=a, gamma=b)
    x = next(d for d in program.definitions if d.name == "x" and d.lhs.args[0] == ell)
    assert x.rhs.coeff(x.products()[0]) == L**-a
    assert updates(program)["W"] == -(L**-b)
    assert updates(depth_program())["W"] == -1 / sqrt(L)
    with pytest.raises(ProgramError, match="depth = 0"):
        depth_program(0)
