"""Operator words: noncommutative products of kernels, in which the linear expansion in gamma0 is written.

The letters of a word are kernels, transposes of kernels, and memories. The *memory* of a correlation is the
term that it adds to a causal kernel, as in ``C_mu(t,s) = ... + sum_alpha Delta_alpha(s) H_mu,alpha(t,s)``. It
is linear in the correlation and in the error Delta, so that it is a separate letter at each order of the
error.
Order by order, the closure of a linear theory is a recursion in the layer between sums of words, which is
solved by sums of polynomials in the layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, product
from typing import Any, Generic, Protocol, TypeVar

from sympy import Add, Expr, Indexed, Integer, Mul, Pow, S, Symbol, sympify, transpose
from sympy.core.function import AppliedUndef
from sympy.polys.rings import PolyElement

from derive.calculus.recurrences import GridTooSmall, Sampled, ValueGrid
from derive.calculus.sums import factors, gathered
from derive.calculus.symbols import L, converted, ell, gamma0, s, t
from derive.errors import NotApplicable, require_order
from derive.expansion.errors import OUTPUT
from derive.expansion.expansion import placed_layer
from derive.linear.closure import LinearClosure
from derive.linear.operators import J, Kernel, Operator, WithoutCode, operator
from derive.show.summary import Summarised


class Memory(WithoutCode, Expr):  # type: ignore[misc, unused-ignore]
    """Memory ``Memory(C, n, X)`` of a correlation X in kernel C, with the error at order n in gamma0.

    It is the term ``sum_alpha Delta_alpha(s) X(t, s)`` of the causal kernel C, or ``Delta_alpha(s) X(t, s)``
    of the kernel D, printed as ``Cn[X]`` or ``Dn[X]``. It is a noncommutative letter, a factor of operator
    words. It is linear in X, but a sum or a number in X is not taken out: X is meant to be a single word.

    Parameters
    ----------
    kernel : str
        Name of the kernel.
    order : int
        Order in gamma0 of the error. The order of X is not included.
    body : Expr
        The correlation X, as an operator word.

    Examples
    --------
    >>> from derive.linear.operators import operator
    >>> Memory("C", 0, operator("K_x"))
    C0[K_x]
    """

    is_commutative = False

    def __new__(cls, kernel: Any, order: Any, body: Any) -> Memory:
        """Return the term of a kernel with a correlation times the error at one order in gamma0.

        ``kernel`` is the name of the kernel, ``order`` the order in gamma0 of the error, and ``body`` the
        operator word of the correlation.
        """
        name = Symbol(str(kernel))
        return Expr.__new__(cls, name, Integer(order), sympify(body))  # type: ignore[no-any-return]

    @property
    def kernel(self) -> str:
        """Name of the kernel, such as ``C``, that has the memory as a term."""
        return str(self.args[0])

    @property
    def order(self) -> int:
        """Order in gamma0 of the error that multiplies the correlation."""
        return int(self.args[1])

    @property
    def body(self) -> Expr:
        """Operator word of the correlation that is multiplied by the error."""
        return self.args[2]

    def as_matrix(self, shape: Callable[[Expr], tuple[Expr, Expr]]) -> Operator:
        """Return the memory as one matrix symbol, such as ``C0[K_x]``, with the shape of its kernel.

        Parameters
        ----------
        shape : Callable[[Expr], tuple[Expr, Expr]]
            Function that returns rows and columns of a letter. It is called with the memory itself, and must
            return the shape of the kernel.

        Returns
        -------
        Operator
            Matrix symbol.
        """
        return Operator(f"{self.kernel}{self.order}", self.body, *shape(self))

    def _sympystr(self, printer: Any, *_: Any) -> str:
        return f"{self.kernel}{self.order}[{printer._print(self.body)}]"

    def _latex(self, printer: Any, *_: Any) -> str:
        return rf"\mathcal{{{self.kernel}}}_{{{self.order}}}\!\left[{printer._print(self.body)}\right]"


Word = tuple[Expr, ...]
"""A product of letters, left to right; empty for the identity."""


def terms(e: Expr) -> list[tuple[Expr, Expr]]:
    """Return a sum of operator words as a list of (number, word), words of fewest letters first.

    A power of an operator counts as one letter. The word of a pure number is 1.

    >>> from derive.linear.operators import operator
    >>> C, D = operator("C"), operator("D")
    >>> terms(2 * C * D + 3)
    [(3, 1), (2, C*D)]
    """
    numbers_by_word: dict[tuple[Expr, ...], list[Expr]] = {}
    todo = list(Add.make_args(sympify(e)))
    while todo:
        part = todo.pop()
        numbers, word = part.args_cnc()
        if not all(map(_is_letter, word)):
            todo += Add.make_args(part.expand())
            continue
        numbers_by_word.setdefault(tuple(word), []).append(Mul(*numbers))
    parts = [
        (c, w)
        for w, cs in numbers_by_word.items()
        if (c := cs[0] if len(cs) == 1 else Add(*cs).expand()) != 0
    ]
    spelled = LetterTexts()
    parts.sort(key=lambda x: (len(x[1]), spelled.word(x[1])))
    return [(c, Mul(*w)) for c, w in parts]


def _is_letter(x: Expr) -> bool:
    """Return whether an expression is an operator, its transpose, or a positive integer power of either.

    Sums, products and inverses are not letters.
    """
    base = x.base if isinstance(x, Pow) and x.exp.is_Integer and x.exp > 0 else x
    return isinstance(base, Memory | transpose) or base.is_Symbol or isinstance(base, Indexed)


class LetterTexts(dict[Expr, str]):
    """Dictionary from letters (single operators) to their text, filled when read.

    The text is that of ``str``, but with ``X*X`` in place of a power ``X**2`` in the body of a memory.
    """

    def __missing__(self, x: Expr) -> str:
        if isinstance(x, transpose):
            text = f"transpose({self[x.args[0]]})"
        elif isinstance(x, Memory):
            text = f"{x.kernel}{x.order}[{'*'.join(self.word(letters(x.body)))}]"
        else:
            text = str(x)
        self[x] = text
        return text

    def word(self, w: Iterable[Expr]) -> tuple[str, ...]:
        """Return the text of each letter (single operator) of a word, in order."""
        return tuple([self[x] for x in w])


def letters(word: Expr) -> list[Expr]:
    """Return the letters (single operators) of a product from left to right; ``X**2`` gives X twice."""
    return [x for x in factors(word) if x != 1]


class Transposes(dict[Expr, Expr]):
    """Dictionary from letters (single operators) to their transposes, filled when read.

    ``symmetric`` letters and J, the kernel that is 1, are their own transposes.
    """

    def __init__(self, symmetric: Iterable[Expr]) -> None:
        super().__init__((x, x) for x in (J, *symmetric))

    def __missing__(self, x: Expr) -> Expr:
        transposed = self[x] = x.args[0] if isinstance(x, transpose) else transpose(x)
        return transposed

    def word(self, w: Word) -> Word:
        """Return the transpose of a word: its letters transposed, in reverse order."""
        return tuple([self[x] for x in reversed(w)])


# -- kernels, memories and the tangent kernel of a closure -------------------------------------------------


def parts_of(kernel: Kernel, closure: LinearClosure) -> tuple[list[AppliedUndef], list[AppliedUndef]]:
    """Return the order parameters in the terms of a causal kernel, as two lists: responses, and correlations.

    A response is a term by itself; a correlation is multiplied by the error. Raises NotApplicable for a term
    without exactly one order parameter.

    >>> from derive import linear_closure, mean_field, mlp
    >>> closure = linear_closure(mean_field(mlp()))
    >>> parts_of(closure.kernel("C"), closure)
    ([A(ell - 1, mu, t, s)], [H(ell - 1, mu, alpha, t, s)])
    """
    names = {str(e.lhs.args[0]) for e in (*closure.covariances, *closure.responses)}
    responses: list[AppliedUndef] = []
    memories: list[AppliedUndef] = []
    for part in Add.make_args(kernel.definition):
        parameters = [a for a in part.atoms(AppliedUndef) if str(a.func) in names]
        if len(parameters) != 1:
            raise NotApplicable(
                f"the term {part} of a kernel must contain exactly one order parameter; it has "
                f"{parameters or 'none'}"
            )
        (responses if part == parameters[0] else memories).append(parameters[0])
    return responses, memories


LayerLimits = tuple[Expr, Expr]
OperatorProduct = tuple[LayerLimits | None, AppliedUndef | None, AppliedUndef]


def layer_products(closure: LinearClosure) -> list[OperatorProduct]:
    """Return the terms of a linear theory's tangent kernel as triples (limits, first factor, second factor).

    A term is one order parameter, or the entrywise product of two, such as
    ``G(ell + 1, t, s) * H(ell, mu, alpha, t, s)``. Limits are the first and last layer if the term is summed
    over layers, else None. The second factor is the one with indices of samples; a first factor None stands
    for the number 1. The list is empty for a theory without a tangent kernel. Raises NotApplicable for a term
    of another form.
    """
    if not closure.theory.observables:
        return []
    out: list[OperatorProduct] = []
    observable = closure.theory.observables[0]
    samples = [x for x in observable.lhs.args if x not in (t, s)]
    for term in observable.terms:
        limits = [(r.lower, r.upper) for r in term.over]
        atoms = [a for a in Mul.make_args(term.coefficient * term.kernel * term.field)]
        if term.remembers or len(limits) > 1 or not all(isinstance(a, AppliedUndef) for a in atoms if a != 1):
            raise NotApplicable(
                f"the term {term.expr} of the tangent kernel must be a product of order parameters, without "
                "a sum over the past and with at most one sum over an index"
            )
        *first, last = sorted((a for a in atoms if a != 1), key=lambda a: a.has(*samples))
        out.append((limits[0] if limits else None, first[0] if first else None, last))
    return out


# -- one recursion over any algebra ------------------------------------------------------------------------

AlgebraElement = TypeVar("AlgebraElement")


class Algebra(Protocol[AlgebraElement]):
    """Interface to one representation of the operators of a linear theory, such as words or matrices.

    Operators are kernels of two times and their products. The methods are the operations that a recursion
    over layers needs; a result None stands for zero.
    """

    def identity(self, c: Expr | int) -> AlgebraElement:
        """Return the number c times the identity operator."""

    def constant(self, x: Expr) -> AlgebraElement:
        """Return the operator of a kernel x that does not depend on gamma0, such as K_x for the data."""

    def sum(self, parts: Sequence[AlgebraElement]) -> AlgebraElement | None:
        """Return the sum of one or more operators; None if it vanishes."""

    def times(self, a: AlgebraElement, b: AlgebraElement) -> AlgebraElement | None:
        """Return the operator product ``a b``, in this order; None if it vanishes."""

    def transpose(self, a: AlgebraElement) -> AlgebraElement:
        """Return the transpose of an operator: rows and columns, and the two times, exchanged."""

    def entrywise(self, a: AlgebraElement, b: AlgebraElement) -> AlgebraElement:
        """Return the product of two operators entry by entry, as in the tangent kernel."""

    def orders(self, n: int) -> Iterable[int]:
        """Return the orders in gamma0, up to n, of the error that have been found so far not to vanish."""

    def remembered(self, kernel: str, order: int, body: AlgebraElement) -> AlgebraElement:
        """Return the memory of a correlation X = ``body`` in a kernel: X times the error at one order.

        ``kernel`` is the name of the kernel that has the memory as a term; ``order`` is the order in gamma0
        of the error.
        """


class Recursion(Generic[AlgebraElement]):
    """Solution of the operator equations of a linear theory at an integer depth, order by order in gamma0.

    The operators are the order parameters and kernels of the theory, in the representation ``algebra``; None
    stands for zero. The operators of a layer follow from those of the neighbouring layer, with the product
    ``[a b]_n = sum_k a_k b_(n-k)`` and the inverse ``[1/a]_n = - sum_(k>0) a_k [1/a]_(n-k)`` for ``a_0 = 1``.
    Odd orders are computed like even ones, and vanish.
    """

    def __init__(self, closure: LinearClosure, algebra: Algebra[AlgebraElement], depth: Any) -> None:
        if closure.layers is None:
            raise NotApplicable(
                "the expansion needs a family of layers: derive the theory with a symbol as depth"
            )
        self.closure, self.algebra, self.depth = closure, algebra, depth
        self.laws = {str(e.lhs.args[0]): e for e in (*closure.covariances, *closure.responses)}
        self.kernels = {k.name: k for k in closure.kernels if k.operator.has(ell)}
        self.ends = {str(e.lhs.args[0]): (self.placed(e.lhs.args[1]), e.rhs) for e in closure.base}
        self.products = layer_products(closure)
        self.operators: dict[tuple[tuple[str, Expr], int], AlgebraElement | None] = {}
        self.cache: dict[tuple[Any, int], AlgebraElement | None] = {}
        self.follow: Callable[[str, Expr, int], AlgebraElement | None] = self.at

    def at(self, name: str, layer: Expr, n: int) -> AlgebraElement | None:
        """Return order n in gamma0 of the operator ``name`` at a layer, cached; None if it vanishes.

        The layer must be in the network, or just beyond the end where the recursion of ``name`` starts: from
        any other layer the recursion does not end. An unknown name raises KeyError.
        """
        if ((name, layer), n) not in self.operators:
            self.operators[(name, layer), n] = self.computed(name, layer, n)
        return self.operators[(name, layer), n]

    def computed(self, name: str, layer: Expr, n: int) -> AlgebraElement | None:
        """Compute order n in gamma0 of the operator ``name`` at a layer; None if it vanishes.

        Just beyond the end of the network where the recursion over layers starts, the operator is given (such
        as ``H[0] = K_x``); at other layers it follows from its equation.
        """
        place, value = self.ends.get(name, (None, S.Zero))
        return self.at_order(value, n) if layer == place else self.law(name, layer, n)

    def output(self, n: int) -> AlgebraElement | None:
        """Return order n in gamma0 of the output f, as an operator whose entries at equal times are f.

        The result None stands for zero. The closure gives the operator of gamma0 times f, so that its order
        ``n + 1`` is taken. Raises :class:`NotApplicable` if its order 0 does not vanish.
        """
        average = self.closure.outputs[0]
        if self.at_order(average.rhs, 0) is not None:
            raise NotApplicable(
                f"the average {average.lhs} does not vanish at {gamma0} = 0, so that the output has no "
                f"power series in {gamma0}"
            )
        return self.at_order(self.placed(average.rhs), n + 1)

    def tangent(self, n: int) -> AlgebraElement | None:
        """Return order n in gamma0 of the tangent kernel; None if it vanishes.

        It is a sum of products of two operators entry by entry, summed over layers.
        """

        def product(a: AppliedUndef | None, b: AppliedUndef, layer: Expr) -> AlgebraElement | None:
            """Return order n in gamma0 of the product of two order parameters, entry by entry, at one layer.

            ``a`` None is the number 1. The result None stands for zero.
            """
            pairs = [(self.factor(a, layer, k), self.factor(b, layer, n - k)) for k in range(n + 1)]
            both = ((x, y) for x, y in pairs if x is not None and y is not None)
            return self.total(self.algebra.entrywise(x, y) for x, y in both)

        parts = ((limits, partial(product, a, b)) for limits, a, b in self.products)
        return self.total(self.over_layers(f, *limits) if limits else f(ell) for limits, f in parts)

    def over_layers(
        self, f: Callable[[Expr], AlgebraElement | None], lower: Expr, upper: Expr
    ) -> AlgebraElement | None:
        """Return the sum of ``f(layer)`` over the layers from ``lower`` to ``upper``, both included.

        The result is None if all terms vanish, or if there is no layer between the limits.
        """
        ends = (int(self.placed(x)) for x in (lower, upper + 1))
        return self.total(f(Integer(layer)) for layer in range(*ends))

    def factor(self, a: AppliedUndef | None, layer: Expr, n: int) -> AlgebraElement | None:
        """Return order n in gamma0 of an order parameter ``a`` in the tangent kernel, at a layer.

        ``a`` None stands for the kernel that is 1. An ``a`` without an equation does not depend on gamma0 and
        has order 0 only. The result None stands for zero.
        """
        if a is not None and str(a.func) in self.laws:
            return self.at(str(a.func), self.placed(a.args[0].subs(ell, layer)), n)
        return self.algebra.constant(J if a is None else operator(str(a.func))) if n == 0 else None

    def forget(self, n: int) -> None:
        """Delete cached operators of order n and beyond, which were computed without the error of order n."""
        self.cache = {k: v for k, v in self.cache.items() if k[1] < n}
        self.operators = {k: v for k, v in self.operators.items() if k[1] < n}

    def placed(self, e: Any) -> Expr:
        """Return an expression with the integer depth in place of the symbol L."""
        return sympify(e).subs(L, self.depth)

    def law(self, name: str, layer: Expr, n: int) -> AlgebraElement | None:
        """Return order n in gamma0 of the operator ``name`` at a layer by its equation, None if zero.

        A correlation or response function has an equation in the closure; a kernel is a response plus a
        correlation times the error.
        """
        if name in self.laws:
            e = self.laws[name]
            return self.at_order(self.placed(e.rhs.subs(ell, layer + ell - e.lhs.args[1])), n)
        # An operator without an equation of its own is a kernel. Its terms are responses and memories (a
        # memory is a correlation times the error), at the same or at a neighbouring layer.
        responses, memories = parts_of(self.kernels[name], self.closure)
        parts = [self.follow(str(x.func), self.placed(x.args[0].subs(ell, layer)), n) for x in responses]
        for x in memories:
            for k in self.algebra.orders(n):
                body = self.at(str(x.func), self.placed(x.args[0].subs(ell, layer)), n - k)
                parts.append(None if body is None else self.algebra.remembered(name, k, body))
        return self.total(parts)

    def known(self, x: Indexed, n: int) -> AlgebraElement | None:
        """Return order n in gamma0 of the operator x, such as ``H[ell - 1]``, that occurs in an equation.

        The result None stands for zero.
        """
        return self.at(str(x.args[0]), x.args[1], n)

    # -- expressions -----------------------------------------------------------------------------------

    def at_order(self, e: Expr, n: int) -> AlgebraElement | None:
        """Return the coefficient of gamma0^n of an expression in operators, cached; None if it vanishes."""
        return self._once(e, n, self._at_order)

    def _once(
        self, e: Any, n: int, rule: Callable[[Any, int], AlgebraElement | None]
    ) -> AlgebraElement | None:
        """Return ``rule(e, n)``, from the cache if it has been computed before."""
        if (e, n) not in self.cache:
            self.cache[e, n] = rule(e, n)
        return self.cache[e, n]

    def _at_order(self, e: Expr, n: int) -> AlgebraElement | None:
        """Return the coefficient of gamma0^n of an expression in operators, by the rule for its type.

        Commutative expressions are multiples of the identity; one that is not a polynomial in gamma0 raises
        NotApplicable. The result None stands for zero.
        """
        if e.is_commutative:
            if not e.is_polynomial(gamma0):
                raise NotApplicable(
                    f"the coefficient {e} of an equation is not a polynomial in gamma0, so that it has no "
                    "finite expansion"
                )
            c = e.expand().coeff(gamma0, n)
            return self.algebra.identity(c) if c != 0 else None
        if isinstance(e, Indexed):
            return self.known(e, n)
        if isinstance(e, transpose):
            inner = self.at_order(e.args[0], n)
            return None if inner is None else self.algebra.transpose(inner)
        if isinstance(e, Add):
            return self.total([self.at_order(x, n) for x in e.args])
        if isinstance(e, Pow) and e.exp == -1:
            return self._inverse(e, n)
        return self._power(e, n)

    def _power(self, e: Expr, n: int) -> AlgebraElement | None:
        """Return order n in gamma0 of a product or positive power of operators.

        Any other expression is an operator that does not depend on gamma0 and has order 0 only. The result
        None stands for zero.
        """
        if isinstance(e, Mul):
            return self._once(e.args, n, self._product)
        if isinstance(e, Pow) and e.exp.is_Integer and e.exp > 0:
            return self._once((e.base,) * int(e.exp), n, self._product)
        return self.algebra.constant(e) if n == 0 else None

    def _product(self, factors: tuple[Expr, ...], n: int) -> AlgebraElement | None:
        """Return order n in gamma0 of a product of operators ``factors``: ``[a b]_n = sum_k a_k b_(n-k)``.

        The result None stands for zero.
        """
        first, *rest = factors
        if not rest:
            return self.at_order(first, n)
        left = ((k, self.at_order(first, k)) for k in range(n + 1))
        later = ((a, self._once(tuple(rest), n - k, self._product)) for k, a in left if a is not None)
        return self.total([self.algebra.times(a, b) for a, b in later if b is not None])

    def _inverse(self, e: Pow, n: int) -> AlgebraElement | None:
        """Return order n in gamma0 of the inverse operator ``e = 1/a``; None if it vanishes.

        It is 1 for n = 0, and ``- sum_(k>0) a_k [1/a]_(n-k)`` for n > 0. Raises NotApplicable unless a is the
        identity at gamma0 = 0.
        """
        one = self.algebra.identity(1)
        if n == 0:
            if self.at_order(e.base, 0) != one:
                raise NotApplicable(
                    f"the inverse {e} cannot be expanded in gamma0, because it is not the identity at "
                    "gamma0 = 0"
                )
            return one
        left = ((k, self.at_order(e.base, k)) for k in range(1, n + 1))
        later = ((a, self.at_order(e, n - k)) for k, a in left if a is not None)
        total = self.total([self.algebra.times(a, b) for a, b in later if b is not None])
        return None if total is None else self.algebra.times(self.algebra.identity(-1), total)

    def total(self, parts: Iterable[AlgebraElement | None]) -> AlgebraElement | None:
        """Return the sum of operators, where None stands for zero; None if all operators are None."""
        nonzero = [x for x in parts if x is not None]
        return self.algebra.sum(nonzero) if nonzero else None


# -- words ---------------------------------------------------------------------------------------------------

WordCoefficients = dict[Any, Sampled]
"""Words (in a tangent kernel: pairs of words) with coefficients, polynomials in ell and L, none zero."""
TANGENT = "K"
WORDS = 8
"""Highest order that is written in words; from order 6 to order 8 their number grows thirteenfold."""


@dataclass(frozen=True, repr=False)
class LinearSeries(Summarised):
    """Series in gamma0 of a linear theory's operators, output and tangent kernel, in operator words.

    A word is a product of kernels, its letters. ``sums[X][n]`` maps the words in order n of the operator X to
    their coefficients; ``sums["f"]`` is for the output, and in ``sums["K"]``, for the tangent kernel, the
    keys are pairs of words that are multiplied entry by entry. Words end at order ``written``; beyond it
    :mod:`.order_recursions` gives each order by lower orders and by other operators.
    """

    closure: LinearClosure
    order: int
    sums: dict[str, tuple[dict[Any, PolyElement], ...]]

    def __reduce__(self) -> tuple[Any, ...]:
        """Return a recipe for pickle: closure and order, as polynomial rings of SymPy cannot be pickled."""
        return _unpickled, (type(self), self.closure, self.order)

    def expr(self, name: str, n: int) -> Expr:
        """Return order n in gamma0 of the operator ``name``, or of the output ``f``, in operator words.

        Raises IndexError for an order that the series does not have, NotApplicable for one above 8, which has
        too many words, and KeyError for another name, also for the tangent kernel ``K``, which
        :meth:`triples` gives.
        """
        self.check_written(n)
        if name not in self.sums or name == TANGENT:
            known = ", ".join(x for x in self.sums if x != TANGENT)
            raise KeyError(
                f"{name!r} has no sum of operator words: must be one of {known}; for the tangent kernel "
                f"{TANGENT} call triples(n)"
            )
        return _exprs(self.sums[name][n])

    @property
    def written(self) -> int:
        """Highest order in gamma0 that is given in operator words: that of the series, at most 8.

        Beyond order 8 (``WORDS``) there are too many words.
        """
        return min(self.order, WORDS)

    def check_written(self, n: int) -> None:
        """Raise NotApplicable if order n in gamma0 has too many operator words to be given as their sum.

        Raises IndexError for an order that the series does not have.
        """
        if require_order(n, self.order) > WORDS:
            raise NotApplicable(
                f"order {n} is not given in operator words, which end at order {WORDS}; coefficient() "
                "gives it in terms of lower orders, and lambdify() with an integer depth compiles it"
            )

    @cached_property
    def words(self) -> dict[str, list[Expr]]:
        """Order n of each operator, ``words[name][n]``, as a sum of operator words.

        The output and the tangent kernel are left out; see :attr:`output` and :attr:`tangent`.
        """
        names = [x for x in self.sums if x not in (OUTPUT, TANGENT)]
        return {x: [self.expr(x, n) for n in range(self.written + 1)] for x in names}

    @cached_property
    def output(self) -> list[Expr]:
        """List of the orders 0, 1, ... in gamma0 of the output, as sums of operator words.

        The entries of such an operator at equal times are this order of the output f.
        """
        return [self.expr(OUTPUT, n) for n in range(self.written + 1)]

    @cached_property
    def tangent(self) -> list[list[tuple[Expr, Expr, Expr]]]:
        """Coefficients of the tangent kernel: at each order a list of triples (number, word of G, word of H).

        The two operator words are multiplied entry by entry.
        """
        return [self.triples(n) for n in range(self.written + 1)]

    def triples(self, n: int) -> list[tuple[Expr, Expr, Expr]]:
        """Return order n in gamma0 of the tangent kernel as triples (number, word of G, word of H).

        The two operator words are multiplied entry by entry, and the products summed. Raises IndexError for
        an order that the series does not have, and NotApplicable for one above 8, which has too many words.
        """
        self.check_written(n)
        coefficients = self.sums[TANGENT][n]
        shown = {c: c.as_expr() for c in coefficients.values()}
        return [(shown[c], Mul(*a), Mul(*b)) for (a, b), c in coefficients.items()]


def require_layer(
    closure: LinearClosure, name: str, layer: Any, depth: Any = L, *, beyond: bool = False
) -> Expr:
    """Return the layer of an operator as an expression; raise ValueError for one outside the network.

    Layers are those at which the operator has an equation (1 to L for H, 0 to L - 1 for B), and the one just
    beyond them at which the operator is given, such as layer 0 of H. With ``beyond`` the kernels C and D,
    which vanish there, have such a layer too.
    Layers may be symbolic unless the ``depth`` is an integer. A theory without a family of layers has no
    check.

    >>> from derive import linear_closure, mean_field, mlp
    >>> require_layer(linear_closure(mean_field(mlp())), "H", 3, depth=2)
    Traceback (most recent call last):
    ValueError: layer = 3: must be an integer from 0 to 2 for H
    """
    family = closure.layers
    if family is None:
        return converted(layer)
    equations = (*closure.covariances, *closure.responses)
    shift = next((e.lhs.args[1] - ell for e in equations if str(e.lhs.args[0]) == name), 0)
    ends = [e.lhs.args[1] for e in closure.base if str(e.lhs.args[0]) == name]
    if beyond:
        read = (parts_of(k, closure) for k in closure.kernels if k.name == name and k.operator.has(ell))
        shifts = {x.args[0] - ell for parts in read for x in chain.from_iterable(parts)}
        ends += [edge + k for k in shifts for edge in (family.lower, family.upper)]
    places = (family.lower + shift, family.upper + shift, layer, *ends)
    first, last, value, *given = (converted(x).subs(L, depth) for x in places)
    low, high = first - 1 if first - 1 in given else first, last + 1 if last + 1 in given else last
    return placed_layer(name, value, low, high, symbolic=not sympify(depth).is_Integer)


def _exprs(coefficients: dict[Word, PolyElement]) -> Expr:
    """Convert a sum of operator words to SymPy, from a dictionary from words to polynomial coefficients."""
    shown = {c: c.as_expr() for c in coefficients.values()}
    return sympify(Add(*[shown[c] * Mul(*w) for w, c in coefficients.items()]))


def _unpickled(kind: type[LinearSeries], closure: LinearClosure, order: int) -> LinearSeries:
    """Return a series of this class from its closure and order; used for pickling."""
    return kind(**vars(linear_series(closure, order)))


def linear_series(closure: LinearClosure, order: int) -> LinearSeries:
    """Expand the operators of a linear theory in powers of gamma0, as sums of operator words.

    The words (products of kernels) are given up to ``order``, an integer of 0 or more, but at most up to
    order 8. The recursion over layers is solved with the error at order 0 in all memories; the series of the
    error is then substituted.
    Raises :class:`NotApplicable` if the operator equations ``closure`` have no family of layers, are not a
    first-order recursion in the layer, or have a factor that is not a polynomial in gamma0.
    """
    last = min(order, WORDS)
    degree = 3 * last // 2 + 2
    while True:
        try:
            recursion = AnyDepth(closure, degree)
            names, orders = (*recursion.laws, *recursion.kernels), range(last + 1)
            sums = {x: [recursion.at(x, ell, n) or {} for n in orders] for x in names}
            sums |= {OUTPUT: [recursion.output(n) or {} for n in orders]}
            sums |= {TANGENT: [recursion.tangent(n) or {} for n in orders]}
            break
        except GridTooSmall:
            degree *= 2
    errors = Errors.of(sums[OUTPUT])
    number = recursion.algebra.numbers.polynomial
    return LinearSeries(
        closure,
        order,
        {
            name: tuple({w: number(c) for w, c in errors.expanded(parts, n)} for n in orders)
            for name, parts in sums.items()
        },
    )


class Errors:
    """Expansion of the error in operator words: replaces the error of order 0 in each letter by its series.

    A word is a product of letters (operators), and only letters that are memories contain the error.
    ``orders`` are the orders in gamma0 at which the error does not vanish.

    >>> from derive.linear.operators import operator
    >>> c, d = (Memory(x, 0, operator("K_x")) for x in "CD")
    >>> Errors([0, 2]).word((c, d), 2)
    [(C0[K_x], D2[K_x]), (C2[K_x], D0[K_x])]
    """

    def __init__(self, orders: Sequence[int]) -> None:
        self.orders = orders
        self.cache: dict[tuple[Expr, int], list[Expr]] = {}

    @classmethod
    def of(cls, output: Sequence[WordCoefficients]) -> Errors:
        """Find the orders at which the error does not vanish, and return the expansion with these.

        ``output[n]`` are the operator words of the output that are multiplied by gamma0^n, before the error
        in them is expanded. If all words of an order contain the error of that order, the error obeys a
        homogeneous Volterra equation and vanishes at that order.
        """
        orders = [0]
        for n in range(1, len(output)):
            if any(True for _ in cls(orders).expanded(output, n)):
                orders.append(n)
        return cls(orders)

    def expanded(self, parts: Sequence[WordCoefficients], n: int) -> Iterable[tuple[Any, Sampled]]:
        """Yield (word, coefficient): operator words of total order n in gamma0, with an order for each error.

        ``parts[m]`` maps the words that are multiplied by gamma0^m to their coefficients, before the errors
        in them are expanded; orders of the errors add up to n - m. A word of the tangent kernel is a pair of
        words.
        """
        for m, words in enumerate(parts[: n + 1]):
            for w, c in words.items():
                if w and isinstance(w[0], tuple):
                    splits = ((self.word(w[0], k), self.word(w[1], n - m - k)) for k in range(n - m + 1))
                    yield from ((x, c) for split in splits for x in product(*split))
                else:
                    yield from ((x, c) for x in self.word(w, n - m))

    def word(self, w: Word, n: int) -> list[Word]:
        """Return the versions of a word w of order n, with an order of the error chosen in each letter.

        The orders of the errors in all letters of the word add up to n.
        """
        if n == 0 or not w:
            return [w] if n == 0 else []
        return [(x, *v) for k in range(n + 1) for x in self.letter(w[0], k) for v in self.word(w[1:], n - k)]

    def letter(self, x: Expr, n: int) -> list[Expr]:
        """Return the versions of a letter (one operator) of order n, with an order for each error in it.

        The orders of these errors add up to n. A letter without an error has a version at order 0 only.
        """
        if n == 0:
            return [x]
        if (x, n) not in self.cache:
            copies: list[Expr] = []
            if isinstance(x, transpose):
                copies = [transpose(y) for y in self.letter(x.args[0], n)]
            elif isinstance(x, Memory):
                body, orders = tuple(letters(x.body)), [k for k in self.orders if k <= n]
                copies = [memory(x.kernel, k, w) for k in orders for w in self.word(body, n - k)]
            self.cache[x, n] = copies
        return self.cache[x, n]


class _WordAlgebra:
    """Representation of operators as sums of operator words, dictionaries from words to coefficients.

    A word is a tuple of letters (kernels); coefficients are polynomials in ell and L, stored as their values
    on a grid. The error in all letters has order 0.
    """

    def __init__(self, closure: LinearClosure, degree: int) -> None:
        laws = (*closure.covariances, *closure.responses, *closure.base, *closure.outputs)
        symbols = {x for e in laws for x in e.free_symbols if x.is_commutative is True and x.is_Symbol}
        depth = closure.layers.upper.free_symbols if closure.layers else set()
        self.numbers = ValueGrid(degree, {*symbols, *depth} - {gamma0, ell})
        self.flipped = Transposes(e.rhs for e in closure.base if e.rhs != 0)

    def identity(self, c: Expr | int) -> WordCoefficients:
        """Return the number c times the identity operator, which is the empty word."""
        return {(): self.numbers.of(c)}

    def constant(self, x: Expr) -> WordCoefficients:
        """Return the operator of a kernel x that does not depend on gamma0, such as K_x, as one word."""
        return {tuple(letters(x)): self.numbers.one}

    def sum(self, parts: Sequence[WordCoefficients]) -> WordCoefficients | None:
        """Return the sum of operators, dictionaries from words to coefficients; None if all cancel."""
        return gathered(pair for x in parts for pair in x.items()) or None

    def times(self, a: WordCoefficients, b: WordCoefficients) -> WordCoefficients | None:
        """Return the product of two operators, sums of operator words; words are joined in this order.

        The result is None if all words cancel.
        """
        return self.sum([{v + w: c * d for w, d in b.items()} for v, c in a.items()])

    def transpose(self, a: WordCoefficients) -> WordCoefficients:
        """Return the transpose of an operator, given as a sum of operator words."""
        return {self.flipped.word(w): c for w, c in a.items()}

    def entrywise(self, a: WordCoefficients, b: WordCoefficients) -> WordCoefficients:
        """Return the entrywise (Hadamard) product of two sums of words.

        The result maps each pair (word of ``a``, word of ``b``) to the product of their coefficients.
        """
        return {(v, w): c * d for v, c in a.items() for w, d in b.items()}

    def moved(self, a: WordCoefficients, layer: Expr) -> WordCoefficients | None:
        """Return an operator at another layer: ``layer`` replaces ell in the coefficients of its words.

        The result is None if all coefficients vanish there.
        """
        return {w: x for w, c in a.items() if (x := self.numbers.moved(c, layer))} or None

    def summed(self, a: WordCoefficients, lower: Expr, upper: Expr) -> WordCoefficients | None:
        """Return an operator summed over the layers from ``lower`` to ``upper``.

        The coefficients of its words are polynomials in the layer ell; each is summed in closed form.
        The result is None if all sums vanish.
        """
        return {w: x for w, c in a.items() if (x := self.numbers.summed(c, lower, upper))} or None

    def orders(self, n: int) -> Iterable[int]:
        """Return order 0 only, because the error is one letter here and is expanded later."""
        return (0,)

    def remembered(self, kernel: str, order: int, body: WordCoefficients) -> WordCoefficients:
        """Return the memory of an operator X in a kernel: X times the error, a letter for each word.

        X is ``body``. ``kernel`` is the name of the kernel and ``order`` the order of the error, 0 here.
        """
        return {(memory(kernel, order, w),): c for w, c in body.items()}

    def rest(self, a: WordCoefficients) -> WordCoefficients | None:
        """Return ``a``, the right-hand side of an operator equation for X, without its term X.

        X occurs at the neighbouring layer, as a letter ``X[layer]``. Raises :class:`NotApplicable` if it
        occurs with a coefficient other than 1 or in a product. The result is None if nothing else is left.
        """
        unknown = {w: c for w, c in a.items() if any(isinstance(x, Indexed) for x in w)}
        if beside := [w for w, c in unknown.items() if len(w) > 1 or c is not self.numbers.one]:
            raise NotApplicable(
                "the equation of an operator contains this operator at the same order, in the product "
                f"{Mul(*beside[0])} or with a factor other than 1; it must contain it at the neighbouring "
                "layer alone, with the factor 1, so that the operator is a sum over layers"
            )
        return {w: c for w, c in a.items() if w not in unknown} or None


class AnyDepth(Recursion[WordCoefficients]):
    """Solution of the operator equations of a linear theory at symbolic layer and depth, in operator words.

    Each operator obeys ``X(ell) = X(ell -+ 1) + known(ell)``, where the coefficients of words are polynomials
    in ell and L, so that X is a sum over layers of polynomials in closed form.
    """

    algebra: _WordAlgebra

    def __init__(self, closure: LinearClosure, degree: int) -> None:
        super().__init__(closure, _WordAlgebra(closure, degree), L)
        self.follow = self.law
        self.steps: dict[tuple[str, int], Expr] = {}
        """Shift of the layer at which an operator occurs in its own equation, 0 if it does not occur.

        Keys are (name, order) of the operators that are being solved for.
        """

    def computed(self, name: str, layer: Expr, n: int) -> WordCoefficients | None:
        """Return order n in gamma0 of the operator ``name`` at a layer, from its closed form in ell.

        The result None stands for zero.
        """
        if layer == ell:
            return self.closed(name, n)
        here = self.at(name, ell, n)
        return here and self.algebra.moved(here, layer)

    def over_layers(
        self, f: Callable[[Expr], WordCoefficients | None], lower: Expr, upper: Expr
    ) -> WordCoefficients | None:
        """Return the sum of the operators ``f(ell)`` from layer ``lower`` to ``upper``, in closed form.

        The limits may be symbolic. The result is None if the operator vanishes.
        """
        here = f(ell)
        return here and self.algebra.summed(here, lower, upper)

    def closed(self, name: str, n: int) -> WordCoefficients | None:
        """Return order n in gamma0 of the operator ``name`` in closed form in the symbolic layer ell.

        The equation of the operator X is ``X(ell) = X(ell + step) + e(ell)`` with step 1 or -1, so that X is
        its given value beyond one end of the network plus the sum of e from that end to ell. Without X on the
        right-hand side the result is e. The result None stands for zero. Raises NotApplicable for other
        equations.
        """
        if (name, n) in self.steps:
            raise NotApplicable(
                f"the operators {name} and {next(reversed(self.steps))[0]} depend on each other at one "
                "order, so that they are not solved by sums over layers"
            )
        self.steps[name, n] = S.Zero
        e = self.law(name, ell, n)
        step = self.steps.pop((name, n))
        # Results of order n that were cached during the evaluation may contain the unknown operator `name` as
        # a letter. All results of order n are therefore dropped from the cache.
        self.cache = {k: v for k, v in self.cache.items() if k[1] != n}
        e = e and self.algebra.rest(e)
        if step == 0:
            return e
        if step not in (1, -1):
            raise NotApplicable(
                f"the recursion of {name} goes over {step} layers; it must relate neighbouring layers"
            )
        if name in self.laws:
            place, value = self.ends[name]
        else:  # a kernel vanishes beyond the end of the network, where it has neither response nor memory
            (response, *_), _ = parts_of(self.kernels[name], self.closure)
            place, value = self.ends[str(response.func)][0] + ell - response.args[0] + step, S.Zero
        limits = (place + 1, ell) if step == -1 else (ell, place - 1)
        return self.total([self.at_order(value, n), e and self.algebra.summed(e, *limits)])

    def known(self, x: Indexed, n: int) -> WordCoefficients | None:
        """Return order n of the operator x, such as ``H[ell - 1]``, that occurs in an equation.

        If it is the operator for which the equation is being solved, x itself is returned as a letter. The
        result None stands for zero.
        """
        name, layer = str(x.args[0]), x.args[1]
        if (name, n) != next(reversed(self.steps), None):
            return self.at(name, layer, n)
        self.steps[name, n] = layer - ell
        return {(x,): self.algebra.numbers.one}


def memory(kernel: str, order: int, word: Word) -> Memory:
    """Return the letter of a memory in operator words: a correlation times the error, as part of a kernel.

    ``kernel`` is C or D, ``order`` the order in gamma0 of the error, and ``word`` the correlation.
    """
    return Memory(kernel, order, Mul(*word))
