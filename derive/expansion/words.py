"""Operator words: noncommutative products of kernels, the alphabet of the expansion in gamma0.

The one operation beyond products and transposes is the *memory* of an operator: what the definition of a
causal kernel does to a correlation function, ``C_mu(t,s) = ... + sum_alpha Delta_alpha(s) H_mu,alpha(t,s)``.
It is linear in the operator and in the error Delta, so at each order of the error it is a letter of its own.

Order by order, the closure of a linear theory is a recursion in the layer between sums of words; summing
polynomials in the layer solves it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, TypeVar

from sympy import Add, Expr, Indexed, Integer, Mul, Pow, S, Symbol, sympify, transpose
from sympy.core.function import AppliedUndef
from sympy.functions.elementary.complexes import transpose as Transpose
from sympy.polys.rings import PolyElement

from derive.calculus.recurrences import Polynomials
from derive.calculus.symbols import ell, gamma0, mu
from derive.errors import NotApplicable
from derive.linear.closure import LinearClosure
from derive.linear.operators import J, Kernel, Operator, Refusing, operator


class Memory(Refusing, Expr):  # type: ignore[misc, unused-ignore]
    """``Memory(C, n, X)``: the part of kernel C that remembers X, with the error's coefficient of order n.

    Linear in the correlation X; a noncommutative letter when X is a single word.

    >>> from derive.linear.operators import operator
    >>> Memory("C", 0, operator("K_x"))
    C0[K_x]
    """

    is_commutative = False

    def __new__(cls, kernel: Any, order: Any, body: Any) -> Memory:
        name = Symbol(str(kernel))
        return Expr.__new__(cls, name, Integer(order), sympify(body))  # type: ignore[no-any-return]

    @property
    def kernel(self) -> str:
        """The name of the kernel whose definition is meant."""
        return str(self.args[0])

    @property
    def order(self) -> int:
        """The order of the error."""
        return int(self.args[1])

    @property
    def body(self) -> Expr:
        """The word that is remembered."""
        return self.args[2]

    def as_matrix(self, shape: Callable[[Expr], tuple[Expr, Expr]]) -> Operator:
        """The letter as a matrix of the shape of its kernel."""
        return Operator(f"{self.kernel}{self.order}", self.body, *shape(self))

    def _sympystr(self, printer: Any, *_: Any) -> str:
        return f"{self.kernel}{self.order}[{printer._print(self.body)}]"

    def _latex(self, printer: Any, *_: Any) -> str:
        return rf"\mathcal{{{self.kernel}}}_{{{self.order}}}\!\left[{printer._print(self.body)}\right]"


def terms(e: Expr) -> list[tuple[Expr, Expr]]:
    """``e`` as a list of (number, word); the word of a pure number is 1.

    >>> from derive.linear.operators import operator
    >>> C, D = operator("C"), operator("D")
    >>> terms(2 * C * D + 3)
    [(3, 1), (2, C*D)]
    """
    found: dict[tuple[Expr, ...], list[Expr]] = {}
    todo = list(Add.make_args(sympify(e)))
    while todo:
        part = todo.pop()
        numbers, word = part.args_cnc()
        if not all(map(_is_letter, word)):
            todo += Add.make_args(part.expand())
            continue
        found.setdefault(tuple(word), []).append(Mul(*numbers))
    parts = [(c, w) for w, cs in found.items() if (c := cs[0] if len(cs) == 1 else Add(*cs).expand()) != 0]
    parts.sort(key=lambda x: (len(x[1]), tuple(map(_name, x[1]))))
    return [(c, Mul(*w)) for c, w in parts]


def _is_letter(x: Expr) -> bool:
    base = x.base if isinstance(x, Pow) and x.exp.is_Integer and x.exp > 0 else x
    return isinstance(base, Memory | Transpose) or base.is_Symbol or isinstance(base, Indexed)


@lru_cache(maxsize=100_000)
def _name(x: Expr) -> str:
    return str(x)


def letters(word: Expr) -> list[Expr]:
    """The letters of a word, left to right; powers written out."""
    found: list[Expr] = []
    for x in Mul.make_args(word):
        if isinstance(x, Pow) and x.exp.is_Integer and x.exp > 0:
            found += [x.base] * int(x.exp)
        elif x != 1:
            found.append(x)
    return found


def transposed(e: Expr, symmetric: set[Expr]) -> Expr:
    """The transpose of a sum of words, letter by letter."""
    flipped = ((c, [transposed_letter(x, symmetric) for x in reversed(letters(w))]) for c, w in terms(e))
    return sympify(Add(*[c * Mul(*w) for c, w in flipped]))


def transposed_letter(x: Expr, symmetric: set[Expr]) -> Expr:
    """The transpose of one letter; ``symmetric`` ones, and J, are their own."""
    if isinstance(x, Transpose):
        return x.args[0]
    return x if x in symmetric or x == J else transpose(x)


# -- an expression, order by order -------------------------------------------------------------------------

Value = TypeVar("Value")


class OrderByOrder(ABC, Generic[Value]):
    """The coefficients of gamma0^n of expressions between operators; None stands for zero.

    ``[a b]_n = sum_k a_k b_(n-k)``, and ``[1/a]_n = - sum_(k>0) a_k [1/a]_(n-k)`` where ``a_0 = 1``.
    """

    def __init__(self) -> None:
        self.kept: dict[tuple[Any, int], Value | None] = {}

    @abstractmethod
    def known(self, x: Indexed, n: int) -> Value | None:
        """Order n of an operator at a layer."""

    @abstractmethod
    def constant(self, x: Expr) -> Value:
        """A kernel that does not depend on gamma0."""

    @abstractmethod
    def identity(self, c: Expr | int) -> Value:
        """A multiple of the identity."""

    @abstractmethod
    def sum(self, parts: Sequence[Value]) -> Value | None:
        """The sum."""

    @abstractmethod
    def times(self, a: Value, b: Value) -> Value | None:
        """The product, in this order."""

    @abstractmethod
    def transpose(self, a: Value) -> Value:
        """The transpose."""

    def forget(self, n: int) -> None:
        """Forget what has been computed at order n and beyond."""
        self.kept = {k: v for k, v in self.kept.items() if k[1] < n}

    def at_order(self, e: Expr, n: int) -> Value | None:
        """The coefficient of gamma0^n."""
        return self._once(e, n, self._at_order)

    def _once(self, e: Any, n: int, rule: Callable[[Any, int], Value | None]) -> Value | None:
        if (e, n) not in self.kept:
            self.kept[e, n] = rule(e, n)
        return self.kept[e, n]

    def _at_order(self, e: Expr, n: int) -> Value | None:
        if e.is_commutative:
            if not e.is_polynomial(gamma0):
                raise NotApplicable(f"{e} is no power series in gamma0")
            c = e.expand().coeff(gamma0, n)
            return self.identity(c) if c != 0 else None
        if isinstance(e, Indexed):
            return self.known(e, n)
        if isinstance(e, Transpose):
            found = self.at_order(e.args[0], n)
            return None if found is None else self.transpose(found)
        if isinstance(e, Add):
            return self._total(self.at_order(x, n) for x in e.args)
        if isinstance(e, Mul):
            return self._once(e.args, n, self._product)
        if isinstance(e, Pow) and e.exp == -1:
            return self._inverse(e, n)
        if isinstance(e, Pow) and e.exp.is_Integer and e.exp > 0:
            return self._once((e.base,) * int(e.exp), n, self._product)
        return self.constant(e) if n == 0 else None

    def _product(self, factors: tuple[Expr, ...], n: int) -> Value | None:
        first, *rest = factors
        if not rest:
            return self.at_order(first, n)
        left = ((k, self.at_order(first, k)) for k in range(n + 1))
        later = ((a, self._once(tuple(rest), n - k, self._product)) for k, a in left if a is not None)
        return self._total(self.times(a, b) for a, b in later if b is not None)

    def _inverse(self, e: Pow, n: int) -> Value | None:
        if n == 0:
            if self.at_order(e.base, 0) != self.identity(1):
                raise NotApplicable(f"{e} at gamma0 = 0 is not 1")
            return self.identity(1)
        left = ((k, self.at_order(e.base, k)) for k in range(1, n + 1))
        later = ((a, self.at_order(e, n - k)) for k, a in left if a is not None)
        found = self._total(self.times(a, b) for a, b in later if b is not None)
        return None if found is None else self.times(self.identity(-1), found)

    def _total(self, parts: Iterable[Value | None]) -> Value | None:
        found = [x for x in parts if x is not None]
        return self.sum(found) if found else None


# -- what a closure says of kernels, memories and the tangent kernel ---------------------------------------


def parts_of(kernel: Kernel, closure: LinearClosure) -> tuple[list[AppliedUndef], list[AppliedUndef]]:
    """What a causal kernel is made of at its layer: responses as they are, and correlations remembered.

    >>> from derive.linear.closure import linear_closure
    >>> from derive.program import mlp
    >>> from derive.theory import mean_field
    >>> closure = linear_closure(mean_field(mlp()))
    >>> parts_of(closure.kernel("C"), closure)
    ([A(ell - 1, mu, t, s)], [H(ell - 1, mu, alpha, t, s)])
    """
    names = {str(e.lhs.args[0]) for e in (*closure.covariances, *closure.responses)}
    responses: list[AppliedUndef] = []
    memories: list[AppliedUndef] = []
    for part in Add.make_args(kernel.definition):
        found = [a for a in part.atoms(AppliedUndef) if str(a.func) in names]
        if len(found) != 1:
            raise NotApplicable(f"{part} must contain one order parameter; it contains {found or 'none'}")
        (responses if part == found[0] else memories).append(found[0])
    return responses, memories


Product = tuple[tuple[Expr, Expr] | None, AppliedUndef | None, AppliedUndef]


def layer_products(closure: LinearClosure) -> list[Product]:
    """The tangent kernel's addends: limits of the layer, if summed over, and two factors, entry by entry.

    The factor with samples is last; None stands for the kernel that is 1.  Empty without a tangent kernel.
    """
    out: list[Product] = []
    for term in closure.theory.observables[0].terms if closure.theory.observables else ():
        limits = [(r.lower, r.upper) for r in term.over]
        atoms = [a for a in Mul.make_args(term.coefficient * term.kernel * term.field)]
        if term.remembers or len(limits) > 1 or not all(isinstance(a, AppliedUndef) for a in atoms if a != 1):
            raise NotApplicable(f"{term.expr} is no product of order parameters")
        *first, last = sorted((a for a in atoms if a != 1), key=lambda a: bool(a.has(mu)))
        out.append((limits[0] if limits else None, first[0] if first else None, last))
    return out


# -- the recursion in the layer ----------------------------------------------------------------------------

Word = tuple[Expr, ...]
"""A product of letters, left to right; empty for the identity."""
Words = dict[Word, PolyElement]
"""Words with their coefficients, polynomials in ell and L, none of them zero."""
Pairs = dict[tuple[Word, Word], PolyElement]
"""Products of two words, entry by entry."""

UNKNOWN = "next_"


@dataclass(frozen=True)
class LinearSeries:
    """Operators, output and tangent kernel of a linear theory in words; see :class:`.LinearExpansion`."""

    closure: LinearClosure
    order: int
    words: dict[str, list[Expr]]
    output: list[Expr]
    tangent: list[list[tuple[Expr, Expr, Expr]]]


def linear_series(closure: LinearClosure, order: int) -> LinearSeries:
    """Solve the closure's recursion in the layer up to ``order``.

    Raises :class:`NotApplicable` when the closure is no first-order recursion in the layer.
    """
    found = Recursion(closure, order)
    expr = found.numbers.expr
    return LinearSeries(
        closure,
        order,
        {name: [found.expr(x) for x in values] for name, values in found.series.items()},
        [found.expr(x) for x in found.outputs],
        [[(expr(c), Mul(*a), Mul(*b)) for (a, b), c in products.items()] for products in found.tangents],
    )


class Recursion(OrderByOrder[Words]):
    """The series of every operator, found order by order.

    Each operator obeys ``X(ell) = X(ell -+ 1) + words(ell)``, with coefficients polynomial in ell and L; so
    its own coefficients are sums over layers of polynomials, in closed form.  Nothing about parity is
    assumed: odd orders are computed like even ones, and vanish.  ``series[X][n]`` is the coefficient of
    gamma0^n of X at layer ``ell``, ``outputs[n]`` that of f, ``tangents[n]`` that of the tangent kernel.
    """

    def __init__(self, closure: LinearClosure, order: int) -> None:
        super().__init__()
        if closure.layers is None:
            raise NotApplicable("the expansion needs a family of layers: derive the theory at symbolic depth")
        self.closure = closure
        self.base = {str(e.lhs.args[0]): (e.lhs.args[1], e.rhs) for e in closure.base}
        self.symmetric = {J, *(v for _, v in self.base.values() if v != 0)}
        laws = (*closure.covariances, *closure.responses)
        self.laws = {str(e.lhs.args[0]): (e.lhs, e.rhs) for e in laws}
        self.kernels = {k.name: k for k in closure.kernels if k.operator.has(ell)}
        self.numbers = Polynomials(_symbols(closure))
        self.flipped: dict[Expr, Expr] = {}
        self.idle: set[int] = set()
        self.at: dict[tuple[str, int, Expr], Words] = {}
        self.series: dict[str, list[Words]] = {x: [] for x in (*self.laws, *self.kernels)}
        self.outputs: list[Words] = []
        self.tangents: list[Pairs] = []
        for n in range(order + 1):
            self.advance(n)

    def advance(self, n: int) -> None:
        """One more order of everything."""
        correlations = [x for x in self.laws if self.base.get(x, (0, 0))[1] != 0]
        for x in correlations:
            self.series[x].append(self.correlation(x, n))
        for x in self.kernels:
            self.series[x].append(self.kernel(x, n))
        for x in self.laws:
            if x not in correlations:
                self.series[x].append(self.response(x, n))
        self.outputs.append(self.output(n))
        if n > 0 and all(has_error(w, n) for w in self.outputs[n]):
            # the error at this order obeys a homogeneous Volterra equation, so there is none
            self.idle.add(n)
            for found in (*self.series.values(), self.outputs):
                found[n] = {w: c for w, c in found[n].items() if not has_error(w, n)}
            self.at.clear()
            self.forget(n)
        self.tangents.append(self.tangent(n))

    # -- one order of one operator ---------------------------------------------------------------------

    def placed(self, name: str, n: int, site: Expr) -> Words:
        """A known coefficient at another layer."""
        if (name, n, site) not in self.at:
            found = ((w, self.numbers.moved(c, site)) for w, c in self.series[name][n].items())
            self.at[name, n, site] = {w: c for w, c in found if c}
        return self.at[name, n, site]

    def words_at(self, e: Expr, n: int) -> Words:
        """The coefficient of gamma0^n, with a placeholder for each operator not known at that order yet."""
        found = self.at_order(e, n)
        self.forget(n)
        return found or {}

    def correlation(self, name: str, n: int) -> Words:
        """``X(ell) = X(ell -+ 1) + known``: sum the known part from the end where X is given."""
        lhs, rhs = self.laws[name]
        place, value = self.base[name]
        step, rest = self.split(self.words_at(rhs, n), name, lhs)
        start = {(value,): self.numbers.one} if n == 0 else {}
        return self.sum([start, self.summed(rest, step, place)])

    def kernel(self, name: str, n: int) -> Words:
        """A kernel follows a response from layer to layer, and remembers the correlation of the last one."""
        step, place = S.Zero, S.Zero
        gains: list[Words] = []
        responses, memories = parts_of(self.kernels[name], self.closure)
        for atom in responses:  # of the neighbouring layer: that layer's kernel and more
            x, site = str(atom.func), atom.args[0]
            lhs, rhs = self.laws[x]
            shifted = rhs.subs(ell, ell + site - lhs.args[1])
            step, rest = self.split(self.words_at(shifted, n), name, operator(name, ell))
            gains.append(rest)
            place = self.base[x][0] + (ell - site)
        for atom in memories:
            for j in set(range(n + 1)) - self.idle:
                body = self.placed(str(atom.func), n - j, atom.args[0])
                gains.append({(memory(name, j, w),): c for w, c in body.items()})
        gain = self.sum(gains)
        # beyond the end there is neither response nor memory
        return gain if step == 0 else self.summed(gain, step, place + step)

    def response(self, name: str, n: int) -> Words:
        """Given by the kernels of its layer."""
        lhs, rhs = self.laws[name]
        return self.words_at(rhs.subs(ell, ell + (ell - lhs.args[1])), n)

    def output(self, n: int) -> Words:
        """f at order n: the average it is made of carries one power of the scale more."""
        average = self.closure.outputs[0]
        found = self.words_at(average.rhs, n + 1)
        if any(isinstance(x, Indexed) for w in found for x in w):
            raise NotApplicable(f"{average.lhs} does not carry a factor {gamma0}")
        return found

    def tangent(self, n: int) -> Pairs:
        """The tangent kernel: products of words, entry by entry, summed over the layers."""
        found: Pairs = {}
        for limits, a, b in layer_products(self.closure):
            for k in range(n + 1):
                for v, c in self.factor(a, k).items():
                    for w, d in self.factor(b, n - k).items():
                        value = c * d if limits is None else self.numbers.summed(c * d, *limits)
                        found[v, w] = found.get((v, w), self.numbers.zero) + value
        return {pair: c for pair, c in found.items() if c}

    def factor(self, a: AppliedUndef | None, n: int) -> Words:
        """Order n of a factor of the tangent kernel; None stands for the kernel that is 1."""
        if a is not None and str(a.func) in self.series:
            return self.placed(str(a.func), n, a.args[0])
        return self.constant(J if a is None else operator(str(a.func))) if n == 0 else {}

    # -- recursions ------------------------------------------------------------------------------------

    def split(self, e: Words, name: str, lhs: Expr) -> tuple[Expr, Words]:
        """``e = X(ell + step) + rest`` for X the unknown ``name``: the step, and the rest, all known."""
        step: Expr = S.Zero
        rest: Words = {}
        for w, c in e.items():
            if not any(isinstance(x, Indexed) for x in w):
                rest[w] = c
            elif len(w) == 1 and c == 1 and str(w[0].args[0]) == UNKNOWN + name:
                step = w[0].args[1] - ell
            else:
                raise NotApplicable(f"{lhs} depends on {Mul(*w)} at the same order")
        return step, rest

    def summed(self, e: Words, step: Expr, place: Expr) -> Words:
        """Solve ``X(ell) = X(ell + step) + e(ell)`` with X = 0 at ``place``, word by word."""
        if step not in (1, -1):
            raise NotApplicable(f"a recursion over {step} layers")
        limits = (place + 1, ell) if step == -1 else (ell, place - 1)
        sums = {w: self.numbers.summed(c, *limits) for w, c in e.items()}
        return {w: c for w, c in sums.items() if c}

    # -- sums of words ---------------------------------------------------------------------------------

    def known(self, x: Indexed, n: int) -> Words:
        name, site = str(x.args[0]), x.args[1]
        if n < len(self.series[name]):
            return self.placed(name, n, site)
        return {(operator(UNKNOWN + name, site),): self.numbers.one}

    def constant(self, x: Expr) -> Words:
        return {tuple(letters(x)): self.numbers.one}

    def identity(self, c: Expr | int) -> Words:
        return {(): self.numbers.of(c)}

    def sum(self, parts: Sequence[Words]) -> Words:
        found: Words = {}
        for x in parts:
            for w, c in x.items():
                found[w] = found[w] + c if w in found else c
        return {w: c for w, c in found.items() if c}

    def times(self, a: Words, b: Words) -> Words:
        return self.sum([{v + w: c * d for w, d in b.items()} for v, c in a.items()])

    def transpose(self, a: Words) -> Words:
        return {tuple(self.transposed_letter(x) for x in reversed(w)): c for w, c in a.items()}

    def transposed_letter(self, x: Expr) -> Expr:
        """The transpose of one letter; SymPy is slow to form it."""
        if x not in self.flipped:
            self.flipped[x] = transposed_letter(x, self.symmetric)
        return self.flipped[x]

    def expr(self, a: Words) -> Expr:
        """A coefficient as a SymPy expression."""
        return sympify(Add(*[self.numbers.expr(c) * Mul(*w) for w, c in a.items()]))


@lru_cache(maxsize=100_000)
def memory(kernel: str, order: int, word: Word) -> Memory:
    """The letter that remembers a word."""
    return Memory(kernel, order, Mul(*word))


@lru_cache(maxsize=100_000)
def _orders(letter: Expr) -> frozenset[int]:
    return frozenset(x.order for x in letter.atoms(Memory))


def has_error(word: Iterable[Expr], n: int) -> bool:
    """Does a word contain the error's coefficient of order n?"""
    return any(n in _orders(x) for x in word)


def _symbols(closure: LinearClosure) -> set[Symbol]:
    """What coefficients may depend on, besides the layer."""
    laws = (*closure.covariances, *closure.responses, *closure.base, *closure.outputs)
    found = {x for e in laws for x in e.free_symbols if x.is_commutative is True and x.is_Symbol}
    assert closure.layers is not None
    return {*found, *closure.layers.upper.free_symbols} - {gamma0, ell}


__all__ = [
    "LinearSeries",
    "Memory",
    "OrderByOrder",
    "Recursion",
    "Word",
    "Words",
    "has_error",
    "layer_products",
    "letters",
    "linear_series",
    "parts_of",
    "terms",
    "transposed",
]
