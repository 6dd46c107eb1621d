"""Plain chains of layers, as reductions that argue layer by layer need them."""

from __future__ import annotations

from itertools import product

from sympy import Dummy, Expr, S, simplify
from sympy.core.function import AppliedUndef

from derive.errors import NotApplicable
from derive.program.program import Definition, Program, parameter
from derive.program.words import Mean
from derive.reduce.homogeneous import NotHomogeneous, output


class Chain:
    """A network of layers ``h -> phi(h) -> W phi(h)``, read by a vector ``z`` at its end.

    ``h`` and ``phi`` are the field of the last layer and what the output reads of it.  Raises
    :class:`NotApplicable` for any other network (biases, residual branches, sums over positions).
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        body = next(iter(output(program).rhs.atoms(Mean))).args[0]
        names = {parameter(v).name for v in program.vectors}
        ends = [
            d
            for d in program.definitions
            if str(getattr(d.rhs, "func", d.rhs)) in names or str(d.rhs) in names
        ]
        read = [d.lhs for d in ends if body.has(d.lhs)]
        if len(read) != 1:
            raise NotApplicable(f"the output of {program.name} is no readout of the last layer")
        self.z = read[0]
        self.phi = body / self.z
        fields = [a for a in self.phi.atoms(AppliedUndef) if program.field_of(str(a.func))]
        if len(fields) != 1:
            raise NotApplicable(f"the output reads {self.phi}, not one field")
        self.h = fields[0]
        self._check()

    def _check(self) -> None:
        """The inner layers are of the same kind: applied to phi(h), and met backwards by the same matrix."""
        for d in self.program.definitions:
            for x in () if _empty(d) else d.products():
                if d.rhs != x:
                    raise NotApplicable(f"{d.lhs} = {d.rhs} is more than a matrix product")
                if x.transposed or self.program.given_of(str(getattr(x.vector, "func", ""))):
                    continue
                if x.vector != self._at(self.phi, d.lhs.args[0] - 1):
                    raise NotApplicable(f"{d.lhs} = {d.rhs} does not continue the output's {self.phi}")

    def _at(self, e: Expr, site: Expr) -> Expr:
        return e.xreplace({self.h: self.h.func(site, *self.h.args[1:])})

    def power(self) -> Expr:
        """The p with ``g h = p phi(h) z`` in the last layer, for either sign of each field."""
        backward = self.z if self.phi == self.h else self._gradient()
        slots = {a: Dummy(str(a.func), positive=True) for a in (self.h, self.z)}
        ratios = set()
        for signs in product((1, -1), repeat=2):
            put = {a: k * slots[a] for a, k in zip(slots, signs, strict=True)}
            up, down = (simplify(e.subs(put).doit()) for e in (self.phi * self.z, backward * self.h))
            if up == 0 and down in (0, S.NaN):  # a rectifier's silent side
                continue
            ratios.add(simplify(down / up) if up != 0 else S.NaN)
        if len(ratios) != 1 or any(x.free_symbols & set(slots.values()) for x in ratios) or S.NaN in ratios:
            raise NotHomogeneous(f"{backward} times {self.h} is no multiple of {self.phi * self.z}")
        return ratios.pop()

    def _gradient(self) -> Expr:
        """The backward field of the last layer in terms of h and z."""
        for d in self.program.definitions:
            names = {r.index: self.program.depth for r in d.ranges if d.lhs.args[0] == r.index}
            rhs = d.rhs.subs(names) if names else d.rhs
            if d.lhs.args and d.lhs != self.z and rhs.has(self.z) and self.program.field_of(d.name):
                return rhs
        raise NotApplicable(f"no field is made of {self.z}")


def _empty(d: Definition) -> bool:
    return any((r.upper - r.lower).is_negative for r in d.ranges)
