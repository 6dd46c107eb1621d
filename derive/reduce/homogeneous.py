"""Networks that are homogeneous in their weights: degrees, and plain chains of layers.

If ``f(c theta) = c^kappa f(theta)``, the degree kappa is found from a program by sending every weight to
``c`` times itself and following the powers of c through its definitions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from sympy import Add, Dummy, Expr, Function, Mul, S, Sum, Symbol, factor, powsimp, rsolve, simplify, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import alpha, mu
from derive.errors import NotApplicable
from derive.program.parts import Definition, gaussian, parameter
from derive.program.program import Program
from derive.program.words import Mean, Product
from derive.theory.applications import nonempty


class NotHomogeneous(NotApplicable):
    """A function or a network that does not scale as a power of its argument or weights."""


# -- functions -----------------------------------------------------------------------------------------------


def exponent(e: Expr, powers: Mapping[Expr, Expr]) -> Expr:
    """The power of c that ``e`` gains when each key of ``powers`` is multiplied by c to its value.

    Checked on every combination of signs of the keys.  Raises :class:`NotHomogeneous`.

    >>> from sympy.abc import x, y
    >>> exponent(x**2 * y + y**3, {x: 1, y: 1})
    3
    """
    c, found = Dummy("c", positive=True), []
    shown = str(e).replace("_", "")
    monomial, rest = S.Zero, S.One  # powers of keys beside everything else
    for x in Mul.make_args(e):
        base, n = x.as_base_exp()
        if base in powers and n.is_Integer:
            monomial += n * powers[base]
        else:
            rest *= x
    e = rest
    keys = [x for x in powers if e.has(x)]
    sizes = {x: Dummy("size", positive=True) for x in keys}
    # powers that are no numbers by symbols, for SymPy joins c**a c**b only where it knows a and b
    names = {p: p if p.is_number else Dummy("power", real=True) for p in map(sympify, powers.values())}
    for signs in product((1, -1), repeat=len(keys)):
        before = {x: k * sizes[x] for x, k in zip(keys, signs, strict=True)}
        after = {x: before[x] * c ** names[sympify(powers[x])] for x in keys}
        plain, scaled = (simplify(e.subs(v, simultaneous=True).doit()) for v in (before, after))
        if plain == 0 and scaled == 0:
            continue
        ratio = powsimp(simplify(scaled / plain)) if plain != 0 else S.NaN
        power = simplify(c * ratio.diff(c) / ratio) if plain != 0 else c
        if {c, *sizes.values()} & power.free_symbols or ratio.atoms(AppliedUndef):
            unknown = ", ".join(sorted({str(a.func) for a in e.atoms(AppliedUndef)}))
            reason = " is not homogeneous: at c*x it is no power of c times itself"
            raise NotHomogeneous(shown + (f": nothing is known of {unknown}" if unknown else reason))
        found.append(power.xreplace({d: p for p, d in names.items()}))
    if not found:
        raise NotHomogeneous(f"{e} vanishes")
    if any(simplify(p - found[0]) != 0 for p in found):
        raise NotHomogeneous(f"{shown} scales with other powers on either side of zero: {found}")
    return simplify(monomial + found[0]) if monomial != 0 else found[0]


# -- networks ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Homogeneity:
    """``f(c theta) = c^kappa f(theta)``, and the degree of each field (of layer ell) that f is made of."""

    kappa: Expr
    fields: Mapping[str, Expr]


@lru_cache(maxsize=64)
def network_degree(program: Program) -> Homogeneity:
    """The degree of a program's output in its trained weights.

    Raises :class:`NotHomogeneous`, naming the definition, for one whose terms scale differently (a bias, a
    residual branch, most activations).

    >>> from sympy import Lambda, Max
    >>> from derive import mlp
    >>> x, q = Symbol("x"), Symbol("q", positive=True)
    >>> for phi in ("relu", x**2, Lambda(x, Max(0, x) ** q)): print(network_degree(mlp(activation=phi)).kappa)
    L + 1
    2**(L + 1) - 1
    (q**(L + 1) - 1)/(q - 1)
    """
    found = _Degrees(program)
    kappa = found.of(output(program).lhs)
    return Homogeneity(neat(kappa), dict(found.known))


def output(program: Program) -> Definition:
    """The definition of the program's output: the one number that is a mean."""
    means = [d for d in program.definitions if d.name in program.scalars and d.rhs.has(Mean)]
    if len(means) != 1:
        raise NotApplicable(f"{program.name} has {len(means)} outputs that are means")
    return means[0]


class _Degrees:
    """Powers of c of fields, each family's by its recursion in the layer."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.definitions = nonempty(program.definitions)
        self.trained = {w.name for w in program.trained()}
        self.known: dict[str, Expr] = {}  # families' degrees, at their index
        self.open: dict[str, Expr] = {}  # those being found, by a symbol

    def of(self, atom: AppliedUndef) -> Expr:
        """The degree of one field or number."""
        name, program = str(atom.func), self.program
        if name in program.constants or program.given_of(name) or program.attribute_of(name):
            return S.Zero
        if name in self.open:
            return self.open[name]
        named = [d for d in self.definitions if d.name == name]
        exact = [d for d in named if name in program.scalars or d.lhs.args[0] == atom.args[0]]
        family = [d for d in named if _index(d) is not None]
        if exact and exact[0] not in family:
            return self.of_sum(exact[0])
        if name not in self.known:
            self.known[name] = self.family(name, family, [d for d in named if d not in family])
        return self.known[name].xreplace({_index(d): atom.args[0] for d in family})

    def family(self, name: str, inside: list[Definition], ends: list[Definition]) -> Expr:
        """Solve ``d(n + 1) = a d(n) + b`` from the end of a family; all its terms must then scale alike."""
        if len(ends) != 1 or len(inside) > 1:
            raise NotApplicable(f"{name} is no chain of layers with one end")
        start = self.of_sum(ends[0])
        if not inside:
            return start
        self.open[name] = here = Dummy("here", real=True)
        powers = self.of_terms(inside[0])
        step = next((p for p in powers if p.has(here)), powers[0]).expand()
        del self.open[name]
        index, d, n = _index(inside[0]), Function("d"), Dummy("n", integer=True)
        if step.has(index):
            raise NotApplicable(f"the degree of {name} changes from layer to layer: {step}")
        solved = rsolve(d(n + 1) - step.xreplace({here: d(n)}), d(n), {d(ends[0].lhs.args[0]): start})
        if solved is None:
            raise NotApplicable(f"the recursion {step} for the degree of {name} has no closed form")
        self.known[name] = neat(solved).xreplace({n: index})
        self.of_sum(inside[0])
        return self.known[name]

    def of_terms(self, d: Definition) -> list[Expr]:
        whole = d.rhs if d.rhs.has(Product, Mean, Sum) else d.rhs.expand()
        return [self.of_term(x) for x in Add.make_args(whole)]

    def of_sum(self, d: Definition) -> Expr:
        """The degree of a definition's right-hand side: that of all its terms."""
        first, *others = self.of_terms(d)
        for p in others:
            if simplify(p - first) != 0:
                raise NotHomogeneous(f"{d.lhs} adds terms of degrees {first} and {p}")
        return first

    def of_term(self, e: Expr) -> Expr:
        """The degree of an entrywise expression, a product with a matrix, a mean or a sum."""
        if isinstance(e, Sum | Mean):
            return self.of_term(e.args[0])
        powers: dict[Expr, Expr] = {}

        def masked(e: Expr, x: Expr, power: Expr) -> Expr:
            slot = Dummy(str(x.func) if isinstance(x, AppliedUndef) else "slot", real=True)
            powers[slot] = power
            return e.xreplace({x: slot})

        p = self.program
        for x in sorted(e.atoms(Product, Mean), key=str):
            weight = isinstance(x, Product) and gaussian(p.matrix_of(x)).name in self.trained
            e = masked(e, x, int(weight) + self.of_term(x.vector if isinstance(x, Product) else x.args[0]))
        for v in map(parameter, p.vectors):
            for x in v.uses(e):
                e = masked(e, x, S(int(v.name in self.trained)))
        for a in sorted(e.atoms(AppliedUndef), key=str):
            name = str(a.func)
            if name in p.scalars or any(f(name) for f in (p.field_of, p.given_of, p.attribute_of)):
                e = masked(e, a, self.of(a))
        return exponent(e, powers) if powers else S.Zero


def _index(d: Definition) -> Symbol | None:
    """The layer's index of a family."""
    site = d.lhs.args[0] if d.lhs.args else S.Zero
    return next((r.index for r in d.ranges if site.has(r.index) and r.index not in (mu, alpha)), None)


def neat(e: Expr) -> Expr:
    """Factored, powers of one base put together: ``2**(L + 1) - 1``."""
    return powsimp(factor(simplify(e)))


# -- chains of layers ----------------------------------------------------------------------------------------


class Chain:
    """A network of layers ``h -> phi(h) -> W phi(h)``, read by a vector ``z`` at its end.

    ``h`` and ``phi`` are the field of the last layer and what the output reads of it.  Raises
    :class:`NotApplicable` for any other network (biases, residual branches, sums over positions).
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        body = next(iter(output(program).rhs.atoms(Mean))).args[0]
        names = {parameter(v).name for v in program.vectors}
        named = (d.lhs for d in program.definitions if names & {str(d.rhs), str(getattr(d.rhs, "func", ""))})
        read = [x for x in named if body.has(x)]
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
        for d in nonempty(self.program.definitions):
            for x in d.products():
                if d.rhs != x:
                    raise NotApplicable(f"{d.lhs} = {d.rhs} is more than a matrix product")
                if x.transposed or self.program.given_of(str(getattr(x.vector, "func", ""))):
                    continue
                below = {self.h: self.h.func(d.lhs.args[0] - 1, *self.h.args[1:])}
                if x.vector != self.phi.xreplace(below):
                    raise NotApplicable(f"{d.lhs} = {d.rhs} does not continue the output's {self.phi}")
