"""Time of the derivation of every program of the papers with symbolic depth, by both routes."""

from __future__ import annotations

import time

import pytest
from sympy import Function, Symbol

from derive.program import mlp
from derive.program.networks import (
    convolution,
    depth_program,
    feedback_alignment,
    isotropic,
    perceptron,
    recurrent,
    structured,
)
from derive.theory import mean_field
from derive.theory.compare import compare
from derive.theory.path_integral import path_integral

TITLE = "Deriving a theory with the depth a symbol (seconds)"

phi = Function("phi")
beta, lam, T, m = (Symbol(n, positive=True) for n in ("beta", "lambda", "T", "m"))
C, X, S = (Symbol(n, integer=True, positive=True) for n in "CXS")

PROGRAMS = {
    "linear": lambda: mlp(),
    "any activation": lambda: mlp(activation=phi),
    "any activation, flow": lambda: mlp(activation=phi, rule="flow"),
    "bias": lambda: mlp(activation=phi, bias=True),
    "channels": lambda: mlp(activation=phi, outputs=C),
    "widths and variances": lambda: mlp(activation=phi, relative_widths="a", init_variance="sigma"),
    "convolution": lambda: convolution(activation=phi, positions=X, receptive=S),
    "weight decay": lambda: mlp(activation=phi, weight_decay=lam),
    "Langevin": lambda: mlp(activation=phi, rule="flow", weight_decay=lam, temperature=T),
    "momentum": lambda: mlp(activation=phi, momentum=m),
    "residual": lambda: mlp(activation=phi, branch=beta),
    "residual, bias, channels, decay": lambda: mlp(
        activation=phi, branch=beta, bias=True, outputs=C, weight_decay=lam
    ),
    "feedback alignment": lambda: feedback_alignment(activation=phi),
    "tied weights": lambda: recurrent(activation=phi, bias=True),
    "perceptron": lambda: perceptron("teacher"),
    "isotropic, full batch": lambda: isotropic(noise=True, center=True),
    "isotropic, online, residual, channels": lambda: isotropic(data="online", branch=beta, outputs=C),
    "structured": lambda: structured(),
    "depth2023 Program 1": lambda: depth_program(),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_both_routes_agree_within_ten_seconds(benchmark, timed, note, name):
    program = PROGRAMS[name]()
    benchmark.pedantic(mean_field, args=(program,), rounds=2 if timed else 1)
    started = time.process_time()
    one = mean_field(program)
    conditioned = time.process_time() - started
    started = time.process_time()
    other = path_integral(program).theory()
    integrated = time.process_time() - started
    note(TITLE, program=name, conditioning_s=conditioned, path_integral_s=integrated)
    assert compare(one, other) == []
    if timed:
        assert conditioned + integrated < 10
