"""Table 1: stored numbers and multiplications, counted while the engine's solver runs, as P and T grow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray
from sympy import Symbol

from derive.calculus.symbols import ell, mu
from derive.program import L, P, gamma0
from numerics.lowering import lower
from numerics.solver.linear.march import march
from tests.ledger.claims import claimed
from tests.ledger.claims.selfconsistent2023.notation import nu
from tests.ledger.evidence.base import Evidence, agrees, conclude, contradicts
from tests.ledger.evidence.engine import Array, steps_of
from tests.ledger.evidence.explicit import number, written_out
from tests.numerics.solver.helpers import solvable

DEPTH = 2
SLACK = 0.15
"""Of a local exponent between doubled sizes: lower orders contribute a relative 1/P or 1/T."""


class Counted(np.ndarray[Any, np.dtype[np.float64]]):
    """An array that adds up the multiplications (or additions) it takes part in."""

    total = 0

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
        plain = [_plain(x) for x in inputs]
        if out is not None:
            options["out"] = tuple(_plain(x) for x in out)
        value = getattr(ufunc, method)(*plain, **options)
        work = np.size(value)
        if ufunc is np.matmul:
            work *= np.shape(plain[0])[-1]
        Counted.total += int(work)
        return value.view(Counted) if isinstance(value, np.ndarray) else value

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func is np.einsum:
            subscripts = args[0] if isinstance(args[0], str) else None
            arrays = args[1:] if subscripts else args[0:-1:2]
            Counted.total += _einsum_work(subscripts, [_plain(x) for x in arrays], args)
        value = func(*[_plain(x) for x in args], **{k: _plain(v) for k, v in kwargs.items()})
        return value.view(Counted) if isinstance(value, np.ndarray) else value


def _plain(x: Any) -> Any:
    return x.view(np.ndarray) if isinstance(x, Counted) else x


def _einsum_work(subscripts: str | None, arrays: list[Any], args: Any) -> int:
    """Return the number of multiplications of a contraction carried out at once."""
    labels = subscripts.split("->")[0].split(",") if subscripts else args[1::2]
    sizes = {
        k: n
        for label, x in zip(labels, arrays, strict=False)
        for k, n in zip(label, np.shape(x), strict=True)
    }
    return int(np.prod(list(sizes.values()))) if sizes else 0


def march_cost(samples: int, steps: int) -> tuple[int, int]:
    """Return the numbers stored and the multiplications done by the solver's march, at depth DEPTH."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(samples, samples + 2))
    data = {"K_x": x @ x.T / (samples + 2), "y": rng.normal(size=samples), "w": steps_of(1e-3, steps)}
    plain: Any = np.zeros
    with patch("numpy.zeros", lambda *a, **k: plain(*a, **k).view(Counted)):
        Counted.total = 0
        found = march(
            lower(solvable(DEPTH, "flow", "sum")),
            steps=steps,
            constants={gamma0: 0.5, P: float(samples)},
            data={k: v.view(Counted) for k, v in data.items()},
        )
    stores = (found.correlations, found.responses, found.scalars, found.hoisted)
    return sum(a.size for store in stores for a in store.values()), Counted.total


def exponent(cost: Callable[[int], int], small: int) -> float:
    """Return the exponent of the local power law between ``small`` and its double."""
    return float(np.log2(cost(2 * small) / cost(small)))


def _printed(name: str) -> tuple[int, int]:
    """Return the powers of P and T of an entry of Table 1."""
    monomial = claimed("selfconsistent2023", "Table 1")[name]
    powers = monomial.as_powers_dict()
    times = next((x for x in monomial.free_symbols if x.name == "T"), Symbol("T"))
    return int(powers.get(P, 0)), int(powers.get(times, 0))


def degree(values: list[int]) -> int:
    """Return the degree of the polynomial that has these values at equally spaced arguments.

    >>> degree([k**2 + 3 for k in range(5)]), degree([7, 7, 7])
    (2, 0)

    Raises
    ------
    ValueError
        If the values are too few for the polynomial to be known from them.
    """
    differences = np.asarray(values)
    for found in range(len(values) - 1):
        differences = np.diff(differences)
        if not differences.any():
            return found
    raise ValueError(f"values {values} are those of no polynomial of degree below {len(values) - 1}")


def march_against_table() -> Evidence:
    """Check Table 1, last column: memory P^2 T^2 and time P^3 T^3 against counts of the march.

    The counts are polynomials in P and T, and their degrees are exact. The highest power of T has a
    coefficient without a power of P: its differences of that order are the same for two P.
    """
    by_samples = [march_cost(n, 12) for n in range(4, 19, 2)]
    by_steps = {n: [march_cost(n, k) for k in range(16, 113, 16)] for n in (4, 6)}
    in_p = [degree([x[k] for x in by_samples]) for k in (0, 1)]
    in_t = [degree([x[k] for x in by_steps[4]]) for k in (0, 1)]
    mixed = [
        int(np.diff([b[k] - a[k] for a, b in zip(by_steps[4], by_steps[6], strict=True)], in_t[k])[0])
        for k in (0, 1)
    ]
    memory, work = _printed("full_memory"), _printed("full_outputs")
    return conclude(
        "cost:march_against_table",
        f"Stored numbers are of degree {in_p[0]} in P and {in_t[0]} in T, and multiplications of degree "
        f"{in_p[1]} in P and {in_t[1]} in T, whose highest power of T does not depend on P; the table has "
        f"P^{memory[0]} T^{memory[1]} and P^{work[0]} T^{work[1]}.",
        agrees("memory: degree in P minus 1", in_p[0] - 1, 0.0),
        agrees("memory: degree in T minus 2", in_t[0] - 2, 0.0),
        agrees("memory: change of the coefficient of T^2 with P", mixed[0], 0.0),
        agrees("time: degree in P minus 2", in_p[1] - 2, 0.0),
        agrees("time: degree in T minus 3", in_t[1] - 3, 0.0),
        agrees("time: change of the coefficient of T^3 with P", mixed[1], 0.0),
        contradicts("memory: degree in P minus printed", in_p[0] - memory[0], 0.1),
        contradicts("time: degree in P minus printed", in_p[1] - work[0], 0.1),
    )


# -- the perturbative column ---------------------------------------------------------------------------------


def perturbative(kernel: Array, error: Array, step: float) -> tuple[Array, Array, int, int]:
    """Return the sums of (P.4), the numbers stored and the multiplications.

    The sums are v (T,P) and the equal-time sums over K K v_{alpha beta} (T,P,P).
    """
    kernel, error = kernel.view(Counted), error.view(Counted)
    Counted.total = 0
    T, n = error.shape
    v, vv = np.zeros((T, n)).view(Counted), np.zeros((T, n, n)).view(Counted)
    for k in range(1, T):
        vv[k] = vv[k - 1] + step * np.multiply(error[k - 1][:, None], v[k - 1][None])
        v[k] = v[k - 1] + step * error[k - 1]
    full = np.stack([(kernel @ vv[k] @ kernel).view(np.ndarray) for k in range(T)])
    return v.view(np.ndarray), full, v.size + vv.size, Counted.total


def _perturbative_cost(samples: int, steps: int) -> tuple[int, int]:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(samples, samples))
    _, _, stored, work = perturbative(x @ x.T / samples, rng.normal(size=(steps, samples)), 0.1)
    return stored, work


def expansion_against_table() -> Evidence:
    """Check Table 1, perturbative column: P^4 T against counts for v, v_{alpha beta} and kernels.

    The kernels are those at equal times.
    """
    in_p = [exponent(lambda n, k=k: _perturbative_cost(n, 6)[k], 32) for k in (0, 1)]  # type: ignore[misc]
    in_t = [exponent(lambda n, k=k: _perturbative_cost(8, n)[k], 32) for k in (0, 1)]  # type: ignore[misc]
    memory, work = _printed("perturbative_memory"), _printed("perturbative_kernels")
    return conclude(
        "cost:expansion_against_table",
        f"v and v_(alpha beta) are P^{in_p[0]:.2f} T^{in_t[0]:.2f} numbers, and the equal-time kernels take "
        f"P^{in_p[1]:.2f} T^{in_t[1]:.2f} "
        f"multiplications; the table has P^{memory[0]} T^{memory[1]} and P^{work[0]} T^{work[1]}.",
        agrees("kernel sums of (P.4) written out minus those counted", _written_out_gap(), 1e-12),
        agrees("memory: power of P minus 2", in_p[0] - 2.0, SLACK),
        agrees("memory: power of T minus 1", in_t[0] - 1.0, SLACK),
        agrees("time: power of P minus 3", in_p[1] - 3.0, SLACK),
        agrees("time: power of T minus 1", in_t[1] - 1.0, SLACK),
        contradicts("memory: power of P minus printed", in_p[0] - memory[0], SLACK, by=10),
        contradicts("time: power of P minus printed", in_p[1] - work[0], SLACK, by=5),
    )


def _written_out_gap() -> float:
    """Return the error of the nested and product sums of (P.4) for H at equal times, P = 3, term by term."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(3, 3))
    kernel, error = x @ x.T / 3, rng.normal(size=(5, 3))
    v, nested, _, _ = perturbative(kernel, error, 0.1)
    vv = np.linalg.solve(kernel, np.linalg.solve(kernel, nested[-1].T).T)
    formula = claimed("selfconsistent2023", "P.4")["H"].coeff(gamma0, 2)
    drift = kernel @ v[-1]
    fast = nested[-1] + nested[-1].T + np.outer(drift, drift)

    def value(a: Any) -> complex:
        index = [int(i) - 1 for i in a.args if i.is_Integer]
        table: dict[str, NDArray[np.floating[Any]]] = {"Kx": kernel, "v": v[-1], "vv": vv}
        return complex(table[str(a.func)][tuple(index)])

    slow = [
        [number(written_out(formula, {P: 3, ell: 1, L: 1, mu: m, nu: n}), value).real for n in (1, 2, 3)]
        for m in (1, 2, 3)
    ]
    return float(np.max(np.abs(np.array(slow) - fast)))
