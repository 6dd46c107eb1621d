"""Letters and operators of a printed formula in LaTeX, and of a claim in SymPy, under common names.

``H``, ``Phi``, ``gamma`` stand for letters with any indices; ``<>`` for an average, ``d`` for a derivative,
``sum``, ``int``, ``root``, ``exp``, ``step`` (Theta) and ``delta`` for operators.
"""

from __future__ import annotations

import re

from sympy import (
    Basic,
    Derivative,
    DiracDelta,
    Heaviside,
    Integral,
    KroneckerDelta,
    MatAdd,
    MatMul,
    MatrixExpr,
    Pow,
    Rational,
    S,
    Sum,
    Symbol,
    exp,
)
from sympy.core.function import AppliedUndef
from sympy.matrices.expressions.matexpr import MatrixSymbol

OPERATORS = {
    r"\langle": "<>",
    r"\mathbb{E}": "<>",
    r"\sum": "sum",
    r"\int": "int",
    r"\sqrt": "root",
    r"\exp": "exp",
    r"\Theta": "step",
    r"\partial": "d",
    r"\dot": "d",
    r"\ddot": "d",
    r"\nabla": "d",
    r"\delta": "delta",
    r"\mathbb{I}": "delta",
    r"\mathbb{1}": "step",
}
SYNONYMS = {
    "exp": r"\\exp|e\s*\^",
    "delta": r"\\delta|\\mathbb\{I\}|\\mathbf\{1\}|I_|\\mathbf\{I\}",
    "d": r"\\partial|\\delta|\\dot|\\nabla|\\frac\{d|\bd",
    "step": r"\\Theta|\\mathbb\{I\}|\\mathbf\{1\}|\\geq|<",
}
"""Other ways in which an operator is printed."""
_MARKS = "mathbb mathcal bm boldsymbol mathbf frac hat tilde bar delta ddot dot dots cdots top langle rangle"
MARKS = frozenset(_MARKS.split())
"""Macros that are not letters."""
_WORDS = re.compile(
    r"\\(text|operatorname|mathrm|begin|end|label|substack)\s*\{[^{}]*\}|\\(left|right|quad|qquad|cdot|big|Big)"
)
_LETTER = re.compile(r"\\([A-Za-z]+)|([A-Za-z])")
_INDEX = re.compile(r"[_^]\{[^{}]*\}|[_^](\\[A-Za-z]+|[A-Za-z0-9])")
CALLED = {"lam": "lambda", "lamda": "lambda", "Kx": "K", "gh": "g", "eps": "epsilon", "vv": "v", "ut": "u"}
CALLED |= {"xL": "x", "dg": "g"}
NOTATION = frozenset(
    "dot form outer hessian fixed transpose loss Tr grad scaled product lnZ hat tilde ones dx dh".split()  # noqa: SIM905
)
"""Functions of claims that stand for operations or for several letters."""
FUNCTIONS = {"average": "<>", "mean": "<>", "gaussian": "<>", "response": "d", "product": "W", "E": "<>"}


def of_print(latex: str) -> set[str]:
    r"""Return letters and operators of a printed formula.

    >>> sorted(of_print(r"\gamma_0 \sum_\mu \langle g_\mu \rangle"))
    ['<>', 'g', 'gamma', 'mu', 'sum']
    """
    text = _WORDS.sub(" ", latex)
    found = {name for mark, name in OPERATORS.items() if re.search(re.escape(mark) + r"(?![A-Za-z])", text)}
    found |= {name for name, pattern in SYNONYMS.items() if re.search(pattern, latex)}
    letters = {macro or letter for macro, letter in _LETTER.findall(text)}
    return found | (letters - MARKS)


def numbers_of_print(latex: str) -> set[int]:
    r"""Return integers beyond one in a printed formula, indices included.

    >>> sorted(numbers_of_print(r"\frac{1}{2} \gamma_0^2 x^3"))
    [2, 3]
    """
    return {int(n) for n in re.findall(r"\d", latex)} - {0, 1}


def numbers_of_claim(claim: dict[str, Basic]) -> set[int]:
    """Return numerators, denominators and powers beyond one in the right-hand sides of a claim.

    Indices are left out.

    >>> from sympy import Function
    >>> numbers_of_claim({"x": Symbol("x") ** 2 / 3 * Function("h")(5)}) == {2, 3}
    True
    """
    found: set[int] = set()

    def visit(e: Basic) -> None:
        if isinstance(e, Pow) and abs(e.exp) == S.Half:
            visit(e.base)
        elif isinstance(e, Rational):
            found.update({abs(int(e.p)), int(e.q)})
        elif isinstance(e, Sum | Integral):
            visit(e.args[0])
        elif isinstance(e, Heaviside | Derivative):  # value at zero, order: not numbers of print
            return
        elif not isinstance(e, AppliedUndef | Symbol | MatrixExpr) or isinstance(e, MatAdd | MatMul):
            for x in e.args:
                visit(x)

    for side in claim.values():
        visit(side)
    return found - {0, 1}


def of_claim(claim: dict[str, Basic]) -> set[str]:
    """Return letters and operators of the right-hand sides of a claim.

    >>> from sympy import Function
    >>> sorted(of_claim({"x": Symbol("gamma0") * Function("C_h")(Symbol("t"))}))
    ['C', 'gamma', 't']
    """
    found: set[str] = set()
    for side in claim.values():
        for x in side.atoms(AppliedUndef):
            name = str(x.func)
            if _letter(name) not in NOTATION:
                found.add(FUNCTIONS.get(name, _letter(name)))
        letters = {_letter(str(x.name)) for x in side.atoms(Symbol, MatrixSymbol)}
        found |= letters - NOTATION
        kinds = {Sum: "sum", Integral: "int", Derivative: "d", Heaviside: "step", exp: "exp"}
        found |= {word for kind, word in kinds.items() if side.has(kind)}
        found |= {"delta"} if side.has(KroneckerDelta, DiracDelta) else set()
        found |= {"root"} if any(abs(p.exp) == S.Half for p in side.atoms(Pow)) else set()
    return found


def _letter(name: str) -> str:
    """Return the letter of a name without its indices."""
    name = CALLED.get(name, name)
    head = name.split("_")[0]
    head = head.removesuffix("hat") or head
    return CALLED.get(head.rstrip("0123456789"), head.rstrip("0123456789"))
