"""The engine's action of a linear network as a number: a quadratic form in all fields of one unit.

The action and the single-site exponents come from ``derive.theory.path_integral``; times and samples are
written out, and the single-site integral is the determinant of the quadratic form, ln Z = -ln det(Q)/2 up to
a constant.  The fields h and g are chi and xi plus memory, with the memory of a solved theory held fixed:
what the memory adds to derivatives at the saddle point is proportional to the conjugates, which vanish.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sympy import Add, Expr, Mul, Pow
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import P, gamma0
from derive.theory.path_integral import PathIntegral, path_integral
from tests.derive.once import mlp
from tests.ledger.evidence.engine import Array, Solved, solved, steps_of, theory_at
from tests.ledger.evidence.explicit import number, written_out

Complex = NDArray[np.complex128]
Values = dict[AppliedUndef, float]

PRIMAL, FIELDS = ("chi", "xi", "chihat", "xihat"), ("h", "g")


@dataclass(frozen=True)
class Monomial:
    """``coefficient * parameters * fields``, the fields by their index (none: algebra)."""

    coefficient: complex
    parameters: tuple[AppliedUndef, ...]
    fields: tuple[int, ...]


class GaussianAction:
    """Two hidden layers, P samples, T steps of gradient descent at a coupling ``gamma``."""

    def __init__(self, kernel: Array, targets: Array, rate: float, steps: int, gamma: float) -> None:
        self.kernel, self.gamma, self.T, self.n, self.depth = kernel, gamma, steps, len(targets), 2
        weights = steps_of(rate, steps)
        self.solution: Solved = solved(kernel, targets, weights, depth=2, gamma=gamma)
        self.derivation: PathIntegral = path_integral(mlp(2))
        exponent = self._expanded(self.derivation.single_site["layer"])
        action = self.derivation.action
        algebra = Add(*[x for x in action.as_ordered_terms() if not str(x).startswith("log")])
        names = sorted({a for a in exponent.atoms(AppliedUndef) if self._is_field(a)}, key=str)
        self.index = {a: k for k, a in enumerate(names)}
        self.exponent = [self._monomial(x) for x in Add.make_args(exponent)]
        self.algebra = [self._monomial(x) for x in Add.make_args(self._expanded(algebra))]
        self.embed = self._embedding(weights)
        found = {p for m in (*self.exponent, *self.algebra) for p in m.parameters}
        self.parameters = tuple(sorted((p for p in found if str(p.func) != "K_x"), key=str))

    # -- reading the engine ----------------------------------------------------------------------------------

    def _expanded(self, expr: Expr) -> Expr:
        terms = [written_out(x, {P: self.n}, self.T) for x in Add.make_args(expr)]
        return Add(*terms).subs(gamma0, self.gamma).expand()

    @staticmethod
    def _is_field(a: AppliedUndef) -> bool:
        return str(a.func) in (*PRIMAL, *FIELDS)

    def _monomial(self, x: Expr) -> Monomial:
        coefficient, parameters, fields = 1.0 + 0.0j, [], []
        for factor in Mul.make_args(x):
            base, power = factor.as_base_exp() if isinstance(factor, Pow) else (factor, 1)
            if not isinstance(base, AppliedUndef):
                coefficient *= complex(factor)
            elif self._is_field(base):
                fields += [self.index[base]] * int(power)
            else:
                parameters += [base] * int(power)
        return Monomial(coefficient, tuple(parameters), tuple(fields))

    # -- fields by chi and xi --------------------------------------------------------------------------------

    def _embedding(self, weights: Array) -> Complex:
        """Return all fields as linear forms in chi, xi and their hats.

        h and g follow by the memory terms of the engine's theory.
        """
        size, free = len(self.index), [a for a in self.index if str(a.func) in PRIMAL]
        own, memory = np.zeros((size, len(free))), np.zeros((size, size))
        for column, a in enumerate(free):
            own[self.index[a], column] = 1.0
        partner = {"h": "chi", "g": "xi"}
        for a, row in self.index.items():
            if str(a.func) in FIELDS:
                start = next(
                    k for k, b in enumerate(free) if str(b.func) == partner[str(a.func)] and b.args == a.args
                )
                own[row, start] = 1.0
        for row, column, value in self._memory(weights):
            memory[row, column] += value
        self.free = {a: k for k, a in enumerate(free)}
        return np.linalg.solve(np.eye(size) - memory, own).astype(complex)

    def _memory(self, weights: Array) -> list[tuple[int, int, float]]:
        """Return (field, past field, coefficient) of every update, written out."""
        found = []
        for e in theory_at(self.depth).equations:
            for term in (x.expr for x in e.terms if x.kind == "memory"):
                for a in (a for a in self.index if a.func == e.lhs.func and a.args[0] == e.lhs.args[0]):
                    at = dict(zip(e.lhs.args[1:], a.args[1:], strict=True))
                    for x in Add.make_args(
                        written_out(term.xreplace(at), {P: self.n}).subs(gamma0, self.gamma).expand()
                    ):
                        if x != 0:
                            past = next(f for f in x.atoms(AppliedUndef) if str(f.func) in FIELDS)
                            found.append((self.index[a], self.index[past], self._updated(x / past, weights)))
        return found

    def _updated(self, x: Expr, weights: Array) -> float:
        """Return the coefficient of a past field: error, weight of the step, kernel."""

        def value(a: AppliedUndef) -> float:
            name, args = str(a.func), [int(v) for v in a.args]
            if name == "w":
                return float(weights[args[0], args[1]])
            if name == "Delta":
                return float(self.solution.error[args[1], args[0] - 1])
            if name == "K_x":
                return float(self.kernel[args[0] - 1, args[1] - 1])
            if name == "H":
                layer, m, b, t, s = args
                return float(self.solution.H[layer][t, m - 1, s, b - 1])
            layer, t, s = args
            return float(self.solution.G[layer][t, s])

        return number(x, value).real

    # -- numbers ---------------------------------------------------------------------------------------------

    def saddle(self) -> Values:
        """Return order parameters from the engine's march; conjugates are zero."""
        run, found = self.solution, {}
        for p in self.parameters:
            name, *index = str(p.func), *(int(x) for x in p.args)
            layer, rest = index[0], index[1:]
            if name == "H":
                m, a, t, s = rest
                found[p] = float(run.H[layer][t, m - 1, s, a - 1])
            elif name == "G":
                found[p] = float(run.G[layer][rest[0], rest[1]])
            elif name == "A":
                m, t, s = rest
                found[p] = float(run.A[layer][t, m - 1, s])
            elif name == "B":
                m, t, s = rest
                found[p] = float(run.B[layer][t, s, m - 1])
            else:
                found[p] = 0.0
        return found

    def value_of(self, p: AppliedUndef, values: Values) -> float:
        """Return the value of a parameter; the input kernel is data."""
        if str(p.func) == "K_x":
            return float(self.kernel[int(p.args[0]) - 1, int(p.args[1]) - 1])
        return values[p]

    def quadratic(self, values: Values) -> Complex:
        """Return Q of the exponent -v Q v/2, with the free variables v = chi, xi and their hats."""
        q = np.zeros((len(self.index), len(self.index)), dtype=complex)
        for m in self.exponent:
            i, j = m.fields
            weight = m.coefficient * np.prod([self.value_of(p, values) for p in m.parameters])
            q[i, j] -= weight
            q[j, i] -= weight
        return np.asarray(self.embed.T @ q @ self.embed)

    def log_z(self, values: Values) -> complex:
        """Return ln Z up to a constant."""
        sign, size = np.linalg.slogdet(self.quadratic(values))
        return complex(-(size + np.log(sign)) / 2)

    def action(self, values: Values) -> complex:
        """Return the action per unit, up to a constant."""
        total = sum(
            m.coefficient * np.prod([self.value_of(p, values) for p in m.parameters]) for m in self.algebra
        )
        return complex(total) + self.log_z(values)

    def moments(self, values: Values) -> Complex:
        """Return ``<v v^T>`` over all fields, h and g included, in the order of ``index``."""
        return np.asarray(self.embed @ np.linalg.inv(self.quadratic(values)) @ self.embed.T)

    def slope(self, function: str, p: AppliedUndef, values: Values, step: float = 1e-4) -> complex:
        """Return the central difference of ``action`` or ``log_z`` in one parameter."""
        f = getattr(self, function)
        up, down = (f({**values, p: values[p] + d}) for d in (step, -step))
        return complex((up - down) / (2 * step))

    def pick(self, name: str, layer: int) -> list[int]:
        """Return indices of the fields called ``name`` of a layer, samples outermost, times innermost."""
        found = [a for a in self.index if str(a.func) == name and int(a.args[0]) == layer]
        return [self.index[a] for a in sorted(found, key=lambda a: [int(x) for x in a.args])]
