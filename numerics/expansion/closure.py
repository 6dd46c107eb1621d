"""Coefficients of the expansion in gamma0 of a linear network, from its closure's recursion in the layer.

The number of operator words (products of kernels) in the expansion grows tenfold or more with each power of
gamma0^2.  The closure's equations need only products: each order of an operator follows from products of
lower orders.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sympy import Expr, Indexed, Symbol, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import ell, gamma0
from derive.errors import NotApplicable
from derive.expansion.operator_words import layer_products, parts_of
from derive.linear.closure import LinearClosure
from derive.linear.operators import J, Kernel, operator
from numerics.errors import Diverged
from numerics.expansion.coefficients import Setting, parted
from numerics.expansion.operators import (
    Combination,
    Dense,
    LayerOperator,
    SeparableKernel,
    SeriesAlgebra,
    Stream,
    Tape,
    Times,
    compressed,
    convolved,
    memory_weight,
    multiplied,
    remembered,
    summed,
    time_table,
)
from numerics.names import (
    BACKWARD_RESPONSE,
    ERROR,
    FEATURE_KERNEL,
    FORWARD_RESPONSE,
    GRADIENT_KERNEL,
    INPUT_KERNEL,
    LINEAR_KERNEL,
)
from numerics.solver.grid import TimeGrid, tables_of
from numerics.solver.linear.output_correlations import interval_weights

Array = NDArray[np.float64]
OperatorAtLayer = tuple[str, int]
"""Name and layer of an operator."""

DATA = operator(INPUT_KERNEL)

PROBED = 16
"""Number of times from which the dependence of the output at order 0 on the error is found."""
FEW = 5
"""Number of operators up to which a sum is kept as a list until it is multiplied."""
CACHED = 2**18
"""Number of floats that fit into the cache of a processor."""
LEFT, LOST = 1e-9, 1e-5
"""Largest residual of the error's equation, relative to its largest term, that is accepted; and the largest
that counts as rounding, which is amplified if kernels grow because steps are too long."""


@dataclass(frozen=True, eq=False)
class ClosureLayers:
    """Equations of a closure for each layer of a network of given depth, without numbers and times.

    An operator is an order parameter of one layer, read as a matrix over times and samples.

    Attributes
    ----------
    depth
        Number of hidden layers.
    base
        For each operator, the layer where its value is given (an end of the network), and that value.
    laws
        For each operator, the right-hand side of its equation at each layer.
    kernels
        Memory kernels of the closure by name.
    made_of
        For each memory kernel at a layer, the responses that are added in it, and the correlations that the
        error multiplies in it.
    average
        Average whose value divided by gamma0 is the output f.
    products
        Terms of the tangent kernel: pairs of factors that are multiplied entry by entry.
    """

    depth: int
    base: Mapping[str, tuple[int, Expr]]
    laws: Mapping[str, Mapping[int, Expr]]
    kernels: Mapping[str, Kernel]
    made_of: Mapping[OperatorAtLayer, tuple[list[OperatorAtLayer], list[OperatorAtLayer]]]
    average: Expr
    products: list[tuple[Expr | OperatorAtLayer, Expr | OperatorAtLayer]]

    @cached_property
    def correlations(self) -> list[str]:
        """Names of the order parameters with an equation that are correlations; the others are responses."""
        return [x for x in self.laws if self.base.get(x, (0, 0))[1] != 0]

    @cached_property
    def constants(self) -> list[Symbol]:
        """Symbols that need numbers in the equations, except gamma0."""
        equations = [self.average, *(e for law in self.laws.values() for e in law.values())]
        return sorted({x for e in equations for x in e.free_symbols if x.is_commutative} - {gamma0}, key=str)

    def is_correlation(self, x: Expr) -> bool:
        """Return whether x is a correlation or a constant kernel, which are stored with low rank."""
        return bool(x.is_Symbol) or place_of(x)[0] in self.correlations

    def inwards(self, name: str) -> list[int]:
        """Return all layers in the order in which the order parameter ``name`` is computed.

        The order starts at the end of the network where the value of the order parameter is given.
        """
        place = self.base[name][0]
        return sorted(range(1, self.depth + 1), key=lambda k: abs(k - place))


@lru_cache(maxsize=64)
def layers_of(closure: LinearClosure, depth: int) -> ClosureLayers:
    """Return the equations of a closure written out for each layer of a network with ``depth`` layers.

    Raises NotApplicable for a closure without a family of layers.
    """
    if closure.layers is None:
        raise NotApplicable(
            "the expansion needs a family of layers: derive the theory with a symbol as depth"
        )
    upper, every = closure.layers.upper, range(1, depth + 1)

    def site(e: Expr | int) -> int:
        """Return the number of a layer that is given as an expression in the depth L, such as ``L - 1``.

        L has the value ``depth`` of the enclosing function.
        """
        return int(sympify(e).subs(upper, depth))

    def place(a: AppliedUndef, layer: int) -> OperatorAtLayer:
        """Return the name and the layer number of the order parameter ``a``.

        The layer is the first argument of ``a``, such as ``ell - 1``, in which ell has the value ``layer``.
        """
        return str(a.func), site(a.args[0].subs(ell, layer))

    def factor(a: AppliedUndef | None, layer: int) -> Expr | OperatorAtLayer:
        """Return a factor of the tangent kernel in the equation of ``layer``.

        The result is (name, layer) for an order parameter with an equation, the symbol of a kernel that is
        given as data, and the symbol J of the kernel that is 1 everywhere if ``a`` is None.
        """
        if a is None:
            return J
        return place(a, layer) if str(a.func) in laws else operator(str(a.func))

    equations = {str(e.lhs.args[0]): e for e in (*closure.covariances, *closure.responses)}
    laws = {
        name: {k: e.rhs.subs(ell, k - (e.lhs.args[1] - ell)).subs(upper, depth) for k in every}
        for name, e in equations.items()
    }
    kernels = {k.name: k for k in closure.kernels if k.operator.has(ell) and k.name not in laws}
    made_of: dict[OperatorAtLayer, tuple[list[OperatorAtLayer], list[OperatorAtLayer]]] = {}
    for name, kernel in kernels.items():
        responses, memories = parts_of(kernel, closure)
        for k in every:
            made_of[name, k] = [place(a, k) for a in responses], [place(a, k) for a in memories]
    products = []
    for limits, a, b in layer_products(closure):
        low, high = (0, 0) if limits is None else (site(limits[0]), site(limits[1]))
        products += [(factor(a, k), factor(b, k)) for k in range(low, high + 1)]
    return ClosureLayers(
        depth=depth,
        base={str(e.lhs.args[0]): (site(e.lhs.args[1]), e.rhs) for e in closure.base},
        laws=laws,
        kernels=kernels,
        made_of=made_of,
        average=closure.outputs[0].rhs.subs(upper, depth),
        products=products,
    )


@lru_cache(maxsize=10_000)
def place_of(x: Indexed) -> OperatorAtLayer:
    """Return the name and the layer of an operator ``X[layer]``."""
    return x.base.label.name, int(x.indices[0])


class ClosurePlan:
    """Plan of the expansion of a closure in gamma0: a list of operations, without arrays.

    An operator is an order parameter of one layer, read as a matrix over times and samples. The operations,
    such as products and sums, give every coefficient of every operator; :class:`Closed` carries them out.

    ``layers`` are the equations and ``numbers`` the values of the constants in them. The error is found order
    by order together with the output f. If ``given`` is true, the error is an input that does not depend on
    gamma0. ``errors`` maps each order to whether the error can differ from zero. A plan with another plan
    ``base`` takes correlations from ``base``. In such a plan products of operators are integrals by
    quadrature. They are not associative, and are therefore taken one after another.
    """

    def __init__(
        self,
        layers: ClosureLayers,
        numbers: Mapping[Symbol, float],
        given: bool = False,
        base: ClosurePlan | None = None,
    ) -> None:
        self.layers, self.numbers = layers, numbers
        self.tape = Tape(FEW)
        self.base_plan = base
        self.errors: dict[int, bool] = base.errors if base else {0: True} if given else {}
        self.given, self.outputs = given, list[tuple[Combination | None, Combination | None]]()
        self.operators: dict[OperatorAtLayer, Stream] = {}
        tape = self.tape.multiply, self.tape.add, self.tape.times
        self.algebra = SeriesAlgebra(
            self.known, self.number, layers.is_correlation, *tape, in_turn=base is not None
        )
        self.average, self.tangent = self.algebra.series(layers.average), Stream(self.entrywise)

    def number(self, e: Expr) -> float:
        """Return the number of a constant expression in the equations."""
        return float(e if e.is_Number else e.subs(self.numbers))

    def known(self, x: Expr) -> Stream:
        """Return the power series in gamma0 of x, a kernel of the data or an order parameter."""
        return self.constant(x) if x.is_Symbol else self.operator(*place_of(x))

    def constant(self, x: Expr) -> Stream:
        """Return the power series of a kernel of the data, which is zero beyond order 0 in gamma0."""
        value = self.tape.constant(x, samples=x != J)
        return Stream(lambda n: value if n == 0 else None)

    def operator(self, name: str, site: int) -> Stream:
        """Return the power series in gamma0 of an order parameter or a memory kernel at the layer ``site``.

        It is created at the first call and is the same object at later calls.
        """
        if (name, site) not in self.operators:
            self.operators[name, site] = self.stream(name, site)
        return self.operators[name, site]

    def stream(self, name: str, site: int) -> Stream:
        """Return a new power series in gamma0 of an order parameter or a memory kernel at the layer ``site``.

        Its coefficients come from the value that is given at an end of the network, from its equation, from
        the terms of the memory kernel, or from the base plan.
        """
        base, laws = self.layers.base, self.layers.laws
        if name in base and base[name][0] == site:
            value = base[name][1]
            return self.constant(value) if value != 0 else Stream(lambda n: None)
        if name not in laws:
            return self.remembering(name, site)
        if self.base_plan and name in self.layers.correlations:
            known = self.base_plan.operator(name, site)
            return Stream(lambda n: (x := known.at(n)) and self.tape.external(x.kind, name, n, site))
        inner: list[Stream] = []

        def rule(n: int) -> Combination | None:
            """Return the coefficient of gamma0^n of the order parameter of the enclosing call; None for zero.

            It follows from the equation of this order parameter at its layer.
            """
            # `inner` is empty until the series of the order parameter is first needed. The series is built
            # only then, because equations of other layers may refer to it.
            if not inner:
                inner.append(self.algebra.series(laws[name][site]))
            coefficient: Combination | None = inner[0].at(n)
            return coefficient

        return Stream(rule) if name in self.layers.correlations else self.algebra.new(rule)

    def remembering(self, name: str, site: int) -> Stream:
        """Return the power series in gamma0 of the memory kernel ``name`` at the layer ``site``.

        A memory kernel is a sum of responses, and of correlations multiplied with the error.
        """
        kernel = self.layers.kernels[name]
        responses, memories = (
            [self.operator(*x) for x in places] for places in self.layers.made_of[name, site]
        )

        def rule(n: int) -> Combination | None:
            """Return the coefficient of order n in gamma0 of a memory kernel; None for zero.

            It is the sum of responses of order n, and of products of correlations and errors whose orders
            add to n. Raises NotApplicable if the error of an order up to n is not known.
            """
            if not self.given and n >= len(self.errors):
                raise NotApplicable(
                    f"the kernel {name} at order {n} of gamma0 depends on the error at order {n}, but "
                    f"errors are known up to order {len(self.errors) - 1} only"
                )
            parts = [x.at(n) for x in responses]
            for j, x in product((j for j in range(n + 1) if self.errors.get(j)), memories):
                if (body := x.at(n - j)) is not None:
                    parts.append(self.tape.remembered(kernel, j, body))
            return self.tape.add(*parts)

        return self.algebra.new(rule)

    def output(self, n: int) -> tuple[Combination | None, Combination | None]:
        """Return order n of the output f as a pair: f_n without its terms in the error Delta_n, and f_n.

        Each member is a linear combination of operators whose entries at equal times are the output; None
        stands for zero. If the error is given, the first member is None. The output f is an average of the
        closure divided by gamma0, so that f_n is the coefficient of order n + 1 of the average. For n > 0,
        Delta_n vanishes if the first member and all products ``Delta_k Delta_(n-k)`` with 0 < k < n do.
        """
        while n >= len(self.outputs):
            now = len(self.outputs)
            self.algebra.forget(now)
            for name in self.layers.correlations:
                for site in self.layers.inwards(name):
                    # Order `now` of the correlation is evaluated before Delta_now, the error signal of the
                    # same order. This is possible because correlations depend on Delta at lower orders only.
                    self.operator(name, site).at(now)
            rest = None
            if not self.given:
                self.errors[now] = False
                rest = self.average.at(now + 1)
                before = any(self.errors[k] and self.errors[now - k] for k in range(1, now))
                self.errors[now] = now == 0 or before or rest is not None
                self.algebra.forget(now)
            self.outputs.append((rest, self.average.at(now + 1)))
        return self.outputs[n]

    @cached_property
    def densities(self) -> ClosurePlan:
        """Another plan, which computes the responses of a gradient flow as densities in time.

        It takes correlations from the present plan.
        """
        return ClosurePlan(self.layers, self.numbers, base=self)

    def entrywise(self, n: int) -> list[tuple[Combination | None, Combination]]:
        """Return order n in gamma0 of the tangent kernel, as a list of pairs (first factor, second factor).

        The tangent kernel is the sum over the pairs, and factors are multiplied entry by entry. None as
        first factor stands for the number 1. Common factors are taken out of the sum, the most frequent
        first.
        """
        pairs: Counter[tuple[int, int]] = Counter()
        for places in self.layers.products:
            streams = [self.operator(*x) if isinstance(x, tuple) else self.constant(x) for x in places]
            for k in range(n + 1):
                left, right = streams[0].at(k), streams[1].at(n - k)
                if left is not None and right is not None:
                    both = product(left.terms.items(), right.terms.items())
                    pairs.update({(i, j): a * b for (i, a), (j, b) in both})
        factors: list[tuple[Combination | None, Combination]] = []
        while pairs:
            (side, place), _ = Counter(x for pair in pairs for x in enumerate(pair)).most_common(1)[0]
            chosen = [pair for pair in pairs if pair[side] == place]
            others = {pair[1 - side]: pairs.pop(pair) for pair in chosen}
            fixed, rest = Combination(self.tape, {place: 1.0}), Combination(self.tape, others)
            one = self.tape.steps[place] == ("constant", J)
            factors.append((rest, fixed) if side else (None if one else fixed, rest))
        return factors


@lru_cache(maxsize=64)
def plan_of(
    layers: ClosureLayers, numbers: tuple[tuple[Symbol, float], ...], given: bool = False
) -> ClosurePlan:
    """Return the plan of the expansion of a closure in gamma0, cached.

    ``layers`` are the equations of all layers, and ``numbers`` are values of the constants in them. If
    ``given`` is true, the error is an input; otherwise it is expanded in gamma0, too.
    """
    return ClosurePlan(layers, dict(numbers), given)


class Closed:
    """Expansion of a closure in gamma0 as arrays, on one time grid with T times and for P samples.

    The operations of ``plan`` are carried out when their results are needed. ``memory`` holds for each
    memory kernel, by name, the weight of an update at time s in the fields at time t, (T, T). ``kernel`` is
    the kernel of the data, (P, P).
    """

    def __init__(self, plan: ClosurePlan, memory: Mapping[str, Array], kernel: Array) -> None:
        self.plan, self.memory, self.kernel = plan, memory, kernel
        self.T, self.P = next(iter(memory.values())).shape[0], len(kernel)
        self.layers = plan.layers
        self.errors: list[Array] = []
        self.outputs: list[Array] = []
        self.known: dict[int, LayerOperator] = {}

    @classmethod
    def of(cls, setting: Setting, closure: LinearClosure) -> Self:
        """Return the expansion of a closure in gamma0 for the numbers, data and times of ``setting``."""
        layers = layers_of(closure, setting.depth)
        numbers = tuple((x, setting.numbers[x]) for x in layers.constants)
        return cls(plan_of(layers, numbers), memories(setting, closure), setting.kernel)

    def upto(self, now: int | None = None) -> Closed:
        """Return the same expansion on the first ``now`` times, with nothing computed yet.

        None stands for all times.
        """
        return Closed(self.plan, {k: v[:now, :now] for k, v in self.memory.items()}, self.kernel)

    # -- operators -------------------------------------------------------------------------------------

    def value(self, name: str, n: int, site: int) -> LayerOperator | None:
        """Return order n in gamma0 of the order parameter ``name`` at the layer ``site``, as an array.

        The result is None if the plan contains no term of this order.
        """
        return self.array(self.plan.operator(name, site).at(n))

    def array(self, x: Combination | None) -> LayerOperator | None:
        """Return the value of a linear combination of operations of the plan; None stands for zero."""
        return None if x is None else summed([(c, self.step(i)) for i, c in x.terms.items()])

    def step(self, i: int) -> LayerOperator:
        """Return the result of operation number i of the plan; each is carried out once."""
        if i not in self.known:
            self.known[i] = self.carried_out(*self.plan.tape.steps[i])
        return self.known[i]

    def carried_out(self, what: str, *of: Any) -> LayerOperator:
        """Carry out one operation of the plan and return its result.

        ``what`` is "product", "transpose", "sum", "remembered" (a correlation times the error, in a memory
        kernel) or "constant". ``of`` are the operands: positions of earlier operations, names, orders and
        coefficients.
        """
        if what == "product":
            return self.multiply(self.step(of[0]), self.step(of[1]))
        if what == "transpose":
            return self.step(of[0]).transpose()
        if what == "sum":
            total = summed([(c, self.step(i)) for i, c in of])
            return total if isinstance(total, Dense) else compressed(total)
        if what == "remembered":
            name, n, *body = of
            remembers = self.layers.kernels[name], self.memory[name], self.errors[n]
            return remembered(*remembers, summed([(c, self.step(i)) for i, c in body]))
        return self.constant(of[0])

    def multiply(self, a: LayerOperator, b: LayerOperator) -> LayerOperator:
        """Return the operator product ``a b``: the sum over the inner time and the inner sample."""
        return multiplied(a, b)

    def constant(self, x: Expr) -> SeparableKernel:
        """Return the kernel of the data, or the kernel that is 1, as an operator on all times.

        Its entries are the same at all pairs of times. Raises NotApplicable for another constant kernel.
        """
        if x == J:
            core = np.ones((1, 1))
        elif x == DATA:
            core = self.kernel
        else:
            raise NotApplicable(
                f"the closure contains the constant kernel {x}; only the kernel of the data and the kernel 1 "
                "are supported"
            )
        eye = np.broadcast_to(np.eye(len(core)), (self.T, *core.shape))
        return SeparableKernel(eye, core, eye)

    # -- the error -------------------------------------------------------------------------------------

    @cached_property
    def weight(self) -> Array:
        """Weight of an update at time s in the fields at time t, (T, T).

        It is that of the first memory kernel in ``memory``.
        """
        return next(iter(self.memory.values()))

    @cached_property
    def gain(self) -> float:
        """Number c in ``f_0(t) = c K_x sum_s w(t, s) Delta_0(s)``, the output at order 0 in gamma0.

        It is fitted to f_0 for a random error Delta_0. Raises :class:`~derive.errors.NotApplicable` if f_0
        depends on the error in another way, and :class:`~numerics.errors.Diverged` if the output is too
        small for floating-point numbers.
        """
        some = np.linspace(0, self.T - 1, min(PROBED, self.T)).astype(int)
        lazy = Closed(self.plan, {k: v[np.ix_(some, some)] for k, v in self.memory.items()}, self.kernel)
        lazy.remember(np.random.default_rng(0).standard_normal((lazy.T, self.P)))
        # The output and the kernel of the data are divided by the largest entry of the kernel in absolute
        # value, because squares of small entries underflow.
        size = float(np.max(np.abs(self.kernel))) or 1.0
        f, known = lazy.output(0) / size, lazy.weight @ lazy.errors[0] @ (self.kernel / size)
        # `f` and `known` are divided by the largest entry of `known` in absolute value, because their squares
        # may underflow if times are short.
        scale = float(np.max(np.abs(known))) or 1.0
        if scale < np.finfo(float).tiny:
            raise Diverged(
                f"the output, {scale:.0e} relative to the kernel, is below the smallest normal "
                "floating-point number, because the time or the learning rate is so small: use a longer time "
                "or a larger learning rate"
            )
        f, known = f / scale, known / scale
        gain = float(np.vdot(known, f)) / max(float(np.vdot(known, known)), 1e-300)
        if np.max(np.abs(f - gain * known)) > LEFT * np.max(np.abs(f)):
            raise NotApplicable(
                "the output at order 0 in gamma0 is not the data kernel times a weighted sum of past errors, "
                "as the expansion of a linear network needs"
            )
        return gain

    def advance(self, setting: Setting) -> None:
        """Compute the error Delta_n and the output f_n at the next order n in gamma0, and store both.

        The output f_n depends on Delta_n as f_0 does on Delta_0, because the output is linear in the error at
        lowest order in gamma0. The equation of Delta_n is therefore solved with the feedback of order 0, and
        its residual is checked. Raises :class:`~numerics.errors.Diverged` if the relative residual exceeds
        LEFT, as amplified rounding errors do, and NotApplicable if it exceeds LOST.
        """
        n, law = len(self.outputs), setting.error
        rest, whole = self.plan.output(n)
        f = self.diagonal(rest)
        drive = law.order([*self.outputs, f])
        self.errors.append(np.zeros((self.T, self.P)))
        if np.any(drive):
            self.errors[n], _ = setting.error_and_output(
                self.weight, self.gain * self.kernel, f, self.outputs
            )
            f = self.diagonal(whole)
            left = np.max(np.abs(law.order([*self.outputs, f]) - self.errors[n]))
            scale = max(float(np.max(np.abs(x))) for x in (drive, self.errors[n]))
            if LEFT * scale < left <= LOST * scale:
                raise Diverged(
                    f"the error Delta at order {n} in gamma0 is not accurate: its equation has a relative "
                    f"rounding error of {left / scale:.1e}; use a lower order"
                )
            if left > LEFT * scale:
                raise NotApplicable(
                    f"the output does not depend on the error Delta at order {n} in gamma0 as it does at "
                    f"order 0: the equation of Delta has the residual {left:.1e}"
                )
        self.outputs.append(f)

    def remember(self, error: Array) -> None:
        """Set the error to an array (T, P), independent of gamma0, and clear the results of operations.

        The outputs that :meth:`advance` has stored stay.
        """
        self.plan = plan_of(self.layers, tuple(self.plan.numbers.items()), given=True)
        self.errors, self.known = [error], {}

    def output(self, n: int) -> Array:
        """Return order n in gamma0 of the output f, (T, P)."""
        return self.diagonal(self.plan.output(n)[1])

    def diagonal(self, x: Combination | None) -> Array:
        """Return the entries at equal times, (T, P), of a linear combination of operations; zero for None."""
        total = np.zeros((self.T, self.P))
        for i, c in {} if x is None else x.terms.items():
            value = self.step(i)
            assert isinstance(value, SeparableKernel)
            total += c * value.diagonal().reshape(self.T, self.P)
        return total

    # -- values ----------------------------------------------------------------------------------------

    def tangent(self, n: int, out: Times, into: Array) -> None:
        """Write order n in gamma0 of the tangent kernel to the array ``into``, (out, P, out, P).

        ``out`` are the positions of the times that are kept. The kernel is a sum of products of factors G and
        H entry by entry. A few times are computed at once, so that products and sums stay in the cache of the
        processor.
        """
        pairs = []
        for x, y in self.plan.tangent.at(n):
            left, right = self.array(x), self.array(y)
            assert isinstance(right, SeparableKernel)
            (_, rows, k), m = right.left.shape, len(right.core.T)
            one = None if left is None else left.at(out)[:, 0, :, 0].repeat(rows, axis=1)[:, None]
            a = (right.left[out].reshape(-1, k) @ right.core).reshape(-1, rows, m)
            pairs.append((one, a, right.right[out].reshape(-1, m).T))
        T, rows = into.shape[:2]
        flat = into.reshape(T, rows, -1)
        many = max(1, CACHED // (rows * flat.shape[2]))
        buffer = np.empty((many, *flat.shape[1:]))
        for first in range(0, T, many):
            target = flat[first : first + many]
            for number, (one, a, b) in enumerate(pairs):
                product = buffer[: len(target)] if number else target
                chunk = a[first : first + many]
                np.matmul(chunk.reshape(-1, len(b)), b, out=product.reshape(-1, b.shape[1]))
                if one is not None:
                    product *= one[first : first + many]
                if number:
                    target += product


class Densities(Closed):
    """Expansion of a closure in gamma0 for a gradient flow, with responses as densities in time.

    ``sums`` is the expansion in which integrals over time are sums over the nodes of ``grid``, so that
    responses contain quadrature weights. Here the weights are divided out, and products of responses are
    integrals by quadrature. Correlations are taken from ``sums``.
    """

    def __init__(self, sums: Closed, setting: Setting, grid: TimeGrid) -> None:
        given = setting.problem.program, setting.numbers, grid.nodes
        kept = tables_of(*given, np.tri(sums.T))["w"]
        whole = float(np.sum(setting.tables["w"][-1]))
        plain = {name: kept * (float(np.sum(w[-1])) / whole) for name, w in sums.memory.items()}
        super().__init__(sums.plan.densities, plain, sums.kernel)
        self.sums, self.weights, self.errors = sums, list(interval_weights(grid.nodes)), sums.errors

    def carried_out(self, what: str, *of: Any) -> LayerOperator:
        """Carry out one operation of the plan and return its result.

        ``what`` names the operation and ``of`` are its operands, as in :meth:`Closed.carried_out`.
        Correlations ("external") are taken from the expansion with sums over nodes.
        """
        value = self.sums.value(*of) if what == "external" else super().carried_out(what, *of)
        assert value is not None
        return value

    def multiply(self, a: LayerOperator, b: LayerOperator) -> LayerOperator:
        """Return the operator product ``a b``: an integral over the inner time if both are densities."""
        if isinstance(a, Dense) and isinstance(b, Dense):
            return Dense(convolved(a.block, b.block, self.weights))
        return multiplied(a, b)


class OrderByOrder:
    """Coefficients up to ``order`` in gamma0 of the results of a linear network, on one time grid.

    They follow from the equations of its closure, one order after another.
    """

    def __init__(self, setting: Setting, closure: LinearClosure, order: int) -> None:
        self.setting, self.order = setting, order
        self.closed = Closed.of(setting, closure)
        for _ in range(order + 1):
            self.closed.advance(setting)
        plan, layers = self.closed.plan, range(1, setting.depth + 1)
        family = [plan.operator(x, k) for x in plan.layers.laws for k in layers]
        self.orders = [n for n in range(order + 1) if any(x.at(n) is not None for x in family)]
        self.notes: dict[str, Any] = {}

    def watched(self) -> Array:
        """Return the error at every order in gamma0 and every time, (order + 1, T, P)."""
        return np.stack(self.closed.errors)

    def values(self) -> dict[str, Array]:
        """Return the coefficients of each result variable by its name.

        The first axis of each array is the order in gamma0, without orders at which all order parameters
        vanish. The times are all times of the problem.
        """
        P, closed, grid = self.closed.P, self.closed, self.setting.grid
        out: Times = slice(None) if grid is None else grid.outputs
        source = closed if grid is None else Densities(closed, self.setting, grid)

        orders, depth, T = self.orders, self.setting.depth, len(self.setting.problem.times)

        def read(name: str, evaluation: Closed, rows: int, cols: int) -> Array:
            """Return all orders and layers of the order parameter ``name`` from ``evaluation``.

            The shape is (orders, layers, times t, rows, times s, cols), with ``rows`` samples at t and
            ``cols`` at s.
            """
            values = np.zeros((len(orders), depth, T, rows, T, cols))
            for (i, n), k in product(enumerate(orders), range(depth)):
                if (x := evaluation.value(name, n, k + 1)) is not None:
                    x.at(out, values[i, k])
            return values

        tangent = np.zeros((len(orders), T, P, T, P))
        for n, into in zip(orders, tangent, strict=True):
            closed.tangent(n, out, into)
        kernels = {
            FEATURE_KERNEL: read(LINEAR_KERNEL, closed, P, P).swapaxes(3, 4),
            GRADIENT_KERNEL: read(GRADIENT_KERNEL, closed, 1, 1)[:, :, :, 0, :, 0],
            FORWARD_RESPONSE: read(FORWARD_RESPONSE, source, P, 1)[..., 0].swapaxes(3, 4),
            BACKWARD_RESPONSE: read(BACKWARD_RESPONSE, source, 1, P)[:, :, :, 0],
            "tangent_kernel": tangent.swapaxes(2, 3),
        }
        error, f = self.watched()[:, out], np.stack(self.closed.outputs)[:, out]
        return parted(self.setting.problem, error, f, kernels, self.orders)


def memories(setting: Setting, closure: LinearClosure) -> dict[str, Array]:
    """Return, by the name of each memory kernel, the weight of an update at s in fields at t, (T, T).

    ``closure`` defines the kernels; numbers and times are those of ``setting``.
    """
    causal = [k for k in closure.kernels if k.causal and k.definition != 0]
    weights = {k.name: memory_weight(k, ERROR, tuple(setting.tables)) for k in causal}
    known = setting.numbers, setting.times, setting.tables
    tables = {weight: time_table(weight, *known) for weight in set(weights.values())}
    return {name: tables[weight] for name, weight in weights.items()}
