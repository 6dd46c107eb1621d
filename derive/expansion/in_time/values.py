"""The operators of an expansion as values of the algebra, order by order.

There are two routes: the words of the expansion (any depth at once), and the closure's own equations at an
integer depth.  Either says what the output is for given errors; the error is what that leaves of the targets.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from sympy import Add, Expr, Mul, S, Sum, Symbol, sympify
from sympy.core.function import AppliedUndef
from sympy.polys.rings import PolyElement

from derive.errors import NotApplicable
from derive.expansion.in_time.operators import Algebra, Operator, Vector
from derive.linear.closure import LinearClosure
from derive.linear.operators import J, Kernel
from derive.program.words import ell, s, t


class Values(ABC):
    """Operators of a linear theory for the errors found so far (``errors[n]`` of order n)."""

    def __init__(self, closure: LinearClosure, algebra: Algebra, rates: Sequence[Any]) -> None:
        self.closure, self.algebra, self.rates = closure, algebra, rates
        self.errors: list[Vector] = []
        self.kernels = {k.name: k for k in closure.kernels if k.operator.has(ell)}
        self.data = {e.rhs for e in closure.base if e.rhs not in (0, J)}

    @abstractmethod
    def operator(self, name: str, n: int, layer: Any = ell) -> Operator:
        """Order n of an operator."""

    @abstractmethod
    def output(self, n: int) -> Vector:
        """Order n of the output, without the part that errors not found yet have in it."""

    @abstractmethod
    def tangent(self, n: int) -> Operator:
        """Order n of the tangent kernel."""

    @abstractmethod
    def forget(self, n: int) -> None:
        """Forget values of order n and beyond: an error has been found."""

    # -- constants -------------------------------------------------------------------------------------

    def constant(self, x: Expr) -> Operator:
        """A kernel that does not depend on time: 1, or the data's, which is diagonal."""
        f = self.algebra.functions
        if x == J:
            return Operator({(0, 0): {f.idle: f.one}}, False)
        if x not in self.data or len(self.data) != 1:
            raise NotApplicable(f"{x} is no kernel of the data: its eigenvalues are not known")
        entries = {(k, k): {f.idle: f.ring(x)} for k, x in enumerate(self.rates) if x}
        return Operator(entries, False, unit=-1)

    def number(self, c: Any) -> PolyElement:
        """A coefficient: a polynomial in the parameters."""
        f = self.algebra.functions
        out = f.zero
        for part in Add.make_args(sympify(c).expand()):
            number, rest = part.as_coeff_Mul()
            value = f.ring(f.field.from_sympy(number))
            for base, power in rest.as_powers_dict().items():
                if base != 1:
                    value = value * f.parameters[base] ** int(power)
            out += value
        return out

    def remembered(self, kernel: str, order: int, body: Operator) -> Operator:
        """What a kernel remembers of a correlation with the error of one order."""
        if order >= len(self.errors):
            return Operator({}, True)
        return self.algebra.remembered(body, self.errors[order], bool(self.kernels[kernel].rows))


def memory_weight(closure: LinearClosure, constants: Mapping[Symbol, Expr]) -> Expr:
    """The constant with which kernels remember an update: ``eta``, ``1/P``, ...

    Raises NotApplicable when it depends on time (weights that forget), or differs from kernel to kernel.
    """
    found = {_weight(k, closure).subs(dict(constants)) for k in closure.kernels if k.operator.has(ell)}
    if len(found) != 1:
        raise NotApplicable(f"kernels remember with different weights: {sorted(map(str, found))}")
    return found.pop()


def _weight(k: Kernel, closure: LinearClosure) -> Expr:
    part = next(x for x in Add.make_args(k.definition) if _errors(x, closure))
    weight: Expr = S.One
    todo = list(Mul.make_args(part))
    while todo:
        x = todo.pop()
        if isinstance(x, Sum):
            todo += Mul.make_args(x.function)
        elif not isinstance(x, AppliedUndef):
            weight *= x
        elif x.args == (t, s):
            raise NotApplicable(f"{k.entry} remembers with a weight that depends on time: {x}")
    if weight.has(t, s):
        raise NotApplicable(f"{k.entry} remembers with a weight that depends on time: {weight}")
    return weight


def _errors(e: Expr, closure: LinearClosure) -> bool:
    names = {str(x.lhs.args[0]) for x in (*closure.covariances, *closure.responses)}
    atoms = e.atoms(AppliedUndef)
    return any(str(a.func) in names for a in atoms) and any(str(a.func) not in names for a in atoms)


def solved(
    values: Values, targets: Sequence[PolyElement], powers: Sequence[tuple[int, ...]], order: int
) -> None:
    """Find the errors up to ``order``: each obeys a linear Volterra equation, driven by what is known.

    Every solution is put back.  Raises NotApplicable where it is none, since then the output depends on the
    error of its own order in another way than at order 0.
    """
    a = values.algebra
    f = a.functions
    for n in range(len(values.errors), order + 1):
        rest = values.output(n)
        drive = {k: -g for k, g in rest.entries.items()}
        if n == 0:
            if drive:
                raise NotApplicable("the output without errors must be zero at order 0")
            drive = {k: y for k, y in enumerate(targets) if y}
        found = {k: f.volterra(g, values.rates[k], powers[k]) for k, g in drive.items()}
        values.errors.append(
            a.reduced(Vector({k: g for k, g in found.items() if g}, rest.unit, rest.damping))
        )
        values.forget(n)
        check(values, targets, n)


def check(values: Values, targets: Sequence[PolyElement], n: int) -> None:
    """Error and output of order n must add up to the targets, exactly."""
    a = values.algebra
    zero = a.functions.zero
    found = (values.output(n), values.errors[n])
    top = max(v.damping for v in found)
    for k, y in enumerate(targets):
        total = y * a.feedback**top if n == 0 else zero
        for v in found:
            total -= v.entries.get(k, zero) * a.feedback ** (top - v.damping)
        if total:
            raise NotApplicable(
                f"the error's equation at order {n} is not that at order 0, with another drive"
            )


def feedback(values: Values) -> PolyElement:
    """The number c in ``f = c rate integral(Delta)``, the output's dependence on the error of its own order.

    ``values`` must have no errors yet, and ``1`` for the feedback of its algebra.
    """
    f = values.algebra.functions
    trial = f.one + f.ring.gens[0] * 3
    values.errors.append(Vector(dict.fromkeys(range(len(values.rates)), trial)))
    out = values.output(0)
    quotients = []
    for k, x in enumerate(values.rates):
        once = f.integral(trial) * x
        q, rest = out.entries.get(k, f.zero).div(once) if x else (None, out.entries.get(k, f.zero))
        if rest:
            raise NotApplicable("the output is no running integral of the error")
        if q is not None:
            quotients.append(q)
    if not quotients or any(q != quotients[0] for q in quotients) or not quotients[0]:
        raise NotApplicable(f"the output depends on the error through {quotients}, not through one number")
    return quotients[0]


__all__ = ["Values", "feedback", "memory_weight", "solved"]
