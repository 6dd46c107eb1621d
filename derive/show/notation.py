"""Notation of printed equations: the role of each argument (layer, sample, time) and the symbol of each name.

The roles are read from the declarations of a theory, not from its kind: a recurrent network ``x(t)`` without
layers and samples is printed by the same rules as ``Phi(ell, mu, alpha, t, s)``.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, TypeAlias

from sympy import Expr, Symbol, SympifyError, Tuple
from sympy.core.function import AppliedUndef
from sympy.printing.latex import translate

from derive.calculus.symbols import L, alpha, converted, ell, mu, s, t
from derive.errors import NotApplicable

PAPERS: Mapping[str, str] = {"K": r"K^{\mathrm{NTK}}"}
"""LaTeX of names that selfconsistent2023 writes in another way than their name."""

NOTATIONS: Mapping[str, Mapping[str, str]] = {"papers": PAPERS, "plain": {}}
"""Notations by name: mappings from names to the LaTeX that replaces the one formed from the name."""

LAYER, SAMPLE, TIME = "layer", "sample", "time"


Declares: TypeAlias = Any
"""A theory with its program, or an object with the same declarations, from which roles are read."""


@dataclass(frozen=True)
class Name:
    """LaTeX symbol of a name without indices: base letter, superscript and subscript.

    ``upper`` and ``lower`` are empty if the name has none. A part of the name after an underscore is the
    superscript if the name is that of a kernel of given vectors, such as ``K_x``. For other names, such as
    ``u_p``, it is the subscript.
    """

    base: str
    upper: str = ""
    lower: str = ""


@dataclass(frozen=True)
class Notation:
    """Roles of arguments, kinds of names, and the LaTeX symbols of names.

    Parameters
    ----------
    names : mapping of str to str
        LaTeX of names for which it is stated; for all others it is formed from the name.
    roles : mapping of str to tuple of str
        For each declared function, the role of each argument: ``layer``, ``sample`` or ``time``.
    random : frozenset of str
        Names of the fields and of the Gaussian sources of the single-site process.
    scalars, kernels, activations, matrices : frozenset of str
        Names of the numbers and constants of a program, of the kernels of its given vectors, of activations
        and of matrices.
    ranges : tuple of (Symbol, Expr, Expr)
        Indices with their bounds, which the first line of a document states.
    letters : frozenset of str
        Names of the symbols that occur in the expressions of the theory.
    """

    names: Mapping[str, str] = field(default_factory=lambda: PAPERS)
    roles: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    random: frozenset[str] = frozenset()
    scalars: frozenset[str] = frozenset()
    kernels: frozenset[str] = frozenset()
    activations: frozenset[str] = frozenset()
    matrices: frozenset[str] = frozenset()
    ranges: tuple[tuple[Symbol, Expr, Expr], ...] = ()
    letters: frozenset[str] = frozenset()
    """Names of the symbols that occur in the expressions of the theory."""

    def roles_of(self, atom: AppliedUndef) -> tuple[str, ...]:
        """Return the role of each argument of a function.

        Parameters
        ----------
        atom : AppliedUndef
            The function at its arguments.

        Returns
        -------
        tuple of str
            ``layer``, ``sample`` or ``time`` for each argument; guessed if the function is not declared with
            this number of arguments.
        """
        known = self.roles.get(str(atom.func))
        return known if known is not None and len(known) == len(atom.args) else guess_roles(atom)

    def is_activation(self, atom: AppliedUndef) -> bool:
        """Return whether an atom is a function of functions, such as phi(h(ell, mu, t)), not a field.

        Parameters
        ----------
        atom : AppliedUndef
            The function at its arguments.

        Returns
        -------
        bool
            True if an argument contains a function, here or elsewhere in the theory under the same name.
        """
        return str(atom.func) in self.activations or any(x.atoms(AppliedUndef) for x in atom.args)

    def is_random(self, x: Expr) -> bool:
        """Return whether an expression contains a field, a Gaussian source or a conjugate field.

        Parameters
        ----------
        x : Expr
            The expression.

        Returns
        -------
        bool
            True if it contains one.
        """
        names = (str(a.func) for a in x.atoms(AppliedUndef))
        return any(n in self.random or self._is_hatted(n) for n in names)

    def _is_hatted(self, name: str) -> bool:
        """Return whether a name has the form of that of a conjugate field, such as ``xihat_w``.

        The part before the first underscore ends in ``hat``. The name belongs to a conjugate order parameter
        if it is a declared function's name with ``hat`` added.
        """
        head, *rest = name.split("_", 1)
        return head.endswith("hat") and "_".join([head[:-3], *rest]) not in self.roles

    def name(self, name: str) -> Name:
        """Return the symbol of a name; each underscore at its end becomes a prime.

        Parameters
        ----------
        name : str
            The name in the theory.

        Returns
        -------
        Name
            The symbol.
        """
        if name in self.names:
            return Name(self.names[name])
        plain = name.rstrip("_")
        if plain and plain != name:
            written = self.name(plain)
            return replace(written, base=written.base + "'" * (len(name) - len(plain)))
        head, _, tail = name.partition("_")
        if not head or not tail:
            return Name(latex_name(name))
        # The mark is the part of a name after its first underscore. It may consist of names that are `known`:
        # those of random fields, activations, roles and matrices.
        known = {*self.random, *self.activations, *self.roles, *self.matrices}
        mark = " ".join(self._pieces(tail, sorted(known, key=len, reverse=True)) or ())
        base = latex_name(head)
        return Name(base, upper=mark) if name in self.kernels else Name(base, lower=mark)

    def _pieces(self, tail: str, known: list[str], start: bool = True) -> list[str] | None:
        """Return the LaTeX of each part of the subscript ``tail``: ``known`` names, and other words.

        Underscores separate words, and a word can consist of several known names. ``start`` is false if
        ``tail`` continues a word whose beginning was a known name. The result is then None if the rest of
        this word does not consist of known names.
        """
        for head in known:
            rest = tail[len(head) :]
            if not tail.startswith(head):
                continue
            more = self._pieces(rest.removeprefix("_"), known, rest.startswith("_")) if rest else []
            if more is not None:
                return [self._marked(head), *more]
        if not start:
            return None
        word, _, rest = tail.partition("_")
        return [latex_name(word), *((self._pieces(rest, known) or []) if rest else [])]

    def _marked(self, name: str) -> str:
        """Return the LaTeX of a known name with its own subscript, for use in a superscript or subscript."""
        if "_" not in name:
            return latex_name(name)
        inner = self.name(name)
        base = f"{{{inner.base}}}" if inner.lower and "_" in inner.base else inner.base
        return base + (f"_{{{inner.lower}}}" if inner.lower else "")


def guess_roles(atom: AppliedUndef) -> tuple[str, ...]:
    """Return the role of each argument of an undeclared function: layer, sample or time.

    Expressions of ``ell`` or ``L`` are layers, and so is an integer that is the first of several arguments.
    Integer expressions in symbols other than t and s are samples, such as ``mu + 1``; all other arguments are
    times, also integers that are not first. If the only argument of a function is an integer or contains
    ``ell`` or ``L``, its role is ``sample``, so that ``a(ell)`` has a lower index.
    """
    if len(atom.args) == 1 and (atom.args[0].is_Integer or atom.args[0].has(ell, L)):
        return (SAMPLE,)

    def role(i: int, x: Expr) -> str:
        """Return whether argument number ``i``, the expression ``x``, is a layer, a sample or a time."""
        if x.has(ell, L):
            return LAYER
        if x.has(t, s):
            return TIME
        if x.is_Integer:
            return LAYER if i == 0 and len(atom.args) > 1 else TIME
        return SAMPLE if x.is_integer or x in (mu, alpha) else TIME

    return tuple(role(i, x) for i, x in enumerate(atom.args))


def notation(theory: Declares | None = None, names: str | Mapping[str, str] | None = None) -> Notation:
    """Return the notation of a theory.

    Parameters
    ----------
    theory : Theory, optional
        Theory whose declarations give the roles of arguments; without it roles are guessed.
    names : str or dict, optional
        Name of a notation in NOTATIONS, ``"papers"`` by default, or a mapping from names to LaTeX that
        replaces symbols of the papers.

    Returns
    -------
    Notation
        Symbols of names, roles of arguments, and ranges of indices.

    Raises
    ------
    ValueError
        For an unknown name of a notation, and for a mapping that is not one of text to text.

    Examples
    --------
    >>> from derive import mean_field, mlp
    >>> notation(mean_field(mlp())).roles["H"]
    ('layer', 'sample', 'sample', 'time', 'time')
    """
    table = _table(names)
    if theory is None:
        return Notation(table)
    program = theory.program
    if "K" not in (names or {}):
        table = _for_tangent_kernel(table, {str(x.lhs.func) for x in theory.observables})
    bodies = [x.expr for e in theory.equations for x in e.terms]
    bodies += [q.definition for q in theory.order_parameters]
    applied = {a for b in bodies for a in b.atoms(AppliedUndef)}
    items = (*theory.sources, *theory.equations, *theory.order_parameters, *theory.observables)
    every = [r for x in items for r in x.ranges if r.index != ell]
    ranges = {(r.index, r.lower, r.upper): None for r in every}
    several = {r[0] for r in ranges if sum(r[0] == other[0] for other in ranges) > 1}
    declared = Notation(
        table,
        _declarations(theory),
        random=frozenset({e.name for e in theory.equations} | {str(u.symbol.func) for u in theory.sources}),
        scalars=frozenset((*program.scalars, *program.constants)),
        kernels=frozenset(x.kernel for x in program.given),
        activations=frozenset(str(a.func) for a in applied if any(x.atoms(AppliedUndef) for x in a.args)),
        matrices=frozenset(m.name for m in program.matrices),
        ranges=tuple(r for r in ranges if r[0] not in several),
    )
    bodies += [x.covariance for x in theory.sources]
    letters = {x.name for b in bodies for x in b.atoms(Symbol)} | {r.index.name for r in every}
    every_name = letters | {str(a.func) for b in bodies for a in b.atoms(AppliedUndef)}
    return replace(
        declared, names={**table, **_distinct_symbols(declared, every_name)}, letters=frozenset(letters)
    )


def _table(names: str | Mapping[str, str] | None) -> dict[str, str]:
    """Return a dictionary from names to their LaTeX, for the argument ``names`` of `notation`.

    Raises ValueError if ``names`` is not a known notation, or if a name or its LaTeX is not text.
    """
    if names is None:
        return dict(PAPERS)
    if isinstance(names, Mapping):
        wrong = next((x for x in names.items() if not all(isinstance(y, str) for y in x)), None)
        if wrong is not None:
            name, symbol = wrong
            raise ValueError(
                f"names = {{{name!r}: {symbol!r}}}: a name and its LaTeX must be text, such as 'h': 'x'"
            )
        return {**PAPERS, **names}
    if not isinstance(names, str) or names not in NOTATIONS:
        accepted = f"one of {', '.join(NOTATIONS)} or a mapping name -> LaTeX"
        raise ValueError(f"names = {names!r}: must be {accepted}")
    return dict(NOTATIONS[names])


def _for_tangent_kernel(table: dict[str, str], observables: Collection[str]) -> dict[str, str]:
    """Return a table from names to LaTeX in which the symbol of ``K`` is given to the tangent kernel.

    If the program itself has a quantity ``K``, the tangent kernel is called ``K_2`` or similar and is one of
    ``observables``. The symbol is then moved from ``K`` to this name; without a tangent kernel it is left
    out.
    """
    symbol = table.get("K")
    if symbol is None or "K" in observables:
        return table
    others = {name: x for name, x in table.items() if name != "K"}
    return {**others, **{name: symbol for name in observables if re.fullmatch(r"K_\d+", name)}}


def _distinct_symbols(notation: Notation, names: Iterable[str]) -> dict[str, str]:
    """Return LaTeX for those names that would otherwise be printed like another name, or like the number pi.

    Of two such names the shorter one keeps its symbol, or the first in the alphabet if both are equally long.
    All names in ``notation.names`` keep theirs. The other one gets its subscript in brackets, or upright
    letters. Examples are ``i1`` and ``i_1``, or ``lamda`` and ``lambda``.
    """
    changed: dict[str, str] = {}
    forms = _printed_forms(Name(r"\pi"))
    for name in sorted({x.rstrip("_") or x for x in names}, key=lambda x: (len(x), x)):
        written = notation.name(name)
        if name not in notation.names and _printed_forms(written) & forms:
            plain = next(x for x in _other_symbols(name) if not _printed_forms(Name(x)) & forms)
            changed[name], written = plain, Name(plain)
        forms |= _printed_forms(written)
    return changed


def _other_symbols(name: str) -> Iterator[str]:
    """Yield LaTeX of a name that differs from its usual symbol: a subscript in brackets, or upright letters.

    A subscript of a subscripted letter, as in ``eps1_2``, is added to the letter in braces. At last the whole
    name is in upright letters, followed by as many primes as needed.
    """
    head, _, tail = name.partition("_")
    if head and tail:
        letter, mark = latex_name(head), tail.replace("_", r"\_")
        yield rf"{{{letter}}}_{{({mark})}}" if "_" in letter else rf"{letter}_{{({mark})}}"
    upright = name.replace("_", r"\_")
    yield from (rf"\mathrm{{{upright}}}" + "'" * n for n in count())


def _printed_forms(name: Name) -> set[str]:
    """Return the texts of a symbol in LaTeX and in plain text, without braces around sub- and superscripts.

    Two names look alike if they have a text in common.
    """
    whole = f"{name.base}^{{{name.upper}}}_{{{name.lower}}}"
    return {re.sub(r"[{} ]|\^(?=_)|_$", "", x.replace("{}", "")) for x in (whole, unicode_name(whole))}


def _declarations(theory: Declares) -> dict[str, tuple[str, ...]]:
    """Return the roles of arguments (layer, sample or time) by the name of each function of a theory."""
    atoms = [(a, 1, _is_layer(a.args)) for u in theory.sources for a in (u.symbol, u.partner)]
    for e in (*theory.equations, *theory.scalars):
        atom = min(e.lhs.atoms(AppliedUndef), key=str)
        x = theory.program.field_of(str(atom.func))
        atoms.append((atom, 1, x.layered if x is not None else _is_layer(atom.args)))
    atoms += [(q.symbol, 2, _is_layer(q.symbol.args)) for q in theory.order_parameters]
    atoms += [(e.lhs, 2, False) for e in theory.observables]
    return {str(a.func): _declared(a, times, layered) for a, times, layered in atoms}


def _is_layer(args: tuple[Expr, ...]) -> bool:
    """Return whether the first of several arguments is a layer: an integer, or an expression of ell or L."""
    return len(args) > 1 and bool(args[0].has(ell, L) or args[0].is_Integer)


def _declared(atom: AppliedUndef, times: int, layered: bool) -> tuple[str, ...]:
    """Return for each argument of a function whether it is a layer, a sample or a time.

    The last ``times`` arguments are times, the first one is a layer if ``layered``, all others are samples.
    """
    n = len(atom.args)
    first = (LAYER,) if layered else ()
    return (*first, *([SAMPLE] * (n - len(first) - times)), *([TIME] * times))


def as_expression(expr: Any, what: str) -> Any:
    """Return a SymPy expression; ``what`` is the name of the calling function, for the error message.

    Lists, tuples, sets and mappings of expressions are accepted. Raises NotApplicable for text, which is not
    evaluated, for an object with a method ``render``, such as a theory, and for one that SymPy cannot
    convert.
    """
    if hasattr(expr, "render"):
        kind = type(expr).__name__
        raise NotApplicable(
            f"{what} takes a single expression; print an object of the type {kind} by its method render()"
        )
    if isinstance(expr, str):
        raise NotApplicable(
            f"{what} does not evaluate text such as {expr!r}: give a SymPy expression, such as Symbol('x')**2"
        )
    # Entries of containers are converted one by one, because sympify evaluates text inside of a container.
    if isinstance(expr, Mapping):
        return {as_expression(key, what): as_expression(value, what) for key, value in expr.items()}
    if isinstance(expr, tuple):
        return Tuple(*(as_expression(x, what) for x in expr))
    if isinstance(expr, list | set | frozenset):
        return type(expr)(as_expression(x, what) for x in expr)
    try:
        return converted(expr)
    except (SympifyError, AttributeError, TypeError, ValueError):
        raise NotApplicable(f"{what} takes an expression, not {type(expr).__name__}") from None


def latex_name(name: str) -> str:
    r"""Return a plain name in LaTeX, with Greek letters, hats and digits; longer words are upright.

    >>> latex_name("gamma0"), latex_name("chihat"), latex_name("x"), latex_name("loss")
    ('\\gamma_0', '\\hat{\\chi}', 'x', '\\mathrm{loss}')
    """
    stem, digits = re.fullmatch(r"(.*?)(\d*)", name, re.DOTALL).groups()  # type: ignore[union-attr]
    if not stem:
        return name
    word = _WORDS.get(stem) or translate(stem)
    if len(stem) > 1 and "\\" not in word:
        word = rf"\mathrm{{{word}}}"
    return word if not digits else f"{word}_{digits}" if len(digits) == 1 else f"{word}_{{{digits}}}"


_WORDS = {"star": r"\star", "eps": r"\epsilon"}
_MARKS = {"hat": "\u0302", "dot": "\u0307", "ddot": "\u0308", "bar": "\u0304", "tilde": "\u0303"}
_UPPER = str.maketrans("0123456789+-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻")
_LOWER = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
_NAMED = {
    "ell": "ℓ",
    "infty": "∞",
    "top": "T",
    "varepsilon": "ε",
    "partial": "∂",
    "phi": "φ",
    "epsilon": "ε",
    "star": "⋆",
}


def unicode_name(latex: str) -> str:
    r"""Return a LaTeX symbol in Unicode characters, for a terminal.

    >>> unicode_name(r"\gamma_0"), unicode_name(r"\hat{\chi}"), unicode_name(r"K^{\mathrm{NTK}}")
    ('γ₀', 'χ̂', 'K^NTK')
    >>> unicode_name(r"w_{\star}"), unicode_name(r"u_{Z v_{\star}}")
    ('w_⋆', 'u_{Z v_⋆}')
    """
    text = latex.replace(r"\mathcal{H}", "ℋ")
    text = re.sub(r"\\(?:mathrm|mathbf|boldsymbol|mathcal|operatorname|text)\s*\{([^{}]*)\}", r"\1", text)
    text = re.sub(r"\\(\w+)\s*\{(\\?\w+)\}", lambda m: m[2] + _MARKS[m[1]] if m[1] in _MARKS else m[0], text)
    text = re.sub(r"\\([A-Za-z]+)", lambda m: _letter(m[1]), text)
    text = re.sub(r"_\{?(\d+)\}?", lambda m: m[1].translate(_LOWER), text)
    # The pattern allows no braces inside of a subscript, so that the innermost subscript is found first. Its
    # braces are dropped if it has one character, or else replaced by \0 and \1 until the end. The subscript
    # around it then has no braces inside.
    while nested := re.search(r"_\{([^{}]*)\}", text):
        mark = _together(nested[1])
        text = text.replace(nested[0], f"_{mark}" if len(mark) == 1 else f"_\0{mark}\1")
    text = _together(re.sub(r"[{}\\]", "", text))
    return text.translate({0: "{", 1: "}", 2: " "})


def _together(text: str) -> str:
    """Return the words of ``text`` joined without spaces if each is one letter, or one with digits.

    Otherwise the words are separated by the control character 2, which :func:`unicode_name` replaces by a
    space at its end.
    """
    words = text.split(" ")
    return ("\2" if any("_" in x or x[1:2].isalpha() for x in words) else "").join(filter(None, words))


def _letter(name: str) -> str:
    """Return the Unicode letter of the LaTeX command ``name``, such as α for alpha, or else the name."""
    if name in _NAMED:
        return _NAMED[name]
    kind = "CAPITAL" if name[0].isupper() else "SMALL"
    greek = {"lambda": "LAMDA"}.get(name.lower(), name.upper())
    try:
        return unicodedata.lookup(f"GREEK {kind} LETTER {greek}")
    except KeyError:
        return name


def superscript(number: int) -> str:
    """Return an integer as superscript characters."""
    return str(number).translate(_UPPER)
