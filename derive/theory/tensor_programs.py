r"""Theory in the notation of Tensor Programs (selfconsistent2023 table N1, N.10; depth2023 Def. 4.1).

In that notation :math:`Z^x` (or the ket :math:`|x\rangle`) is the random variable to which the entries of a
vector x converge. A product with a random matrix has two parts: the Gaussian :math:`\hat Z^{Wx}`, and
:math:`\dot Z^{Wx}`, which arises because x depends on the transpose of W. They are the sources and the
response terms of the theory. Nothing is derived here; each term is renamed by its origin.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, cast
from unicodedata import normalize

from sympy import Add, Derivative, Dummy, Eq, Expr, Integral, Mul, Pow, S, Sum, sympify
from sympy.core.function import AppliedUndef
from sympy.printing.precedence import PRECEDENCE

from derive.calculus.averages import Average, Response
from derive.calculus.sums import factors, over, substitute
from derive.calculus.symbols import IndexRange, ell, s
from derive.errors import NotApplicable, require_type
from derive.program.language import Product
from derive.program.parts import Definition
from derive.show.arranged import with_distinct_variables
from derive.show.latex import PaperLatex
from derive.show.notation import Notation, notation
from derive.show.summary import Summarised
from derive.show.text import PaperText
from derive.theory.applications import Application, Parameter, Reading, read
from derive.theory.data import Equation, TheoryData

STYLES = ("Z", "ket")


class _Symbol(Expr):
    """Base class of the symbols of Tensor Programs, which printers treat as one letter."""

    is_commutative = True
    precedence = 1000

    def __new__(cls, *args: Any) -> Self:
        """Return the symbol for the given expressions."""
        return cast(Self, Expr.__new__(cls, *map(sympify, args)))


class Z(_Symbol):
    r"""Random variable ``Z(x)`` of the entries of x, :math:`Z^{x}` or :math:`|x\rangle`."""


class Hat(_Symbol):
    """Gaussian part ``Hat(W x)`` of a product with a random matrix."""


class Dot(_Symbol):
    """Part ``Dot(W x)`` of a product that comes from the dependence of x on the transpose of W."""


class Expectation(_Symbol):
    r"""Expectation ``Expectation(Z(x) Z(y))``: :math:`E[Z^x Z^y]`, or :math:`\langle x|y\rangle`."""


class Partial(_Symbol):
    """Derivative ``Partial(Z(x), Hat(W y))`` of :math:`Z^x` by a Gaussian part."""


@dataclass(frozen=True, repr=False)
class TensorProgram(Summarised):
    """Theory written in the notation of Tensor Programs.

    There, a product ``W x`` with a random matrix is the sum of a Gaussian part, ``Hat(W x)``, and of a part
    ``Dot(W x)``, which comes from the dependence of x on the transpose of W.

    Attributes
    ----------
    theory : TheoryData
        The theory that is written.
    equations : tuple of Eq
        Equations of the fields.
    dots : tuple of Eq
        Definitions of the parts ``Dot`` in these equations.
    covariances : tuple of Eq
        Covariances of the parts ``Hat``, and of initial vectors of weights.
    scalars : tuple of Eq
        Equations of the outputs and of other scalars.
    """

    theory: TheoryData
    equations: tuple[Eq, ...]
    dots: tuple[Eq, ...]
    covariances: tuple[Eq, ...]
    scalars: tuple[Eq, ...]

    def render(self, format: str = "text", style: str = "Z") -> str:
        """Return text or LaTeX, with Z's or with kets.

        ``format`` is ``"text"`` or ``"latex"``, and ``style`` is ``"Z"`` or ``"ket"``. Raises ValueError for
        other values.
        """
        if format not in ("text", "latex"):
            raise ValueError(f"format = {format!r}: must be 'text' or 'latex'")
        if style not in STYLES:
            raise ValueError(f"style = {style!r}: must be one of {', '.join(STYLES)}")
        stated = (self.equations, self.dots, self.covariances, self.scalars)
        groups = [[with_distinct_variables([e.lhs, e.rhs]) for e in g] for g in stated]
        if format == "text":
            text = _Text(notation(self.theory), style)
            blocks = ["\n".join(f"{text.doprint(a)} = {text.doprint(b)}" for a, b in g) for g in groups if g]
            return normalize("NFC", "\n\n".join(blocks))
        latex = _Latex(notation(self.theory), style)
        rows = [f"  {latex.doprint(a)} &= {latex.doprint(b)}" for g in groups for a, b in g]
        return "\\begin{align*}\n" + " \\\\\n".join(rows) + "\n\\end{align*}"

    def _repr_latex_(self) -> str:
        return self.render("latex")


def tensor_program(theory: TheoryData, names: Mapping[Expr, Expr] | None = None) -> TensorProgram:
    """Return a theory in the Z or ket notation, with sources as hats and response terms as dots.

    ``names`` maps vectors to the names that they have in Tensor Programs:
    ``{phi(h(ell, mu, t)): x(ell, mu, t)}`` writes ``phi(h)`` as ``x``, also at other indices and times. By
    default vectors keep the names of the program. Raises :class:`~derive.errors.NotApplicable` for a field
    that is defined by its rate of change, for a key of ``names`` that is not a vector of the program, and for
    a theory whose equations are not those of the program, such as a result of `Theory.at_depth`.

    >>> from derive import mean_field, mlp
    >>> print(tensor_program(mean_field(mlp(1))).render().splitlines()[0])
    Z[h^1_μ(t)] = Ẑ[W₀ x_μ] + η γ₀ Σ_{s<t} Σ_α Δ_α(s) K^x_μα Z[g^1(s)]
    """
    _require_vectors(theory, names or {})
    return _Translation(theory, dict(names or {})).run()


def _require_vectors(theory: TheoryData, names: Mapping[Expr, Expr]) -> None:
    """Raise NotApplicable unless ``names`` is a mapping whose keys each contain a field of the program."""
    require_type(names, Mapping, "names", "a mapping from vectors to expressions, such as {h(t): x(t)}")
    fields = [x.name for x in theory.program.fields]
    for vector, name in names.items():
        functions = vector.atoms(AppliedUndef) if isinstance(vector, Expr) else ()
        if not any(str(x.func) in fields for x in functions):
            raise NotApplicable(
                f"names = {{{vector!r}: {name}}}: the key must be a vector of the program, an expression "
                f"that contains one of the fields {', '.join(fields)}"
            )


class _Translation:
    """Translation of one theory into the notation of Tensor Programs."""

    def __init__(self, theory: TheoryData, names: dict[Expr, Expr]) -> None:
        self.theory = theory
        self.program = theory.program
        self.reading: Reading = read(self.program)
        self.names = names
        self.parameters = {q.name: q for q in theory.order_parameters}
        self.fields = {x.name for x in self.program.fields}
        self.origins: list[Application | Parameter] = [*self.reading.entries, *self.reading.uses]
        self.sources = {str(x.source().func) for x in self.origins}

    def run(self) -> TensorProgram:
        """Return the theory in the notation of Tensor Programs.

        The result has equations of fields, definitions of the parts ``Dot``, covariances and scalars.
        """
        theory, dots = self.theory, list[Eq]()
        # the scalars of a spectral rule, such as Gram matrices, are scalars of the theory, and not of the
        # program
        scalars = {*self.program.scalars, *(e.name for e in theory.scalars)}
        equations = [
            Eq(self.z(d.lhs), self.equation(d, self.equation_of(d), dots), evaluate=False)
            for d in self.reading.definitions
            if d.name not in scalars
        ]
        covariances = []
        for u in theory.sources:
            pair = Expectation(self.source(u.symbol) * self.source(u.partner))
            covariances.append(Eq(pair, self.expression(u.covariance), evaluate=False))
        outputs = [Eq(e.lhs, self.expression(e.rhs), evaluate=False) for e in theory.scalars]
        return TensorProgram(theory, tuple(equations), tuple(dots), tuple(covariances), tuple(outputs))

    def equation_of(self, d: Definition) -> Equation:
        """Return the theory's equation of the field that ``d`` defines; raise NotApplicable without it."""
        found = next((e for e in self.theory.equations if e.lhs == d.lhs), None)
        if found is not None:
            return found
        if d.evolves:
            raise NotApplicable(
                f"the field {d.lhs} is defined by its rate of change, and Tensor Programs define "
                "vectors by their values: use a program whose definitions are values"
            )
        raise NotApplicable(
            f"the theory has no equation of the field {d.lhs}: use the theory of the program as mean_field "
            "returns it"
        )

    def equation(self, d: Definition, e: Equation, dots: list[Eq]) -> Expr:
        """Return the right-hand side of a field's equation ``e`` in the notation of Tensor Programs.

        ``d`` is the field's definition in the program. The response terms of a product W x are replaced by
        the symbol ``Dot(W x)``, whose equation is appended to ``dots``. Raises NotApplicable for a response
        term that belongs to no product.
        """
        terms: list[Expr] = []
        # In the definition d a product may have a factor and may stand in a sum. The response terms of the
        # product have this factor as `coefficient`, and their first ranges are those of the sum. They have no
        # such ranges if the matrices of the sum act together as one (`summed`). The factor and this sum are
        # put in front of the symbol Dot, which stands for the product alone.
        response_terms: dict[tuple[Product, Expr, tuple[IndexRange, ...]], list[Expr]] = {}
        wholes: dict[Product, Expr] = {}
        for x in e.terms:
            if x.kind != "response":
                terms.append(self.expression(x.expr))
                continue
            a = self.reading.product_of(d, x)
            outer = () if a is None or a.summed else d.summed_over(a.product)
            if a is None or x.over[: len(outer)] != outer:
                raise NotApplicable(
                    f"the response term {x.expr} in the equation of {d.lhs} is not that of one product with "
                    f"{x.matrix}: use the theory of the program as mean_field returns it"
                )
            alone = replace(x, coefficient=S.One, over=x.over[len(outer) :])
            response_terms.setdefault((a.product, x.coefficient, outer), []).append(alone.expr)
            wholes[a.product] = a.whole
        for (product, coefficient, outer), parts in response_terms.items():
            dot = Dot(self.renamed(wholes[product]))
            terms.append(over(self.expression(coefficient) * dot, outer))
            value = Add(*[self.expression(p) for p in parts])
            if (equation := Eq(dot, value, evaluate=False)) not in dots:
                dots.append(equation)
        return Add(*terms)

    # -- expressions -------------------------------------------------------------------------------------

    def expression(self, e: Expr) -> Expr:
        """Return ``e`` in the notation of Tensor Programs.

        Fields become Z, Gaussian sources hatted Z, and order parameters expectations.
        """
        if isinstance(e, Sum | Integral):
            return e.func(self.expression(e.function), *e.limits)
        if isinstance(e, Average):
            return Expectation(self.expression(e.body))
        if isinstance(e, Response):
            return Partial(self.z(e.body), self.source(e.source))
        if isinstance(e, AppliedUndef) and (translated := self.function(e)) is not None:
            return translated
        single = not isinstance(e, Add | Mul | Sum | Integral) and not e.has(Average, Response)
        if single and any(str(a.func) in self.fields for a in e.atoms(AppliedUndef)):
            return self.z(e)  # a function of fields, such as phi(h), is one vector and gets one Z
        return e.func(*[self.expression(x) for x in e.args]) if e.args else e

    def function(self, e: AppliedUndef) -> Expr | None:
        """Return a source, order parameter or field in the notation of Tensor Programs; None for others.

        The source of a product becomes a hatted Z; the source of a vector of weights, and a field, become Z.
        An order parameter is replaced by its definition.
        """
        name = str(e.func)
        if name in self.sources:
            return self.source(e)
        if name in self.parameters:
            # Tensor Programs have no symbols for order parameters: the order parameter e is replaced by its
            # definition, with the layers, indices and times of e.
            q = self.parameters[name]
            values = dict(zip(q.symbol.args, e.args, strict=True))
            return self.expression(substitute(q.definition, values))
        return self.z(e) if name in self.fields else None

    def source(self, e: AppliedUndef) -> Expr:
        """Return a Gaussian source in the notation of Tensor Programs.

        It is a hatted Z for a product with a matrix, and a Z for a vector of weights.
        """
        origin = self.origin(e)
        declared = origin.source()
        values = {x: y for x, y in zip(declared.args, e.args, strict=True) if x.is_Symbol}
        # An argument x of the declared source may be a layer such as ell + 1. The value of ell follows from
        # x = y, where y is the argument of e in the place of x.
        for x, y in zip(declared.args, e.args, strict=True):
            if not x.is_Symbol and len(x.free_symbols & {ell}) == 1 and x != y:
                values[ell] = ell + (y - x)
        if isinstance(origin, Application):
            return Hat(self.renamed(substitute(origin.whole, values)))
        return Z(origin.member.subs(values, simultaneous=True))

    def origin(self, e: AppliedUndef) -> Application | Parameter:
        """Return the product or the vector of weights from which the source ``e`` comes.

        Sources of several layers may share a name; the layer of ``e`` selects among them. Raises
        NotApplicable for a source that the program does not have, as after a reduction.
        """
        same_name = [x for x in self.origins if x.source().func == e.func]
        exact = [x for x in same_name if x.source().args[0] == e.args[0]]
        family = [x for x in same_name if x.source().args[0].has(ell) and e.args[0].has(ell)]
        if not same_name:
            raise NotApplicable(
                f"the source {e} does not come from a product or a vector of weights of the program, as in a "
                f"theory with a reduction ({self.theory.reduction or 'without a name'}): use the theory of "
                "the program as mean_field returns it"
            )
        return (exact or family or same_name)[0]

    def z(self, vector: Expr) -> Expr:
        """Return the random variable ``Z(vector)`` of the entries of a vector."""
        return Z(self.renamed(vector))

    def renamed(self, e: Expr) -> Expr:
        """Return ``e`` with vectors under the names that the user gave.

        A vector matches a pattern of the user at any layer, indices and time, which the new name then has as
        well.
        """
        for pattern, name in self.names.items():
            inner = [a for a in pattern.atoms(AppliedUndef) if not a.atoms(AppliedUndef) - {a}]
            atom = min(inner, key=str)

            def called(x: Expr, pattern: Expr = pattern, name: Expr = name, atom: Expr = atom) -> Expr:
                occurrence = next((a for a in x.atoms(AppliedUndef) if a.func == atom.func), None)
                values = dict(zip(atom.args, occurrence.args, strict=True)) if occurrence is not None else {}
                whole = pattern.subs(values, simultaneous=True)
                return name.subs(values, simultaneous=True) if x == whole else x

            slopes = {d: Dummy() for d in e.atoms(Derivative) if d.expr.func == pattern.func}
            e = e.xreplace(slopes).replace(
                lambda x, p=pattern: isinstance(x, Expr) and x.func == p.func, called
            )
            # Derivatives of the function of the pattern, such as phi, are not renamed. Symbols stood for them
            # during the replacement, and are now replaced by the derivatives.
            e = e.xreplace({slot: d for d, slot in slopes.items()})
        return e


# -- printing ------------------------------------------------------------------------------------------


class _Signs:
    """Mixin of the text and the LaTeX printer, which writes symbols of Tensor Programs in the Z or ket style.

    ``signs`` are format strings by name of the symbol's class.
    """

    styles: ClassVar[dict[str, dict[str, str]]]

    def __init__(self, names: Notation, style: str) -> None:
        super().__init__(names)  # type: ignore[call-arg]
        self.signs = self.styles["any"] | self.styles[style]

    def _written(self, e: _Symbol, sign: str = "") -> str:
        """Return the printed form of a symbol of Tensor Programs.

        ``sign`` is the name of a format string in ``signs``; by default it is the name of the symbol's class.
        """
        printed = map(self._print, e.args)  # type: ignore[attr-defined]
        return self.signs[sign or type(e).__name__] % tuple(printed)

    _print_Z = _print_Hat = _print_Dot = _print_Partial = _written

    def _print_Expectation(self, e: Expectation) -> str:
        pair = factors(e.args[0])
        if "pair" in self.signs and len(pair) == 2 and all(isinstance(x, Z) for x in pair):
            first, second = sorted(pair, key=lambda x: (x.args[0].has(s), str(x)))
            return self._written(_Symbol(first.args[0], second.args[0]), "pair")
        return self._written(e)

    def parenthesize(self, item: Expr, level: int, *args: Any, **kwargs: Any) -> str:
        """Return the printed form of an item, with parentheses where SymPy's rules of precedence need them.

        This method sets no parentheses around symbols of Tensor Programs.
        """
        # SymPy's printers choose parentheses by the name of a class, and would take the class Dot for SymPy's
        # scalar product Dot. This method therefore adds no parentheses to symbols of Tensor Programs.
        if isinstance(item, _Symbol):
            return str(self._print(item))  # type: ignore[attr-defined]
        return str(super().parenthesize(item, level, *args, **kwargs))  # type: ignore[misc]


class _Latex(_Signs, PaperLatex):
    """LaTeX printer of the notation of Tensor Programs."""

    styles: ClassVar[dict[str, dict[str, str]]] = {
        "any": {"Expectation": r"\mathbb{E}\left[%s\right]", "Partial": r"\frac{\partial %s}{\partial %s}"},
        "Z": {"Z": "Z^{%s}", "Hat": r"\hat{Z}^{%s}", "Dot": r"\dot{Z}^{%s}"},
        "ket": {
            "Z": r"|%s\rangle",
            "Hat": r"|%s\rangle^{\wedge}",
            "Dot": r"|%s\rangle^{\bullet}",
            "pair": r"\langle %s|%s\rangle",
        },
    }

    def _print_Pow(self, expr: Pow) -> str:
        # Some symbols, such as Z^{x}, have a superscript of their own. Without parentheses an exponent beside
        # it would be an error in TeX. Every symbol of Tensor Programs that is raised to a power gets
        # parentheses.
        if isinstance(expr.base, _Symbol):
            return rf"\left({self._print(expr.base)}\right)^{{{self._print(expr.exp)}}}"
        return super()._print_Pow(expr)


class _Text(_Signs, PaperText):
    """Text printer of the notation of Tensor Programs."""

    styles: ClassVar[dict[str, dict[str, str]]] = {
        "any": {"Expectation": "E[%s]", "Partial": "∂%s/∂%s"},
        "Z": {"Z": "Z[%s]", "Hat": "Z\u0302[%s]", "Dot": "Z\u0307[%s]"},
        "ket": {"Z": "|%s⟩", "Hat": "|%s⟩\u0302", "Dot": "|%s⟩\u0307", "pair": "⟨%s|%s⟩"},
    }

    def runs_on(self, x: Expr, is_preceded: bool, is_followed: bool) -> bool:
        """Return whether the printed factor ``x`` is misread beside other factors, as `PaperText.runs_on`.

        A factor behind a derivative by a Gaussian part could be in its denominator.
        """
        return (isinstance(x, Partial) and is_followed) or super().runs_on(x, is_preceded, is_followed)

    def _print_Product(self, e: Any) -> str:
        if not isinstance(e, Product):
            return super()._print_Product(e)  # SymPy's product over an index, such as that of decay factors
        matrix = f"{self._print(e.matrix)}{'ᵀ' if e.transposed else ''}"
        return f"{matrix} {self.parenthesize(e.vector, PRECEDENCE['Mul'])}"
