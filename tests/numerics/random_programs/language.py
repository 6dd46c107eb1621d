"""Random programs over the whole language of ``docs/how-to/program.md``, each drawn by its seed.

``draw(seed)`` writes a forward pass, a loss and a rule as a user would, with random names, and draws values
for their open numbers and arrays. Samples, positions and steps are few, so that every check takes seconds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from sympy import (
    Add,
    Expr,
    Function,
    Integer,
    KroneckerDelta,
    Max,
    Rational,
    S,
    Sum,
    Symbol,
    cos,
    erf,
    exp,
    log,
    sin,
    sqrt,
    tanh,
)
from sympy.core.function import AppliedUndef

from derive.program import (
    Attribute,
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    GradientFlow,
    IndexRange,
    L,
    Mean,
    Momentum,
    MomentumFlow,
    Network,
    Parametrization,
    Population,
    Program,
    ell,
    eta,
    gamma0,
    mu,
    t,
)

STEPS = 2
"""Training steps of a program; results stand at times 0..STEPS."""

UNITS = 4
"""Units of a population with ratio 1 in the smallest network; attributes repeat after as many."""

INPUTS = 3
"""Entries of an input vector."""

_WRITTEN = """
h g z x u v a b c q f y w W V U Z X r p_ n m k_ i_ y_ f_ u_W r_W h0 h1 h2 h_1 h_2 t1 s1 dx x_0
E I J K M N O Q R S T A B D F G H K_x chi theta phi psi nu kappa rho xi zeta beta gamma alpha0 lambda pi
sigma tau eps delta Phi Gamma Lambda Sigma omega omega_w Delta loss g_h z_h C_h C_g R_h re im Sum Mean exp
if in for key query value score out target units hidden layer mean
"""

NAMES = tuple(_WRITTEN.split())
"""Names that users give, most of which the engine, the papers or SymPy use too."""

RESERVED = {"t", "s", "mu", "alpha", "ell", "L", "P", "eta", "gamma0"}

ACTIVATIONS: tuple[tuple[float, Callable[[Expr], Expr]], ...] = (
    (5.0, lambda z: z),
    (5.0, tanh),
    (2.0, erf),
    (2.0, lambda z: Max(0, z)),
    (1.0, sin),
    (1.0, lambda z: 1 / (1 + exp(-z))),
    (1.0, lambda z: z + tanh(z) / 2),
    (1.0, lambda z: z * (1 + erf(z / sqrt(2))) / 2),
    (0.5, cos),
    (0.5, lambda z: z / sqrt(1 + z**2)),
    (0.5, lambda z: abs(z)),
    (0.5, lambda z: z**2 / 4),
    (0.5, lambda z: log(1 + exp(z))),
)


@dataclass(frozen=True)
class Drawn:
    """A program with everything that its numbers need.

    ``numbers`` by the name of the symbol, ``functions`` for undefined activations, ``arrays`` constants and
    kernels of the data, ``vectors`` the data themselves.  ``words`` names parts of the language.
    """

    seed: int
    network: Network
    loss: Expr
    rule: Any
    parametrization: Parametrization
    options: Mapping[str, Any]
    numbers: Mapping[str, float]
    functions: Mapping[str, Any]
    arrays: Mapping[str, Any]
    vectors: Mapping[str, Any]
    kernels: Mapping[str, str]
    words: tuple[str, ...]
    depth: int | None
    margins: tuple[tuple[str, str], ...] = ()
    """Outputs with a hinge, and their targets: near the kink networks do not follow a line in 1/N."""

    def program(self, rule: Any = None) -> Program:
        """Return the program, trained by its rule or by another one."""
        return self.network.train(self.loss, rule or self.rule, self.parametrization, **self.options)

    def __str__(self) -> str:
        net = self.network
        parts = [f"seed {self.seed}: {', '.join(self.words)}"]
        parts += [f"{type(x).__name__} {x}" for x in (*net.fields, *net.given)]
        parts += [f"trained {w}" for w in net.weights] + [f"frozen {w}" for w in net.frozen]
        parts += [
            f"{d.lhs} = {d.rhs}  {[(str(r.index), r.lower, r.upper) for r in d.ranges]}"
            for d in net.definitions()
        ]
        parts += [f"loss {self.loss}", f"{self.rule}", f"{self.parametrization}", f"{dict(self.options)}"]
        parts += [
            f"depth {net.depth} -> {self.depth}",
            f"numbers {dict(self.numbers)} {dict(self.functions)}",
        ]
        parts += [f"{k} = {np.round(v, 3).tolist()}" for k, v in self.arrays.items()]
        return "\n".join(parts)


@dataclass(frozen=True)
class Vector:
    """A field that later lines may use: its indices between layer and time, and the layer."""

    of: Field
    indices: tuple[Symbol, ...]
    site: Expr | None = None

    @property
    def population(self) -> Population:
        """Population of the vector."""
        return self.of.population if self.site is None else self.of.population.at(self.site)

    def __call__(self, **moved: Expr) -> Expr:
        """Return the entry at the present time, with some of its indices replaced."""
        own = [moved.get(x.name, x) for x in self.indices]
        return self.of(*(() if self.site is None else (self.site,)), *own, t)


def same_units(a: Population, b: Population) -> bool:
    """Return whether vectors of both populations can be added."""
    return a.name == b.name and (a.shared or a.site == b.site)


@dataclass
class Writer:
    """Forward pass that is written line by line."""

    seed: int
    rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.more = random.Random(f"more of {self.seed}")
        self.beside = random.Random(f"beside fields of {self.seed}")
        self.array = np.random.default_rng(self.seed)
        self.taken: set[str] = set(RESERVED)
        self.words: dict[str, None] = {}
        self.forward: dict[Expr, Expr] = {}
        self.fields: list[Field] = []
        self.trained: list[Any] = []
        self.frozen: list[Any] = []
        self.given: list[GivenVector] = []
        self.ranges: list[IndexRange] = []
        self.attributes: list[Attribute] = []
        self.numbers: dict[str, float] = {}
        self.functions: dict[str, Any] = {}
        self.arrays: dict[str, Any] = {}
        self.vectors: dict[str, Any] = {}
        self.kernels: dict[str, str] = {}
        self.open: list[Vector] = []
        self.all: list[Vector] = []
        self.depth: int | None = None
        self.samples = self.rng.choice([1, 2])
        self.mu: Symbol = mu
        self.positions = 0
        self.margins: list[tuple[str, str]] = []
        self.outputs: list[tuple[str, tuple[Symbol, ...], str]] = []
        self.network_depth: Expr = L

    # -- small choices ---------------------------------------------------------------------------------------

    def chance(self, p: float) -> bool:
        """Return True with probability ``p``."""
        return self.rng.random() < p

    def also(self, p: float) -> bool:
        """Return True with probability ``p``, from a separate random stream.

        Later additions to the language are drawn from it, so that programs without them do not change.
        """
        return self.more.random() < p

    def name(self) -> str:
        """Return a name that is not used yet."""
        while True:
            name = self.rng.choice(NAMES)
            if self.chance(0.2):
                name += self.rng.choice(["1", "2", "_a", "x"])
            if name not in self.taken:
                self.taken.add(name)
                return name

    def index(self, size: Any, low: int = 1) -> Symbol:
        """Return an index that runs over ``low..size``."""
        options = [x for x in ("p", "r", "j", "k", "c", "i", "n") if x not in self.taken]
        x = Symbol(self.rng.choice(options), integer=True, **({"positive": True} if low > 0 else {}))
        self.taken.add(x.name)
        self.ranges.append(IndexRange(x, Integer(low), size))
        return x

    def symbol(self, value: float, **assumptions: bool) -> Symbol:
        """Return a symbol with this value."""
        x = Symbol(self.name(), **(assumptions or {"positive": True}))
        self.numbers[x.name] = value
        return x

    def has_factors(self, p: float) -> bool:
        """Return True with probability ``p``, from the random stream of factors beside fields."""
        return self.beside.random() < p

    def number(self, *values: Expr) -> Expr:
        """Return one of the values, as it is or as a symbol."""
        value = S(self.rng.choice(values))
        return self.symbol(float(value)) if value > 0 and self.chance(0.25) else value

    def bent(self, z: Expr) -> Expr:
        """Return an activation of ``z``."""
        if self.chance(0.06):
            name = self.name()
            self.functions[name] = self.rng.choice([tanh, erf, sin])
            self.say("undefined activation")
            return Function(name)(z)
        weights, functions = zip(*ACTIVATIONS, strict=True)
        (function,) = self.rng.choices(functions, weights)
        return function(z)

    def bounded(self, z: Expr) -> Expr:
        """Return a bounded function of ``z``."""
        return self.rng.choice([tanh, tanh, sin, lambda x: 1 / (1 + exp(-x)), erf])(z)

    def say(self, word: str) -> None:
        """Record the use of a part of the language."""
        self.words[word] = None

    def constant(self, *indices: Symbol, spread: float = 0.5) -> Expr:
        """Return a constant of some of the indices, about one."""
        name, sizes = self.name(), {self.mu: self.samples, t: STEPS + 1}
        ends = {r.index: int(r.upper) for r in self.ranges if S(r.upper).is_Integer}
        shape = [sizes.get(x, ends.get(x, self.positions)) for x in indices]
        self.arrays[name] = np.round(1 + spread * self.array.uniform(-1, 1, shape), 2)
        self.say("time-dependent constant" if t in indices else "constant")
        return Function(name)(*indices)

    # -- pieces ----------------------------------------------------------------------------------------------

    def field(
        self, population: Population, indices: Sequence[Symbol], site: Expr | None = None, **kind: bool
    ) -> Vector:
        """Return a new field."""
        own = Field(self.name(), population if site is None else Population(**_plain(population)), **kind)
        self.fields.append(own)
        return Vector(own, tuple(indices), site)

    def keep(self, v: Vector, rhs: Expr, used: Sequence[Vector]) -> Vector:
        """Define a field by its right-hand side."""
        self.forward[v()] = rhs
        self.open = [x for x in self.open if x not in used] + [v]
        self.all.append(v)
        return v

    def weight(self, w: Any, trained: float = 0.75) -> Any:
        """List a weight among the trained or the frozen ones."""
        (self.trained if self.chance(trained) else self.frozen).append(w)
        return w

    def variance(self) -> Expr:
        """Return the variance of a weight."""
        if self.chance(0.6):
            return S.One
        self.say("unequal variances")
        return self.number(Rational(1, 2), Rational(3, 2), Rational(2))

    def matrix(self, rows: Population, cols: Population, **kind: Any) -> GaussianMatrix:
        """Return a new matrix."""
        if rows == cols and "index" not in kind and self.chance(0.3):
            kind["symmetry"] = self.rng.choice([S.One, S.NegativeOne, Rational(1, 2), Rational(-1, 3)])
            self.say("symmetry")
        found = GaussianMatrix(self.name(), rows, cols, variance=self.variance(), **kind)
        return self.weight(found, 1 if cols.given and not self.trained else 0.75)

    def vector(self, population: Population, indices: tuple[IndexRange, ...] = ()) -> GaussianVector:
        """Return a new vector of weights."""
        variance = S.Zero if self.chance(0.12) else self.variance()
        if variance == 0:
            self.say("zero variance")
        source = {"source": self.name()} if self.chance(0.2) else {}
        return self.weight(GaussianVector(self.name(), population, variance, indices=indices, **source))

    def inner(self, v: Vector) -> tuple[Expr, list[Vector]]:
        """Return the vector that a matrix multiplies: a function of a field, or a product of two."""
        partners = [
            x for x in self.all if same_units(x.population, v.population) and set(x.indices) <= set(v.indices)
        ]
        if self.chance(0.12):
            other = self.rng.choice(partners)
            self.say("product of fields")
            return v() * self.bounded(other()), [v, other]
        if self.chance(0.08):
            self.say("average in a function")
            return self.bent(v() / sqrt(1 + Mean(v() ** 2))), [v]
        return self.bent(v()), [v]

    def coefficient(self, v: Vector) -> Expr:
        """Return a factor in front of a product."""
        kind = self.rng.choices(["one", "number", "constant", "field"], [6, 2, 1, 1])[0]
        here = [
            x for x in self.all if same_units(x.population, v.population) and set(x.indices) <= set(v.indices)
        ]
        if kind == "number":
            return self.number(Rational(1, 2), Rational(6, 5), S.NegativeOne)
        if kind == "constant":
            return self.constant(*[x for x in (self.mu,) if x in v.indices], t)
        if kind == "field" and here:
            self.say("entrywise factor")
            return self.bounded(self.rng.choice(here)())
        return S.One

    def extra(self, v: Vector) -> tuple[Expr, list[Vector]]:
        """Return a further term of a line: a skip, a bias, or none."""
        here = [
            x for x in self.all if same_units(x.population, v.population) and set(x.indices) <= set(v.indices)
        ]
        kind = self.rng.choices(["nothing", "skip", "bias", "fresh", "attribute"], [6, 4, 3, 0.5, 0.5])[0]
        if kind == "skip" and here:
            other = self.rng.choice(here)
            self.say("skip")
            return self.number(S.One, Rational(1, 2)) * self.bent(other()), [other]
        if kind == "bias":
            self.say("bias")
            return self.vector(v.population).symbol, []
        if kind == "fresh":
            self.say("fresh vector")
            noise = GaussianVector(self.name(), v.population, self.variance(), fresh=True)
            self.frozen.append(noise)
            return noise.symbol / 2, []
        if kind == "attribute" and here and v.population.ratio == 1 and v.site is None:
            self.say("attribute")
            own = Attribute(self.name(), v.of.population)
            self.attributes.append(own)
            self.arrays[own.name] = np.round(self.array.uniform(0.5, 1.5, UNITS), 2)
            k = Symbol(
                next(x for x in ("k", "i", "n", "j", "o") if x not in self.taken), integer=True, positive=True
            )
            other = self.rng.choice(here)
            return own(k) * self.bent(other()), [other]
        return S.Zero, []

    # -- lines -----------------------------------------------------------------------------------------------

    def by_matrix(self) -> None:
        """Add a field: a matrix, new or used before, times another field."""
        source = self.rng.choice(self.open)
        matrices = [w for w in (*self.trained, *self.frozen) if isinstance(w, GaussianMatrix)]
        matrices = [m for m in matrices if m.index is None and not m.others and not m.cols.given]
        uses = [(m, False) for m in matrices if same_units(m.cols, source.population)]
        uses += [(m, True) for m in matrices if same_units(m.rows, source.population)]
        if uses and self.chance(0.6):
            m, transposed = self.rng.choice(uses)
            self.say("transposed matrix" if transposed else "shared matrix")
        else:
            target = self.rng.choice(self.populations)
            m, transposed = self.matrix(target, source.population), False
        target = m.cols if transposed else m.rows
        body, used = self.inner(source)
        home = next((x.of.population for x in self.all if same_units(x.population, target)), target)
        site = next((x.site for x in self.all if same_units(x.population, target)), None)
        v = Vector(Field(self.name(), home, layered=site is not None), source.indices, site)
        rhs = self.coefficient(v) * ((m.T if transposed else m) @ body)
        more, also = self.extra(v)
        self.fields.append(v.of)
        self.keep(v, rhs + more, [*used, *also])

    def by_entries(self) -> None:
        """Add a field: a function of entries, with or without averages."""
        source = self.rng.choice(self.open)
        here = [x for x in self.all if same_units(x.population, source.population)]
        here = [x for x in here if set(x.indices) <= set(source.indices)]
        other = self.rng.choice(here)
        v = Vector(
            Field(self.name(), source.of.population, layered=source.site is not None),
            source.indices,
            source.site,
        )
        kind = self.rng.choice(["product", "norm", "named", "mean", "sum"])
        self.say(
            {"norm": "average in a function", "named": "named average", "mean": "average in a function"}.get(
                kind, kind
            )
        )
        if kind == "product":
            rhs = source() * self.bounded(other())
        elif kind == "norm":
            rhs = self.bent(source()) / sqrt(self.rng.choice([1, Rational(1, 2)]) + Mean(source() ** 2))
        elif kind == "mean":
            rhs = source() + self.bounded(other()) * Mean(self.bounded(other()) * tanh(source()))
        elif kind == "named":
            m = Function(self.name())(*source.indices, t)
            average = self.rng.choice([Mean(source() ** 2), Mean(self.bounded(source()) * other())])
            self.forward[m] = self.of_averages(average, Mean(tanh(source()) ** 2))
            rhs = self.rng.choice([self.bent(source()) / sqrt(1 + m**2), source() + tanh(other()) * tanh(m)])
            if self.chance(0.3):
                m2 = Function(self.name())(*source.indices, t)
                self.forward[m2] = 1 / (1 + m**2)
                rhs = rhs * m2
        else:
            rhs = source() + self.number(Rational(1, 2), S.One) * self.bounded(other())
        self.fields.append(v.of)
        self.keep(v, rhs, [source, other] if rhs.has(other()) else [source])

    def of_averages(self, average: Expr, other: Expr) -> Expr:
        """Return the average, a function of it, or its product with another one."""
        if not self.also(0.3):
            return average
        kind = self.more.choice(["function", "product", "quotient"])
        self.say(f"{kind} of averages")
        return {
            "function": self.more.choice([tanh(average), sin(average) + average, 1 / (1 + average**2)]),
            "product": average * (1 + other),
            "quotient": average / (1 + other**2),
        }[kind]

    def by_members(self) -> None:
        """Add a field: matrices of a family, each times the same field, summed with or without factors."""
        source = self.rng.choice(self.open)
        count = self.more.choice([2, 3])
        population = source.population
        e = Symbol(next(x for x in ("e", "m", "o", "l") if x not in self.taken), integer=True, positive=True)
        self.taken.add(e.name)
        run = IndexRange(e, S.One, S(count))
        family = self.weight(
            GaussianMatrix(self.name(), population, population, variance=self.variance(), others=(run,))
        )
        kind = self.more.choice(["plain", "plain", "factors", "fields", "fields", "gates", "gates"])
        self.say(f"members: {kind}")
        layered = source.site is not None
        made = Vector(Field(self.name(), source.of.population, layered=layered), source.indices, source.site)
        body = self.bent(source())
        if kind in ("plain", "factors"):
            factor = self._of_member(e, count) if kind == "factors" else S.One
            self.fields.append(made.of)
            self.keep(made, Sum(factor * (family(e) @ body), (e, 1, count)), [source])
            return
        self.ranges.append(run)
        each = Vector(
            Field(self.name(), source.of.population, layered=layered), (*source.indices, e), source.site
        )
        self.fields += [each.of, made.of]
        self.forward[each()] = family(e) @ body
        factor = self._of_member(e, count)
        if kind == "gates":
            gate = Function(self.name())(*source.indices, e, t)
            w = self.vector(population, (run,))
            self.forward[gate] = Mean(w(e) * self.bounded(source()))
            factor = tanh(gate) if self.also(0.5) else factor * (1 + gate)
        self.keep(made, Sum(factor * self.bent(each()), (e, 1, count)), [source])

    def by_places(self) -> None:
        """Add a field: one matrix at every position, summed with factors or with a factor of positions."""
        p, name = self.place, self.name()
        self.arrays[name] = np.round(self.array.uniform(0.4, 1.2, self.positions), 2)
        c = Function(name)(p)
        there = [x for x in self.open if p in x.indices]
        source = self.rng.choice(there or self.open)
        kept = tuple(x for x in source.indices if x != p)
        layered, home = source.site is not None, source.of.population
        V = self.matrix(source.population, source.population)
        body = self.bent(source())
        pooled = Vector(Field(self.name(), home, layered=layered), kept, source.site)
        self.fields.append(pooled.of)
        if there:
            self.say("products summed over positions")
            self.keep(pooled, Sum(c * (V @ body), (p, 1, self.size)), [source])
        else:
            self.keep(pooled, V @ body, [source])
        if self.also(0.5):
            self.say("a factor of the position")
            spread = Vector(Field(self.name(), home, layered=layered), (*kept, p), source.site)
            self.fields.append(spread.of)
            W = self.matrix(source.population, source.population)
            self.keep(spread, W @ (c * self.bent(pooled())), [pooled])

    def _of_member(self, e: Symbol, count: int) -> Expr:
        """Return a constant of each member."""
        name = self.name()
        self.arrays[name] = np.round(self.array.uniform(0.4, 1.2, count), 2)
        return Function(name)(e)

    def factor(self, indices: Sequence[Symbol]) -> Expr:
        """Return a factor that depends on indices: a constant, a delta, or an index as a number."""
        own = self.beside.choice([*indices, *indices, None])
        kind = self.beside.choice(["constant", "constant", "constant", "delta", "index"])
        if kind == "constant" or own is None:
            chosen = [own] if own is not None else list(indices)
            times = (t,) if self.has_factors(0.1) else ()
            return self.constant(*chosen, *times, spread=0.9) if chosen or times else S(3) / 4
        self.say(f"{kind} beside a field")
        if kind == "delta":
            return self.beside.choice([KroneckerDelta(own, 1), 1 + KroneckerDelta(own, 2)])
        return own / 2

    def beside_factor(self, z: Expr, v: Vector) -> Expr:
        """Return a function of a field ``z`` at its indices and of a factor with some indices of ``v``."""
        c = self.factor(v.indices)
        bent = self.beside.choice([tanh, sin, lambda x: x + tanh(x) / 2, lambda x: x * tanh(x)])
        kind = self.beside.choice(["inside", "inside", "bias", "outside", "gate", "twice"])
        return {
            "inside": lambda: bent(c * z),
            "bias": lambda: bent(c + z),
            "outside": lambda: c * bent(z),
            "gate": lambda: z * tanh(c * z),
            "twice": lambda: self.factor(v.indices) * bent(c * z),
        }[kind]()

    def by_factors(self) -> None:
        """Add a field: matrices or averages of functions that hold factors with indices beside a field."""
        source = self.beside.choice([x for x in self.open if x.indices] or self.open)
        layered, home = source.site is not None, source.of.population
        made = Vector(Field(self.name(), home, layered=layered), source.indices, source.site)
        there = self.positions and self.place in source.indices
        kinds = ["product", "product", "sum of products", "two matrices", "average"]
        if there:
            kinds += ["over positions", "over positions", "reversed", "offsets", "moved"]
        kind = self.beside.choice(kinds)
        self.say(f"factors: {kind}")
        line = self._with_factors(kind, source)
        if self.has_factors(0.4):
            line = self.factor(source.indices) * line if self.has_factors(0.5) else line + source() / 2
        self.fields.append(made.of)
        self.keep(made, line, [source])

    def _with_factors(self, kind: str, source: Vector) -> Expr:
        """Return a vector of one kind, of functions with factors beside ``source``."""
        units = source.population
        body = self.beside_factor(source(), source)
        if kind == "average":
            number = Function(self.name())(*source.indices, t)
            w = self.vector(units)
            self.forward[number] = Mean(w.symbol * body)
            return source() * (1 + self.factor(source.indices) * tanh(number))
        W = self.matrix(units, units)
        if kind == "sum of products":
            return (W @ body) + (W @ self.beside_factor(source(), source))
        if kind == "two matrices":
            return (W @ body) + (self.matrix(units, units) @ body)
        if kind == "product":
            return W @ body
        return self._at_positions(kind, source, W, body)

    def _at_positions(self, kind: str, source: Vector, W: GaussianMatrix, body: Expr) -> Expr:
        """Return a vector of products at several positions."""
        p = self.place
        if kind == "moved":
            return W @ self.beside_factor(source(**{p.name: p + 1}), source)
        r = Symbol(next(x for x in ("r", "j", "q_", "d") if x not in self.taken), integer=True, positive=True)
        self.taken.add(r.name)
        if kind == "offsets":
            run = IndexRange(r, S.One, S(2))
            family = self.weight(
                GaussianMatrix(self.name(), source.population, source.population, others=(run,))
            )
            moved = source(**{p.name: p + r})
            inside = self.beside_factor(moved, source) if self.has_factors(0.5) else tanh(moved)
            factor = self._of_member(r, 2) if self.has_factors(0.5) else S.One
            return Sum(factor * (family(r) @ inside), (r, 1, 2))
        if kind == "reversed":
            return Sum(W @ body.xreplace({p: self.size + 1 - r}), (r, 1, self.size)) / 2
        upper = self.beside.choice([p, self.size])
        weight = self._table(p, r) if self.has_factors(0.5) else S.Half
        return Sum(weight * (W @ body.xreplace({p: r})), (r, 1, upper))

    def by_positions(self) -> None:
        """Add a field: a sum over positions (a causal mask, attention, or a convolution)."""
        sources = [x for x in self.open if self.place in x.indices]
        if not sources:
            return self.by_matrix()
        v, p, size = self.rng.choice(sources), self.place, self.size
        made = Vector(Field(self.name(), v.of.population, layered=v.site is not None), v.indices, v.site)
        kind = self.rng.choice(["mask", "mask", "attention", "convolution", "shift"])
        self.say(kind)
        self.fields.append(made.of)
        if kind == "shift":
            self.keep(made, v() + self.bounded(v(**{p.name: p + 1})) / 2, [v])
            return None
        if kind == "convolution":
            k = Symbol(next(x for x in ("k", "a", "o", "d") if x not in self.taken), integer=True)
            self.taken.add(k.name)
            family = GaussianMatrix(
                self.name(),
                v.population,
                v.population,
                variance=self.variance(),
                others=(IndexRange(k, S(-1), S.One),),
            )
            self.weight(family)
            body = self.bent(v(**{p.name: p + k}))
            self.keep(made, Sum(family(k) @ body, (k, -1, 1)), [v])
            return None
        r = Symbol(next(x for x in ("r", "j", "q_", "d") if x not in self.taken), integer=True, positive=True)
        self.taken.add(r.name)
        low, high = self.rng.choice([(1, p), (p, size), (1, size), (1, p), (p - 1, p) if False else (1, p)])
        limits = (r, S(low), S(high))
        moved = self.bent(v(**{p.name: r}))
        if kind == "mask":
            weight = self.rng.choice(
                [lambda: S.Half, lambda: self._table(p, r), lambda: 1 / (S(1) + high - low)]
            )()
            self.keep(made, Sum(weight * moved, limits), [v])
            return None
        query, key = (
            Vector(Field(self.name(), v.of.population, layered=v.site is not None), v.indices, v.site)
            for _ in "qk"
        )
        for one in (query, key):
            self.fields.append(one.of)
            self.keep(one, self.matrix(v.population, v.population) @ v(), [])
        self.ranges.append(IndexRange(r, S.One, size))
        score = Function(self.name())
        first = tuple(x for x in v.indices if x != p)
        self.forward[score(*first, p, r, t)] = Mean(query() * key(**{p.name: r}))
        weight = tanh(score(*first, p, r, t)) if self.chance(0.5) else exp(score(*first, p, r, t)) / 4
        if self.chance(0.4):
            j = Symbol(
                next(x for x in ("j", "i", "n", "o") if x not in self.taken), integer=True, positive=True
            )
            self.taken.add(j.name)
            weight = exp(score(*first, p, r, t)) / Sum(exp(score(*first, p, j, t)), (j, *limits[1:]))
            self.say("softmax")
        self.keep(made, Sum(weight * moved, limits), [v, query, key])
        return None

    def _table(self, p: Symbol, r: Symbol) -> Expr:
        name = self.name()
        if self.also(0.5):
            self.say("table of distances")
            self.arrays[name] = np.round(self.array.uniform(-1, 1, 2 * self.positions - 1), 2)
            return Function(name)(p - r + self.positions)
        self.arrays[name] = np.round(self.array.uniform(-1, 1, (self.positions, self.positions)), 2)
        return Function(name)(p, r)

    # -- beginnings ------------------------------------------------------------------------------------------

    def data(self, indices: Sequence[Any], shape: Sequence[int]) -> tuple[GivenVector, Population]:
        """Return input vectors, with a kernel."""
        pixels = Population(self.name(), given=True)
        x = GivenVector(self.name(), pixels, self.name())
        self.given.append(x)
        self.vectors[x.name] = np.round(self.array.standard_normal((*shape, INPUTS)), 3)
        self.kernels[x.name] = x.kernel
        flat = self.vectors[x.name].reshape(-1, INPUTS)
        self.arrays[x.kernel] = (flat @ flat.T / INPUTS).reshape(*shape, *shape)
        return x, pixels

    def begin(self) -> None:
        """Add the first fields: plain, with positions, a family of layers, an ordered field or a stream."""
        if self.chance(0.12):
            size = (
                Symbol(self.name(), integer=True, positive=True)
                if self.chance(0.5)
                else Integer(self.samples)
            )
            if isinstance(size, Symbol):
                self.numbers[size.name] = self.samples
            self.mu = self.index(size)
            self.say("another sample index")
        units = Population(self.name(), self.ratio())
        self.populations = [units]
        if self.chance(0.35):
            self.populations.append(Population(self.name(), self.ratio()))
            self.say("several populations")
        kind = self.rng.choices(
            ["plain", "positions", "layers", "ordered", "stream", "free"], [4, 2.5, 3, 1.5, 0.8, 0.6]
        )[0]
        self.say(kind)
        getattr(self, f"begin_{kind}")(units)

    def ratio(self) -> Expr:
        """Return the size of a population over N."""
        return S.One if self.chance(0.6) else self.number(Rational(1, 2), Rational(3, 2), S(2))

    def begin_plain(self, units: Population) -> None:
        """Add a field of an input, which may change in time."""
        moves = self.also(0.12)
        if moves:
            self.say("inputs in time")
        indices = (self.mu, t) if moves else (self.mu,)
        x, pixels = self.data(indices, (self.samples, STEPS + 1)[: len(indices)])
        v = self.field(units, (self.mu,))
        more = self.vector(units).symbol if self.chance(0.3) else S.Zero
        self.keep(v, self.matrix(units, pixels) @ x(*indices) + more, [])

    def begin_stream(self, units: Population) -> None:
        """Add a field with a new input at every step."""
        x, pixels = self.data((t,), (STEPS + 1,))
        v = self.field(units, ())
        self.keep(v, self.matrix(units, pixels) @ x(t), [])

    def begin_free(self, units: Population) -> None:
        """Add a random vector in the place of an input."""
        v = self.field(units, ())
        self.keep(v, self.weight(GaussianVector(self.name(), units), 0.5).symbol, [])

    def begin_positions(self, units: Population) -> None:
        """Add a field with an input at each position."""
        self.positions = self.rng.choice([2, 3])
        self.size: Expr = Integer(self.positions)
        if self.chance(0.3):
            self.size = Symbol(self.name(), integer=True, positive=True)
            self.numbers[self.size.name] = self.positions
        self.place = self.index(self.size)
        x, pixels = self.data((self.mu, self.place), (self.samples, self.positions))
        v = self.field(units, (self.mu, self.place))
        self.keep(v, self.matrix(units, pixels) @ x(self.mu, self.place), [])

    def begin_layers(self, units: Population) -> None:
        """Add a family of layers."""
        shared = self.chance(0.4)
        layer = Population(units.name, units.ratio, shared=shared)
        self.populations[0] = layer
        x, pixels = self.data((self.mu,), (self.samples,))
        h = Field(self.name(), layer, layered=True)
        self.fields.append(h)
        self.network_depth = self.rng.choice([L, L, S(2), S(3)])
        self.depth = 2 if self.network_depth == L else None
        top = self.network_depth
        family = IndexRange(ell, S.One, top - 1)
        W = self.weight(
            GaussianMatrix(
                self.name(), layer.at(ell + 1), layer.at(ell), variance=self.variance(), index=family
            )
        )
        now, bias = h(ell, self.mu, t), [S.Zero, S.Zero]
        if self.chance(0.3):
            b = self.weight(
                GaussianVector(
                    self.name(), layer.at(ell), self.variance(), indices=(IndexRange(ell, S.One, top),)
                )
            )
            bias = [b(1), b(ell + 1)]
            self.say("bias")
        self.forward[h(1, self.mu, t)] = self.matrix(layer.at(1), pixels) @ x(self.mu) + bias[0]
        source = now
        kind = self.rng.choices(["plain", "named", "inline", "gate", "frozen"], [5, 1, 1, 1, 1])[0]
        if kind != "plain":
            self.say(f"layers: {kind}")
            n = Field(self.name(), layer, layered=True)
            self.fields.append(n)
            self.ranges.append(IndexRange(ell, S.One, top))
            line = now / sqrt(1 + Mean(now**2))
            if kind == "named":
                m = Function(self.name())(ell, self.mu, t)
                self.forward[m] = Mean(now**2)
                line = now / sqrt(1 + m)
            if kind == "gate":
                line = now * self.bounded(now)
            if kind == "frozen":
                V = GaussianMatrix(
                    self.name(), layer.at(ell), layer.at(ell), index=IndexRange(ell, S.One, top)
                )
                line = self.weight(V, 0.5)(ell) @ self.bent(now)
            self.forward[n(ell, self.mu, t)] = line
            source = n(ell, self.mu, t)
            self.all.append(Vector(n, (self.mu,), top))
            self.open.append(Vector(n, (self.mu,), top))
        inside = self.beside_layers(self.bent(source), source, top)
        line = self.number(S.One, Rational(1, 2)) * (W(ell) @ inside) + bias[1]
        if shared and self.chance(0.8):
            self.say("residual")
            line += self.number(S.One, Rational(1, 2)) * now
        self.forward[h(ell + 1, self.mu, t)] = line
        last = Vector(h, (self.mu,), top)
        self.open.append(last)
        self.all.append(last)
        self.populations[0] = layer.at(top)

    def beside_layers(self, inside: Expr, source: Expr, top: Expr) -> Expr:
        """Return ``inside``, a function of the layered field ``source``, sometimes with factors of layers."""
        if not self.has_factors(0.15):
            return inside
        self.say("factors of layers")
        count = (2 if top == L else int(top)) - 1
        indices = self.beside.choice([(ell,), (ell, self.mu)])
        name, shape = self.name(), (count, self.samples)[: len(indices)]
        self.arrays[name] = np.round(self.array.uniform(0.4, 1.6, shape), 2)
        c = Function(name)(*indices)
        return self.beside.choice([c * inside, inside.xreplace({source: c * source}), tanh(c + source)])

    def begin_ordered(self, units: Population) -> None:
        """Add a field whose entries are computed one after another, with one matrix."""
        length = self.rng.choice([L, S(2), S(3)])
        self.network_depth, self.depth = length, 2 if length == L else None
        count = 2 if length == L else int(length)
        every = self.chance(0.5)
        shape = (self.samples, count) if every else (self.samples,)
        x, pixels = self.data((self.mu,), shape)
        h = Field(self.name(), units, ordered=True)
        self.fields.append(h)
        k = Symbol(self.rng.choice([n for n in ("k", "n", "j", "i") if n not in self.taken]), integer=True)
        self.taken.add(k.name)
        self.ranges.append(IndexRange(k, S.One, length - 1))
        A, R = self.matrix(units, pixels), self.matrix(units, units)
        self.forward[h(1, self.mu, t)] = A @ (x(self.mu, 1) if every else x(self.mu))
        step = R @ self.bent(h(k, self.mu, t))
        if every:
            step += A @ x(self.mu, k + 1)
        elif self.chance(0.5):
            step += h(k, self.mu, t) / 2
        self.forward[h(k + 1, self.mu, t)] = step
        last = Vector(h, (self.mu,), None)
        self.ordered_end = h(length, self.mu, t)
        v = self.field(units, (self.mu,))
        self.keep(v, self.bent(h(length, self.mu, t)), [last])

    # -- ends ------------------------------------------------------------------------------------------------

    def pooled(self, v: Vector, body: Expr) -> tuple[Expr, tuple[Symbol, ...]]:
        """Return an average of a body over units, summed over positions or kept at each."""
        if self.positions and self.place in v.indices:
            if self.chance(0.6):
                if self.has_factors(0.15):
                    self.say("factors in an output")
                    c = self.factor((self.place,))
                    body = body * c if self.has_factors(0.5) else body.xreplace({v(): c * v()})
                return Sum(Mean(body), (self.place, 1, self.size)), tuple(
                    x for x in v.indices if x != self.place
                )
            self.say("output at each position")
        return Mean(body), v.indices

    def output(self, tops: Sequence[Vector], scale: Expr) -> None:
        """Add an output: an average with a vector of weights, or of fields."""
        lines: list[tuple[Expr, tuple[Symbol, ...]]] = []
        kind = self.rng.choices(["readout", "channels", "quadratic"], [6, 1.5, 1])[0]
        self.say(kind)
        channel: tuple[IndexRange, ...] = ()
        if kind == "channels":
            self.index(S(2))
            channel = (self.ranges[-1],)
        readouts: dict[tuple[str, Expr | None], Any] = {}
        for v in tops:
            p = v.population
            if kind == "quadratic":
                body = self.bounded(v()) * v()
            else:
                key = (p.name, p.site)
                if key not in readouts:
                    readouts[key] = self.vector(p, channel)
                w = readouts[key]
                body = (w(channel[0].index) if channel else w.symbol) * self.bent(v())
            lines.append(self.pooled(v, body))
        indices = tuple(dict.fromkeys(x for _, own in lines for x in own))
        f = self.name()
        own = (*indices, *(r.index for r in channel))
        total = Add(*[e for e, _ in lines]) / scale
        if self.also(0.12):
            kind = self.more.choice(["function", "product"])
            self.say(f"{kind} of averages")
            v = tops[-1]
            if kind == "function":
                total = self.more.choice([tanh, sin, lambda x: x + tanh(x) / 2])(total)
            elif set(v.indices) <= set(indices):
                total = total * (1 + Mean(tanh(v()) ** 2))
        if self.chance(0.1) and kind == "readout":
            self.say("number of a number")
            first = Function(self.name())(*own, t)
            self.forward[first] = total
            total = first + tanh(first) / 3
        if self.chance(0.06):
            self.say("value at the start")
            first = Function(self.name())
            self.forward[first(*own, t)] = total
            total = first(*own, t) - first(*own, 0)
        self.forward[Function(f)(*own, t)] = total
        self.outputs.append((f, own, kind))

    def loss(self) -> Expr:
        """Return a loss of all outputs."""
        parts: list[Expr] = []
        for f, own, kind in self.outputs:
            out = Function(f)(*own, t)
            moving = self.chance(0.15) or self.mu not in own
            y = self.target(*own, *((t,) if moving else ()))
            options = ["square", "square", "square", "logistic", "hinge", "soft"]
            if kind == "channels" and len(self.outputs) == 1:
                options = ["entropy", "square", "logistic"]
            which = self.rng.choice(options)
            self.say(which)
            if which == "hinge":
                self.margins.append((f, str(y.func)))
            if which == "entropy":
                c = own[-1]
                if self.chance(0.6):
                    j = Symbol(
                        next(n for n in ("j", "i", "n", "o") if n not in self.taken),
                        integer=True,
                        positive=True,
                    )
                    self.taken.add(j.name)
                    labels = Sum((y * out).xreplace({c: j}), (j, 1, 2))
                    parts.append(log(Sum(exp(out.xreplace({c: j})), (j, 1, 2))) - labels)
                else:
                    self.say("channels written out")
                    every = [(y.xreplace({c: Integer(i)}), out.xreplace({c: Integer(i)})) for i in (1, 2)]
                    parts.append(log(Add(*[exp(b) for _, b in every])) - Add(*[a * b for a, b in every]))
                continue
            part = {
                "square": (y - out) ** 2 / 2,
                "logistic": log(1 + exp(-y * out)),
                "hinge": Max(0, 1 - y * out),
                "soft": sqrt(1 + (y - out) ** 2),
            }[which]
            if self.chance(0.2):
                self.say("weighted")
                part = self.constant(*[x for x in own if x == self.mu]) * part if self.mu in own else part / 2
            parts.append(part)
        if self.chance(0.12):
            v = self.rng.choice([x for x in self.all if x.site is None] or [None])
            if v is not None:
                self.say("loss that is a mean")
                parts.append(self.number(Rational(1, 4), Rational(1, 2)) * Mean(v() ** 2))
        return Add(*parts)

    def mean_loss(self, tops: Sequence[Vector]) -> Expr:
        """Return a loss over units, with a random vector as target of each field."""
        parts = []
        for v in tops:
            teacher = GaussianVector(self.name(), v.population)
            self.frozen.append(teacher)
            parts.append(Mean((teacher.symbol - v()) ** 2) / 2)
            self.forward[Function(self.name())(*v.indices, t)] = Mean(v() ** 2)
        return Add(*parts)

    def target(self, *indices: Symbol) -> Expr:
        """Return targets of either sign."""
        name, sizes = self.name(), {self.mu: self.samples, t: STEPS + 1}
        ends = {r.index: int(r.upper) for r in self.ranges if S(r.upper).is_Integer}
        shape = [sizes.get(x, ends.get(x, self.positions)) for x in indices]
        places: list[Expr] = list(indices)
        if self.positions and self.place in indices and self.also(0.4):
            self.say("target at the next position")
            at = indices.index(self.place)
            shape[at] += 1
            places[at] = self.place + 1
        self.arrays[name] = np.round(
            self.array.uniform(0.4, 1.2, shape) * self.array.choice([-1, 1], shape), 2
        )
        if t in indices:
            self.say("time-dependent target")
        return Function(name)(*places)

    def rule(self) -> Any:
        """Return a learning rule."""
        rate = self.rng.choice([eta, eta, self.symbol(0.2), Rational(1, 5), 0.15])
        self.numbers["eta"] = self.rng.choice([0.1, 0.2, 0.3])
        decay = self.rng.choice(
            [S.Zero, S.Zero, S.Zero, Rational(1, 10), self.symbol(0.05), eta * self.symbol(0.3)]
        )
        kind = self.rng.choices(
            ["descent", "momentum", "noise", "flow", "momentum flow"], [6, 2, 1.5, 1, 0.5]
        )[0]
        self.say(kind)
        if decay != 0:
            self.say("decay")
        if kind == "momentum":
            return Momentum(rate, self.number(Rational(1, 2), Rational(9, 10)), decay=decay)
        if kind == "noise" and "zero variance" not in self.words:
            return GradientDescent(rate, decay=decay, diffusion=self.number(Rational(1, 20), Rational(1, 10)))
        if "fresh vector" in self.words:
            return GradientDescent(rate, decay=decay)
        if kind == "flow":
            return GradientFlow(rate, decay=decay)
        if kind == "momentum flow":
            return MomentumFlow(self.symbol(0.5))
        return GradientDescent(rate, decay=decay)


def _plain(p: Population) -> dict[str, Any]:
    return {"name": p.name, "ratio": p.ratio, "given": p.given, "shared": p.shared}


def numbers_of(x: Any) -> list[Expr]:
    """Return the expressions that a rule or a parametrization holds."""
    found: list[Expr] = []
    for value in (getattr(x, f.name) for f in fields(x)):
        parts = [pair[1] for pair in value] if isinstance(value, tuple) else [value]
        found += [S(v) for v in parts if not isinstance(v, bool)]
    return found


def _add_layers(w: Writer) -> None:
    """Add the fields of a program, from its inputs to the fields that outputs read."""
    w.begin()
    for _ in range(w.rng.choice([0, 1, 1, 2, 2, 3])):
        moves = [w.by_matrix, w.by_matrix, w.by_entries]
        if w.positions:
            moves += [w.by_positions, w.by_positions]
        w.rng.choice(moves)()
    if w.also(0.15):
        w.by_members()
    if w.positions and w.also(0.25):
        w.by_places()
    if w.has_factors(0.3):
        w.by_factors()


def _add_outputs(w: Writer) -> tuple[Expr, Expr]:
    """Add the outputs, and return their scale and the loss."""
    scale = w.rng.choice([gamma0, gamma0, gamma0, S.One])
    if scale == gamma0:
        w.numbers["gamma0"] = w.rng.choice([0.7, 1.0, 1.3])
    tops = list(w.open)
    if w.chance(0.06) and all(x.site is None for x in tops):
        w.say("loss over units alone")
    elif len(tops) > 1 and w.chance(0.3):
        w.say("several outputs")
        w.output(tops[:1], scale)
        w.output(tops[1:], scale)
    else:
        w.output(tops, scale)
        if w.chance(0.1):
            w.say("several outputs")
            w.output(tops[-1:], scale)
    return scale, w.loss() if w.outputs else w.mean_loss(tops)


def _parametrization(w: Writer, scale: Expr, rule: Any) -> Parametrization:
    """Return the scale of outputs, the rate, which may depend on time, and rates of single weights."""
    rates = (
        ((w.rng.choice(w.trained).name, w.number(Rational(1, 2), S(2))),)
        if w.trained and w.chance(0.2)
        else ()
    )
    rate = w.number(S.One, Rational(1, 2))
    if w.chance(0.06) and rule.discrete:
        w.say("rate in time")
        rate = rate / (1 + t / 2)
    return Parametrization(scale, rate, rates)


def _options(w: Writer) -> dict[str, Any]:
    """Return options of training; at least one weight is trained afterwards."""
    options: dict[str, Any] = {}
    if w.chance(0.15):
        options["error"] = w.name()
    if w.chance(0.15):
        options["together"] = True
        w.say("together")
    if w.trained == []:
        movable = [x for x in w.frozen if not x.fresh]
        w.trained.append(movable[-1])
        w.frozen.remove(movable[-1])
    inner = [x for x in w.trained if isinstance(x, GaussianMatrix) and not x.cols.given]
    if inner and w.chance(0.1):
        w.say("feedback")
        replaced = w.rng.choice(inner)
        options["feedback"] = {replaced.name: replace(replaced, name=w.name(), symmetry=S.Zero)}
        options["learning_feedback"] = w.chance(0.5)
    return options


def draw(seed: int) -> Drawn:
    """Return the program of a seed."""
    w = Writer(seed)
    _add_layers(w)
    scale, loss = _add_outputs(w)
    rule = w.rule()
    parametrization = _parametrization(w, scale, rule)
    options = _options(w)
    network = Network(
        w.name(),
        tuple(w.fields),
        w.forward,
        tuple(w.trained),
        tuple(w.frozen),
        tuple(w.given),
        tuple(w.attributes),
        ranges=tuple(w.ranges),
        depth=w.network_depth,
    )
    said = [*w.forward, *w.forward.values(), loss, *numbers_of(rule), *numbers_of(parametrization)]
    said += [r.upper for r in w.ranges] + [x.population.ratio for x in w.fields]
    said += [weight.variance for weight in (*w.trained, *w.frozen)]
    said += [p.ratio for m in network.matrices for p in (m.rows, m.cols)]
    used = {x.name for e in said for x in S(e).free_symbols}
    numbers = {k: v for k, v in w.numbers.items() if k in used}
    named = {str(a.func) for e in said for a in S(e).atoms(AppliedUndef)}
    named |= {x.name for x in w.attributes} | {x.kernel for x in w.given}
    if any(w.mu in S(e).free_symbols for e in w.forward):
        numbers["P"] = w.samples
    return Drawn(
        seed=seed,
        network=network,
        loss=loss,
        rule=rule,
        parametrization=parametrization,
        options=options,
        numbers=numbers,
        functions=w.functions,
        arrays={k: x for k, x in w.arrays.items() if k in named},
        vectors=w.vectors,
        kernels=w.kernels,
        words=tuple(w.words),
        depth=w.depth,
        margins=tuple(w.margins),
    )
