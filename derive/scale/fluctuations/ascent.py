"""Gradient ascent of the output of a linear network on one sample: its Taylor coefficients at finite width.

With one sample a gradient flow moves weights along the gradient of the output, at a speed that is the error.
In the time ``tau``, the integral of the error, every network follows the ascent of its own output ``F(tau)``,
for any target. From the derived fluctuations of steps with an error of one the module derives the means of
the Taylor coefficients of F and N times their covariances over networks (N Cov), exactly, for a number of
layers or as polynomials of it. :mod:`derive.scale.fluctuations.feature_learning` uses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from math import comb
from typing import Any

from sympy import Add, Expr, Integer, Mul, Poly, S, factor, interpolate, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.sums import match, substitute
from derive.calculus.symbols import IndexRange, L, eta, gamma0, primed, s, t
from derive.errors import NotApplicable, require_integer
from derive.program.nonlinear import require_linear_rules
from derive.program.program import Program
from derive.program.rules import GradientDescent
from derive.theory.fluctuations import FluctuatingParameter, Fluctuations, Hatted, fluctuations

BITS = 160
"""Bits of each coefficient in an integer that represents a truncated polynomial in the learning rate."""

Key = tuple[str, tuple[int, ...]]
"""Name and integer arguments of a field, product or order parameter."""


@dataclass(frozen=True)
class AscentCoefficients:
    """Taylor coefficients ``c_n`` of the output F under gradient ascent of the output, in the time tau.

    tau is the integral of the error over training time.

    Parameters
    ----------
    depth : Expr
        Number of hidden layers, or ``L``.
    means : dict[int, Expr]
        Means of ``c_n`` at infinite width, by odd n. They vanish for even n.
    covariances : dict[tuple[int, int], Expr]
        N times the covariances of ``c_m`` and ``c_n``, by (m, n) with ``m <= n`` and an even sum.

    Notes
    -----
    ``F(tau) = sum_n c_n gamma0^(n - 1) K_x^((n + 1)/2) tau^n / n!``, with the kernel K_x of the input.
    """

    depth: Expr
    means: dict[int, Expr]
    covariances: dict[tuple[int, int], Expr]

    def covariance(self, m: int, n: int) -> Expr:
        """Return N times the covariance of the Taylor coefficients ``c_m`` and ``c_n``.

        Parameters
        ----------
        m : int
            Order of the first coefficient in the ascent time tau.
        n : int
            Order of the second coefficient.

        Returns
        -------
        Expr
            N times the covariance over networks.

        Raises
        ------
        KeyError
            If ``m + n`` is odd, or above the order to which the coefficients were derived.
        """
        pair = (min(m, n), max(m, n))
        if pair not in self.covariances:
            raise KeyError(
                f"there is no covariance of c_{m} and c_{n}; the pairs (m, n) with a covariance are "
                f"{[*self.covariances]}"
            )
        return self.covariances[pair]


def in_small_steps(program: Program) -> Program:
    """Return the program trained in exact steps of the learning rate eta; its flow is the limit eta -> 0.

    The symbol eta replaces the learning rate of a program in steps; the rate of a flow is multiplied by eta.
    Raises NotApplicable for weights with decay, memory or noise, and for learning rates that differ between
    weights or depend on time.
    """
    require_linear_rules(program, "steps of small rates")
    rules = {w.rule for w in program.trained()}
    memory = {tuple(map(sympify, rule.memory(t, s))) for rule in rules}
    ((start, weight),) = memory if len(memory) == 1 else {(S.Zero, S.Zero)}
    noise = any(rule.noise(t, s) != 0 for rule in rules)
    if start != 1 or weight.has(t, s) or noise:
        raise NotApplicable(
            "at least one weight must be trained, and all trained weights by gradient descent or flow with "
            "one constant learning rate, without decay, momentum or noise"
        )
    summed_weight = weight.subs(program.roles.samples, 1) if program.roles.samples is not None else weight
    return program.with_rule(GradientDescent(eta if program.rule.discrete else eta * summed_weight))


@lru_cache(maxsize=32)
def ascent_coefficients(program: Program, order: int = 4) -> AscentCoefficients:
    """Return means and N Cov of the Taylor coefficients of the ascent of the output.

    Parameters
    ----------
    program : Program
        Linear network on fixed data, of which one sample is used, with natural numbers for its constants; its
        depth is a number or ``L``.
    order : int, optional
        Covariances of coefficients m and n are derived for ``m + n`` up to this, and means of coefficients up
        to ``order + 1``.

    Returns
    -------
    AscentCoefficients
        Coefficients; for a symbolic depth polynomials through the values at depths 1, 2, ..., which two more
        depths confirm.

    Raises
    ------
    NotApplicable
        If there is not exactly one output with an error on samples, if fields are not linear in products of
        weights, for biases, if constants are not natural numbers (such as those of layers of different
        widths), if weights decay or have rules with memory or noise, if the depth is neither a number nor
        ``L``, or if coefficients up to depth 12 are not polynomials in the depth.
    ValueError
        If the order is negative or not an integer.

    Notes
    -----
    Steps with an error of one and the rate eta are polynomials in eta. The n-th difference over steps of the
    output has ``c_n eta^n`` as its first term, because to leading order a step is ``exp(eta d/dtau)``.

    Examples
    --------
    >>> from derive.program import mlp
    >>> found = ascent_coefficients(mlp(1), 2)
    >>> found.means, found.covariances
    ({1: 2, 3: 8}, {(0, 0): 1, (1, 1): 4, (0, 2): 4})
    """
    order = require_integer("order", order, 0)
    steps = in_small_steps(program)
    if program.depth.is_Integer:
        return _at_depth(steps, order)
    if program.depth != L:
        raise NotApplicable(f"depth = {program.depth}: must be a number or L")
    values: list[AscentCoefficients] = []
    while True:
        values.append(_at_depth(steps.at_depth(len(values) + 1), order))
        fitted = _interpolated(values)
        if fitted is not None:
            return fitted


CONFIRMING = 2
"""Depths beyond those that determine a polynomial of the depth, at which it must hold."""
DEEPEST = 12
"""The largest depth at which coefficients are computed."""


def _interpolated(values: list[AscentCoefficients]) -> AscentCoefficients | None:
    """Return Taylor coefficients as polynomials in the number of layers L, from values at L = 1, 2, ....

    Returns None if there are too few depths to determine and confirm the polynomials. Raises NotApplicable
    for more than ``DEEPEST`` depths.
    """
    if len(values) > DEEPEST:
        raise NotApplicable(
            f"the coefficients of networks of 1 to {DEEPEST} layers are not polynomials of a degree below "
            f"{DEEPEST - CONFIRMING} in the depth: give a number of layers"
        )
    first = values[0]
    means = {n: _polynomial([x.means[n] for x in values]) for n in first.means}
    pairs = {mn: _polynomial([x.covariances[mn] for x in values]) for mn in first.covariances}
    if any(x is None for x in (*means.values(), *pairs.values())):
        return None
    return AscentCoefficients(L, {n: S(x) for n, x in means.items()}, {mn: S(x) for mn, x in pairs.items()})


def _polynomial(values: list[Expr]) -> Expr | None:
    """Return the polynomial in L that has these values at L = 1, 2, ....

    Returns None unless its degree is low enough that the last values confirm it.
    """
    if len(values) <= CONFIRMING + 1:
        return None
    polynomial = interpolate(values, L)
    degree = Poly(polynomial, L).degree()
    return factor(polynomial) if degree < len(values) - CONFIRMING else None


def _at_depth(program: Program, order: int) -> AscentCoefficients:
    """Return the Taylor coefficients of the output for a program whose number of layers is known.

    Covariances of the coefficients m and n are included for even ``m + n`` up to ``order``, and means for odd
    n up to ``order + 1``.
    """
    theory = DrivenSteps(fluctuations(program), order)
    _require_scaling(theory.theory)
    one_more_order = DrivenSteps(theory.theory, order + 1)
    means = {n: one_more_order.mean(n) for n in range(1, order + 2, 2)}
    pairs = [(m, n) for n in range(order + 1) for m in range(n + 1) if m + n <= order and (m + n) % 2 == 0]
    return AscentCoefficients(
        program.depth, {n: Integer(x) for n, x in means.items()}, {x: theory.covariance(*x) for x in pairs}
    )


def _require_scaling(theory: Fluctuations) -> None:
    """Raise NotApplicable unless Taylor coefficients scale with gamma0 and the input kernel K_x as stated.

    The scaling is that in :class:`AscentCoefficients`. With outputs, responses and the learning rate in units
    of 1/gamma0, gamma0 must drop out of the exponent of the path integral. Powers of K_x are checked at two
    values.
    """
    names = {str(q.symbol.func): q for q in theory.parameters}
    for x in theory.terms:
        e = x.addend.expr
        responses = [
            a for a in e.atoms(AppliedUndef) if getattr(names.get(str(a.func)), "kind", "") == "response"
        ]
        scaled = e.xreplace({eta: eta / gamma0, **{a: a / gamma0 for a in responses}})
        if scaled.has(gamma0):
            raise NotApplicable(
                f"with the learning rate and each response in units of 1/gamma0, the term {e} must not "
                "contain gamma0"
            )
    for q in theory.parameters:
        unit = q.unit * (gamma0 if q.kind in ("response", "mean") else 1)
        if unit.expand().has(gamma0):
            raise NotApplicable(
                f"the order parameter {q.symbol} must be proportional to 1/gamma0 if it is a response or a "
                "mean, and independent of gamma0 otherwise"
            )
    one, four = DrivenSteps(theory, 2), DrivenSteps(theory, 2, kernel=4)
    for m, n in ((0, 0), (1, 1), (0, 2)):
        if four.covariance(m, n) != 4 ** ((m + n) // 2 + 1) * one.covariance(m, n):
            raise NotApplicable(
                f"the covariance of the Taylor coefficients {m} and {n} of the output under gradient ascent "
                f"must be proportional to the power {(m + n) // 2 + 1} of the kernel of the inputs, as in a "
                "linear network without biases"
            )


UnitVariable = tuple[bool, Key]
"""A product of weights and a vector (False, key), or its conjugate variable, the hat (True, key)."""


@dataclass(frozen=True)
class WeightedPair:
    """Term ``weight x_first x_second`` in the exponent of the path integral of one unit.

    ``first`` and ``second`` are the variables x. Each is a field or a response field ("hat"): a pair (True
    for a hat, name with indices). ``parameter`` is the order parameter that multiplies the term, None without
    one; in :meth:`DrivenSteps.units` it is the order parameter that averages the term. ``weight`` is a
    polynomial in eta, stored as one integer.
    """

    weight: int
    first: UnitVariable
    second: UnitVariable
    parameter: Key | None = None


class DrivenSteps:
    """Exact fluctuations of a linear network on one sample, in steps whose errors are all set to 1.

    All results are polynomials in the learning rate eta, stored as integers in base ``2^BITS`` and truncated
    above a degree. The products of weights and vectors of a unit are Gaussian, with covariances ``C`` and
    responses ``R`` that follow step by step from their equations. Averages of four variables are sums over
    pairings (Wick).

    Parameters
    ----------
    theory : Fluctuations
        Fluctuations of a linear network in steps, with a known number of layers.
    degree : int
        Largest power of eta that is kept.
    kernel : int
        Kernel of the input with itself.
    """

    def __init__(self, theory: Fluctuations, degree: int, kernel: int = 1) -> None:
        self.theory, self.degree = theory, degree
        self.mask = (1 << BITS * (degree + 1)) - 1
        program = theory.program
        roles = program.roles
        if roles.output is None or roles.error is None or roles.samples is None:
            raise NotApplicable(
                "the program must have exactly one trained output, a number for each sample such as f(mu, "
                "t), with an error: give a program on fixed samples, such as mlp()"
            )
        self.output, self.samples = str(roles.output.func), S(roles.samples)
        self.data = {str(roles.error.func): S.One, **{x.kernel: S(kernel) for x in program.given}}
        self.parameters = {(str(q.symbol.func), len(q.symbol.args)): q for q in theory.parameters}
        self.products = {str(e.symbol.func) for e in theory.products}
        self.site: dict[Key, tuple[str, int]] = {}
        self.memory: dict[Key, list[WeightedPair]] = {}
        self.sources: dict[tuple[str, int], list[tuple[Key, Key, WeightedPair]]] = {}
        self.influences: dict[tuple[str, int], list[WeightedPair]] = {}
        self._C: dict[tuple[Key, Key], int] = {}
        self._R: dict[tuple[Key, Key], int] = {}
        self._means: dict[Key, int] = {}
        self._units: dict[Key, list[WeightedPair]] = {}
        self._rows: dict[Key, dict[Key, int]] = {}
        self._outputs: dict[tuple[int, int], int] = {}
        self._known: dict[Key, list[tuple[int, Key]]] = {}
        self._write()

    # -- the equations, written out --------------------------------------------------------------------------

    def _write(self) -> None:
        """Write out the terms of the exponent at all layers and times, and the population of each product.

        ``site`` has the population and layer of each product, ``memory`` the memory terms of its equation;
        ``sources`` and ``influences`` have, by population and layer, the covariances of sources and the terms
        that contain an order parameter.
        """
        for e, home in zip(self.theory.products, self.theory.homes, strict=False):
            for at in self._values(e.ranges):
                layer = S(0 if home.site is None or home.shared else home.site).subs(at)
                for time in range(self.degree + 1):
                    self.site[self._key(e.symbol, {**at, t: time})] = home.name, int(layer)
        for x in self.theory.terms:
            if len(x.hats) == 1 and str(x.hats[0].field.func) not in self.products:
                continue
            weight, atoms = self._split(x.addend.expr)
            for at in self._values(x.addend.over):
                for now, past in self._times(x.addend.reach):
                    self._add(x, weight, atoms, {**at, t: now, s: past})

    def _add(self, x: Any, weight: int, atoms: list[AppliedUndef], at: dict[Any, int]) -> None:
        """Store one term of the exponent, written out at given values of layers and times.

        ``x`` is the term, ``weight`` its factor (a polynomial in eta), ``atoms`` are its fields and order
        parameters, and ``at`` has the values. A term with two response fields (hats) is a source covariance;
        one with a single hat is a memory term in the equation of the product of a weight and a vector to
        which this hat is conjugate.
        """
        names = [self._key(a, at) for a in atoms if str(a.func) not in self.fields]
        parameter = self._canonical(names[0]) if names else None
        first = self._key(x.hats[0].field, at)
        if len(x.hats) == 2:
            second = self._key(x.hats[1].field, at)
            symmetric = x.hats[0].field.func == x.hats[1].field.func
            if symmetric and first < second:
                # Both response fields are those of one field. The term has a factor 1/2 and is written out in
                # both orders of the pair, (first, second) and (second, first). Only one of them is stored.
                return
            pair = WeightedPair(weight, (True, first), (True, second), parameter)
            for u, v in dict.fromkeys([(first, second), (second, first)]):
                self.sources.setdefault(self.site[u], []).append((u, v, pair))
            self._influence(pair)
            return
        (field,) = (a for a in atoms if str(a.func) in self.fields)
        for factor_, source in self._in_products(field, at):
            pair = WeightedPair(factor_ * weight & self.mask, (True, first), (False, source), parameter)
            self.memory.setdefault(first, []).append(pair)
            self._influence(pair)

    def _influence(self, pair: WeightedPair) -> None:
        """Store a term of the exponent under its population and layer if it contains an order parameter.

        The other factors of the term are the derivative of the exponent by this order parameter.
        """
        if pair.parameter is not None:
            self.influences.setdefault(self.site[pair.first[1]], []).append(pair)

    @cached_property
    def fields(self) -> set[str]:
        """Names of all fields of the units, including those of products of a weight and a vector."""
        return self.products | {e.name for e in self.theory.definitions}

    def _times(self, reach: str) -> Iterator[tuple[int, int]]:
        """Yield all pairs (t, s) of times in a sum over s whose range is named by ``reach``.

        ``all`` is every s, ``strict`` is ``s < t``, ``past`` is ``s <= t``, and an empty string is ``s = t``.
        Times run from 0 to the degree.
        """
        for now, past in product(range(self.degree + 1), repeat=2):
            kept = {"all": True, "strict": past < now, "past": past <= now, "": past == now}
            if kept[reach]:
                yield now, past

    def _values(self, ranges: Iterable[IndexRange]) -> list[dict[Any, int]]:
        """Return all combinations of values of the indices of ``ranges``, each as a dictionary by index.

        An index of samples has only the value 1.
        """
        values: list[dict[Any, int]] = [{}]
        for r in ranges:
            upper = 1 if r.upper == self.samples else int(r.upper)
            values = [{**at, r.index: k} for at in values for k in range(int(r.lower), upper + 1)]
        return values

    def _key(self, a: AppliedUndef, at: Mapping[Any, int]) -> Key:
        """Return (name, integer arguments) of a field or order parameter, with numbers for indices and times.

        ``at`` has the number of each index and time symbol in the arguments of ``a``.
        """
        name, arguments = _linear_arguments(a)
        return name, tuple(sum(c * at[x] if x is not None else c for x, c in terms) for terms in arguments)

    def _split(self, e: Expr) -> tuple[int, list[AppliedUndef]]:
        """Return a monomial as its factor and a list of its fields and order parameters.

        The factor is a polynomial in eta, stored as one integer. Errors, data and gamma0 are replaced by
        numbers. Raises NotApplicable for more than one field or more than one order parameter.
        """
        data = {a: self.data[str(a.func)] for a in e.atoms(AppliedUndef) if str(a.func) in self.data}
        weight, atoms = S.One, list[AppliedUndef]()
        for x in Mul.make_args(e.xreplace({**data, gamma0: S.One})):
            if isinstance(x, AppliedUndef):
                atoms.append(x)
            else:
                weight *= x
        field_count = sum(str(a.func) in self.fields for a in atoms)
        if weight.has(AppliedUndef) or field_count > 1 or len(atoms) - field_count > 1:
            raise NotApplicable(
                f"the term {e} must be a polynomial in eta times at most one field and at most one order "
                "parameter, as in a linear network"
            )
        return self._polynomial(weight), atoms

    def _polynomial(self, e: Expr) -> int:
        """Return a polynomial in eta with natural coefficients as one integer in base ``2^BITS``.

        Raises NotApplicable for other coefficients. Powers above the degree are dropped.
        """
        p = Poly(e, eta)
        if not all(c.is_Integer and c >= 0 for c in p.coeffs()):
            raise NotApplicable(
                "the factor of each term must be a polynomial in eta with natural numbers as coefficients, "
                f"as for one output and constants that are natural numbers; a term has the factor {e}"
            )
        return int(sum(int(c) << BITS * n for (n,), c in p.terms())) & self.mask

    def _in_products(self, field: AppliedUndef, at: Mapping[Any, int]) -> list[tuple[int, Key]]:
        """Return a field as a linear combination of products of a weight and a vector, as pairs.

        A pair is (factor, key of the product), where a key is (name, integer arguments). ``at`` has the
        values of the indices of the field.
        """
        key = self._key(field, at)
        if key[0] in self.products:
            return [(1, key)]
        if key not in self._known:
            self._known[key] = self._defined(field.func(*map(Integer, key[1])))
        return self._known[key]

    def _defined(self, atom: AppliedUndef) -> list[tuple[int, Key]]:
        """Return the definition of a field as a linear combination of products of a weight and a vector.

        The result lists (factor, key of the product). Raises NotApplicable for a field that is not linear in
        them.
        """
        products = []
        for e in self.theory.definitions:
            binding = match(e.symbol, atom, e.ranges)
            for term in Add.make_args(substitute(e.rhs, binding)) if binding is not None else []:
                weight, atoms = self._split(term)
                if len(atoms) != 1:
                    raise NotApplicable(
                        f"the field {e.symbol} must be a sum of products of a weight and a vector, with "
                        f"numbers as factors; its term {term} is not of this form"
                    )
                products += [
                    (weight * factor_ & self.mask, key) for factor_, key in self._in_products(atoms[0], {})
                ]
        return products

    def _canonical(self, key: Key) -> Key:
        """Return the key (name, arguments) of an order parameter in standard order.

        The later time stands first if the order parameter is symmetric in its two times.
        """
        q = self.parameters[key[0], len(key[1])]
        if q.kind != "correlation" or not _is_symmetric(q):
            return key
        return key[0], (*key[1][:-2], max(key[1][-2:]), min(key[1][-2:]))

    def units(self, key: Key) -> list[WeightedPair]:
        """Return the function of one unit whose average an order parameter is, as a list of weighted pairs.

        Each pair is a product of two variables, fields or response fields (hats), with a factor. ``key`` is
        the name and the integer arguments of the order parameter. Raises NotApplicable if it is not an
        average of a product of two variables.
        """
        if key not in self._units:
            q = self.parameters[key[0], len(key[1])]
            at = match(q.symbol, q.symbol.func(*map(Integer, key[1])), q.ranges) or {}
            body = substitute(q.unit, at).xreplace({gamma0: S.One})
            hats = [x for x in Mul.make_args(body) if isinstance(x, Hatted)]
            atoms = [x for x in Mul.make_args(body) for _ in range(_power(x)) if not isinstance(x, Hatted)]
            fields = [self._in_products(x.base if x.is_Pow else x, {}) for x in atoms if x.has(AppliedUndef)]
            weight = self._polynomial(Mul(*[x for x in Mul.make_args(body) if not x.has(AppliedUndef)]))
            factors: list[list[tuple[int, UnitVariable]]] = [[(w, (False, k)) for w, k in f] for f in fields]
            factors += [[(1, (True, self._key(x.field, {})))] for x in hats]
            if len(factors) != 2:
                raise NotApplicable(
                    f"the order parameter {q.symbol} must be an average of a product of two fields or "
                    "response fields"
                )
            self._units[key] = [
                WeightedPair(weight * a * b & self.mask, x, y, key) for (a, x), (b, y) in product(*factors)
            ]
        return self._units[key]

    # -- infinite width --------------------------------------------------------------------------------------

    def value(self, x: WeightedPair) -> int:
        """Return the factor of a term of the exponent: its weight times the mean of its order parameter."""
        return x.weight if x.parameter is None else x.weight * self.parameter_mean(x.parameter) & self.mask

    def parameter_mean(self, key: Key) -> int:
        """Return the mean of an order parameter at infinite width, a polynomial in eta stored as an integer.

        ``key`` is its name with integer arguments.
        """
        if key not in self._means:
            terms = (x.weight * self.V(x.first, x.second) for x in self.units(key))
            self._means[key] = sum(terms) & self.mask
        return self._means[key]

    def R(self, a: Key, b: Key) -> int:
        """Return the response of product a to a perturbation added to the equation of product b.

        A product is a weight matrix times a vector, for one unit, named by its key. The response is zero for
        other units and for a later perturbation. The value is a polynomial in eta stored as an integer.
        """
        if self.site[a] != self.site[b] or b[1][-1] > a[1][-1]:
            return 0
        if (a, b) not in self._R:
            parts = [self.value(x) * self.R(x.second[1], b) for x in self.memory.get(a, ())]
            self._R[a, b] = (sum(parts) + (a == b)) & self.mask
        return self._R[a, b]

    def C(self, a: Key, b: Key) -> int:
        """Return the covariance of the products a and b (weight matrix times vector) in one unit.

        It is ``R Sigma R^T``, with the responses R and the covariance Sigma of sources; zero for different
        units.
        """
        if self.site[a] != self.site[b]:
            return 0
        if (a, b) not in self._C:
            total = 0
            for u, v, x in self.sources.get(self.site[a], ()):
                responses = self.R(a, u) * self.R(b, v)
                total += responses * self.value(x) if responses else 0
            self._C[a, b] = self._C[b, a] = total & self.mask
        return self._C[a, b]

    def V(self, a: UnitVariable, b: UnitVariable) -> int:
        """Return the covariance of two variables of one unit, each a product or a response field (hat).

        Two products have the covariance C, a product and a hat the response R, and two hats zero.
        """
        if a[0] and b[0]:
            return 0
        if a[0] or b[0]:
            return self.R(b[1], a[1]) if a[0] else self.R(a[1], b[1])
        return self.C(a[1], b[1])

    # -- fluctuations ----------------------------------------------------------------------------------------

    def row(self, key: Key) -> dict[Key, int]:
        """Return the derivatives of the mean of an order parameter with respect to order parameters.

        The result is a row of the matrix D of direct derivatives. Its keys are the order parameters with a
        nonzero derivative.
        """
        if key not in self._rows:
            derivatives: dict[Key, int] = {}
            for x in self.units(key):
                for y in self.influences.get(self.site[x.first[1]], ()):
                    slope = self.V(x.first, y.first) * self.V(x.second, y.second)
                    if y.first != y.second:  # with two equal variables in y both pairings are the same term
                        slope += self.V(x.first, y.second) * self.V(x.second, y.first)
                    slope = slope * x.weight * y.weight & self.mask
                    if slope and y.parameter is not None:
                        derivatives[y.parameter] = derivatives.get(y.parameter, 0) + slope & self.mask
            self._rows[key] = derivatives
        return self._rows[key]

    def influence(self, key: Key) -> dict[Key, int]:
        """Return the total derivatives of an order parameter by all on which it depends, and itself.

        The result is the solution of ``psi = e + D^T psi``, where D is the matrix of direct derivatives and e
        is one for the order parameter itself.
        """
        order: list[Key] = []
        visited: set[Key] = set()

        def visit(key: Key) -> None:
            """Append an order parameter to the list ``order`` after all those on which it depends."""
            if key not in visited:
                visited.add(key)
                for earlier in self.row(key):
                    visit(earlier)
                order.append(key)

        visit(key)
        psi = {key: 1}
        for first in reversed(order):
            for second, slope in self.row(first).items() if first in psi else ():
                psi[second] = psi.get(second, 0) + psi[first] * slope & self.mask
        return psi

    def noise(self, key: Key, other: Key) -> int:
        """Return kappa: N times the covariance of two order parameters from the random units alone.

        Both are averages over N independent units, for fixed values of all other order parameters. ``key``
        and ``other`` are their names with integer arguments. The result is zero for different populations or
        layers.
        """
        total = 0
        for x, y in product(self.units(key), self.units(other)):
            if self.site[x.first[1]] == self.site[y.first[1]]:
                pairs = self.V(x.first, y.first) * self.V(x.second, y.second)
                pairs += self.V(x.first, y.second) * self.V(x.second, y.first)
                total += pairs * x.weight * y.weight
        return total & self.mask

    # -- Taylor coefficients ---------------------------------------------------------------------------------

    def _of_power(self, x: int, power: int) -> int:
        """Return the coefficient of ``eta^power`` in a polynomial that is stored as one integer."""
        return (x >> BITS * power) & ((1 << BITS) - 1)

    def _output(self, step: int) -> Key:
        """Return the key (name, arguments) of the network's output on the sample after a number of steps."""
        return self.output, (1, step)

    def mean(self, n: int) -> int:
        """Return the mean at infinite width of the Taylor coefficient ``c_n`` of the ascending output.

        It is the coefficient of ``eta^n`` in the n-th difference of the outputs over steps.
        """
        parts = (
            (-1) ** (n - k) * comb(n, k) * self._of_power(self.parameter_mean(self._output(k)), n)
            for k in range(n + 1)
        )
        return sum(parts)

    def steps_covariance(self, k: int, m: int) -> int:
        """Return N times the covariance of the outputs after k and m steps; results are kept in memory.

        It is a polynomial in eta, stored as an integer.
        """
        if (k, m) not in self._outputs:
            self._outputs[k, m] = self._outputs[m, k] = self._steps_covariance(k, m)
        return self._outputs[k, m]

    def _steps_covariance(self, k: int, m: int) -> int:
        """Return N times the covariance of the outputs after k and m steps, without looking it up in memory.

        It is ``psi kappa psi'``: total derivatives of both outputs times the covariance of the order
        parameters.
        """
        first, second = self.influence(self._output(k)), self.influence(self._output(m))
        total = 0
        for a, x in first.items():
            for b, y in second.items():
                if self.site[self.units(a)[0].first[1]] == self.site[self.units(b)[0].first[1]]:
                    total += x * (y * self.noise(a, b) & self.mask) & self.mask
        return total & self.mask

    def covariance(self, m: int, n: int) -> Expr:
        """Return N times the covariance of the Taylor coefficients ``c_m`` and ``c_n`` of the output.

        They are coefficients of ``eta^(m + n)`` of differences over steps of :meth:`steps_covariance`.
        """
        total = 0
        for k, j in product(range(m + 1), range(n + 1)):
            sign = (-1) ** (m - k + n - j) * comb(m, k) * comb(n, j)
            total += sign * self._of_power(self.steps_covariance(k, j), m + n)
        return Integer(total)


@lru_cache(maxsize=1000)
def _linear_arguments(a: AppliedUndef) -> tuple[str, tuple[tuple[tuple[Any, int], ...], ...]]:
    """Return (name, arguments) of a function with arguments linear in symbols, as ``f(ell - 1, t)``.

    Each argument is a tuple of pairs (symbol, integer factor); the symbol None stands for the constant 1.
    """
    parts = (sympify(x).expand().as_coefficients_dict() for x in a.args)
    return str(a.func), tuple(
        tuple((None if x == 1 else x, int(c)) for x, c in terms.items()) for terms in parts
    )


def _power(x: Expr) -> int:
    """Return the exponent n of ``x^n`` with a positive integer n; 1 for any other expression."""
    return int(x.exp) if x.is_Pow and x.exp.is_Integer and x.exp > 0 else 1


def _is_symmetric(q: FluctuatingParameter) -> bool:
    """Return whether the function of a unit that an order parameter averages is symmetric in t and s.

    The times are exchanged together with pairs of samples, as in the correlation of a vector with itself.
    """
    pairs = [(r.index, primed(r.index)) for r in q.ranges] + [(t, s)]
    exchanged = {x: y for x, y in pairs} | {y: x for x, y in pairs}
    return bool(q.unit == q.unit.xreplace(exchanged))
