"""Powers of ``|gamma0|`` of networks with kinks as text and LaTeX: the unit, and what it changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sympy import Add, Expr, Function

from derive.program.words import alpha, mu, s, t
from derive.show import latex, text
from derive.show.text import wrap

if TYPE_CHECKING:
    from derive.expansion.nonlinear.kinks import KinkExpansion

COLUMNS = 110
HEADER = """\
[X]_n is the coefficient of |γ₀|ⁿ.  A unit at the kink of sample κ has u_κ = |γ₀| x, place |γ₀| X(t) and slope
σ_κ(t); X̄ and σ_κ are its regular continuation.  V_μ, V̄_μ are its [h_μ - u_μ]_1 at the other samples, whose
slopes σ_μ and features φ(u_μ) stay as at the start.  Averages with δ(u_κ) are over these units and their
sources; those of φ and its slopes are over all units, with slopes as at the start.
v_β(t) = ∫ Δ^(0)_β and v1_β(t) = ∫ Δ^(1)_β, sums in steps."""


DEEP = """\
ξ is what the source u_κ has moved: Gaussian, independent of u and r.  ρ = G⁻¹ r and υ = Φ⁻¹ u, with the
covariances of r and u at order 0.  turned_κ(t,s) = ∂σ_κ(t)/∂ξ(s).  D^(-1) = B^(-1), D₀ = B₀ + k Δ^(0) G₀ are
kernels of z.  A and B₀ are meant summed over s, of A what does not come from Δ^(1)."""


def render(series: KinkExpansion, format: str = "text") -> str:
    """All that is known.  Raises ValueError for an unknown format."""
    if format not in ("text", "latex"):
        raise ValueError(f"format = {format!r}: must be 'text' or 'latex'")
    return _latex(series) if format == "latex" else _text(series)


def _entries(series: KinkExpansion) -> Iterator[tuple[str, int, tuple[Expr, ...], Expr]]:
    for name, known in series.known.items():
        place = {"Phi": (mu, alpha, t, s), "G": (mu, alpha, t, s), "K": (mu, alpha, t, s), "loss": (t,)}
        for n in range(known + 1):
            yield name, n, place.get(name, (mu, t)), series.coefficient(name, n)


def _responses(series: KinkExpansion) -> Iterator[tuple[str, int, tuple[Expr, ...], Expr]]:
    """Those that z and h are made of; B belongs to the layer below."""
    site = series.bulk.site
    for name, shift, orders in (("A", site.forward, (1,)), ("B", site.backward, (-1, 0))):
        if shift is not None:
            for n in orders:
                yield name, n, (site.layer + shift, mu, alpha, t, s), series.response(name, n)


def _text(series: KinkExpansion) -> str:
    names = {"Delta0": "Δ^(0)", "Delta1": "Δ^(1)", "kappa": "κ", "Xbar": "X̄", "Vbar": "V̄"}
    names |= {"D_1": "D^(-1)", "t__": "t''", "upsilon": "υ"}

    def show(e: Expr) -> str:
        return text(e, series.theory, names)

    phi = series.bulk.activation.expr
    header = HEADER + ("\n" + DEEP if series.drift != 0 else "")
    lines = [f"Expansion in |γ₀|: {series.theory.program.name}, φ(x) = {phi}", "", header, "", "Unit"]
    for e in series.equations:
        lines.append(wrap(f"    {show(e.lhs)} = {show(e.rhs)}", COLUMNS, 10))
    lines.append(f"    ⟨δ(u_κ)⟩ = {show(series.density)}")
    if series.drift != 0:
        lines.append(wrap(f"    ⟨ξ(t) ξ(s)⟩ = {show(series.drift)}", COLUMNS, 10))
    lines += ["", "Coefficients"]
    for name, n, place, e in (*_entries(series), *_responses(series)):
        first, *rest = [show(x) for x in Add.make_args(e)]
        lines.append(wrap(f"    [{show(Function(name)(*place))}]_{n} = {first}", COLUMNS, 10))
        lines += [wrap(f"        {x if x.startswith('-') else '+ ' + x}", COLUMNS, 12) for x in rest]
    return "\n".join(lines)


def _latex(series: KinkExpansion) -> str:
    names = {"Delta0": r"\Delta^{(0)}", "Delta1": r"\Delta^{(1)}", "K_x": "K^x", "v1": "v^{(1)}"}
    names |= {"kappa": r"\kappa", "Xbar": r"\bar X", "Vbar": r"\bar V"}
    names |= {"beta" + "_" * k: r"\beta" + "'" * k for k in range(1, 4)} | {"t_": "t'", "t__": "t''"}
    names |= {"D_1": "D^{(-1)}", "turned": r"\dot\sigma"}

    def show(e: Expr) -> str:
        return latex(e, series.theory, names)

    rows = [f"{show(e.lhs)} &= {show(e.rhs)}" for e in series.equations]
    rows.append(rf"\left\langle\delta(u_\kappa)\right\rangle &= {show(series.density)}")
    if series.drift != 0:
        rows.append(rf"\left\langle\xi(t)\xi(s)\right\rangle &= {show(series.drift)}")
    for name, n, place, e in (*_entries(series), *_responses(series)):
        first, *rest = [show(x) for x in Add.make_args(e)]
        rows.append(rf"\left[{show(Function(name)(*place))}\right]_{{{n}}} &= {first}")
        rows += [rf"&\quad {x if x.startswith('-') else '+ ' + x}" for x in rest]
    return "\\begin{align*}\n  " + " \\\\\n  ".join(rows) + "\n\\end{align*}"


__all__ = ["render"]
