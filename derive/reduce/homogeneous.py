"""Homogeneous networks: the degree of the output in the weights, and plain chains of layers.

If ``f(c theta) = c^kappa f(theta)``, the degree kappa is found from a program by multiplying every weight by
``c`` and following the powers of c through the definitions.
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
from derive.program.language import Mean, Product
from derive.program.parts import Definition, gaussian, parameter
from derive.program.program import Program
from derive.theory.applications import nonempty


class NotHomogeneous(NotApplicable):
    """Error: a function or network does not scale as a power of its argument or weights."""


# -- functions -----------------------------------------------------------------------------------------------


def exponent(e: Expr, powers: Mapping[Expr, Expr]) -> Expr:
    """Return the power p for which ``e`` becomes ``c^p e`` if each key x becomes ``c^powers[x] x``.

    All combinations of signs of the keys are checked. Raises :class:`NotHomogeneous` if ``e`` is zero, if it
    is not multiplied by a power of c, or by different powers for different signs.

    >>> from sympy.abc import x, y
    >>> exponent(x**2 * y + y**3, {x: 1, y: 1})
    3
    """
    c, exponents = Dummy("c", positive=True), []
    shown = str(e).replace("_", "")
    # Each key of `powers` is multiplied by its power of c. `monomial` is the power of c that e gains by those
    # of its factors that are integer powers of keys. `other_factors` is the product of all other factors.
    monomial, other_factors = S.Zero, S.One
    for x in Mul.make_args(e):
        base, n = x.as_base_exp()
        if base in powers and n.is_Integer:
            monomial += n * powers[base]
        else:
            other_factors *= x
    e = other_factors
    keys = [x for x in powers if e.has(x)]
    sizes = {x: Dummy("size", positive=True) for x in keys}
    # A real symbol p stands for each symbolic power, because SymPy takes c**p as positive only for a real p,
    # and otherwise does not simplify Max(0, c**p x).
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
            reason = (
                " is not homogeneous: if all weights grow by a factor c > 0, it does not grow by a power of c"
            )
            raise NotHomogeneous(
                shown + (f" has no degree: {unknown} has no definition" if unknown else reason)
            )
        exponents.append(power.xreplace({d: p for p, d in names.items()}))
    if not exponents:
        raise NotHomogeneous(
            f"{shown} is zero and has no degree: the degree is the power of c by which it grows if all "
            "weights are multiplied by c"
        )
    if any(simplify(p - exponents[0]) != 0 for p in exponents):
        every = str([simplify(monomial + p) for p in exponents]).replace("_degree", "degree")
        raise NotHomogeneous(
            f"{shown} has no degree: if all weights are multiplied by c > 0, it is multiplied by different "
            f"powers of c, with the exponents {every}, for different signs of its arguments"
            + (" (degree_below is the degree of the layer below)" if "degree_below" in every else "")
        )
    return simplify(monomial + exponents[0]) if monomial != 0 else exponents[0]


# -- networks ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Homogeneity:
    """Degree ``kappa`` of a network in its weights: ``f(c theta) = c^kappa f(theta)``.

    ``fields`` maps the names of the layer families on which f depends to their degrees, functions of the
    index of layers. Fields without a family are not listed.
    """

    kappa: Expr
    fields: Mapping[str, Expr]


@lru_cache(maxsize=64)
def network_degree(program: Program) -> Homogeneity:
    """Return the degree of a program's output in its trained weights.

    Raises :class:`NotHomogeneous` if the terms of a definition scale differently (a bias, a residual branch)
    or an expression does not scale as a power (most activations), and NotApplicable if there is not exactly
    one output, or if the recursion of the degrees over layers is not solved.

    >>> from sympy import Lambda, Max
    >>> from derive import mlp
    >>> x, q = Symbol("x"), Symbol("q", positive=True)
    >>> for phi in ("relu", x**2, Lambda(x, Max(0, x) ** q)): print(network_degree(mlp(activation=phi)).kappa)
    L + 1
    2**(L + 1) - 1
    (q**(L + 1) - 1)/(q - 1)
    """
    degrees = _Degrees(program)
    kappa = degrees.of(output(program).lhs)
    return Homogeneity(neat(kappa), dict(degrees.known))


def output(program: Program) -> Definition:
    """Return the definition of the program's output: the only scalar that contains a mean over units.

    Raises NotApplicable if there is not exactly one.
    """
    means = [d for d in program.definitions if d.name in program.scalars and d.rhs.has(Mean)]
    if len(means) != 1:
        raise NotApplicable(
            f"{program.name} must have exactly one output that is an average over units; it has {len(means)}"
        )
    return means[0]


class _Degrees:
    """Degrees of fields in the trained weights.

    A field has the degree p if it is multiplied by ``c^p`` when every trained weight is multiplied by c. The
    degrees of a family of layers obey a recursion over layers, which is solved.
    """

    def __init__(self, program: Program) -> None:
        """Read the definitions of fields and the names of the trained weights."""
        self.program = program
        self.definitions = nonempty(program.definitions)
        self.trained = {w.name for w in program.trained()}
        self.known: dict[str, Expr] = {}  # degrees of layer families, as functions of the layer index
        self.open: dict[str, Expr] = {}  # symbols that stand for degrees whose computation has begun

    def of(self, atom: AppliedUndef) -> Expr:
        """Return the degree p of a field or scalar in the trained weights; zero for given data.

        The field is multiplied by ``c^p`` if every trained weight is multiplied by c.
        """
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
        """Return the degree of the fields of a layer family in the trained weights, by their layer index.

        The recursion ``d(n + 1) = a d(n) + b`` over layers n is solved from the first layer. ``inside``
        contains the definition of the family, or nothing, and ``ends`` that of the first layer. All terms
        must have the same degree. Raises NotApplicable if there are more definitions, if a degree depends on
        the layer otherwise, or if the recursion is not solved.
        """
        if len(ends) != 1 or len(inside) > 1:
            raise NotApplicable(
                f"the degree of {name} is not derived: it must have exactly one definition for a single "
                f"layer, the first, and at most one for a family of other layers; it has {len(ends)} and "
                f"{len(inside)}"
            )
        start = self.of_sum(ends[0])
        if not inside:
            return start
        self.open[name] = degree_below = Dummy("degree_below", real=True)
        powers = self.of_terms(inside[0])
        step = next((p for p in powers if p.has(degree_below)), powers[0]).expand()
        del self.open[name]
        index, d, n = _index(inside[0]), Function("d"), Dummy("n", integer=True)
        shown = f"{d(sympify(index) + 1)} = {step.xreplace({degree_below: d(index)})}"
        if step.has(index):
            raise NotApplicable(
                f"the degree of {name} is not derived: its recursion over layers, {shown}, contains the "
                f"layer {index} as a number"
            )
        solved = rsolve(d(n + 1) - step.xreplace({degree_below: d(n)}), d(n), {d(ends[0].lhs.args[0]): start})
        if solved is None:
            raise NotApplicable(
                f"the degree of {name} is not derived: SymPy finds no closed form of its recursion over "
                f"layers, {shown}"
            )
        self.known[name] = neat(solved).xreplace({n: index})
        self.of_sum(inside[0])
        return self.known[name]

    def of_terms(self, d: Definition) -> list[Expr]:
        """Return the degree of each term of a definition in the trained weights.

        A term of degree p is multiplied by ``c^p`` if every trained weight is multiplied by c.
        """
        whole = d.rhs if d.rhs.has(Product, Mean, Sum) else d.rhs.expand()
        return [self.of_term(x) for x in Add.make_args(whole)]

    def of_sum(self, d: Definition) -> Expr:
        """Return the degree that all terms of a definition have in the trained weights.

        A term of degree p is multiplied by ``c^p`` if every trained weight is multiplied by c. Raises
        NotHomogeneous if the degrees of terms differ.
        """
        first, *others = self.of_terms(d)
        for p in others:
            if simplify(p - first) != 0:
                raise NotHomogeneous(
                    f"{d.lhs} is not homogeneous in the weights: its definition adds terms of degrees "
                    f"{first} and {p}"
                )
        return first

    def of_term(self, e: Expr) -> Expr:
        """Return the degree p of a term of a definition in the trained weights.

        The term is multiplied by ``c^p`` if every trained weight is multiplied by c. It is an entrywise
        expression, a product with a matrix, a mean or a sum.
        """
        if isinstance(e, Sum | Mean):
            return self.of_term(e.args[0])
        powers: dict[Expr, Expr] = {}

        def masked(e: Expr, x: Expr, power: Expr) -> Expr:
            """Return ``e`` with a symbol of degree ``power`` in place of its part ``x``."""
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
    """Return the layer index of the definition of a family; None for a single definition."""
    site = d.lhs.args[0] if d.lhs.args else S.Zero
    return next((r.index for r in d.ranges if site.has(r.index) and r.index not in (mu, alpha)), None)


def neat(e: Expr) -> Expr:
    """Return an expression in factored form, with powers of one base joined, as in ``2**(L + 1) - 1``."""
    return powsimp(factor(simplify(e)))


# -- chains of layers ----------------------------------------------------------------------------------------


class Chain:
    """Network of layers ``h -> phi(h) -> W phi(h)`` with a readout vector ``z`` at its end.

    ``h`` is the field of the last layer, and ``phi`` the function of it that the output contains. Raises
    :class:`NotApplicable` if a matrix product is not the whole right-hand side of a definition (biases,
    residual branches, sums over offsets), or if a matrix that is not transposed multiplies another vector
    than given data or ``phi(h)`` of the layer below.
    """

    def __init__(self, program: Program) -> None:
        """Find the readout and the last layer in the program, and check the inner layers."""
        self.program = program
        body = next(iter(output(program).rhs.atoms(Mean))).args[0]
        names = {parameter(v).name for v in program.vectors}
        named = (d.lhs for d in program.definitions if names & {str(d.rhs), str(getattr(d.rhs, "func", ""))})
        read = [x for x in named if body.has(x)]
        if len(read) != 1:
            raise NotApplicable(
                f"the output of {program.name} must contain exactly one field that equals a readout vector, "
                f"without a factor; it contains {len(read)}"
            )
        self.z = read[0]
        self.phi = body / self.z
        fields = [a for a in self.phi.atoms(AppliedUndef) if program.field_of(str(a.func))]
        if len(fields) != 1:
            raise NotApplicable(
                f"the output must be a readout of one field, and the readout multiplies {self.phi}"
            )
        self.h = fields[0]
        self._check()

    def _check(self) -> None:
        """Raise NotApplicable unless each matrix product is the whole right-hand side of a definition.

        Matrices, if not transposed, must multiply given data or phi(h) of the layer below.
        """
        for d in nonempty(self.program.definitions):
            for x in d.products():
                if d.rhs != x:
                    raise NotApplicable(
                        f"not a plain chain of layers: {d.lhs} = {d.rhs} is more than a matrix product"
                    )
                if x.transposed or self.program.given_of(str(getattr(x.vector, "func", ""))):
                    continue
                below = {self.h: self.h.func(d.lhs.args[0] - 1, *self.h.args[1:])}
                if x.vector != self.phi.xreplace(below):
                    raise NotApplicable(
                        f"not a plain chain of layers: in {d.lhs} = {d.rhs} the matrix must multiply "
                        f"{self.phi.xreplace(below)}, because the readout multiplies {self.phi}"
                    )
