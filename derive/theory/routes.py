"""Comparison of independent derivations of one program: `check_routes`.

The theory by Gaussian conditioning is compared with that of the path integral. Both read the updates of the
program, so a wrong gradient is the same in both; updates are therefore compared with derivatives of the loss
(:mod:`derive.program.gradient_check`). The two derivations share the list of products in a program, the names
of order parameters, and the tangent kernel, which no equation uses. Memory, causality and covariances of
entries in time are derived twice from the equation of motion of the rule, if there is one and its solution is
not a table of numbers. The exponent of one unit at finite
N, from which fluctuations are derived, has the mean-field theory as its saddle point; this is compared as
well (:mod:`derive.theory.fluctuations.mean_theory`).
"""

from __future__ import annotations

from derive.errors import NotApplicable, require_type
from derive.program.gradient_check import check_gradients
from derive.program.program import Program
from derive.theory.compare import Difference, compare
from derive.theory.conditioning import mean_field
from derive.theory.fluctuations import fluctuations
from derive.theory.fluctuations.mean_theory import saddle_differences
from derive.theory.path_integral import path_integral


class RoutesDisagree(AssertionError):
    """Error: two derivations of the same program give different results; the message lists them."""


class Checked(list[Difference]):
    """Result of :func:`check_routes`: an empty list of differences, and the comparisons that were made.

    ``gradients`` is "compared", or the reason why the updates were not compared with the gradient of a loss;
    printing then shows this reason. ``fluctuations`` is "compared", or the reason why the exponent of one
    unit is not derived.
    """

    def __init__(self, gradients: str, fluctuations: str) -> None:
        super().__init__()
        self.gradients = gradients
        self.fluctuations = fluctuations

    def __repr__(self) -> str:
        if self.gradients == COMPARED:
            return super().__repr__()
        return f"{super().__repr__()}, but gradients were not compared: {self.gradients}"


COMPARED = "compared"


def check_routes(program: Program) -> Checked:
    """Compare independent derivations of the theory and gradients of a program.

    The theory by Gaussian conditioning is compared with that of the path integral, equation by equation, and
    with the saddle point of the exponent of one unit at finite N
    (:func:`derive.theory.fluctuations.fluctuations`). The updates of a program that states its loss are
    compared with derivatives of the loss, in a network of two units (:func:`.check_gradients`).

    Parameters
    ----------
    program : Program
        Program.

    Returns
    -------
    Checked
        Empty list. Its attribute ``gradients`` is "compared", or the reason why updates were not compared
        with a gradient, for example because the program states no loss or its updates are intentionally no
        gradient. Its attribute ``fluctuations`` is "compared", or the reason why fluctuations of the program
        are not derived.

    Raises
    ------
    RoutesDisagree
        If anything differs; the message lists the differences. The exponent of one unit is compared only if
        the two derivations of the theory agree.
    NotApplicable
        If ``program`` is not a `Program`.
    ProgramError
        As :func:`derive.theory.mean_field` raises it.

    Examples
    --------
    >>> from derive.program import feedback_alignment, mlp
    >>> check_routes(mlp(2))
    []
    >>> check_routes(feedback_alignment(2)).gradients
    'the updates are not the gradient of the loss, as the program states by descent = None'
    >>> check_routes(mlp(2)).fluctuations
    'compared'
    """
    require_type(program, Program, "check_routes", "a program")
    theory = mean_field(program)
    differences = compare(theory, path_integral(program).theory())
    gradients = exponent = COMPARED
    try:
        differences += [] if differences else saddle_differences(fluctuations(program), theory)
    except NotApplicable as reason:
        exponent = str(reason)
    try:
        for x in check_gradients(program):
            where = f"along {x.weight} in a network of two units, by its update and by the loss"
            differences.append(Difference("gradient", where, x.by_update, x.by_loss))
    except NotApplicable as reason:
        gradients = str(reason)
    if differences:
        lines = [f"  {x}" for x in differences]
        if any(x.part == "gradient" for x in differences):
            lines.append(
                "  (if the updates are intentionally no gradient, declare descent=None in the program)"
            )
        raise RoutesDisagree("\n".join([f"two derivations for {program.name} differ:", *lines]))
    return Checked(gradients, exponent)
