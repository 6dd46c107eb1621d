"""Centred networks: outputs are counted from those of the initial weights, ``f(t) - f(0)``.

In the error signal and in the loss of a program, the output is replaced by this difference. Initial outputs,
which vary between networks, then do not enter the training; kernels still vary between networks.
"""

from __future__ import annotations

from dataclasses import replace

from sympy import S

from derive.calculus.symbols import t
from derive.errors import NotApplicable
from derive.program.program import Program


def centred(program: Program) -> Program:
    """Return the program with outputs counted from their initial values.

    Parameters
    ----------
    program : Program
        A program with one output and its error signal.

    Returns
    -------
    Program
        The program with ``f(t) - f(0)`` for ``f(t)`` in the error signal and the loss.

    Raises
    ------
    NotApplicable
        If the program does not have exactly one output with an error signal.

    Examples
    --------
    >>> from derive.program import mlp
    >>> print(next(d.rhs for d in centred(mlp(1)).definitions if d.name == "Delta"))
    f(mu, 0) - f(mu, t) + y(mu)
    """
    output, error = program.roles.output, program.roles.error
    if output is None or error is None:
        raise NotApplicable(
            "centring subtracts the initial value of one output; the program does not have exactly one "
            "output (a scalar that the loss trains) with an error signal"
        )
    moved = {output: output - output.xreplace({t: S.Zero})}
    definitions = tuple(
        replace(d, rhs=d.rhs.xreplace(moved)) if d.name == str(error.func) else d for d in program.definitions
    )
    loss = None if program.loss is None else program.loss.xreplace(moved)
    return replace(program, definitions=definitions, loss=loss)
