"""Objects of a program: populations, random matrices and vectors, fields, products and means.

A vector over a population is written entry by entry, as a SymPy expression in fields such as ``h(ell, mu,
t)``. A matrix applied to a vector is the unevaluated node :class:`Product`; the average of the entries of a
vector is :class:`Mean`. No mean-field theory is contained here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from operator import index
from typing import Any, Self

from sympy import Add, Dummy, Expr, Function, Integer, S, Symbol
from sympy.core.function import AppliedUndef
from sympy.printing.precedence import PRECEDENCE

from derive.calculus.intervals import CORRELATION, NONNEGATIVE, POSITIVE
from derive.calculus.symbols import IndexRange, ell, expression, spelled
from derive.errors import ProgramError

P_train = Symbol("P_train", positive=True)
"""The sum of the weights ``rho(mu)`` of all samples, by which a mean loss with such weights divides."""


def layer_count(depth: Any, key: str = "depth") -> Expr:
    """Return a number of layers as an expression: an integer of at least 1, or an expression with symbols.

    The expression must be an integer for SymPy, such as ``L - 1``, and its symbols must be positive, because
    the order of the layers must be known. Raises :class:`ProgramError`, naming ``key``, for anything else.

    >>> from derive.calculus.symbols import L
    >>> layer_count(3), layer_count(L - 1)
    (3, L - 1)
    >>> layer_count(2.5)
    Traceback (most recent call last):
    ...
    derive.errors.ProgramError: depth = 2.5: must be an integer of at least 1, or an expression ...
    """
    known = depth if isinstance(depth, Expr) else None
    if known is None and not isinstance(depth, bool | str) and hasattr(depth, "__index__"):
        known = Integer(index(depth))
    if known is None or known.is_integer is not True or (known.is_number and known < 1):
        raise ProgramError(
            f"{key} = {depth!r}: must be an integer of at least 1, or an expression such as L - 1 that is "
            "known to be an integer"
        )
    unknown = sorted((x for x in known.free_symbols if not x.is_positive), key=str)
    if unknown:
        raise ProgramError(
            f"{key} = {depth}: the symbol {unknown[0]} must be known to be positive: write "
            f'Symbol("{unknown[0]}", integer=True, positive=True)'
        )
    return known


def number_and_field(vector: Expr) -> tuple[Expr, Expr]:
    """Split ``c * field`` into the number c and the field; other vectors give 1 and themselves.

    A number contains no symbol: ``a*h(t)`` with a symbol a is returned as ``(1, a*h(t))``. A field is any
    applied undefined function.

    >>> from sympy.abc import t
    >>> number_and_field(3 * Function("h")(t)), number_and_field(3 * Function("h")(t) ** 2)
    ((3, h(t)), (1, 3*h(t)**2))
    """
    number, rest = vector.as_independent(AppliedUndef, as_Add=False)
    plain = number.is_number and isinstance(rest, AppliedUndef)
    return (number, rest) if plain else (S.One, vector)


class Product(Expr):
    """The matrix ``M`` (or its transpose) applied to a vector: ``Product(M, transposed, v)``.

    A number in front of a field is moved out, so that correlations are those of the field.
    """

    is_commutative = True
    precedence = PRECEDENCE["Mul"]

    def __new__(cls, matrix: Any, transposed: Any, vector: Any) -> Expr:
        """Return the matrix applied to the vector; a number c in ``c * field`` is put before the product.

        ``transposed`` is true for the transpose. A factor that contains a symbol stays in the vector.
        """
        number, vector = number_and_field(expression(vector))
        node = Expr.__new__(cls, expression(matrix), Integer(bool(transposed)), vector)
        return node if number == 1 else number * node

    @property
    def matrix(self) -> Expr:
        """The symbol of the matrix, with the indices of the member for a family: ``W(ell)``."""
        return self.args[0]

    @property
    def transposed(self) -> bool:
        """Whether the transpose is applied (a backward use)."""
        return bool(self.args[1])

    @property
    def vector(self) -> Expr:
        """The vector to which the matrix is applied, entry by entry."""
        return self.args[2]

    def _latex(self, printer: Any, *_: Any) -> str:
        matrix = str(printer._print(self.matrix))
        if self.transposed and "^{" in matrix and "_{" not in matrix.rsplit("^{", 1)[1]:
            matrix = rf"{matrix[:-1]} \top}}"
        elif self.transposed:
            matrix = rf"{{{matrix}}}^{{\top}}" if "^" in matrix else rf"{matrix}^{{\top}}"
        return rf"{matrix} {printer.parenthesize(self.vector, PRECEDENCE['Mul'])}"

    def _sympystr(self, printer: Any, *_: Any) -> str:
        matrix = f"{printer._print(self.matrix)}{'.T' if self.transposed else ''}"
        return f"{matrix} @ {printer.parenthesize(self.vector, PRECEDENCE['Mul'])}"


class Mean(Expr):
    """The average of the entries of a vector over its population, ``(1/n) sum_i v_i``.

    Parameters
    ----------
    vector : Expr
        The vector, entry by entry.
    """

    is_commutative = True

    def __new__(cls, vector: Any) -> Mean:
        """Return the unevaluated average of the entries of a vector."""
        node: Mean = Expr.__new__(cls, expression(vector))
        return node

    def _latex(self, printer: Any, *_: Any) -> str:
        return rf"\overline{{{printer._print(self.args[0])}}}"


@lru_cache(maxsize=5_000)
def terms(e: Expr) -> tuple[Expr, ...]:
    """Return the addends of ``e``, expanded outside of matrix products and means.

    >>> from sympy.abc import a, x
    >>> sorted(map(str, terms((1 + a) * Mean(x * (1 + x)))))
    ['Mean(x*(x + 1))', 'a*Mean(x*(x + 1))']
    """
    masks = {x: Dummy("mask") for x in sorted(e.atoms(Product, Mean), key=spelled)}
    whole = {m: x for x, m in masks.items()}
    return tuple(x.xreplace(whole) for x in Add.make_args(e.xreplace(masks).expand()))


class Rewritable:
    """Base class of dataclasses with expressions, all of which can be rewritten at once."""

    def map(self, fun: Callable[..., Any]) -> Self:
        """Return a copy with ``fun`` applied to its expressions, except indices of ranges and training rules.

        >>> Population("layer", ratio=2 * ell).map(lambda e: e.subs(ell, 3)).ratio
        6
        """
        new = {x.name: _mapped(getattr(self, x.name), fun) for x in fields(self)}  # type: ignore[arg-type]
        return replace(self, **new)  # type: ignore[type-var]


def _mapped(x: Any, fun: Callable[..., Any]) -> Any:
    """Return ``x`` with ``fun`` applied to the expressions in it.

    In an :class:`IndexRange` ``fun`` changes the ends, in a mapping the keys, in a tuple or
    :class:`Rewritable` all parts. Numbers count as expressions. Other objects, such as training rules, are
    returned unchanged.
    """
    if isinstance(x, Rewritable):
        return x.map(fun)
    if isinstance(x, IndexRange):
        return IndexRange(x.index, fun(x.lower), fun(x.upper))
    if isinstance(x, tuple):
        return tuple(_mapped(y, fun) for y in x)
    if isinstance(x, Mapping):
        return {fun(k): v for k, v in x.items()}
    if isinstance(x, Expr):
        return fun(x)
    return fun(expression(x)) if isinstance(x, int | float) and not isinstance(x, bool) else x


class _Called:
    """Base class of vectors that are written ``name(indices)``."""

    name: str

    def __call__(self, *indices: Any) -> AppliedUndef:
        """Return the applied function ``name(*indices)``, which stands for the vector with these indices."""
        return Function(self.name)(*indices)


class _NoNumber:
    """Base class of weights: ``+``, ``-``, ``*``, ``/`` and powers of a weight raise ProgramError.

    Expressions contain the symbol of a vector, or a matrix applied with ``@``, never the weight itself.
    """

    def _refuse(self, *_: Any) -> Any:
        """Raise ProgramError with a message that shows the expression to write instead of the weight."""
        name = getattr(self, "name", "")
        symbol = getattr(self, "symbol", name)
        applied = (
            f"{symbol} @ v for its product with a vector v, and factors before brackets, b*({symbol} @ v)"
        )
        instead = f"{name}.symbol" if isinstance(self, GaussianVector) else applied
        raise ProgramError(f"{name} is a {type(self).__name__}, which is not a number: write {instead}")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refuse
    __truediv__ = __rtruediv__ = __pow__ = __rpow__ = __neg__ = _refuse


@dataclass(frozen=True)
class Population(Rewritable):
    """Set of units; their number grows in proportion to N, except in a given population.

    Parameters
    ----------
    name : str
        The name.
    ratio : Expr
        The number of units over N; for a family of populations it may depend on ``ell``.
    given : bool
        Whether the vectors on the population are given and fixed, such as inputs, and known only by their
        inner products over the number of units.
    site : Expr, optional
        The layer of a member of a family.
    shared : bool
        Whether all layers consist of the same units (a residual stream), so that fields of different layers
        add.
    formula : Expr, optional
        The ratio of the family, as a function of ``ell``.

    Examples
    --------
    >>> Population("layer", ratio=Function("a")(ell)).at(ell + 1).ratio
    a(ell + 1)
    """

    name: str
    ratio: Expr = S.One
    given: bool = False
    site: Expr | None = None
    shared: bool = False
    formula: Expr | None = None

    def __post_init__(self) -> None:
        """Raise ProgramError for a ratio that cannot be positive."""
        POSITIVE.require(self.ratio, f"Population {self.name}: ratio")

    def at(self, site: Any) -> Population:
        """Return the member of a family of populations at a layer.

        Parameters
        ----------
        site : Expr or int
            The layer.

        Returns
        -------
        Population
            The member; its ``formula`` is the ratio of the family.
        """
        place, formula = expression(site), expression(self.ratio if self.formula is None else self.formula)
        return replace(self, ratio=formula.xreplace({ell: place}), site=place, formula=formula)


@dataclass(frozen=True)
class Field(Rewritable, _Called):
    """Vector that is computed at every step, with one entry for each unit of a population.

    ``h(ell, mu, t)`` is the field h in layer ell for sample mu at the time t.

    Parameters
    ----------
    name : str
        The name.
    population : Population
        The units of the vector.
    layered : bool
        Whether the first argument is the layer of the population; the time is the last argument.
    ordered : bool
        Whether the field is computed for one value of its first index after another within a step, on the
        same units and with the same matrices (depth in a network with tied weights).
    """

    name: str
    population: Population
    layered: bool = False
    ordered: bool = False


@dataclass(frozen=True)
class GivenVector(Rewritable, _Called):
    """Given vectors ``x(mu)``, such as the input of sample mu, with one entry for each unit of a population.

    The theory does not contain their entries, but only their products ``x(mu).x(alpha)/D``, where D is the
    number of units of the population. These are the function ``kernel`` of mu and alpha.

    Parameters
    ----------
    name : str
        Name of the vectors.
    population : Population
        Population whose units the entries belong to, such as the D input coordinates.
    kernel : str
        Name of the function of two samples that holds the products, such as ``K_x``.
    """

    name: str
    population: Population
    kernel: str


@dataclass(frozen=True)
class Attribute(Rewritable, _Called):
    """Constant of each unit of a population: the eigenvalue of a mode, a coefficient of the target.

    ``lamda(k)`` is its value at the unit ``k``; an average over the population is also over these values.

    Parameters
    ----------
    name : str
        The name.
    population : Population
        The units.
    """

    name: str
    population: Population


def _member(name: str, *ranges: IndexRange) -> Expr:
    """Return the symbol of a weight: ``name(indices)`` for a family with these ranges, else ``name``."""
    return Function(name)(*[r.index for r in ranges]) if ranges else Symbol(name)


def _require_ranges(key: str, indices: object) -> None:
    """Raise ProgramError, naming ``key``, unless ``indices`` is a tuple of IndexRange objects."""
    wrong = [x for x in indices if not isinstance(x, IndexRange)] if isinstance(indices, tuple) else [indices]
    if wrong:
        one = "IndexRange(c, S.One, S(2))"
        kind = f"an index range, {one}" if key.endswith(": index") else f"a tuple of index ranges, ({one},)"
        raise ProgramError(f"{key} = {wrong[0]}: must be {kind}, for example")


@dataclass(frozen=True)
class GaussianMatrix(Rewritable, _NoNumber):
    """Matrix with iid N(0, variance/N) entries at initialisation, or a family of such matrices.

    For rows or columns on a given population of D units, the variance of an entry is ``variance/D``. With a
    ``symmetry`` other than 0, M_ij and M_ji are correlated.

    Parameters
    ----------
    name : str
        The name.
    rows, cols : Population
        The units of rows and columns.
    variance : Expr
        The variance of an entry times N (times D for a given population).
    index : IndexRange, optional
        The index of a family over layers.
    symmetry : Expr
        The correlation of M_ij with M_ji, for a square matrix on one population.
    sources : tuple of str
        The names of the Gaussian sources of products with the matrix and with its transpose. If two sources
        would have one name in one layer, the name of the matrix, and if needed that of the vector, is added.
    responses : tuple of str, optional
        The names of the response functions of these products, used if the matrix has one product and its
        transpose one; by default ``R_`` with the names of the vector and the source.
    others : tuple of IndexRange
        Further indices of the family (the offset in a convolution): ``W(ell, k)``.
    fresh : bool
        Whether the matrix is drawn anew at every step (a batch of samples).
    """

    name: str
    rows: Population
    cols: Population
    variance: Expr = S.One
    index: IndexRange | None = None
    symmetry: Expr = S.Zero
    sources: tuple[str, str] = ("u", "r")
    responses: tuple[str, str] | None = None
    others: tuple[IndexRange, ...] = ()
    fresh: bool = False

    def __post_init__(self) -> None:
        """Raise ProgramError for an index without its range, or a variance or symmetry out of bounds."""
        _require_ranges(f"GaussianMatrix {self.name}: index", () if self.index is None else (self.index,))
        _require_ranges(f"GaussianMatrix {self.name}: others", self.others)
        NONNEGATIVE.require(self.variance, f"GaussianMatrix {self.name}: variance")
        CORRELATION.require(self.symmetry, f"GaussianMatrix {self.name}: symmetry")

    @property
    def symbol(self) -> Expr:
        """The symbol in definitions: ``W(ell)`` for a family, ``W`` otherwise."""
        return _member(self.name, *((self.index,) if self.index else ()), *self.others)

    def __call__(self, *members: Any) -> _Applicable:
        """Return the member of the family at these indices, to be applied with ``@``: ``W(ell) @ v``."""
        return _Applicable(Function(self.name)(*members))

    def __matmul__(self, vector: Any) -> Expr:
        return Product(Symbol(self.name), False, vector)

    @property
    def T(self) -> _Applicable:
        """The transpose of a single matrix, to be applied with ``@``; that of a member is ``W(ell).T``."""
        return _Applicable(Symbol(self.name)).T


@dataclass(frozen=True)
class _Applicable:
    """Matrix, transpose or member of a family of matrices, which is applied to a vector with ``@``."""

    symbol: Expr
    transposed: bool = False

    @property
    def T(self) -> _Applicable:
        """The transpose, to be applied with ``@``; for a transpose, the matrix itself."""
        return _Applicable(self.symbol, not self.transposed)

    def __matmul__(self, vector: Any) -> Expr:
        return Product(self.symbol, self.transposed, vector)


@dataclass(frozen=True)
class GaussianVector(Rewritable, _Called, _NoNumber):
    """Vector with iid N(0, variance) entries at initialisation.

    Parameters
    ----------
    name : str
        The name.
    population : Population
        The units.
    variance : Expr
        The variance of an entry.
    source : str
        The name of the Gaussian source that stands for the initial vector in the theory. If two sources would
        have one name in one layer, the name of the vector is added.
    indices : tuple of IndexRange
        Indices of a family of independent vectors: ``b(ell)`` is a bias for each layer, ``w(c)`` a readout
        for each channel.
    fresh : bool
        Whether the vector is drawn anew at every step (label noise of a new batch).
    """

    name: str
    population: Population
    variance: Expr = S.One
    source: str = "r"
    indices: tuple[IndexRange, ...] = ()
    fresh: bool = False

    def __post_init__(self) -> None:
        """Raise ProgramError for an index without its range, or a negative variance."""
        _require_ranges(f"GaussianVector {self.name}: indices", self.indices)
        NONNEGATIVE.require(self.variance, f"GaussianVector {self.name}: variance")

    @property
    def symbol(self) -> Expr:
        """The symbol of the vector in definitions, with its indices if it is a family."""
        return _member(self.name, *self.indices)

    def uses(self, e: Expr) -> list[Expr]:
        """Return the members of the family (or the vector itself) in an expression.

        Parameters
        ----------
        e : Expr
            The expression.

        Returns
        -------
        list of Expr
            The symbols of the members.
        """
        if not self.indices:
            return [self.symbol] if e.has(self.symbol) else []
        return sorted((a for a in e.atoms(AppliedUndef) if str(a.func) == self.name), key=spelled)


GaussianWeight = GaussianMatrix | GaussianVector
"""Type of random matrices and vectors of initial weights."""
