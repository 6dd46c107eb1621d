"""Which exponents of a parametrised program describe one network: an exact symmetry, at every width."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sympy import Expr, Matrix, Mul, Pow, S, Sum, Symbol, expand_power_base, sympify
from sympy.core.function import AppliedUndef

from derive.program.program import Definition, Program, gaussian, parameter
from derive.program.training import TrainedMatrix, TrainedVector
from derive.program.words import Mean, Product, terms
from derive.scale.parametrization import families, layer_index, parametrized, symbols_of, weights
from derive.scale.power_counting import Counting
from derive.scale.power_counting_functions import shape_of
from derive.scale.power_counting_values import powers


def symmetries(program: Program) -> tuple[dict[Expr, Expr], ...]:
    """The directions in which exponents may change while every step of training stays what it was.

    Fields X are rescaled by ``N^x`` and raw weights by ``N^w``.  Every term of every definition and update
    must carry the power of what it defines; functions that take no factors out leave their fields no choice.
    This is a linear system for the shifts, at any N and for any number of steps.  Its solutions, as far as
    exponents change, are returned by exponent.  The depth must be a number.

    >>> from derive.program import mlp
    >>> for shift in symmetries(mlp(2, "tanh")): print(shift)
    {d: 1, a_w: -1, c: 2}
    {a_W(1): 1, a_W0: 1, a_w: 1, b_W(1): -2, b_W0: -2, b_w: -2, c: -2}
    """
    return _Symmetry(program).directions()


class _Symmetry:
    """The linear system for shifts of exponents, of fields and of raw weights."""

    def __init__(self, program: Program) -> None:
        self.program = parametrized(program)
        self.own = symbols_of(program)
        self.read = Counting(self.program, False, False)
        self.rows: list[Expr] = []
        self.exponents: set[Expr] = {self.own.c, self.own.d}

    def directions(self) -> tuple[dict[Expr, Expr], ...]:
        for definition, env in self.read.rules.values():
            self.define(definition, env)
        for w in self.program.trained():
            self.train(w)
        for own in weights(self.program).values():
            for env in self.family(own):
                self.draw(own, env)
        unknown = sorted(
            {x for row in self.rows for x in row.free_symbols | row.atoms(AppliedUndef)}, key=str
        )
        unknown = [x for x in unknown if isinstance(x, AppliedUndef) or not self._argument(x, unknown)]
        order = [x for x in unknown if x not in self.exponents] + self.ordered(unknown)
        M = Matrix([[coefficient(row, x) for x in order] for row in self.rows])
        hidden = len(order) - len(self.ordered(unknown))
        found = []
        for vector in M.nullspace():
            found.append(list(vector[hidden:]))
        basis = Matrix(found).rref()[0] if found else Matrix([])
        kept = [list(basis.row(i)) for i in range(basis.rows) if any(basis.row(i))]
        names = self.ordered(unknown)
        return tuple({x: v for x, v in zip(names, row, strict=True) if v != 0} for row in kept)

    @staticmethod
    def _argument(x: Expr, unknown: list[Expr]) -> bool:
        return any(isinstance(f, AppliedUndef) and x in f.args for f in unknown)

    def ordered(self, unknown: list[Expr]) -> list[Expr]:
        """d first, c last, so that directions come out one by one."""
        last = [x for x in unknown if x in self.exponents and x not in (self.own.c, self.own.d)]
        return [x for x in (self.own.d, *last, self.own.c) if x in unknown]

    # -- rows --------------------------------------------------------------------------------------------

    def define(self, definition: Definition, env: Mapping[Any, Any]) -> None:
        """Every term has the power of the field that is defined."""
        name = definition.name
        whole = self.shift(name, self.read.site(definition.lhs, env))
        for e in terms(definition.rhs):
            for row in self.term(e, env):
                self.rows.append(row - whole)

    def train(self, w: Any) -> None:
        """The update has the power of the raw weight."""
        for env in self.family(w):
            u = w.update
            for inner in self.read.members(u.over):
                at = {**env, **inner}
                bodies = (u.vector,) if isinstance(w, TrainedVector) else (u.left, u.right)
                for row in self.term(Mul(u.coefficient, *bodies), at):
                    self.rows.append(row - self.raw(w, env))

    def draw(self, w: Any, env: Mapping[Any, Any]) -> None:
        """The standard deviation at the start has the power of the raw weight."""
        initial = w.initial if isinstance(w, TrainedMatrix | TrainedVector) else w
        self.rows.append(self.power(sympify(initial.variance), env) / 2 - self.raw(w, env))

    def family(self, w: Any) -> list[Mapping[Any, Any]]:
        return [*self.read.members(families(w))]

    def term(self, e: Expr, env: Mapping[Any, Any]) -> list[Expr]:
        """The shifts that the factors of a term bring; one for each addend inside."""
        e = expand_power_base(e)
        total: list[Expr] = [S.Zero]
        for factor in Mul.make_args(e):
            found = self.factor(factor, env)
            total = [x + y for x in total for y in found]
        return total

    def factor(self, e: Expr, env: Mapping[Any, Any]) -> list[Expr]:
        if isinstance(e, Mean | Sum):
            return self.many(e.args[0], env)
        if isinstance(e, Product):
            m = self.program.matrix_of(e)
            at = dict(zip(gaussian(m).symbol.args, e.matrix.args, strict=True))
            own = {k: x.subs(env) for k, x in at.items()}
            fixed = gaussian(m).name not in weights(self.program)
            raw = S.Zero if fixed else self.raw(m, own)
            return [raw + x for x in self.many(e.vector, env)]
        if self.read.is_number(e):
            return [self.power(e, env)]
        if e.is_Add or (isinstance(e, Pow) and e.exp.is_Integer and e.exp.is_positive):
            times = int(e.exp) if isinstance(e, Pow) else 1
            return [times * x for x in self.many(e.base if isinstance(e, Pow) else e, env)]
        for v in self.program.vectors:
            for used in parameter(v).uses(e):
                if used == e:
                    at = dict(zip(parameter(v).symbol.args, e.args, strict=True))
                    return [self.raw(v, {k: x.subs(env) for k, x in at.items()})]
        if isinstance(e, AppliedUndef) and (str(e.func), self.read.site(e, env)) in self.read.rules:
            return [self.shift(str(e.func), self.read.site(e, env))]
        if isinstance(e, AppliedUndef) and self.program.given_of(str(e.func)):
            return [S.Zero]
        inside = [
            x for x in e.atoms(AppliedUndef) if (str(x.func), self.read.site(x, env)) in self.read.rules
        ]
        shifts = [self.shift(str(x.func), self.read.site(x, env)) for x in inside]
        degree = shape_of(e, inside).degree
        if degree is not None and len(inside) == 1:  # relu takes positive factors out
            return [degree * shifts[0]]
        self.rows += shifts
        return [S.Zero]

    def many(self, e: Expr, env: Mapping[Any, Any]) -> list[Expr]:
        return [x for part in terms(e) for x in self.term(part, env)]

    # -- unknowns ----------------------------------------------------------------------------------------

    def shift(self, name: str, site: Expr | None) -> Expr:
        """How a field is rescaled; outputs and errors are not."""
        return S.Zero if name in self.program.scalars else Symbol(f"x_{name}_{site}")

    def raw(self, w: Any, env: Mapping[Any, Any]) -> Expr:
        """How a raw weight is rescaled."""
        layer = layer_index(self.program, w)
        return Symbol(f"w_{w.name}_{'' if layer is None else env[layer]}")

    def power(self, e: Expr, env: Mapping[Any, Any]) -> Expr:
        """The change of a power of N: its part linear in the exponents."""
        (whole,) = powers(sympify(e).subs(env))
        linear = S.Zero
        for x in whole.atoms(Symbol, AppliedUndef):
            if not isinstance(x, AppliedUndef) and any(x in f.args for f in whole.atoms(AppliedUndef)):
                continue
            self.exponents.add(x)
            linear += coefficient(whole, x) * x
        return linear


def coefficient(row: Expr, x: Expr) -> Expr:
    return sympify(row).expand().coeff(x)
