"""The action of linear2025 (appendix A.1.2) as a small exact Gaussian: two layers, two times.

Exponents and action are read from the ledger's claims.  Every single-site integral is Gaussian, so
ln Z = -ln det(Q)/2 for the quadratic form Q in all fields of the site, and averages are entries of Q^(-1).
Derivatives of S are taken numerically at a point away from the saddle point, where conjugates do not vanish.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Basic, Expr, Function, Integer, Poly, S, Sum, Symbol, lambdify, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import L, ell, s, t
from tests.ledger.claims import claimed, corrected
from tests.ledger.claims.linear2025 import action as printed
from tests.ledger.claims.linear2025 import notation
from tests.ledger.evidence.base import Evidence, Finding, agrees, conclude, contradicts
from tests.ledger.evidence.evaluated import Functions, told_apart, valued

Complex = NDArray[np.complex128]
Values = dict[AppliedUndef, float]

TIMES, DEPTH = 2, 2
NUMBERS = {"alpha": 1.6, "nu": 0.8, "gamma0": 1.3, "eta": 0.4}
SLOPE = 1e-7
"""Of a central difference with step 1e-5 in functions of order one."""
STEP = 1e-5

_FIELDS = {"Delta", "Dhat", "v", "h0", "h0hat", "xi0", "xi0hat", "chi", "chihat", "xi", "xihat", "h", "g"}
_FIELDS |= {"w_star"}


def explicit(e: Basic) -> Expr:
    """Return times, layers and numbers written out; the target is one number for all times."""
    fixed = sympify(e).subs({printed.T: TIMES, L: DEPTH})
    known = {x: NUMBERS[str(x)] for x in fixed.free_symbols if str(x) in NUMBERS}
    done = fixed.doit().subs(known).doit()
    return done.replace(lambda x: _named(x, "w_star"), lambda x: x.func(0)).expand()


def _named(e: Any, name: str) -> bool:
    return isinstance(e, AppliedUndef) and str(e.func) == name


@dataclass(frozen=True)
class Site:
    """One single-site integral: its fields, and the quadratic form as a function of the order parameters."""

    fields: tuple[AppliedUndef, ...]
    parameters: tuple[AppliedUndef, ...]
    quadratic: Callable[..., Any]
    imposed: Mapping[AppliedUndef, Expr]

    @classmethod
    def of(cls, claim: Mapping[str, Basic], extra: Expr, layer: int | None = None) -> Site:
        """Return the site of ``claim`` and its missing terms, with fields of delta functions eliminated."""
        at = {} if layer is None else {ell: Integer(layer)}
        imposed = _eliminated({k: sympify(e).subs(at) for k, e in claim.items() if k != "exponent"}, layer)
        exponent = explicit(sympify(claim["exponent"]).subs(at)) + explicit(extra.subs(at))
        exponent = exponent.xreplace(dict(imposed)).expand()
        atoms = sorted(exponent.atoms(AppliedUndef), key=str)
        fields = tuple(a for a in atoms if str(a.func) in _FIELDS)
        parameters = tuple(a for a in atoms if str(a.func) not in _FIELDS)
        poly = Poly(exponent, *fields)
        rows = [[S.Zero] * len(fields) for _ in fields]
        for powers, coefficient in poly.terms():
            i, j = [k for k, n in enumerate(powers) for _ in range(n)]
            rows[i][j] -= coefficient
            rows[j][i] -= coefficient
        return cls(fields, parameters, lambdify([parameters], rows, "numpy"), imposed)

    def matrix(self, at: Values) -> Complex:
        """Return Q at a point."""
        return np.array(self.quadratic([at[p] for p in self.parameters]), dtype=complex)

    def log(self, at: Values) -> complex:
        """Return ln Z up to a constant."""
        sign, size = np.linalg.slogdet(self.matrix(at))
        return complex(-(np.log(sign) + size) / 2)

    def average(self, a: Expr, b: Expr, at: Values) -> complex:
        """Return <a b> of two linear forms in the fields."""
        inverse = np.linalg.inv(self.matrix(at))
        return complex(self._form(a, at) @ inverse @ self._form(b, at))

    def _form(self, e: Expr, at: Values) -> Complex:
        form = (
            explicit(e).xreplace(dict(self.imposed)).xreplace({k: sympify(x) for k, x in at.items()}).expand()
        )
        return np.array([complex(form.coeff(f)) for f in self.fields])

    def holds(self, e: Expr) -> bool:
        """Return whether the field belongs to this site."""
        return explicit(e) in self.fields or explicit(e) in self.imposed


def _eliminated(definitions: Mapping[str, Expr], layer: int | None) -> dict[AppliedUndef, Expr]:
    """Return each field of a delta function in terms of integrated ones, time by time."""
    found: dict[AppliedUndef, Expr] = {}
    for now in range(TIMES):
        for name, e in definitions.items():
            lhs = _field(name, layer, now)
            found[lhs] = explicit(e.subs(t, now)).xreplace(found).expand()
    return found


def _field(name: str, layer: int | None, now: int) -> Any:
    return Function(name)(*(() if layer is None else (layer,)), now)


def _quadratic(hat: Any, field: Any, *layer: Any) -> Expr:
    body = -hat(*layer, t, s) * field(*layer, t) * field(*layer, s) / 2
    return Sum(body, (t, 0, TIMES - 1), (s, 0, TIMES - 1))


@dataclass(frozen=True)
class Reading:
    """Interpretation of the printed formulas; the defaults add missing parts."""

    conjugates: bool = True
    """Conjugates of correlations in the sites (52)-(55)."""
    over_alpha: bool = True
    """1/alpha in front of R_vu in (50), (51)."""
    logarithm: bool = True
    """ln Z_0 in (57)."""
    inputs: bool = True
    """C_h^0 and its conjugate in (57)."""


@lru_cache(maxsize=32)
def _site(name: str, conjugates: bool, over_alpha: bool) -> Site:
    f, c = printed, Integer(int(conjugates))
    if name == "samples":
        claim = dict(f.site_samples())
        if over_alpha:
            exponent = sympify(claim["exponent"])
            claim["exponent"] = exponent.replace(
                lambda x: _named(x, "R_vu"), lambda x: x / Symbol("alpha", positive=True)
            )
        return Site.of(claim, S.Zero)
    if name == "features":
        both = _quadratic(f.Chat_v, notation.v) + _quadratic(f.Chat_h0, notation.h0)
        return Site.of(f.site_features(), c * both - notation.w_star(0) ** 2 / 2)
    layer = 1 if name == "first" else DEPTH
    both = _quadratic(f.Chat_h, notation.h, layer) + _quadratic(f.Chat_g, notation.g, layer)
    if name == "first":
        return Site.of(f.site_first(), c * both, 1)
    return Site.of(f.site_last(), c * both - notation.xi(DEPTH, 0) ** 2 / 2, DEPTH)


class Action:
    """S as a function of all order parameters."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        names = ("samples", "features", "first", "last")
        self.sites = {
            x: _site(x, reading.conjugates or x == "samples", reading.over_alpha or x != "samples")
            for x in names
        }
        algebra = sympify(claimed("linear2025", "57")["S"])
        extra = S.Zero
        if reading.inputs:
            body = notation.C_h0(t, s) * printed.Chat_h0(t, s)
            extra = -Sum(body, (t, 0, TIMES - 1), (s, 0, TIMES - 1)) / 2
        silent = {printed.lnZ_Delta: S.Zero, printed.Z_0: S.Zero}
        expr = explicit(algebra.subs(silent) + extra).replace(lambda x: _named(x, "lnZ"), lambda x: S.Zero)
        self.algebra_parameters = tuple(sorted(expr.atoms(AppliedUndef), key=str))
        self.algebra = lambdify([self.algebra_parameters], expr, "numpy")

    def value(self, at: Values) -> complex:
        """Return S at a point."""
        logs = {k: x.log(at) for k, x in self.sites.items()}
        features = logs["features"] if self.reading.logarithm else np.exp(logs["features"])
        algebra = self.algebra([at[p] for p in self.algebra_parameters])
        layers = NUMBERS["nu"] * (logs["first"] + logs["last"])
        return complex(algebra - NUMBERS["alpha"] * logs["samples"] - features - layers)

    def slope(self, p: AppliedUndef, at: Values) -> complex:
        """Return dS/dp."""
        up, down = ({**at, p: at[p] + d} for d in (STEP, -STEP))
        return (self.value(up) - self.value(down)) / (2 * STEP)

    def average(self, e: Expr, at: Values) -> complex:
        """Return the value of an expression that contains ``average(a, b)``."""
        found: dict[Any, complex] = {}
        for x in e.atoms(AppliedUndef):
            if str(x.func) == "average":
                found[x] = self._average(x.args[0], x.args[1], at)
        numbers = {k: sympify(z) for k, z in found.items()}
        known = {a: at[a] for a in explicit(e.xreplace(dict.fromkeys(found, S.Zero))).atoms(AppliedUndef)}
        return complex(explicit(e.xreplace(numbers)).xreplace(known))

    def _average(self, a: Expr, b: Expr, at: Values) -> complex:
        """Return <a b>; fields of different sites, or of no site, are uncorrelated."""
        for site in self.sites.values():
            if site.holds(a) and site.holds(b):
                return site.average(a, b, at)
        return 0.0


@lru_cache(maxsize=8)
def action_of(reading: Reading = Reading()) -> Action:
    """Return the action under a reading."""
    return Action(reading)


def point(tilt: float = 0.04) -> Values:
    """Return values of all order parameters: positive correlations, conjugates of size ``tilt``."""
    a = action_of()
    rng = np.random.default_rng(5)
    found = {p for x in a.sites.values() for p in x.parameters} | set(a.algebra_parameters)
    at: Values = {}
    for p in sorted(found, key=str):
        name, i, j = str(p.func), p.args[-2], p.args[-1]
        size = {"C": 0.3, "R": 0.3}[name[0]] if "hat" not in name else tilt
        at[p] = size * rng.normal() + (1.2 if name[0] == "C" and "hat" not in name and i == j else 0.0)
    mirror = {p: p.func(*p.args[:-2], p.args[-1], p.args[-2]) for p in at if str(p.func)[0] == "C"}
    return {p: (x + at[mirror[p]]) / 2 if p in mirror else x for p, x in at.items()}


def _gap(a: Action, target: Any, e: Expr, at: Values) -> float:
    """Return the largest difference between a derivative of S and its stated value, over both times."""
    gaps = [
        a.slope(target(i, j), at) - a.average(e.subs({t: i, s: j}, simultaneous=True), at)
        for i, j in product(range(TIMES), repeat=2)
    ]
    return float(np.max(np.abs(gaps)))


def _conjugate_lines() -> dict[str, tuple[Any, Expr]]:
    claim, layer = {k: sympify(e) for k, e in claimed("linear2025", "58").items()}, {ell: Integer(1)}
    f = printed
    return {
        "C_v": (f.Chat_v, claim["Chat_v"]),
        "C_h^0": (f.Chat_h0, claim["Chat_h0"]),
        "C_Delta": (f.Chat_Delta, claim["Chat_Delta"]),
        "C_h^1": (lambda i, j: f.Chat_h(1, i, j), claim["Chat_h"].subs(layer)),
        "C_g^1": (lambda i, j: f.Chat_g(1, i, j), claim["Chat_g"].subs(layer)),
    }


def _response_lines() -> dict[str, tuple[Any, Expr]]:
    """Return derivatives by R(t', t); the printed right-hand sides are at (t, t')."""
    claim, layer = {k: sympify(e) for k, e in claimed("linear2025", "59").items()}, {ell: Integer(1)}
    return {
        "R_vu": (lambda i, j: notation.R_vu(j, i), claim["R_vu"]),
        "R_Delta": (lambda i, j: notation.R_Delta(j, i), claim["R_Delta"]),
        "R_hr^0": (lambda i, j: notation.R_h0r0(j, i), claim["R_h0r0"]),
        "R_gu^1": (lambda i, j: notation.R_gu(1, j, i), claim["R_gu1"]),
        "R_hr^1": (lambda i, j: notation.R_hr(1, j, i), claim["R_hr"].subs(layer)),
        "R_gu^2": (lambda i, j: notation.R_gu(2, j, i), claim["R_gu"].subs(layer)),
    }


def conjugate_slopes() -> Evidence:
    """Check (52)-(55), (57), (58): derivatives of S by the conjugates of correlations."""
    a, at, lines = action_of(), point(), _conjugate_lines()
    right = dict(lines)
    hat, last = lines["C_g^1"]
    right["C_g^1"] = hat, last.replace(notation.C_h, notation.C_g)
    bare, empty, raw = (
        action_of(Reading(conjugates=False)),
        action_of(Reading(inputs=False)),
        action_of(Reading(logarithm=False)),
    )
    findings = [agrees(f"dS/dChat, {n}", _gap(a, *line, at), SLOPE) for n, line in right.items()]
    return conclude(
        "isotropic_action:conjugate_slopes",
        "(58) holds with C_g in its last line, for the action (57) with ln Z_0 and the term of C_h^0, and "
        "for sites (52)-(55) with the conjugate terms that (51) has.",
        *findings,
        contradicts("last line of (58) as printed", _gap(a, hat, last, at), SLOPE),
        contradicts("(52), (55) as printed: line of C_v", _gap(bare, *right["C_v"], at), SLOPE),
        contradicts("(53) as printed: line of C_h^1", _gap(bare, *right["C_h^1"], at), SLOPE),
        contradicts("(57) without C_h^0: its line", _gap(empty, *right["C_h^0"], at), SLOPE),
        contradicts("(57) with Z_0 for ln Z_0: line of C_v", _gap(raw, *right["C_v"], at), SLOPE),
    )


def response_slopes() -> Evidence:
    """Check (50), (51), (59): derivatives of S by the responses, and the conjugate field in the average."""
    a, at, lines = action_of(), point(), _response_lines()
    plain = action_of(Reading(over_alpha=False))
    swapped = {
        "R_hr^0": (printed.xihat, printed.chihat),
        "R_hr^1": (printed.xihat, printed.chihat),
        "R_gu^2": (printed.chihat, printed.xihat),
    }
    findings: list[Finding] = []
    for name, (target, e) in lines.items():
        if name == "R_gu^1":
            fixed = e.replace(lambda x: _named(x, "chi0hat"), lambda x: printed.xi0hat(*x.args))
        else:
            fixed = e.replace(*swapped[name]) if name in swapped else e
        findings.append(agrees(f"dS/dR, {name}", _gap(a, target, fixed, at), SLOPE))
        if fixed != e:
            findings.append(contradicts(f"(59), {name} as printed", _gap(a, target, e, at), SLOPE))
    return conclude(
        "isotropic_action:response_slopes",
        "The averages of (59) must hold chihat^{l+1} with g^{l+1} and xihat^l with h^l: its last four lines "
        "have the hats exchanged. The first line holds with R_vu/alpha in (50), (51), not as printed there.",
        *findings,
        contradicts("(50), (51), (63) without 1/alpha: line of R_vu", _gap(plain, *lines["R_vu"], at), SLOPE),
    )


def _causal(at: Values) -> Values:
    """Return the values with responses to the future set to zero."""
    return {k: 0.0 if str(k.func)[0] == "R" and k.args[-2] < k.args[-1] else x for k, x in at.items()}


def vanishing_conjugates() -> Evidence:
    """Check (60): with zero conjugates and causal responses derivatives by correlations vanish."""
    a, tilted = action_of(), _causal(point())
    flat = {p: 0.0 if str(p.func).startswith("Chat") else x for p, x in tilted.items()}
    correlations: dict[str, Callable[[int, int], AppliedUndef]] = {
        "C_v": notation.C_v,
        "C_h^0": notation.C_h0,
        "C_Delta": notation.C_Delta,
        "C_h^1": lambda i, j: notation.C_h(1, i, j),
        "C_g^1": lambda i, j: notation.C_g(1, i, j),
    }

    def steepest(target: Callable[[int, int], AppliedUndef], at: Values) -> float:
        return float(max(abs(a.slope(target(i, j), at)) for i, j in product(range(TIMES), repeat=2)))

    return conclude(
        "isotropic_action:vanishing_conjugates",
        "For causal responses dS/dC = 0 where all conjugates are zero, and not where they are not.",
        *[agrees(f"dS/d{n}, conjugates zero", steepest(f, flat), SLOPE) for n, f in correlations.items()],
        *[contradicts(f"dS/d{n} elsewhere", steepest(f, tilted), SLOPE) for n, f in correlations.items()],
    )


def response_definition() -> Evidence:
    """Check (45): without -i the average <g chihat> is i times the response."""
    a, at = action_of(), {k: 0.0 if "hat" in str(k.func) else x for k, x in point().items()}
    causal, now, past = _causal(at), Integer(1), Integer(0)
    pairs = {
        "R_gu1": (a.sites["first"], notation.g(1, now), printed.chihat(1, past)),
        "R_h0r0": (a.sites["features"], notation.h0(now), printed.xi0hat(past)),
    }
    findings: list[Finding] = []
    for name, (site, field, hat) in pairs.items():
        response = _response(site, field, hat, causal)

        def average(one: Expr, other: Expr, site: Site = site) -> complex:
            return site.average(one, other, causal)

        fields = (notation.g, notation.h0, printed.chihat, printed.xi0hat)
        functions: Functions = {"average": average, **{str(f): f for f in fields}}
        numbers = {"t": int(now), "s": int(past)}
        both = [valued(built("linear2025", "45")[name], numbers, functions) for built in (claimed, corrected)]
        findings += told_apart(f"(45): {name}, <{field} {hat}>", both, response, 1e-12)
    return conclude(
        "isotropic_action:response_definition",
        "The averages of (45), <g chihat> and <h^0 xihat^0>, are i times the responses dg/du and dh^0/dr^0 "
        "of the equations.",
        *findings,
    )


def _response(site: Site, field: Expr, hat: Expr, at: Values) -> float:
    """Return the change of ``field`` by a source added to the equation of the conjugate field ``hat``.

    The target is given and does not respond.
    """
    hats = [k for k, f in enumerate(site.fields) if "hat" in str(f.func)]
    given = [k for k, f in enumerate(site.fields) if str(f.func) == "w_star"]
    primal = [k for k in range(len(site.fields)) if k not in hats + given]
    equations = (1j * site.matrix(at)[np.ix_(hats, primal)]).real  # hat * (equations . primal - source)
    push = np.array([site.fields[k] == hat for k in hats], dtype=float)
    return float(site._form(field, at).real[primal] @ np.linalg.solve(equations, push))


__all__ = ["conjugate_slopes", "response_definition", "response_slopes", "vanishing_conjugates"]
