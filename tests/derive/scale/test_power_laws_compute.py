"""Tests of printed power laws by plain ``lambdify``, which gives the number or raises."""

import warnings
from cmath import isfinite

import pytest
from sympy import Expr, N, Rational, hyper, lambdify

from derive.scale.rich import RichScaling
from tests.derive.scale.derived import batches, data, modes, order, reduced, rich, rich_at, width

AT = {"a": "23/10", "beta": "7/10", "L": 2, "gamma0": "3/10", "t": 50, "eta": "1/10", "B": 5, "N": 100}
AT |= {"P": 80, "M": 40, "sigma": "3/10", "x": "3/2"}
PUBLIC = {
    "lazy loss": lambda: modes().loss().expr,
    "loss in steps": lambda: modes("gd").loss().expr,
    "cutoff": lambda: modes().cutoff(),
    "order gamma0^2": lambda: order().correction.expr,
    "its slope": lambda: order().correction.local_slope(),
    "crossover": lambda: order().crossover(),
    "gain of a batch": lambda: batches().gain.expr,
    "variance of a width": lambda: width().variance.expr,
    "crossover of a width": lambda: width().crossover("hard"),
    "cut-off of data": lambda: data().late_cutoff.at(data().floor.variable),
    "floor of data": lambda: data().floor.expr,
    "stirred": lambda: data().before_floor.coefficient,
    "label fit": lambda: data().label_before_floor.coefficient,
    "rich loss": lambda: rich().loss,
    "rich loss, corrected": lambda: rich().corrected(),
    "rich kernel": lambda: rich().kernel,
    "profile": lambda: rich().profile,
    "rich loss of one layer": lambda: one_layer().loss,
    "rich kernel of one layer": lambda: one_layer().kernel,
    "profile of one layer": lambda: one_layer().profile,
}


def one_layer() -> RichScaling:
    return rich_at(1, "1/2")


LONG = ("loss in steps", "gain of a batch", "rich loss", "its slope", "stirred", "rich loss, corrected")
LONG += (
    "variance of a width",
    "rich kernel",
    "profile",
    "crossover of a width",
    "order gamma0^2",
    "crossover",
)
"""Beside each of these another expression of the same functions is computed."""


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=pytest.mark.slow) if x in LONG else x for x in PUBLIC]
)
def test_lambdify_gives_the_number_or_refuses(name: str) -> None:
    e: Expr = PUBLIC[name]()
    symbols = sorted(e.free_symbols, key=str)
    at = [Rational(AT[x.name]) for x in symbols]
    exact = complex(N(e.subs(dict(zip(symbols, at, strict=True))), 15))
    assert isfinite(exact)
    values = [float(x) for x in at]
    assert complex(lambdify(symbols, e, "mpmath")(*values)) == pytest.approx(exact, rel=1e-9)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = complex(lambdify(symbols, e)(*values))
    except NameError:
        assert e.has(hyper)  # which SciPy lacks
        return
    assert found == pytest.approx(exact, rel=1e-9)


@pytest.mark.slow
def test_results_show_themselves_in_a_notebook() -> None:
    law = rich()
    for x in (modes(), modes().loss(), order(), batches(), width(), data(), reduced(), law):
        assert x._repr_latex_().startswith("$")
    assert "loss" in law._repr_latex_()
