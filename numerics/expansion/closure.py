"""Coefficients of the expansion in gamma0 of a linear network, from its closure's recursion in the layer.

The number of operator words (products of kernels) in the expansion grows by ten or more with each power of
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

    ``base`` maps each operator to the layer where it is given and to its value there; ``laws`` maps it to its
    right-hand side at each layer; ``made_of`` maps each kernel to its responses and to the correlations that
    the error multiplies in it; ``products`` are the terms of the tangent kernel as (left, right), each by
    name and layer or as data.
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
        """Names of the operators that are correlations; the others are responses."""
        return [x for x in self.laws if self.base.get(x, (0, 0))[1] != 0]

    @cached_property
    def constants(self) -> list[Symbol]:
        """Symbols that need numbers in the equations, except gamma0."""
        equations = [self.average, *(e for law in self.laws.values() for e in law.values())]
        return sorted({x for e in equations for x in e.free_symbols if x.is_commutative} - {gamma0}, key=str)

    def is_correlation(self, x: Expr) -> bool:
        """Return whether an operator is a correlation or a data kernel, and so stored with low rank."""
        return bool(x.is_Symbol) or place_of(x)[0] in self.correlations

    def inwards(self, name: str) -> list[int]:
        """Return the layers in the order in which an operator is computed, from the end where it is given."""
        place = self.base[name][0]
        return sorted(range(1, self.depth + 1), key=lambda k: abs(k - place))


@lru_cache(maxsize=64)
def layers_of(closure: LinearClosure, depth: int) -> ClosureLayers:
    """Return the equations of a closure for each layer of a network of this depth.

    Raises NotApplicable for a closure without a family of layers.
    """
    if closure.layers is None:
        raise NotApplicable("the expansion needs a family of layers: derive the theory at symbolic depth")
    upper, every = closure.layers.upper, range(1, depth + 1)

    def site(e: Expr | int) -> int:
        """Return an expression for a layer as an integer, at this depth."""
        return int(sympify(e).subs(upper, depth))

    def place(a: AppliedUndef, layer: int) -> OperatorAtLayer:
        """Return the name and the layer of the order parameter ``a`` in an equation at ``layer``."""
        return str(a.func), site(a.args[0].subs(ell, layer))

    def factor(a: AppliedUndef | None, layer: int) -> Expr | OperatorAtLayer:
        """Return a factor of the tangent kernel by name and layer, or the operator of a constant kernel."""
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
    """Plan of all orders of every operator at every layer: a list of operations on operators, without arrays.

    The error is found order by order, with the output f; or, with ``given``, it is an input that does not
    depend on gamma0.  ``errors`` maps orders to whether the error may differ from zero.  If another plan is
    given as ``base``, correlations are taken from it, and products of causal operators are taken one after
    another.
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
        """Return the series of an operator in an equation: a kernel of the data, or ``X[layer]``."""
        return self.constant(x) if x.is_Symbol else self.operator(*place_of(x))

    def constant(self, x: Expr) -> Stream:
        """Return the series of a kernel that does not depend on gamma0: only its order 0 is not zero."""
        value = self.tape.constant(x, samples=x != J)
        return Stream(lambda n: value if n == 0 else None)

    def operator(self, name: str, site: int) -> Stream:
        """Return the series of the operator ``name`` at a layer, the same object at every call."""
        if (name, site) not in self.operators:
            self.operators[name, site] = self.stream(name, site)
        return self.operators[name, site]

    def stream(self, name: str, site: int) -> Stream:
        """Return a new series of the operator ``name`` at a layer, from its given value or its equation."""
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
            """Return the coefficient of order n of the operator from its equation; None for zero."""
            # The series is built when it is first needed, because equations of other layers may refer to this
            # one.
            if not inner:
                inner.append(self.algebra.series(laws[name][site]))
            coefficient: Combination | None = inner[0].at(n)
            return coefficient

        return Stream(rule) if name in self.layers.correlations else self.algebra.new(rule)

    def remembering(self, name: str, site: int) -> Stream:
        """Return the series of a kernel: a response, plus correlations times the error."""
        kernel = self.layers.kernels[name]
        responses, memories = (
            [self.operator(*x) for x in places] for places in self.layers.made_of[name, site]
        )

        def rule(n: int) -> Combination | None:
            """Return order n of the kernel: responses, plus products of errors and correlations."""
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
        """Return two operators (rest, whole) of order n: the diagonal of ``whole`` is the output f_n.

        ``rest`` leaves out the contribution of the error of order n.

            f_n = [average]_(n+1) ,    Delta_n is zero unless rest, or some Delta_k Delta_(n-k), is not

        because the error's order n is made of products of the output's lower orders.
        """
        while n >= len(self.outputs):
            now = len(self.outputs)
            self.algebra.forget(now)
            for name in self.layers.correlations:
                for site in self.layers.inwards(name):
                    # Evaluate order `now` of the operator before the error of this order. This is possible
                    # because correlations need the error at lower orders only.
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
        """Plan for the responses of a flow as densities in time, with the correlations of this plan."""
        return ClosurePlan(self.layers, self.numbers, base=self)

    def entrywise(self, n: int) -> list[tuple[Combination | None, Combination]]:
        """Return order n of the tangent kernel, ``sum_k G_k H_(n-k)`` entry by entry, as pairs of factors.

        The kernel is the sum over pairs; None as first factor stands for the kernel 1.  Common factors are
        taken out of the sum, the most frequent first.
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
    """Return the plan for the equations of all layers and the numbers of their constants, cached."""
    return ClosurePlan(layers, dict(numbers), given)


class Closed:
    """Arrays of the operators of a plan on one time grid of T times, for P samples.

    ``memory[C]`` is the weight of past updates in the kernel C, (T, T); ``kernel`` the kernel of the data,
    (P, P).
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
        """Return the evaluation of a closure for the numbers, the depth and the data of a problem."""
        layers = layers_of(closure, setting.depth)
        numbers = tuple((x, setting.numbers[x]) for x in layers.constants)
        return cls(plan_of(layers, numbers), memories(setting, closure), setting.kernel)

    def upto(self, now: int | None = None) -> Closed:
        """Return the same equations on the first ``now`` times, with nothing computed yet."""
        return Closed(self.plan, {k: v[:now, :now] for k, v in self.memory.items()}, self.kernel)

    # -- operators -------------------------------------------------------------------------------------

    def value(self, name: str, n: int, site: int) -> LayerOperator | None:
        """Return order n of the operator ``name`` at a layer as an array; None if it vanishes."""
        return self.array(self.plan.operator(name, site).at(n))

    def array(self, x: Combination | None) -> LayerOperator | None:
        """Return a linear combination of results of recorded operations as an array; None stands for zero."""
        return None if x is None else summed([(c, self.step(i)) for i, c in x.terms.items()])

    def step(self, i: int) -> LayerOperator:
        """Return the result of the recorded operation number i, from the cache if it has been computed."""
        if i not in self.known:
            self.known[i] = self.carried_out(*self.plan.tape.steps[i])
        return self.known[i]

    def carried_out(self, what: str, *of: Any) -> LayerOperator:
        """Return the result of an operation ``what``, such as "product", on earlier results ``of``."""
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
        """Return the operator product ``a b``: matrix products over times and samples."""
        return multiplied(a, b)

    def constant(self, x: Expr) -> SeparableKernel:
        """Return the kernel of the data, or the kernel that is 1, as a time-independent operator."""
        if x == J:
            core = np.ones((1, 1))
        elif x == DATA:
            core = self.kernel
        else:
            raise NotApplicable(
                f"the closure contains the constant kernel {x}; only the kernel of the data is supported"
            )
        eye = np.broadcast_to(np.eye(len(core)), (self.T, *core.shape))
        return SeparableKernel(eye, core, eye)

    # -- the error -------------------------------------------------------------------------------------

    @cached_property
    def weight(self) -> Array:
        """Weight with which an update at time s enters fields at time t, (T, T)."""
        return next(iter(self.memory.values()))

    @cached_property
    def gain(self) -> float:
        """Factor in ``f_0(t) = gain K_x sum_s w(t, s) Delta_0(s)``, fitted to f_0 for a random error.

        Raises :class:`~derive.errors.NotApplicable` if f_0 depends on the error in another way.
        """
        some = np.linspace(0, self.T - 1, min(PROBED, self.T)).astype(int)
        lazy = Closed(self.plan, {k: v[np.ix_(some, some)] for k, v in self.memory.items()}, self.kernel)
        lazy.remember(np.random.default_rng(0).standard_normal((lazy.T, self.P)))
        # unit of kernels, without which squares of small kernels underflow
        size = float(np.max(np.abs(self.kernel))) or 1.0
        f, known = lazy.output(0) / size, lazy.weight @ lazy.errors[0] @ (self.kernel / size)
        # unit of outputs, without which their squares underflow after short times
        scale = float(np.max(np.abs(known))) or 1.0
        if scale < np.finfo(float).tiny:
            raise Diverged(
                f"the output, {scale:.0e} relative to the kernel, is below the smallest floating-point "
                "number, because the time is so short: a longer time would do"
            )
        f, known = f / scale, known / scale
        gain = float(np.vdot(known, f)) / max(float(np.vdot(known, known)), 1e-300)
        if np.max(np.abs(f - gain * known)) > LEFT * np.max(np.abs(f)):
            raise NotApplicable(
                "the output at order 0 is not a multiple of the data kernel times past errors"
            )
        return gain

    def advance(self, setting: Setting) -> None:
        """Compute the error and the output at the next order.

        f_n contains Delta_n as f_0 contains Delta_0: :attr:`gain` times the memory of the input kernel,
        because the average f is linear in the error at lowest order in gamma0.  The residual of its equation
        is checked. Raises :class:`~numerics.errors.Diverged`.
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
                    f"Delta at order {n} is not accurate: its equation has a rounding error of "
                    f"{left / scale:.1e}"
                )
            if left > LEFT * scale:
                raise NotApplicable(
                    f"the equation of the error at order {n} is not that of order 0: its residual is "
                    f"{left:.1e}"
                )
        self.outputs.append(f)

    def remember(self, error: Array) -> None:
        """Set the error to an array (T, P) that does not depend on gamma0, and clear the cache."""
        self.plan = plan_of(self.layers, tuple(self.plan.numbers.items()), given=True)
        self.errors, self.known = [error], {}

    def output(self, n: int) -> Array:
        """Return order n of the output f, (T, P)."""
        return self.diagonal(self.plan.output(n)[1])

    def diagonal(self, x: Combination | None) -> Array:
        """Return the entries at equal times, (T, P), of a linear combination of results."""
        total = np.zeros((self.T, self.P))
        for i, c in {} if x is None else x.terms.items():
            value = self.step(i)
            assert isinstance(value, SeparableKernel)
            total += c * value.diagonal().reshape(self.T, self.P)
        return total

    # -- values ----------------------------------------------------------------------------------------

    def tangent(self, n: int, out: Times, into: Array) -> None:
        """Write order n of the tangent kernel at output times to the array ``into``, (out, P, out, P).

            sum_i x_i(t, s) left_i(t) core_i right_i(s)^T ,

        for a few times t at once, so that products and sums stay in the cache.
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
    """Evaluation of the same plan for densities in time: integrals in place of sums over nodes.

    A memory of ``sums`` is the product of quadrature weights, of the part of an update at s that is still
    there at t (all of it without momentum), and of a constant factor, which follows from their sums.
    """

    def __init__(self, sums: Closed, setting: Setting, grid: TimeGrid) -> None:
        given = setting.problem.program, setting.numbers, grid.nodes
        kept = tables_of(*given, np.tri(sums.T))["w"]
        whole = float(np.sum(setting.tables["w"][-1]))
        plain = {name: kept * (float(np.sum(w[-1])) / whole) for name, w in sums.memory.items()}
        super().__init__(sums.plan.densities, plain, sums.kernel)
        self.sums, self.weights, self.errors = sums, list(interval_weights(grid.nodes)), sums.errors

    def carried_out(self, what: str, *of: Any) -> LayerOperator:
        """Return the result of an operation ``what`` on earlier results ``of``.

        Correlations are those that were computed by sums over nodes.
        """
        value = self.sums.value(*of) if what == "external" else super().carried_out(what, *of)
        assert value is not None
        return value

    def multiply(self, a: LayerOperator, b: LayerOperator) -> LayerOperator:
        """Return the operator product ``a b``, by quadrature in time for two causal operators."""
        if isinstance(a, Dense) and isinstance(b, Dense):
            return Dense(convolved(a.block, b.block, self.weights))
        return multiplied(a, b)


class OrderByOrder:
    """Coefficients up to ``order`` of a linear network on one time grid, from its closure."""

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
        """Return the error at every order and time, (order + 1, T, P)."""
        return np.stack(self.closed.errors)

    def values(self) -> dict[str, Array]:
        """Return each result variable by name at output times, with the orders that do not vanish first."""
        P, closed, grid = self.closed.P, self.closed, self.setting.grid
        out: Times = slice(None) if grid is None else grid.outputs
        source = closed if grid is None else Densities(closed, self.setting, grid)

        orders, depth, T = self.orders, self.setting.depth, len(self.setting.problem.times)

        def read(name: str, evaluation: Closed, rows: int, cols: int) -> Array:
            """Return the operator ``name``, (orders, layers, times t, rows, times s, columns)."""
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
    """Return the weight of past updates in each causal kernel, (T, T), by the name of the kernel."""
    causal = [k for k in closure.kernels if k.causal and k.definition != 0]
    weights = {k.name: memory_weight(k, ERROR, tuple(setting.tables)) for k in causal}
    known = setting.numbers, setting.times, setting.tables
    tables = {weight: time_table(weight, *known) for weight in set(weights.values())}
    return {name: tables[weight] for name, weight in weights.items()}
