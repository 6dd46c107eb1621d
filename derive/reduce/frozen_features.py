"""Lazy limit of rules that are nonlinear in the gradient: outputs move, features do not.

At ``gamma0 -> 0`` fields keep their initial values, and outputs move by the response of the network to its
weights. For gradient descent this is a kernel times the errors. A nonlinear step ``Q`` has no kernel: the
change of an output is the average, over units or pairs of units, of its gradient times the step,

    f_mu(t) = 1/scale sum_weights < J_mu(t) moved_mu(t) >,

with ``J_mu`` the gradient of the output by the field that a weight enters, and ``moved`` the sum of the
updates in this field, both at frozen features. It is a functional of the history of the errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from sympy import Expr, Function, Integer, S, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average
from derive.calculus.sums import binding, is_at
from derive.calculus.symbols import ell
from derive.errors import NotApplicable
from derive.program.naming import free_name
from derive.program.nonlinear import NonlinearRule
from derive.program.parts import Definition
from derive.program.training import Outer, TrainedMatrix, TrainedVector
from derive.reduce.stationary import offset_of
from derive.theory import Equation, Term, Theory
from derive.theory.applications import Application, Parameter, read

TRAINED = ("memory", "pair")
"""Kinds of terms that training adds to a field."""


def frozen_features(theory: Theory) -> Theory:
    """Return the theory at ``gamma0 -> 0`` of a network whose weights move by nonlinear rules.

    Parameters
    ----------
    theory : Theory
        The theory of a network of integer depth, whose outputs have one error each. An output is a linear
        function of averages, plus an offset that is kept.

    Returns
    -------
    Theory
        Fields without updates and responses, a field ``moved_<weight>`` for each forward use of a weight (the
        sum of its updates there), and outputs that are sums of averages ``<gradient * moved>``.

    Raises
    ------
    NotApplicable
        If a rule is linear (then there is a tangent kernel), the depth is symbolic, the output or its error
        is not found, the output is not linear in averages, or the update of a weight is a sum over several
        uses.

    Examples
    --------
    >>> from derive import mean_field, mlp
    >>> from derive.program import eta, sign_descent
    >>> lazy = frozen_features(mean_field(mlp(1, "tanh", rule=sign_descent(eta))))
    >>> print(lazy.equation("h", 1).rhs)
    u(1, mu, t)
    >>> print(lazy.equation("f").rhs)
    <g(1, mu, t)*moved_W0(1, mu, t)/gamma0> + <moved_w(1, mu, t)*tanh(h(1, mu, t))/gamma0>
    """
    if not theory.program.depth.is_Integer:
        depth = theory.program.depth
        raise NotApplicable(
            f"the lazy limit needs an integer depth, and the depth {depth} is a symbol: give a number of "
            "layers"
        )
    return _Frozen(theory).theory()


class _Frozen:
    """Construction of the lazy limit, in which features stand still and only outputs move.

    Updates of weights are removed from the equations of fields, and their effect is added to the outputs.
    """

    def __init__(self, source: Theory) -> None:
        """Find the output and the error signal of the program; raise NotApplicable if one is missing."""
        self.source = source
        self.reading = read(source.program)
        self.program = source.program
        roles = source.program.roles
        if roles.output is None or roles.error is None:
            raise NotApplicable(
                "the lazy limit needs one scalar output with an error signal, and the program does not have "
                "exactly one"
            )
        self.output, self.error = str(roles.output.func), str(roles.error.func)

    def theory(self) -> Theory:
        """Return the theory at ``gamma0 -> 0``: fields at their initial values, and outputs that move."""
        added = [x for w in self.program.trained() for x in self.added(w)]
        equations = [self.still(e) for e in self.source.equations]
        parts = [Term.local(x, "definition") for _, xs in added for x in xs]
        output = next(e for e in self.source.scalars if e.name == self.output)
        if (offset := offset_of(output)) != 0:
            parts.append(Term.local(offset, "definition"))
        scalars = tuple(
            replace(e, terms=tuple(parts)) if e.name == self.output else e for e in self.source.scalars
        )
        return replace(
            self.source,
            equations=(*equations, *(e for e, _ in added)),
            scalars=scalars,
            order_parameters=self.source.correlations(),
            observables=(),
            reduction="lazy limit with frozen features",
        )

    def still(self, e: Equation) -> Equation:
        """Return the equation of a field at its initial value, without responses and updates."""
        terms = tuple(x for x in e.terms if x.kind in ("source", "definition"))
        return replace(e, terms=terms or (Term.local(S.Zero),))

    def added(self, w: TrainedMatrix | TrainedVector) -> Iterator[tuple[Equation, list[Expr]]]:
        """Yield for each forward use of a weight the equation of its updates and their effect on outputs.

        The equation defines a field ``moved``, the sum of the weight's updates in one field of the network.
        The second value lists averages of moved times the gradient of the output: one for each layer that the
        equation holds for. Raises NotApplicable for a linear rule.
        """
        if not isinstance(w.rule, NonlinearRule):
            raise NotApplicable(
                f"{w.name} moves by a rule that is linear in the gradients, and frozen features are derived "
                "for nonlinear rules only; the lazy limit of a linear rule has a constant tangent kernel"
            )
        gradient = self.gradient(w)
        for d, use in self.uses(w):
            for e, at in self.equations_of(d):
                symbol = self.named(w.name, e)
                terms = tuple(x for x in e.terms if x.kind in TRAINED and x.matrix == w.name)
                change = use.at_member(gradient).xreplace(at) * symbol
                layers = () if e.layers is None else range(int(e.layers.lower), int(e.layers.upper) + 1)
                places = [{ell: Integer(k)} for k in layers] if e.layers is not None else [{}]
                yield replace(e, lhs=symbol, terms=terms), [Average(change.xreplace(k)) for k in places]

    def named(self, weight: str, e: Equation) -> AppliedUndef:
        """Return the symbol of a new field ``moved_<weight>``, with the indices of the field of ``e``.

        It stands for the sum of the weight's updates in that field.
        """
        name = free_name(f"moved_{weight}", {*self.reading.registry.taken, *self.reading.registry.found})
        return Function(name)(*e.lhs.args)

    def uses(self, w: TrainedMatrix | TrainedVector) -> Iterator[tuple[Definition, Application | Parameter]]:
        """Yield the uses of a weight in the forward pass, each with the definition that contains it.

        A use of a matrix is a product with it (not with its transpose), that of a vector its occurrence.
        """
        for d in self.reading.definitions:
            if isinstance(w, TrainedMatrix):
                products: list[Any] = [a for a in self.reading.products[d] if a.matrix == w.initial]
                yield from ((d, a) for a in products if not a.transposed)
            else:
                yield from ((d, p) for p in self.reading.parameters[d] if p.initial == w.initial)

    def equations_of(self, d: Definition) -> Iterator[tuple[Equation, dict[Any, Any]]]:
        """Yield the theory's equations that come from a definition of the program, each with its layer.

        The theory may have one equation for a family of layers or one for each layer. The second value is
        ``{ell: number}`` in the latter case, and empty otherwise.
        """
        for e in (e for e in self.source.equations if e.name == d.name):
            if e.lhs == d.lhs:
                yield e, {}
            elif d.lhs.has(ell) and is_at(e.lhs, d.lhs):
                at = binding(d.lhs, e.lhs)[ell]
                r = next(r for r in d.ranges if r.index == ell)
                if at.is_Integer and r.lower <= at <= r.upper:
                    yield e, {ell: at}

    def gradient(self, w: TrainedMatrix | TrainedVector) -> Expr:
        """Return the derivative of an output by the entries of the field into which a weight enters.

        It is read from the update of the weight and is multiplied by the number of units, so that the average
        of its product with a change of the field is the change of the output. Raises NotApplicable unless the
        update is one term with the error of exactly one output.
        """
        (u, *more) = w.update.terms
        errors = [a for a in u.coefficient.atoms(AppliedUndef) if str(a.func) == self.error]
        if more or len(errors) != 1:
            raise NotApplicable(
                f"the lazy limit is not derived: the update of {w.name} must be one term with the error of "
                f"one output, and it has {len(more) + 1} terms, the first one with {len(errors)} errors"
            )
        (error,) = errors
        error_equation = next(e for e in self.source.scalars if e.name == self.error)
        own_indices = dict(zip(error.args, error_equation.lhs.args, strict=True))
        body = u.left if isinstance(u, Outer) else u.vector
        ratio = sympify(self.program.site_of(body).ratio)
        return (u.coefficient / u.outside / error / self.program.scale * ratio * body).xreplace(own_indices)
