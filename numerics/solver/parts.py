"""The test loss of random data by what causes it: bias, limited width, limited data, label noise (eq. 13).

Reads the derived decomposition of ``C_v``: each part is a quadratic form ``H M H^T`` of transfer functions,
and these are inverses of causal operators, so all of it is a few matrix products once the march is done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray
from sympy import Add, Dummy, Expr, KroneckerDelta, Mul, Pow, Sum, Symbol, lambdify
from sympy.core.function import AppliedUndef

from derive.linear.operators import Kernel
from derive.linear.propagators import START
from derive.reduce.data import BIAS, DATA, NOISE, WIDTH, LossDecomposition
from numerics.compile.table import Node

Array = NDArray[np.float64]
Read = Callable[[Node], Array]
"""An order parameter or table with axes (T, n, T, n), n the number of outputs; a table of one time (T,)."""

NAMES = {BIAS: "test_loss_bias", WIDTH: "test_loss_width", DATA: "test_loss_data", NOISE: "test_loss_noise"}
"""What the parts are called in results."""


def loss_parts(
    split: LossDecomposition, read: Read, constants: Mapping[Symbol, float], steps: int, outputs: int
) -> dict[str, Array]:
    """The parts of ``C_v(t, t)``, summed over outputs, at each of the times 0..steps-1, by their labels."""
    forms = _Forms(split, read, constants, steps, outputs)
    found: dict[str, Array] = {}
    for part in split.parts:
        value = forms.diagonal(part.expr)
        found[part.label] = found[part.label] + value if part.label in found else value
    return found


class _Forms:
    def __init__(
        self, split: LossDecomposition, read: Read, constants: Mapping[Symbol, float], T: int, n: int
    ) -> None:
        self.split, self.read, self.constants, self.T, self.n = split, read, constants, T, n
        self.answers: dict[str, Array] = {}
        self.letters: dict[Expr, Array] = {}
        self.words: dict[Expr, Array] = {}

    # -- quadratic forms ---------------------------------------------------------------------------------

    def diagonal(self, form: Expr) -> Array:
        """``sum H(t, s_1) M(s_1, s_2) H(t, s_2)``, summed over outputs."""
        left, middle, right = self.split_up(form)
        value: Array = np.einsum("ij,ij->i", left @ middle, right).reshape(self.T, self.n).sum(1)
        return value

    def split_up(self, form: Expr) -> tuple[Array, Array, Array]:
        """Both transfer functions, and what stands between them."""
        assert isinstance(form, Sum)
        inner = [lim[0] for lim in form.limits]
        times, outputs = inner[-2:], inner[:-2]
        answers, rest = {}, []
        for x in Mul.make_args(form.function):
            if isinstance(x, AppliedUndef) and str(x.func).startswith("H_"):
                answers[times.index(x.args[-1])] = self.answer(str(x.func))
            else:
                rest.append(x)
        return answers[0], self.matrix(Mul(*rest), times, outputs), answers[1]

    def matrix(self, e: Expr, times: list[Expr], outputs: list[Expr]) -> Array:
        """A function of two times (and two outputs), entry by entry: shape (T n, T n)."""
        T, n = self.T, self.n
        now = {times[0]: np.arange(T).reshape(T, 1, 1, 1), times[1]: np.arange(T).reshape(1, 1, T, 1)}
        arrays: dict[Expr, Array] = {}
        named = e
        for x in sorted(e.atoms(Sum), key=str):
            named = named.xreplace({x: self.named(self.inner(x), arrays)})
        for x in sorted(named.atoms(KroneckerDelta), key=str):
            size, shape = (T, (T, 1, T, 1)) if set(x.args) == set(times) else (n, (1, n, 1, n))
            named = named.xreplace({x: self.named(np.eye(size).reshape(shape), arrays)})
        for x in sorted(named.atoms(AppliedUndef), key=str):
            if len(x.args) == 1:  # a table of one time
                shape = (T, 1, 1, 1) if x.args[0] == times[0] else (1, 1, T, 1)
                value = self.read((str(x.func), None))
                value = value[0] if x.args[0] == 0 else value.reshape(shape)
                named = named.xreplace({x: self.named(value, arrays)})
                continue
            layer = int(x.args[0]) if x.args[0].is_Integer else None
            value = self.read((str(x.func), layer))
            flipped = list(x.args[-2:]) == list(reversed(times))
            named = named.xreplace({x: self.named(value.transpose(2, 3, 0, 1) if flipped else value, arrays)})
        value = lambdify([*arrays, *now], named.subs(self.constants), "numpy")(
            *arrays.values(), *now.values()
        )
        full: Array = np.broadcast_to(np.asarray(value, dtype=float), (T, n, T, n)).reshape(T * n, T * n)
        return full

    def inner(self, form: Expr) -> Array:
        """A quadratic form within another: axes (T, n, T, n)."""
        left, middle, right = self.split_up(form)
        return (left @ middle @ right.T).reshape(self.T, self.n, self.T, self.n)

    @staticmethod
    def named(value: Array, arrays: dict[Expr, Array]) -> Dummy:
        """A name for an array in a formula."""
        name = Dummy("array")
        arrays[name] = value
        return name

    # -- transfer functions ------------------------------------------------------------------------------

    def answer(self, name: str) -> Array:
        """``H_y_x`` as a matrix, from its word in kernels."""
        if name not in self.answers:
            x = next(x for x in self.split.transfers if name.endswith(f"_{x.into}"))
            field = name.removeprefix("H_").removesuffix(f"_{x.into}")
            self.letters |= {k.operator: self.kernel(k) for k in x.kernels if k.operator not in self.letters}
            self.answers[name] = self.word(x.operators[field])
        return self.answers[name]

    def kernel(self, k: Kernel) -> Array:
        """The entries of an operator, causal."""
        *indices, now, past = k.entry.args
        full = self.matrix(k.definition, [now, past], [x for x in indices if isinstance(x, Symbol)])
        steps = np.repeat(np.arange(self.T), self.n)
        before = steps[:, None] > steps if k.causal == "strict" else steps[:, None] >= steps
        value: Array = np.where(before, full, 0.0)
        return value

    def word(self, e: Expr) -> Array:
        """A noncommutative expression with matrices put in; each inverse is taken once."""
        if e not in self.words:
            self.words[e] = self.worked_out(e)
        return self.words[e]

    def worked_out(self, e: Expr) -> Array:
        size = self.T * self.n
        if e in self.letters:
            return self.letters[e]
        if e == START:
            value = np.zeros((size, size))
            value.reshape(self.T, self.n, size)[:, :, : self.n] = np.eye(self.n)
            return value
        if e.is_number:
            return float(e) * np.eye(size)
        if isinstance(e, Add):
            return sum((self.word(x) for x in e.args), np.zeros((size, size)))
        if isinstance(e, Pow) and e.exp == -1:
            return np.asarray(np.linalg.inv(self.word(e.base)), dtype=float)
        if isinstance(e, Mul):
            numbers, letters = e.args_cnc()
            value = self.word(letters[0])
            for x in letters[1:]:
                value = value @ self.word(x)
            return float(Mul(*numbers)) * value
        raise NotImplementedError(f"{e} in a transfer function")
