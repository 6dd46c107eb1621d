"""Operators over samples and times: kernels as noncommutative letters, and their matrix expressions.

A field is a vector over (sample, time) or over time, written ``h[ell]``; a kernel is an operator between such
spaces, written ``C[ell]``.

*Words* are noncommutative products of letters (:func:`operator`), so that products keep their order,
``sympy.transpose`` reverses them, and their coefficients are polynomials for expansions. The number 1 is the
identity; the kernel that is 1 at all pairs of times is the operator ``J``, the paper's ``1 1^T``. A word has
no shape, and SymPy's code printers would multiply it entry by entry, so letters raise TypeError there.

*Matrices* (:func:`matrix`) are words written as matrix expressions of SymPy. Their letters are
:class:`Operator` symbols of symbolic shape, which ``lambdify`` multiplies, transposes and inverts correctly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sympy import (
    Add,
    Expr,
    Identity,
    Indexed,
    IndexedBase,
    Inverse,
    MatAdd,
    MatMul,
    MatPow,
    MatrixSymbol,
    Mul,
    Pow,
    S,
    Symbol,
    Transpose,
    transpose,
)
from sympy.core.basic import Basic
from sympy.core.function import AppliedUndef
from sympy.core.symbol import Str
from sympy.printing.latex import LatexPrinter

from derive.calculus.sums import substitute
from derive.calculus.symbols import IndexRange, converted, s, t

T = Symbol("T", integer=True, positive=True)
"""The number of times: rows and columns of a matrix are (sample, time), or times alone."""


class WithoutCode:
    """Base class of letters, the noncommutative symbols of operators, which cannot be printed as code.

    SymPy's code printers raise TypeError for them, because a letter has no shape: code for it would multiply
    entry by entry and drop transposes.
    """

    def _refused(self, *_: Any, **__: Any) -> str:
        """Raise TypeError with a message that says how to make a matrix expression of a word."""
        raise TypeError(
            f"{self} is a letter of an operator word, which has no shape: make the word a matrix "
            "expression first, by the method matrix(word) of the closure or expansion that contains the "
            "word, or by the function matrix of derive.linear.operators"
        )

    _lambdacode = _pythoncode = _numpycode = _scipycode = _cupycode = _jaxcode = _mpmathcode = _refused
    _cmathcode = _numexprcode = _tensorflowcode = _torchcode = _ccode = _cxxcode = _fcode = _refused
    _javascript = _julia = _octave = _rust_code = _rcode = _mcode = _maple = _refused

    def _xreplace(self, rule: Mapping[Any, Any]) -> tuple[Any, bool]:
        """Substitute as SymPy does, but refuse a commutative symbol in place of the letter.

        Raises TypeError for it, because ``lambdify(dummify=True)`` would lose the order of the letters. The
        result is the expression, and whether it changed.
        """
        if isinstance(new := rule.get(self), Symbol) and new.is_commutative:
            self._refused()
        return super()._xreplace(rule)  # type: ignore[misc, no-any-return]


class Letter(WithoutCode, Symbol):  # type: ignore[misc, unused-ignore]
    """Noncommutative symbol that stands for an operator or vector without a layer.

    Words, the products of such letters, are the terms of a linear closure.
    """


class LayerLetter(WithoutCode, Indexed):  # type: ignore[misc, unused-ignore]
    """Noncommutative symbol ``C[ell]`` that stands for an operator or vector of layer ``ell``.

    Words, the products of such letters, are the terms of a linear closure.
    """


def operator(name: str, layer: Expr | int | None = None) -> Expr:
    """Return the letter of the operator (or field) ``name``, with a layer if ``layer`` is given.

    >>> from sympy import lambdify
    >>> from derive.calculus.symbols import ell
    >>> word = operator("C", ell) * operator("D", ell)
    >>> word == operator("D", ell) * operator("C", ell)
    False
    >>> lambdify([operator("C", 1), operator("D", 1)], word.subs(ell, 1))
    Traceback (most recent call last):
    TypeError: D[1] is a letter of an operator word, which has no shape: ...
    """
    if layer is None:
        return Letter(name, commutative=False)
    return LayerLetter(IndexedBase(Symbol(name, commutative=False)), converted(layer))


J = operator("J")


# -- matrices ------------------------------------------------


class Operator(MatrixSymbol):  # type: ignore[misc, unused-ignore]
    """Matrix symbol of an operator at a layer: ``Operator("C", ell, rows, columns)``.

    An operator without a layer is a plain ``MatrixSymbol``. Substitution acts on the layer. In the expansion
    of operator words, the symbol of a memory that is applied to a word has this word in place of the layer.

    >>> from derive import P
    >>> from derive.calculus.symbols import ell
    >>> C = Operator("C", ell, P * T, T)
    >>> C * C.T, C.subs(ell, 2)
    (C[ell]*C[ell].T, C[2])
    """

    def __new__(cls, name: Any, layer: Any, rows: Any, columns: Any) -> Operator:
        """Return the matrix symbol of a name, layer and shape."""
        return Basic.__new__(cls, Str(str(name)), *map(converted, (layer, rows, columns)))  # type: ignore[no-any-return]

    @property
    def layer(self) -> Expr:
        """The index of the layer of the operator; for the memory of an operator word, this word."""
        return self.args[1]

    @property
    def shape(self) -> tuple[Expr, Expr]:
        """The numbers of rows and columns."""
        return self.args[2], self.args[3]

    @property
    def name(self) -> str:
        """The name with the layer, ``C[ell]``."""
        return f"{self.args[0].name}[{self.layer}]"

    def _xreplace(self, rule: Mapping[Any, Any]) -> tuple[Any, bool]:
        """Substitute as SymPy does; a scalar symbol in place of the matrix becomes a matrix of its name.

        ``lambdify`` substitutes such symbols for names with brackets. The result is the expression, and
        whether it changed.
        """
        if isinstance(new := rule.get(self), Symbol):
            return MatrixSymbol(new.name, *self.shape), True
        return super()._xreplace(rule)  # type: ignore[no-any-return, unused-ignore]

    @property
    def free_symbols(self) -> set[Basic]:
        """The symbol itself, and the symbols in its layer and shape."""
        return {self}.union(*[x.free_symbols for x in self.args[1:]])

    def _latex(self, printer: Any, *_: Any) -> str:
        return rf"\boldsymbol{{{self.args[0].name}}}^{{{printer._print(self.layer)}}}"


class SymbolicIdentity(Identity):  # type: ignore[misc, unused-ignore]
    """Identity matrix with a symbolic number of rows, from which SymPy can generate source code.

    The code printers of SymPy, such as that of NumPy, cannot print SymPy's own identity of a symbolic size.
    """

    def _code(self, printer: Any, module: str) -> str:
        """Return the source code of the identity matrix in ``module``, such as ``numpy.eye(T)``."""
        return f"{printer._module_format(module + '.eye')}({printer._print(self.args[0])})"

    def _numpycode(self, printer: Any, *_: Any) -> str:
        return self._code(printer, "numpy")

    _scipycode = _numpycode

    def _jaxcode(self, printer: Any, *_: Any) -> str:
        return self._code(printer, "jax.numpy")

    def _mpmathcode(self, printer: Any, *_: Any) -> str:
        return self._code(printer, "mpmath")


def size(ranges: Iterable[IndexRange]) -> Expr:
    """Return the number of rows of an operator over times and indices: T times the length of each range."""
    return Mul(T, *[r.upper - r.lower + 1 for r in ranges])


def matrix(word: Expr, shape: Callable[[Expr], tuple[Expr, Expr]]) -> Expr:
    """Return a sum of words as a matrix expression; ``shape`` returns rows and columns of each letter.

    Arguments for ``lambdify`` are the symbols of the matrices (:class:`Operator`, or ``MatrixSymbol`` without
    a layer), and the symbols of the shape if there is an identity; vectors are matrices of one column. A word
    that is a number stays a number. A letter with a method ``as_matrix(shape)`` is converted by it.

    >>> import mpmath
    >>> from sympy import lambdify
    >>> from derive.calculus.symbols import ell
    >>> C, D = operator("C", ell), operator("D", ell)
    >>> found = matrix((1 - C * D) ** -1 * C, lambda x: (T, T))
    >>> found
    (-C[ell]*D[ell] + I)**(-1)*C[ell]
    >>> value = lambdify([T, *sorted(found.atoms(Operator), key=str)], found, "mpmath")
    >>> print(value(2, mpmath.matrix([[0, 1], [0, 0]]), mpmath.matrix([[0, 0], [3, 0]])))
    [0.0  -0.5]
    [0.0   0.0]
    """
    e = converted(word)
    if e.is_commutative:
        return e
    if hasattr(e, "as_matrix"):
        return e.as_matrix(shape)
    if isinstance(e, Add | Mul | Pow) or e.func == transpose:
        return _composed_matrix(e, shape)
    if isinstance(e, Indexed):
        return Operator(e.args[0], e.args[1], *shape(e))
    return MatrixSymbol(str(e), *shape(e))


def _composed_matrix(e: Expr, shape: Callable[[Expr], tuple[Expr, Expr]]) -> Expr:
    """Return a sum, product, integer power or transpose of words as a matrix expression."""
    if isinstance(e, Add):
        parts = [matrix(x, shape) for x in e.args]
        rows = next(x.shape[0] for x in parts if x.is_Matrix)
        total = MatAdd(*[x if x.is_Matrix else x * SymbolicIdentity(rows) for x in parts])
        return MatAdd(*total.as_ordered_terms())
    if isinstance(e, Mul):
        numbers, letters = e.args_cnc()
        matrices = [matrix(x, shape) for x in letters]
        return MatMul(*([Mul(*numbers)] if Mul(*numbers) != 1 else []), *matrices) if matrices else e
    if isinstance(e, Pow) and e.exp.is_Integer:
        base = matrix(e.base, shape)
        return Inverse(base) if e.exp == -1 else MatPow(base, e.exp)
    if e.func == transpose:
        return Transpose(matrix(e.args[0], shape)).doit()
    return MatrixSymbol(str(e), *shape(e))


@dataclass(frozen=True)
class Kernel:
    """Operator given by its entries: ``entry(.., rows, cols, t, s) = definition``.

    ``rows`` and ``cols`` are the ranges of the indices other than layer and time, such as samples, of the
    vectors on the left and on the right. ``causal`` is ``"strict"`` if the entry is zero unless ``s < t``,
    ``"past"`` unless ``s <= t``, and empty for a kernel that is not causal.
    """

    operator: Expr
    entry: AppliedUndef
    definition: Expr
    rows: tuple[IndexRange, ...] = ()
    cols: tuple[IndexRange, ...] = ()
    causal: str = ""

    @property
    def name(self) -> str:
        """The name of the function that gives the entries of the operator, such as ``C``."""
        return str(self.entry.func)

    @property
    def site(self) -> tuple[Expr, ...]:
        """The layer as a tuple of one member; empty if the operator has no layer."""
        return tuple(self.operator.args[1:])

    def at(self, rows: tuple[Expr, ...], cols: tuple[Expr, ...], time: Expr, past: Expr) -> Expr:
        """Return the definition of the entry with indices and times replaced.

        ``rows`` and ``cols`` replace the indices of the two sides, ``time`` replaces t and ``past`` replaces
        s.
        """
        names = {r.index: x for r, x in zip((*self.rows, *self.cols), (*rows, *cols), strict=True)}
        return substitute(self.definition, names | {t: time, s: past})


# -- linear equations between operators ------------------------------------------------


def coefficient(e: Expr, vector: Expr) -> Expr:
    """Return the operator in front of ``vector`` in an expression that is linear in vectors.

    Vectors are the rightmost letters of words.

    >>> u, C = operator("u"), operator("C")
    >>> coefficient(2 * C * (u + C * u), u)
    2*C + 2*C**2
    """
    total = S.Zero
    for part in Add.make_args(e.expand()):
        numbers, word = part.args_cnc()
        if word and word[-1] == vector:
            total += Mul(*numbers) * Mul(*word[:-1])
    return total


def solve_for(equations: Mapping[Expr, Expr], target: Expr) -> Expr:
    """Solve a system ``vector = right-hand side`` for ``target``; operators do not commute.

    The other vectors are eliminated one after the other. A vector that depends on itself through ``M`` gives
    the resolvent ``(1 - M)^-1``, which exists for causal M.

    >>> h, g, u, r, C, D = (operator(x) for x in "hgurCD")
    >>> solve_for({h: u + C * g, g: r + D * h}, h)
    (1 - C*D)**(-1)*(C*r + u)
    """
    todo = dict(equations)
    for other in [x for x in equations if x != target]:
        value = _resolved(other, todo.pop(other))
        todo = {x: _without(e, other) + (coefficient(e, other) * value).expand() for x, e in todo.items()}
    return _resolved(target, todo[target])


def _resolved(vector: Expr, e: Expr) -> Expr:
    """Return the solution of ``vector = e``, where ``e`` is linear in operator symbols of vectors.

    If e is ``M vector + other``, the solution is ``(1 - M)^-1 other``; without a term in vector it is e.
    """
    loop = coefficient(e, vector)
    return e if loop == 0 else Pow(1 - loop, -1) * _without(e, vector)


def _without(e: Expr, vector: Expr) -> Expr:
    """Return the terms of an expression that do not end with the letter ``vector``."""
    return Add(*[x for x in Add.make_args(e.expand()) if x.args_cnc()[1][-1:] != [vector]])


def resolvents(e: Expr) -> set[Pow]:
    """Return the inverses ``(1 - M)^-1`` of operators in an expression."""
    return {x for x in e.atoms(Pow) if x.exp == -1 and not x.is_commutative}


# -- printing ------------------------------------------------


class OperatorLatex(LatexPrinter):  # type: ignore[misc, unused-ignore]
    """LaTeX printer of bold operators with the layer as superscript."""

    def _print_Indexed(self, e: Expr) -> str:
        return rf"{self._bold(e.args[0].args[0])}^{{{self._print(e.args[1])}}}"

    def _print_Symbol(self, e: Expr, style: str = "plain") -> str:
        return str(super()._print_Symbol(e)) if e.is_commutative else self._bold(e)

    def _print_transpose(self, e: Expr, exp: Any = None) -> str:
        return rf"{{{self._print(e.args[0])}}}^{{\top}}"

    def _bold(self, label: Expr) -> str:
        if label == J:
            return r"\boldsymbol{1}\boldsymbol{1}^{\top}"
        return rf"\boldsymbol{{{super()._print_Symbol(label)}}}"


def operator_latex(e: Any) -> str:
    """Return the LaTeX of an expression (or equation) between operators."""
    return str(OperatorLatex({"order": "old"}).doprint(e))
