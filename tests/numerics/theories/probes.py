"""Responses of finite networks: fields are perturbed, and the change is measured unit by unit.

A response of the theory is the derivative of a quantity of a unit by a source of the same unit, such as the
part ``r`` of ``W^T g`` that is drawn with ``W``. In a network every product of a Gaussian matrix is
perturbed, in each unit, layer, sample and step by an independent normal number times a small strength. The
network is trained again with the opposite perturbation and the same weights. The mean over units of half the
difference times one of these numbers is that response, because all other responses average to zero and add
noise only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Expr, Function

from derive.calculus.averages import Average, Response
from derive.program import Definition, Field, GaussianVector, Product, Program, t
from derive.program.parts import gaussian
from derive.theory import Theory
from numerics.simulation import Trainer

Array = NDArray[np.float64]

SMOOTH, KINKED = 1e-3, 0.05
"""The strength of the push: where a slope jumps, so large that enough units cross the kink."""

FORWARD, BACKWARD = 0, 1


@dataclass(frozen=True)
class Probed:
    """Program whose matrix products can be perturbed, its responses ``wanted``, and the factor ``sign``.

    The arrays of ``strength`` are the sizes of the perturbations of products with matrices and with their
    transposes; they are read at every step.
    """

    program: Program
    wanted: Mapping[str, tuple[Expr, Expr]]
    factors: Mapping[str, Expr]
    side: Mapping[str, int]
    strength: Array

    @property
    def data(self) -> dict[str, Any]:
        """The strengths as functions of the step, which the program holds as constants."""
        return {_push(k): lambda step, k=k: self.strength[k] for k in (FORWARD, BACKWARD)}

    def measured(
        self,
        networks: Trainer,
        seed: np.random.SeedSequence,
        size: float,
        numbers: Mapping[str, float],
    ) -> dict[str, Array]:
        """Return every response of one network, with axes layer, t, s, indices as correlations have."""
        found: dict[str, Array] = {}
        for which in sorted(set(self.side.values())):
            runs = []
            for sign in (1.0, -1.0):
                self.strength[:] = 0.0
                self.strength[which] = sign * size
                runs.append(networks.train(seed))
            self.strength[:] = 0.0
            for name in (n for n, k in self.side.items() if k == which):
                named = {x: numbers[str(x)] for x in self.factors[name].free_symbols}
                factor = float(self.factors[name].subs(named))
                found[name] = factor * (runs[0][name] - runs[1][name]) / (2 * size)
        return found


def probed(program: Program, theory: Theory) -> Probed:
    """Return ``program`` with a perturbation of every product that is the source of a response.

    >>> from derive.theory import mean_field
    >>> from derive.program import mlp
    >>> pushed = probed(mlp(2, "tanh"), mean_field(mlp(2, "tanh")))
    >>> print(pushed.program.definitions[2].rhs)
    kick0(ell + 1, mu, t)*push0(t) + W(ell) @ tanh(h(ell, mu, t))
    >>> pushed.wanted["A"]
    (tanh(h(ell, mu, t)), kick1(ell, alpha, t))
    """
    sources: dict[str, int] = {}
    for m in map(gaussian, program.matrices):
        if not (m.rows.given or m.cols.given):
            sources |= dict(zip(m.sources, (FORWARD, BACKWARD), strict=True))
    wanted, factors, side = {}, {}, {}
    for q in theory.order_parameters:
        for a in q.definition.atoms(Average):
            if isinstance(a.body, Response) and str(a.body.source.func) in sources:
                which = sources[str(a.body.source.func)]
                kick = Function(_kick(which))(*a.body.source.args[:-1], t)
                wanted[q.name], side[q.name] = (a.body.body, kick), which
                factors[q.name] = q.definition / a
    definitions: list[Definition] = []
    fields, vectors = list(program.fields), list(program.vectors)
    for d in program.definitions:
        products = [x for x in d.rhs.atoms(Product) if not _given(program, x)]
        which = BACKWARD if products and products[0].transposed else FORWARD
        if len(products) != 1 or which not in side.values():
            definitions.append(d)
            continue
        kick = Function(_kick(which))(*d.lhs.args)
        pushed = products[0] + Function(_push(which))(t) * kick
        matrix = gaussian(program.matrix_of(products[0]))
        population = matrix.cols if products[0].transposed else matrix.rows
        v = GaussianVector(f"{_kick(which)}ed", population, 1, f"{_kick(which)}ed", d.ranges, fresh=True)
        own = program.field_of(d.name)
        assert own is not None
        fields.append(Field(_kick(which), own.population, layered=own.layered))
        vectors.append(v)
        definitions += [
            Definition(kick, v(*(r.index for r in d.ranges)), d.ranges),
            replace(d, rhs=d.rhs.xreplace({products[0]: pushed})),
        ]
    constants = (*program.constants, *(_push(k) for k in sorted(set(side.values()))))
    changed = replace(
        program,
        fields=tuple(fields),
        definitions=tuple(definitions),
        vectors=tuple(vectors),
        constants=constants,
    )
    return Probed(changed, wanted, factors, side, np.zeros(2))


def _given(program: Program, e: Product) -> bool:
    m = gaussian(program.matrix_of(e))
    return m.rows.given or m.cols.given


def _kick(which: int) -> str:
    return f"kick{which}"


def _push(which: int) -> str:
    return f"push{which}"
