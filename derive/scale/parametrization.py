"""Width parametrisations of a program (selfconsistent2023 N.1, N.2), and which of them are one network.

Every weight W is applied as ``N^-a W`` and starts with variance ``N^-b``; the raw learning rate is
``eta gamma^2 N^-c`` with ``gamma = gamma0 N^d``.  The programs of this package are written with ``a = 1/2``
for matrices that act on a layer and for the readout, ``a = 0`` for those that act on the inputs and for
vectors that are added to a field, ``b = c = 0`` and ``d = 1/2``; :func:`parametrized` moves them elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sympy import Expr, Function, S, Symbol, sympify
from sympy.core.function import AppliedUndef

from derive.errors import NotApplicable
from derive.program.program import Program, gaussian, parameter
from derive.program.training import TrainedMatrix, TrainedVector
from derive.program.words import GaussianMatrix, GaussianVector, IndexRange, Product, terms
from derive.scale.power_counting_values import HALF, N

c, d = Symbol("c", real=True), Symbol("d", real=True)
Weight = GaussianMatrix | GaussianVector | TrainedMatrix | TrainedVector


@dataclass(frozen=True)
class Exponents:
    """The exponents of a program: ``a`` and ``b`` of each weight by its name, ``c`` and ``d``."""

    a: Mapping[str, Expr]
    b: Mapping[str, Expr]
    c: Expr = c
    d: Expr = d

    def subs(self, values: Mapping[Any, Any]) -> Exponents:
        """The same with numbers put in."""

        def put(e: Expr) -> Expr:
            return sympify(e).subs(values)

        own_a, own_b = ({k: put(x) for k, x in table.items()} for table in (self.a, self.b))
        return Exponents(own_a, own_b, put(self.c), put(self.d))


def weights(program: Program) -> dict[str, Weight]:
    """Every weight, trained or not, by its name; data that are drawn (a fresh matrix) are none."""
    found: dict[str, Weight] = {gaussian(m).name: m for m in program.matrices if not gaussian(m).fresh}
    return found | {parameter(v).name: v for v in program.vectors if not parameter(v).fresh}


def as_written(program: Program) -> Exponents:
    """The exponents that the program is written with.

    >>> from derive.program import mlp
    >>> as_written(mlp(3)).a
    {'W0': 0, 'W': 1/2, 'w': 1/2}
    """
    table = {name: _scale_written(program, w) for name, w in weights(program).items()}
    return Exponents(table, dict.fromkeys(table, S.Zero), S.Zero, HALF)


def symbols_of(program: Program) -> Exponents:
    """A symbol for each exponent: ``a_w``, ``b_w``; functions of the layer for a family, ``a_W(ell)``.

    >>> from derive.program import mlp
    >>> symbols_of(mlp(3, bias=True)).b
    {'W0': b_W0, 'W': b_W(ell), 'w': b_w, 'b': b_b(ell)}
    """
    found: dict[str, dict[str, Expr]] = {"a": {}, "b": {}}
    for name, w in weights(program).items():
        index = layer_index(program, w)
        for kind, table in found.items():
            own = f"{kind}_{name}"
            table[name] = Symbol(own, real=True) if index is None else Function(own, real=True)(index)
    return Exponents(found["a"], found["b"])


def parametrized(program: Program, exponents: Exponents | None = None) -> Program:
    """The program with these exponents in place of those that it is written with; symbols without any.

    Scales stand where a weight is applied, forwards and backwards, and in the gradient with respect to the
    raw weight; ``gamma0`` (the program's ``scale``) becomes ``gamma0 N^(d - 1/2)``.

    Raises :class:`NotApplicable` for a program without ``scale`` and for noise.

    >>> from derive.program import mlp
    >>> program = parametrized(mlp(2))
    >>> program.definitions[1].rhs
    N**(1/2 - a_W(ell))*W(ell) @ h(ell, mu, t)
    >>> program.matrices[1].update.coefficient
    N**(1/2 - a_W(ell))*N**(d - 1/2)*gamma0*Delta(alpha, t)/N**c
    """
    if not isinstance(program.scale, Symbol):
        raise NotApplicable(
            f"{program.name} has no scale of its outputs: divide them by gamma0, and name it as the scale"
        )
    own, new = as_written(program), exponents or symbols_of(program)
    missing = sorted(set(own.a) - (set(new.a) & set(new.b)))
    if missing:
        raise NotApplicable(f"exponents: a and b of {', '.join(missing)} are missing")
    scales = {name: N ** (own.a[name] - new.a[name]) for name in own.a}
    table = weights(program)
    larger = {program.scale: program.scale * N ** (new.d - own.d)}

    def rescaled(e: Expr) -> Expr:
        found = {}
        for x in e.atoms(Product):
            name = gaussian(program.matrix_of(x)).name
            if name in scales:
                found[x] = _of_member(scales[name], table[name], x.matrix) * x
        for name, w in table.items():
            if not isinstance(w, GaussianMatrix | TrainedMatrix):
                for x in parameter(w).uses(e):
                    found[x] = _of_member(scales[name], w, x) * x
        return e.xreplace(found)

    def start(name: str, w: Any) -> Any:
        return replace(w, variance=sympify(w.variance) * N ** -new.b[name])

    def trained(w: Any) -> Any:
        if isinstance(w, GaussianMatrix | GaussianVector):
            return start(w.name, w) if w.name in scales else w
        if sympify(getattr(w.rule, "diffusion", 0)) != 0:
            raise NotApplicable(f"{w.name} is trained with noise, which has a power of N of its own")
        u = w.update
        moved = replace(u, coefficient=u.coefficient.xreplace(larger) * scales[w.name] * N**-new.c)
        if isinstance(w, TrainedMatrix) and u.gradient is not None:
            moved = replace(moved, gradient=u.gradient.xreplace(larger) * scales[w.name])
        return replace(w, initial=start(w.name, w.initial), update=moved)

    unknown = {str(x.func) for e in (*new.a.values(), *new.b.values()) for x in e.atoms(AppliedUndef)}
    definitions = tuple(replace(x, rhs=rescaled(x.rhs.xreplace(larger))) for x in program.definitions)
    return replace(
        program,
        definitions=definitions,
        matrices=tuple(trained(m) for m in program.matrices),
        vectors=tuple(trained(v) for v in program.vectors),
        constants=(*program.constants, *sorted(unknown - set(program.constants))),
    )


def _of_member(scale: Expr, w: Any, used: Expr) -> Expr:
    """The scale of the member of a family that is used."""
    initial = w.initial if isinstance(w, TrainedMatrix | TrainedVector) else w
    return scale.xreplace(dict(zip(initial.symbol.args, used.args, strict=True)))


def _scale_written(program: Program, w: Weight) -> Expr:
    if isinstance(w, GaussianMatrix | TrainedMatrix):
        return S.Zero if gaussian(w).cols.given else HALF
    own = parameter(w)
    whole = [x for x in program.definitions for used in own.uses(x.rhs) if alone(x.rhs, used)]
    return HALF if whole else S.Zero


def alone(e: Expr, used: Expr) -> bool:
    """Is the expression the vector itself, up to a number?"""
    return len(terms(e)) == 1 and not (e / used).has(used)


def families(w: Weight) -> tuple[IndexRange, ...]:
    """The ranges of the indices of a family of weights."""
    if isinstance(w, GaussianMatrix | TrainedMatrix):
        index = gaussian(w).index
        return () if index is None else (index,)
    return parameter(w).indices


def layer_index(program: Program, w: Weight) -> Symbol | None:
    """The index over layers of a family of weights; members for positions and channels have one exponent."""
    if isinstance(w, GaussianMatrix | TrainedMatrix):
        index = gaussian(w).index
        return None if index is None else index.index
    own = parameter(w)
    site = own.population.site
    layers = [r.index for r in own.indices if site is not None and sympify(site).has(r.index)]
    return layers[0] if layers else None
