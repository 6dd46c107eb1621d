"""Sums over samples with Kronecker deltas and unit vectors, and the tensors that such sums keep among
themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sympy import Add, Expr, Function, Mul, S, Sum, Symbol
from sympy.core.function import AppliedUndef, UndefinedFunction

from derive.calculus.sums import factors, pinned, put
from derive.calculus.symbols import alpha, mu
from derive.errors import NotApplicable
from derive.theory.names import primed


@dataclass(frozen=True)
class Frame:
    """Orthonormal directions ``n(mu)`` of sample space: ``sum n n = 1``, ``sum n m = 0``."""

    directions: tuple[UndefinedFunction, ...]

    def contract(self, e: Expr) -> Expr:
        """Do every sum over samples in ``e`` that deltas or directions allow; indices lie within their
        ranges.

        >>> from sympy import KroneckerDelta
        >>> from derive.calculus.symbols import P, alpha, mu
        >>> n = Function("n")
        >>> e = Sum((KroneckerDelta(mu, alpha) + n(mu) * n(alpha)) * n(alpha), (alpha, 1, P))
        >>> Frame((n,)).contract(e)
        2*n(mu)
        """
        return e.replace(lambda x: isinstance(x, Sum), self._one).expand()

    def _one(self, e: Sum) -> Expr:
        body = self.contract(e.function)
        for lim in e.limits:
            body = Add(*[self._term(x, lim) for x in Add.make_args(body.expand())])
        return body

    def _term(self, e: Expr, lim: tuple[Symbol, Expr, Expr]) -> Expr:
        index = lim[0]
        moving = [x for x in factors(e) if x.has(index)]
        fixed = Mul(*[x for x in factors(e) if not x.has(index)])
        if not moving:
            return fixed * (lim[2] - lim[1] + 1)
        if (found := pinned(Mul(*moving), index)) is not None:
            return fixed * put(Mul(*moving) / found[0], {index: found[1]})
        if len(moving) == 2 and all(
            isinstance(x, AppliedUndef) and x.func in self.directions for x in moving
        ):
            return fixed if moving[0] == moving[1] else S.Zero
        return fixed * Sum(Mul(*moving), lim)


def split_tensor(e: Expr, indices: Sequence[Symbol]) -> dict[Expr, Expr]:
    """Write ``e`` as a sum of scalar times tensor; tensors carry the free ``indices``.

    >>> from sympy import KroneckerDelta
    >>> from derive.calculus.symbols import alpha, mu
    >>> n = Function("n")
    >>> split_tensor(3 * n(mu) * n(alpha) + KroneckerDelta(mu, alpha), (mu, alpha))
    {KroneckerDelta(alpha, mu): 1, n(alpha)*n(mu): 3}
    """
    found: dict[Expr, Expr] = {}
    for x in Add.make_args(e.expand()):
        tensor = Mul(*[y for y in Mul.make_args(x) if any(y.has(i) for i in indices)])
        found[tensor] = found.get(tensor, S.Zero) + x / tensor
    return {k: found[k] for k in sorted(found, key=str) if found[k] != 0}


@dataclass(frozen=True)
class Ansatz:
    """``function(indices) = sum of tensor * coefficient``."""

    function: UndefinedFunction
    indices: tuple[Symbol, ...]
    parts: tuple[tuple[Expr, Expr], ...]

    def at(self, arguments: Sequence[Expr]) -> Expr:
        """The tensors' sum with other names for the indices."""
        names = dict(zip(self.indices, arguments, strict=True))
        return Add(*[c * tensor.xreplace(names) for tensor, c in self.parts])


def closed_span(
    rates: dict[AppliedUndef, Expr],
    starts: dict[AppliedUndef, Expr],
    frame: Frame,
    time: Symbol,
    rounds: int = 6,
) -> dict[UndefinedFunction, Ansatz]:
    """The smallest set of tensors, containing the initial ones, that the equations do not lead out of.

    ``rates`` maps ``X(indices, t)`` to its time derivative and ``starts`` to its initial value.
    Coefficients are new functions ``X_0(t), X_1(t), ...``.  Raises :class:`NotApplicable` if the span has
    not closed after ``rounds``.
    """
    spans = {x: list(split_tensor(frame.contract(starts[x]), _indices(x, time))) for x in rates}
    for _ in range(rounds):
        ansatz = {x.func: _ansatz(x, spans[x], time) for x in rates}
        grown = False
        for x, rate in rates.items():
            for tensor in split_tensor(frame.contract(substitute(rate, ansatz)), _indices(x, time)):
                if tensor not in spans[x]:
                    spans[x].append(tensor)
                    grown = True
        if not grown:
            return ansatz
    raise NotApplicable("the equations lead to ever new directions in sample space")


def substitute(e: Expr, ansatz: dict[UndefinedFunction, Ansatz]) -> Expr:
    """Put the tensors in place of the functions."""
    return e.replace(
        lambda x: (
            isinstance(x, AppliedUndef)
            and x.func in ansatz
            and len(x.args) == len(ansatz[x.func].indices) + 1
        ),
        lambda x: ansatz[x.func].at(x.args[:-1]),
    )


def _indices(x: AppliedUndef, time: Symbol) -> tuple[Symbol, ...]:
    return tuple(a for a in x.args if a != time)


def _ansatz(x: AppliedUndef, tensors: list[Expr], time: Symbol) -> Ansatz:
    scalar = tensors == [S.One]
    names = [str(x.func)] if scalar else [f"{x.func}_{k}" for k in range(len(tensors))]
    parts = tuple((tensor, Function(n)(time)) for tensor, n in zip(tensors, names, strict=True))
    return Ansatz(x.func, _indices(x, time), parts)


def primed_free(x: Expr, taken: set[Expr]) -> Expr:
    """A name for an index made by priming until it is free."""
    y = primed(primed(x)) if x == mu else primed(x)
    return y if y not in taken else primed_free(y, taken)


def tidy_sums(e: Expr) -> Expr:
    """Pull constants out of sums, and give each summed index the first free name."""
    taken = e.free_symbols
    name = alpha if alpha not in taken else primed_free(alpha, taken)

    def tidy(x: Sum) -> Expr:
        (index, lower, upper), parts = x.limits[0], []
        for y in Add.make_args(x.function.expand()):
            fixed, moving = (
                Mul(*[z for z in Mul.make_args(y) if z.has(index) is has]) for has in (False, True)
            )
            own = index
            if name not in moving.free_symbols and not moving.has(Sum):
                moving, own = moving.xreplace({index: name}), name
            parts.append(fixed * Sum(moving, (own, lower, upper)))
        return Add(*parts)

    return e.replace(lambda x: isinstance(x, Sum) and len(x.limits) == 1, tidy)
