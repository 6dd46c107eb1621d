"""The recursion of a deep linear network for integer depth, layer by layer, on dictionaries.

Typed from selfconsistent2023 (F.2)-(F.4); shares no code with the package.  A word is a tuple of letters; a
letter is "K", "1" (the operator 1 1^T), ("C", order of the error, word), ("D", ...), or ("T", letter).
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

Word = tuple[Any, ...]
Sum = dict[Word, Fraction]
Series = dict[int, Sum]


def add(*xs: Sum) -> Sum:
    """Return the sum of some sums of words."""
    out: Sum = {}
    for x in xs:
        for w, c in x.items():
            out[w] = out.get(w, Fraction(0)) + c
    return {w: c for w, c in out.items() if c}


def mul(a: Series, b: Series, order: int) -> Series:
    """Return the product of two series up to an order."""
    out: Series = {}
    for m, x in a.items():
        for n, y in b.items():
            if m + n <= order:
                product = add(*({v + w: c * d} for v, c in x.items() for w, d in y.items()))
                out[m + n] = add(out.get(m + n, {}), product)
    return out


def plus(a: Series, b: Series) -> Series:
    """Return the sum of two series."""
    return {n: add(a.get(n, {}), b.get(n, {})) for n in {*a, *b}}


def raised(a: Series, by: int) -> Series:
    """Return a series times a power of gamma0."""
    return {n + by: x for n, x in a.items()}


def transposed(a: Series) -> Series:
    """Return the transposed series."""

    def flip(x: Any) -> Any:
        if x in ("K", "1"):
            return x
        return x[1] if x[0] == "T" else ("T", x)

    return {n: {tuple(flip(x) for x in reversed(w)): c for w, c in s.items()} for n, s in a.items()}


def resolvent(loop: Series, order: int) -> Series:
    """Return 1 / (1 - loop)."""
    found: Series = {0: {(): Fraction(1)}}
    power = found
    for _ in range(order):
        power = mul(power, loop, order)
        found = plus(found, power)
    return found


def memory(kernel: str, a: Series, order: int) -> Series:
    """Return the sum over even orders n of the error: C_n[X]."""
    out: Series = {}
    for n in range(0, order + 1, 2):
        for m, s in a.items():
            if m + n <= order:
                out[m + n] = add(out.get(m + n, {}), {((kernel, n, w),): c for w, c in s.items()})
    return out


def solve(depth: int, order: int) -> dict[str, dict[int, Series]]:
    """Return H, G, A, B, C, D at every layer, from sweeps until nothing changes."""
    zero: Series = {}
    layers = range(1, depth + 1)
    H: dict[int, Series] = {k: {0: {("K",): Fraction(1)}} for k in range(depth + 1)}
    G: dict[int, Series] = {k: {0: {("1",): Fraction(1)}} for k in range(1, depth + 2)}
    A = {k: zero for k in range(depth + 1)}
    B = {k: zero for k in range(1, depth + 1)} | {0: zero}
    C: dict[int, Series] = {}
    D: dict[int, Series] = {}
    for _ in range((order + 1) * (depth + 1)):
        before = (H.copy(), G.copy(), A.copy(), B.copy())
        for k in layers:
            C[k] = plus(A[k - 1], memory("C", H[k - 1], order))
            D[k] = plus(B[k], memory("D", G[k + 1], order))
        for k in layers:
            cd = resolvent(raised(mul(C[k], D[k], order), 2), order)
            dc = resolvent(raised(mul(D[k], C[k], order), 2), order)
            A[k] = mul(cd, C[k], order)
            if k > 1:
                B[k - 1] = mul(dc, D[k], order)
            up = plus(H[k - 1], raised(mul(mul(C[k], G[k + 1], order), transposed(C[k]), order), 2))
            down = plus(G[k + 1], raised(mul(mul(D[k], H[k - 1], order), transposed(D[k]), order), 2))
            H[k] = mul(mul(cd, up, order), transposed(cd), order)
            G[k] = mul(mul(dc, down, order), transposed(dc), order)
        if before == (H, G, A, B):
            return {"H": H, "G": G, "A": A, "B": B, "C": C, "D": D}
    raise AssertionError("the sweeps must settle: the equations are a recursion")
