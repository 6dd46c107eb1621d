"""The operators of an expansion as values of the algebra, order by order.

Two routes share this module: the words of the expansion (any depth at once), and the closure's own equations at
an integer depth.  Either says what the output is for given errors; the error is then what is left of the target.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from sympy import Add, Expr, Indexed, Integer, Mul, Pow, S, Sum, Symbol, sympify
from sympy.core.function import AppliedUndef
from sympy.functions.elementary.complexes import transpose as Transpose
from sympy.polys.rings import PolyElement

from derive.expansion.in_time.operators import Algebra, Operator, Vector
from derive.expansion.linear import LinearExpansion
from derive.expansion.recursion import products
from derive.expansion.words import Memory, letters, terms
from derive.meanfield.reductions.linear_closure import LinearClosure
from derive.meanfield.reductions.operators import J, Kernel
from derive.meanfield.reductions.projection import NotApplicable
from derive.program.expressions import L, ell, gamma0, s, t

Value = Operator | PolyElement | None
"""An operator, a multiple of the identity, or zero."""


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


class FromWords(Values):
    """Values of operator words; the layer and the depth may be symbols."""

    def __init__(self, expansion: LinearExpansion, algebra: Algebra, rates: Sequence[Any]) -> None:
        super().__init__(expansion.closure, algebra, rates)
        self.expansion = expansion
        self.known: dict[tuple[Expr, ...], Operator] = {}

    def operator(self, name: str, n: int, layer: Any = ell) -> Operator:
        return self.total(self.expansion.coefficient(name, n, layer))

    def output(self, n: int) -> Vector:
        found = self.total(self.expansion.output[n])
        return self.algebra.equal_times(found)

    def tangent(self, n: int) -> Operator:
        a = self.algebra
        return a.add(
            Operator({}, False),
            *[
                a.scale(self.number(c), a.elementwise(self.word(g), self.word(h)))
                for c, g, h in self.expansion.tangent[n]
            ],
        )

    def forget(self, n: int) -> None:
        """Words that an error was missing from were not kept."""

    def total(self, e: Expr) -> Operator:
        """A sum of words."""
        a = self.algebra
        return a.add(
            *[a.scale(c, self.word(w)) for x, w in terms(e) if (c := self.number(x))] or [Operator({}, False)]
        )

    def word(self, w: Expr) -> Operator:
        """A word: the product of its letters."""
        return self.product(tuple(letters(w)))

    def product(self, ls: tuple[Expr, ...]) -> Operator:
        if ls not in self.known:
            if len(ls) == 1:
                value = self.letter(ls[0])
            else:
                a, b = self.letter(ls[0]), self.product(ls[1:])
                if not a.causal:  # a constant, and flipped letters after it
                    value = self.constant_first(ls)
                else:
                    value = self.algebra.product(a, b)
            if any(x.order >= len(self.errors) for y in ls for x in y.atoms(Memory)):
                return value
            self.known[ls] = value
        return self.known[ls]

    def constant_first(self, ls: tuple[Expr, ...]) -> Operator:
        """``K a^T b^T = (b a K)^T``."""
        value = self.letter(ls[0])
        for x in ls[1:]:
            value = self.algebra.product(value, self.letter(x))
        return value

    def letter(self, x: Expr) -> Operator:
        if isinstance(x, Transpose):
            return self.algebra.transpose(self.letter(x.args[0]))
        if isinstance(x, Memory):
            if (x,) not in self.known:
                return self.remembered(x.kernel, x.order, self.word(x.body))
            return self.known[x,]
        return self.constant(x)


class AtDepth(Values):
    """Values by the closure's equations, at an integer depth."""

    def __init__(self, closure: LinearClosure, depth: int, algebra: Algebra, rates: Sequence[Any]) -> None:
        super().__init__(closure, algebra, rates)
        if closure.layers is None:
            raise NotApplicable("derive the theory at symbolic depth and give the depth here")
        self.depth = depth
        self.laws = {str(e.lhs.args[0]): (e.lhs, e.rhs) for e in (*closure.covariances, *closure.responses)}
        self.ends = {
            (str(e.lhs.args[0]), int(self.placed(e.lhs.args[1]))): e.rhs for e in closure.base
        }
        self.known: dict[tuple[Any, int], Value] = {}

    def placed(self, e: Any) -> Expr:
        """With the depth put in."""
        return sympify(e).subs(L, self.depth)

    def forget(self, n: int) -> None:
        self.known = {k: v for k, v in self.known.items() if k[1] < n}

    def operator(self, name: str, n: int, layer: Any = ell) -> Operator:
        place = self.placed(layer)
        if not place.is_Integer:
            raise ValueError(f"layer = {layer}: at depth {self.depth} give an integer, or L")
        value = self.at(name, int(place), n)
        if value is None:
            return Operator({}, name not in self.correlations)
        assert isinstance(value, Operator)
        return value

    @property
    def correlations(self) -> set[str]:
        """Names of operators that are not causal."""
        return {str(e.lhs.args[0]) for e in self.closure.covariances}

    def output(self, n: int) -> Vector:
        found = self.coefficient(self.placed(self.closure.outputs[0].rhs), n + 1)
        if found is None:
            return Vector({})
        assert isinstance(found, Operator)
        return self.algebra.equal_times(found)

    def tangent(self, n: int) -> Operator:
        a = self.algebra
        parts = [Operator({}, False)]
        for limits, atoms in products(self.closure.theory.observables[0].rhs):
            lower, upper = (0, 0) if limits is None else (int(self.placed(x)) for x in limits)
            for layer in range(lower, upper + 1):
                left, right = (None, atoms[0]) if len(atoms) == 1 else atoms
                for k in range(n + 1):
                    x, y = self.factor(left, layer, k), self.factor(right, layer, n - k)
                    if x is not None and y is not None:
                        assert isinstance(x, Operator)
                        assert isinstance(y, Operator)
                        parts.append(a.elementwise(x, y))
        return a.add(*parts)

    def factor(self, x: AppliedUndef | None, layer: int, n: int) -> Value:
        """Order n of a factor of the tangent kernel; None stands for the kernel that is 1."""
        if x is not None and str(x.func) in self.laws:
            return self.at(str(x.func), int(self.placed(x.args[0]).subs(ell, layer)), n)
        if n > 0:
            return None
        return self.constant(J if x is None else Symbol(str(x.func), commutative=False))

    # -- order n of an expression ------------------------------------------------------------------------

    def at(self, name: str, layer: int, n: int) -> Value:
        """Order n of an operator at a layer."""
        key = (name, layer), n
        if key not in self.known:
            if (name, layer) in self.ends:
                value = self.coefficient(self.ends[name, layer], n)
            elif name in self.kernels:
                value = self.kernel(name, layer, n)
            else:
                lhs, rhs = self.laws[name]
                value = self.coefficient(self.placed(rhs.subs(ell, layer + ell - lhs.args[1])), n)
            self.known[key] = value
        return self.known[key]

    def kernel(self, name: str, layer: int, n: int) -> Value:
        """The response of the neighbouring layer, and what is remembered of the correlation there."""
        parts: list[Operator] = []
        for part in Add.make_args(self.kernels[name].definition):
            atom = next(x for x in part.atoms(AppliedUndef) if str(x.func) in self.laws)
            place = int(self.placed(atom.args[0].subs(ell, layer)))
            for k in [0] if part == atom else range(len(self.errors)):
                value = self.at(str(atom.func), place, n - k) if n >= k else None
                if value is None:
                    continue
                assert isinstance(value, Operator)
                parts.append(value if part == atom else self.remembered(name, k, value))
        return self.sum(parts)

    def coefficient(self, e: Expr, n: int) -> Value:
        """The coefficient of gamma0^n."""
        key = e, n
        if key not in self.known:
            self.known[key] = self._coefficient(e, n)
        return self.known[key]

    def _coefficient(self, e: Expr, n: int) -> Value:
        if e.is_commutative:
            # numbers and powers of gamma0
            found = e.coeff(gamma0, n)
            return self.number(found) if found != 0 else None
        if isinstance(e, Indexed):
            return self.at(str(e.args[0]), int(e.args[1]), n)
        if isinstance(e, Transpose):
            found = self.coefficient(e.args[0], n)
            return self.algebra.transpose(found) if isinstance(found, Operator) else found
        if isinstance(e, Add):
            return self.sum([self.coefficient(x, n) for x in e.args])
        if isinstance(e, Mul):
            return self.multiplied(e.args, n)
        if isinstance(e, Pow) and e.exp == -1:
            return self.inverse(e, n)
        if isinstance(e, Pow) and e.exp.is_Integer and e.exp > 0:
            return self.multiplied((e.base,) * int(e.exp), n)
        return self.constant(e) if n == 0 else None

    def multiplied(self, factors: tuple[Expr, ...], n: int) -> Value:
        """Order n of a product; what is multiplied by zero is not asked for."""
        first, *rest = factors
        if not rest:
            return self.coefficient(first, n)
        parts: list[Value] = []
        for k in range(n + 1):
            a = self.coefficient(first, k)
            if a is not None:
                parts.append(self.times(a, self.multiplied(tuple(rest), n - k)))
        return self.sum(parts)

    def inverse(self, e: Pow, n: int) -> Value:
        """``1 / (1 - M) = 1 + M / (1 - M)``."""
        if n == 0:
            if self.coefficient(e.base, 0) != 1:
                raise NotApplicable(f"{e} at gamma0 = 0 is not 1")
            return self.algebra.functions.one
        parts: list[Value] = []
        for k in range(1, n + 1):
            a = self.coefficient(e.base, k)
            if a is not None:
                minus = -self.algebra.functions.one
                parts.append(self.times(minus, self.times(a, self.coefficient(e, n - k))))
        return self.sum(parts)

    def times(self, a: Value, b: Value) -> Value:
        if a is None or b is None:
            return None
        if isinstance(a, PolyElement) and isinstance(b, PolyElement):
            return a * b
        if isinstance(a, PolyElement):
            assert isinstance(b, Operator)
            return self.algebra.scale(a, b)
        if isinstance(b, PolyElement):
            return self.algebra.scale(b, a)
        return self.algebra.product(a, b)

    def sum(self, parts: Sequence[Value]) -> Value:
        found = [x for x in parts if x is not None]
        operators = [x for x in found if isinstance(x, Operator)]
        if len(operators) < len(found) and operators:
            raise NotApplicable("a multiple of the identity, added to an operator at the same order")
        if not found:
            return None
        if operators:
            return self.algebra.add(*operators)
        return sum(found[1:], found[0]) or None


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


def solved(values: Values, targets: Sequence[PolyElement], powers: Sequence[tuple[int, ...]], order: int) -> None:
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
        values.errors.append(a.reduced(Vector({k: g for k, g in found.items() if g}, rest.unit, rest.damping)))
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
            raise NotApplicable(f"the error's equation at order {n} is not that at order 0, with another drive")


def feedback(values: Values) -> PolyElement:
    """The number c in ``f = c rate integral(Delta)``, the output's dependence on the error of its own order.

    ``values`` must have no errors yet, and ``1`` for the feedback of its algebra.
    """
    f = values.algebra.functions
    trial = f.one + f.ring.gens[0] * Integer(3)
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


__all__ = ["AtDepth", "FromWords", "Values", "feedback", "memory_weight", "solved"]
