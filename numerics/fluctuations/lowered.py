"""Fluctuations with numbers for their sizes: numbered order parameters and fields, terms as arrays.

Every order parameter at given indices and times, and every field, product and hat of one unit, gets a number.
A term of the theory is evaluated at all values of its indices and times at once: it becomes arrays of these
numbers and an expression for its weight, which is evaluated when the order parameters are known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Abs, Add, Dummy, Expr, Heaviside, Max, Min, Mul, S, Symbol, sign, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import IndexRange, ell, s, spelled, t
from derive.errors import NotApplicable
from derive.theory.fluctuations import Addend, FluctuatingParameter, Fluctuations, Hatted, addends
from numerics.errors import Unserved
from numerics.experiment.integer_indices import Literals
from numerics.lowering.expressions import CompiledFunction, KnownArrays, function

Array = NDArray[np.float64]
IntegerArray = NDArray[np.intp]
IndexGrid = dict[Symbol, IntegerArray]
FunctionKey = tuple[Any, ...]

REACHES: dict[str, Callable[[IntegerArray, IntegerArray], NDArray[np.bool_]]] = {
    "all": lambda now, past: past == past,
    "strict": lambda now, past: past < now,
    "past": lambda now, past: past <= now,
    "now": lambda now, past: past == now,
}
"""Conditions on the pairs of times t and s of a term or a response."""


@dataclass(frozen=True, eq=False)
class TheorySizes:
    """Numbers of a theory by the names of their symbols, sizes among them, and the number of times.

    It evaluates expressions of sizes and indices, and makes grids of indices and times.
    """

    values: Mapping[str, float]
    times: int

    def numbers(self, e: Any, grid: IndexGrid, size: int) -> IntegerArray:
        """Return the integer values of an expression of indices and sizes at all points of a grid.

        The expression is linear in the indices. The grid maps each index or time to an array with its value
        at each of the ``size`` points. The result has the shape ``(size,)``. Raises NotApplicable for a
        symbol that is not in the grid and has no number.
        """
        e = sympify(e)
        if e.is_Integer:
            return np.full(size, int(e))
        if e in grid:
            return grid[e]
        sizes = [x for x in e.free_symbols if x not in grid]
        if any(x.name not in self.values for x in sizes):
            raise NotApplicable(
                f"{e} is not a single number, because it depends on an index of a sum or on a symbol without "
                "a number: give a number for each symbol; fluctuations are not computed for sums inside of "
                "functions"
            )
        e = e.subs({x: int(self.values[x.name]) for x in sizes})
        if not e.free_symbols:
            return np.full(size, int(e))
        total = np.zeros(size, int)
        for term in Add.make_args(e.expand()):
            factor, x = term.as_coeff_Mul()
            total = total + (int(factor) * grid[x] if x != 1 else int(factor))
        return total

    def extended(self, grid: IndexGrid, r: IndexRange, size: int) -> tuple[IndexGrid, IntegerArray]:
        """Return a grid with one more index, and for each of its points the point of the old grid.

        A grid maps each index or time to an array of its values at all points. ``size`` is the number of
        points of the old grid. The range ``r`` of the new index may depend on the old indices.
        """
        low, high = (self.numbers(x, grid, size) for x in (r.lower, r.upper))
        counts = np.maximum(high - low + 1, 0)
        rows = np.repeat(np.arange(size), counts)
        starts = np.repeat(np.cumsum(counts) - counts, counts)
        repeated = {x: v[rows] for x, v in grid.items()}
        return repeated | {r.index: low[rows] + np.arange(len(rows)) - starts}, rows

    def grid(self, ranges: Iterable[IndexRange], reach: str | None) -> IndexGrid:
        """Return all combinations of values of indices and times, sorted by the time.

        The result maps each index or time to an array of its values, all of one length. ``reach`` is None for
        no time and "" for the time t alone. For pairs of times t and s it is "all", "strict" (s < t), "past"
        (s <= t) or "now" (s = t), and the points are sorted by the later of both times. A grid without an
        index and without a time has one point.
        """
        grid: IndexGrid = {}
        size = 1
        for r in ranges:
            if r.index not in grid:
                grid, rows = self.extended(grid, r, size)
                size = len(rows)
        if reach is None:
            return grid if grid else {Dummy("one"): np.zeros(1, int)}
        now, past = (x.ravel() for x in np.meshgrid(*[np.arange(self.times)] * 2, indexing="ij"))
        if reach == "":
            now, past = np.arange(self.times), np.arange(self.times)
        else:
            kept = REACHES[reach](now, past)
            now, past = now[kept], past[kept]
        order = np.argsort(np.maximum(now, past), kind="stable")
        now, past = now[order], past[order]
        rows, pairs = (x.ravel() for x in np.meshgrid(np.arange(size), np.arange(len(now)), indexing="ij"))
        by_time = np.argsort(np.maximum(now, past)[pairs], kind="stable")
        rows, pairs = rows[by_time], pairs[by_time]
        grid = {x: v[rows] for x, v in grid.items()}
        grid[t] = now[pairs]
        if reach != "":
            grid[s] = past[pairs]
        return grid


def length(grid: IndexGrid) -> int:
    """Return the number of points of a grid, which maps indices and times to arrays of one length."""
    return len(next(iter(grid.values())))


@dataclass
class NumberBox:
    """Table of the numbers of a family's members, such as a field at all samples and times.

    It has an entry for each combination of arguments between their smallest and largest values.

    Attributes
    ----------
    lows, highs
        Smallest and largest value of each argument.
    numbers
        The number of the member at each combination of arguments, flattened; -1 if it does not exist. None
        before members are numbered.
    """

    lows: IntegerArray
    highs: IntegerArray
    numbers: IntegerArray | None = None

    def places(self, arguments: Sequence[IntegerArray]) -> tuple[IntegerArray, NDArray[np.bool_]]:
        """Return the positions in the flattened table of given arguments, and whether they are inside.

        ``arguments`` holds one array of values for each argument. The second array is false where an argument
        is outside of its range; the position there is that of the nearest value in the range.
        """
        inside = np.ones(np.shape(arguments[0]), bool)
        place = np.zeros(np.shape(arguments[0]), int)
        for x, low, high in zip(arguments, self.lows, self.highs, strict=True):
            inside &= (low <= x) & (x <= high)
            place = place * (high - low + 1) + np.clip(x, low, high) - low
        return place, inside

    @property
    def size(self) -> int:
        """Number of combinations of values of all arguments: the length of the flattened table."""
        return int(np.prod(self.highs - self.lows + 1))


class NumberRegister:
    """Consecutive numbers of the members of families, such as a field at all samples and times.

    A family is a function of indices and times, and a member its value at given ones. All members are
    declared first, then numbered family by family.
    """

    def __init__(self) -> None:
        self.declared: dict[FunctionKey, list[Sequence[IntegerArray]]] = {}
        self.families: dict[FunctionKey, NumberBox] = {}
        self.count = 0

    def declare(self, key: FunctionKey, arguments: Sequence[IntegerArray]) -> None:
        """Declare that members of the family ``key`` exist, to be numbered later.

        ``arguments`` holds one array for each argument of the function. The values at position k of all
        arrays are the arguments of one member.
        """
        if len(arguments[0]):
            self.declared.setdefault(key, []).append(arguments)

    def number(self) -> None:
        """Assign numbers to the members of all families that were declared since the last call.

        The numbers continue those of earlier calls. All members of one family must be declared before the
        same call, because a family that is declared again gets a new table.
        """
        for key, parts in self.declared.items():
            arguments = [np.concatenate(x) for x in zip(*parts, strict=True)]
            lows, highs = (np.array([f(x) for x in arguments]) for f in (np.min, np.max))
            family = self.families[key] = NumberBox(lows, highs)
            family.numbers = np.full(family.size, -1)
            places = np.unique(family.places(arguments)[0])
            family.numbers[places] = self.count + np.arange(len(places))
            self.count += len(places)
        self.declared = {}

    def find(self, key: FunctionKey, arguments: Sequence[IntegerArray]) -> IntegerArray:
        """Return the numbers of members of the family ``key``; -1 where a member does not exist.

        ``arguments`` holds one array for each argument of the function. The values at position k of all
        arrays are the arguments of one member.
        """
        family = self.families.get(key)
        if family is None:
            return np.full(np.shape(arguments[0]), -1)
        place, inside = family.places(arguments)
        assert family.numbers is not None
        return np.where(inside, family.numbers[place], -1)


def key_of(x: AppliedUndef) -> FunctionKey:
    """Return the key of the function in ``x``, such as h(mu, t): its name and the number of its arguments."""
    return str(x.func), len(x.args)


@lru_cache(maxsize=4096)
def slope(e: Expr, parameter: AppliedUndef) -> Expr:
    """Return the derivative of an expression with respect to the order parameter ``parameter``.

    The same function at other symbolic arguments counts as a constant.
    """
    derivative: Expr = e.diff(parameter)
    return derivative


CONSTANT = -1
"""Number of the constant field, which is one for every unit."""


@dataclass(frozen=True, eq=False)
class TermArrays:
    """One term of the theory at all n values of its indices and times, sorted by the later time.

    The term is a deterministic weight times up to two fields or hats of one unit.

    A hat is the response field conjugate to a field: the average of a field times a hat is the response of
    the field. It has the number of its field.

    Attributes
    ----------
    weight
        The deterministic factor, an expression of order parameters and numbers.
    grid
        The values of indices and times, ``(n,)`` each.
    ends
        For each time the number of points of the grid whose later time is at most this one.
    target
        The number of the order parameter or field in whose equation the term stands, ``(n,)``. A derivative
        of the exponent of the path integral stands in no equation: its target is the first order parameter by
        which the exponent is differentiated.
    first, second
        The numbers of the hats and fields that the weight multiplies, hats first; CONSTANT for none. In the
        covariance of two sources, target and first are the fields with these sources.
    other
        The numbers of other order parameters by which the term is differentiated, ``(2, n)``; CONSTANT for
        none.
    hats
        How many of first and second are hats.
    """

    weight: Expr
    grid: IndexGrid
    ends: IntegerArray
    target: IntegerArray
    first: IntegerArray
    second: IntegerArray
    other: IntegerArray
    hats: int = 0

    def at(self, time: int) -> slice:
        """Return the slice of the arrays that belongs to the time ``time``, the later one of two times."""
        return slice(int(self.ends[time - 1]) if time else 0, int(self.ends[time]))


@dataclass(frozen=True)
class UnitFunction:
    """A nonlinear function of the fields of one unit, at symbolic indices and times.

    Attributes
    ----------
    expr
        The function of fields and order parameters, whose indices and times are ``slots``.
    slots
        Symbols for the indices and times in it.
    """

    expr: Expr
    slots: tuple[Symbol, ...]


class LoweredFluctuations:
    """Expansion of a program in 1/N as arrays: numbered order parameters and fields, and all terms.

    A site is a population at one layer, or a population that has no layers or whose layers share their units,
    such as a residual stream. A node is a field, a product of weights with a field, or a function of fields,
    at one time.

    Parameters
    ----------
    theory
        The expansion in 1/N as expressions.
    sizes
        The numbers of its sizes.
    known
        Numbers and data, by name.

    Attributes
    ----------
    parameters, nodes
        The numbers of order parameters and of nodes, by name, indices and times. Observables, which no
        equation uses, have no number.
    site, time
        Of each node: the number of its site, and its time.
    parameter_time
        Of each order parameter: its time, the later one of two.
    sites, ratios
        Of each site: the name of its population and its layer, and its number of units over N.
    kernels, definitions, covariances
        The equations of one unit: terms of the equations of products of weights with fields, terms of the
        equations of fields, and covariances of two Gaussian sources. Each pair of sources occurs in both
        orders.
    units, rests
        Terms of the equations of order parameters: averages of products, and functions of other order
        parameters.
    influences, second_influences
        Derivatives of the exponent of the path integral with respect to one and to two order parameters.
    slopes, second_slopes
        First and second derivatives of ``rests`` with respect to order parameters. Second derivatives, also
        those of the exponent, hold each pair once and are halved for the same order parameter twice.
    """

    def __init__(self, theory: Fluctuations, sizes: TheorySizes, known: KnownArrays) -> None:
        self.theory, self.sizes, self.known = theory, sizes, known
        self.parameters, self.nodes = NumberRegister(), NumberRegister()
        self.stated = [q for q in theory.parameters if q.kind != "observable"]
        self.names = {key_of(q.symbol) for q in self.stated}
        self.driven = {key_of(e.symbol) for e in theory.products}
        self.random = self.driven | {key_of(e.symbol) for e in theory.definitions}
        self.features: dict[FunctionKey, UnitFunction] = {}
        self._weights: dict[TermArrays, WeightFunction] = {}
        self.sites: list[tuple[str, int]] = []
        self.ratios: list[float] = []
        self._number_parameters()
        self._number_fields()
        self._lower()

    # -- numbers ---------------------------------------------------------------------------------------------

    def grid_of(self, q: FluctuatingParameter) -> IndexGrid:
        """Return all indices and times at which the order parameter ``q`` exists.

        The result maps each index or time to an array of its values, all of one length.
        """
        reach = "" if s not in q.symbol.args else (q.causal or "all")
        return self.sizes.grid(q.ranges, reach)

    def arguments(self, symbol: AppliedUndef, grid: IndexGrid) -> list[IntegerArray]:
        """Return the values of the arguments of a function such as ``h(mu, t - 1)`` at all points of a grid.

        The grid maps indices and times to arrays of one length; the result has one array for each argument.
        """
        size = length(grid)
        return [self.sizes.numbers(x, grid, size) for x in symbol.args]

    def _number_parameters(self) -> None:
        """Assign numbers to order parameters at all indices and times, and store the time of each."""
        places: list[tuple[FunctionKey, list[IntegerArray], IntegerArray]] = []
        for q in self.stated:
            grid = self.grid_of(q)
            arguments = self.arguments(q.symbol, grid)
            self.parameters.declare(key_of(q.symbol), arguments)
            times = [x for x, e in zip(arguments, q.symbol.args, strict=True) if e.has(t, s)]
            places.append((key_of(q.symbol), arguments, np.max(times, axis=0, initial=0)))
        self.parameters.number()
        self.parameter_time = np.zeros(self.parameters.count, int)
        for key, arguments, when in places:
            self.parameter_time[self.parameters.find(key, arguments)] = when

    def name_of(self, number: int) -> str:
        """Return the name of the order parameter with this number, without indices and times."""
        families = self.parameters.families.items()
        return str(next(key[0] for key, x in families if x.numbers is not None and number in x.numbers))

    def _number_fields(self) -> None:
        """Assign numbers to fields, and to products of weights with fields, at all indices and times.

        The site and the time of each are stored. A site is a population at one layer, or a population that
        has no layers or whose layers share their units.
        """
        places: list[tuple[FunctionKey, list[IntegerArray], IntegerArray]] = []
        equations = (*self.theory.products, *self.theory.definitions)
        for e, home in zip(equations, self.theory.homes, strict=True):
            grid = self.sizes.grid(e.ranges, "")
            arguments = self.arguments(e.symbol, grid)
            self.nodes.declare(key_of(e.symbol), arguments)
            # A population without layers has one site for all its fields, and so has a population whose
            # layers share their units, such as a residual stream (`home.site` is None). Other populations
            # have one site for each layer.
            layer = 0 if home.site is None else self.sizes.numbers(home.site, grid, length(grid))
            site = np.zeros(length(grid), int)
            for value in np.unique(layer):
                site[np.equal(layer, value)] = self.site_number(home, int(value))
            places.append((key_of(e.symbol), arguments, site))
        self.nodes.number()
        self.site = np.zeros(self.nodes.count, int)
        self.time = np.zeros(self.nodes.count, int)
        for key, arguments, site in places:
            numbers = self.nodes.find(key, arguments)
            self.site[numbers], self.time[numbers] = site, arguments[-1]
        self.fields = self.nodes.count

    def site_number(self, home: Any, layer: int) -> int:
        """Return the number of the site of the population ``home`` at the layer ``layer``.

        A site is a population at one layer, or, with ``layer`` = 0, a population that has no layers or whose
        layers share their units. A new site is added to the list of sites, with its number of units over N.
        """
        name = home.name, layer
        if name not in self.sites:
            self.sites.append(name)
            ratio = sympify(home.ratio if home.formula is None else home.formula).subs(ell, layer)
            self.ratios.append(float(np.ravel(self.known(ratio, {}))[0]))
        return self.sites.index(name)

    # -- terms -----------------------------------------------------------------------------------------------

    def is_random(self, e: Expr) -> bool:
        """Return whether an expression contains a field of a unit, a random quantity of the theory."""
        return any(key_of(a) in self.random for a in e.atoms(AppliedUndef))

    def monomials(self, e: Expr) -> Iterator[tuple[Expr, list[Expr], list[Hatted]]]:
        """Yield each addend of an expression as a triple (weight, random factors, hats).

        The weight is the product of the deterministic factors; random factors are fields and functions of
        fields. The square of a field or hat is listed as two equal factors. A hat is the response field
        conjugate to a field: the average of a field times a hat is the response of the field.
        """
        for term in Add.make_args(sympify(e).expand()):
            weight, parts, hats = S.One, [], []
            for x in Mul.make_args(term):
                base, power = x.as_base_exp()
                if isinstance(base, Hatted):
                    hats += [base] * int(power)
                elif not self.is_random(x):
                    weight *= x
                elif power.is_Integer and power > 0 and isinstance(base, AppliedUndef):
                    parts += [base] * int(power)
                else:
                    parts.append(x)
            if weight != 0:
                yield weight, parts, hats

    def feature(
        self, parts: Sequence[Expr], grid: IndexGrid
    ) -> tuple[FunctionKey, list[IntegerArray]] | None:
        """Return the key and the arguments of the function of fields that is the product of ``parts``.

        A product that is not one field becomes a new function, which is stored in ``features``. The arguments
        are arrays of its indices and times at all points of ``grid``. None if ``parts`` is empty.
        """
        if not parts:
            return None
        e = Mul(*parts)
        if isinstance(e, AppliedUndef):
            return key_of(e), self.arguments(e, grid)
        atoms = sorted(e.atoms(AppliedUndef), key=spelled)
        atoms = [a for a in atoms if key_of(a) in self.random or key_of(a) in self.names]
        places = list(dict.fromkeys(x for a in atoms for x in a.args))
        named = {x: _SLOTS[k] for k, x in enumerate(places)}
        body = e.xreplace({a: a.func(*[named[x] for x in a.args]) for a in atoms})
        key = (body, len(places))
        self.features.setdefault(key, UnitFunction(body, tuple(_SLOTS[: len(places)])))
        size = length(grid)
        return key, [self.sizes.numbers(x, grid, size) for x in places]

    def _lower(self) -> None:
        """Convert all terms of the expansion in 1/N to arrays of numbers of fields and order parameters.

        Nonlinear functions of fields are collected and numbered first, because the arrays hold their numbers.
        """
        self.pending: list[tuple[list[Any], Any]] = []
        self.kernels: list[TermArrays] = []
        self.definitions: list[TermArrays] = []
        self.covariances: list[TermArrays] = []
        self._crossed: list[TermArrays] = []
        self.units: list[TermArrays] = []
        self.rests: list[TermArrays] = []
        self.influences: list[TermArrays] = []
        self.second_influences: list[TermArrays] = []
        self.slopes: list[TermArrays] = []
        self.second_slopes: list[TermArrays] = []
        for x in self.theory.terms:
            self._exponent_term(x)
        for e in self.theory.definitions:
            for part in addends(e.rhs, e.symbol.args):
                body = replace(part, over=(*e.ranges, *part.over))
                self._product(self.definitions, e.symbol, None, body, ())
        for q in self.stated:
            self._parameter(q)
        self.nodes.number()
        self._place_features()
        for into, make in self.pending:
            into.append(make())
        self.pending = []
        self.covariances += self._crossed
        self.covariances += [replace(x, target=x.first, first=x.target) for x in self._crossed]

    def _place_features(self) -> None:
        """Store the site and the time of each function of fields: the site and the latest time of its fields.

        A site is a population at one layer.
        """
        extra = self.nodes.count - self.fields
        self.site = np.concatenate([self.site, np.zeros(extra, int)])
        self.time = np.concatenate([self.time, np.zeros(extra, int)])
        for key, feature in self.features.items():
            family = self.nodes.families[key]
            axes = [np.arange(a, b + 1) for a, b in zip(family.lows, family.highs, strict=True)]
            boxed = [x.ravel() for x in np.meshgrid(*axes, indexing="ij")]
            numbers = self.nodes.find(key, boxed)
            there = numbers >= 0
            grid = {x: v[there] for x, v in zip(feature.slots, boxed, strict=True)}
            atoms = [a for a in feature.expr.atoms(AppliedUndef) if key_of(a) in self.random]
            field_numbers = [self.nodes.find(key_of(a), [grid[x] for x in a.args]) for a in atoms]
            self.site[numbers[there]] = self.site[field_numbers[0]]
            self.time[numbers[there]] = np.max([self.time[x] for x in field_numbers], axis=0)

    def _parameter(self, q: FluctuatingParameter) -> None:
        """Add the terms of the definition of an order parameter to the lists of terms.

        The definition is an average over units plus functions of other order parameters; of the latter, first
        and second derivatives are added too.
        """
        reach = "" if s not in q.symbol.args else (q.causal or "all")
        if q.unit != 0:
            self._product(self.units, q.symbol, q.symbol, Addend(q.unit, q.ranges, reach), ())
        for x in q.rest:
            body = Addend(x.expr, (*q.ranges, *x.over), x.reach or reach)
            self._product(self.rests, q.symbol, q.symbol, body, ())
            parameters = self.parameters_in(x.expr)
            for k, a in enumerate(parameters):
                first = slope(x.expr, a)
                self._product(self.slopes, q.symbol, q.symbol, Addend(first, body.over, body.reach), (a,))
                for b in parameters[k:]:
                    second = slope(first, b) / (2 if a == b else 1)
                    if second != 0:
                        at = Addend(second, body.over, body.reach)
                        self._product(self.second_slopes, q.symbol, q.symbol, at, (a, b))

    def parameters_in(self, e: Expr) -> list[AppliedUndef]:
        """Return the order parameters in an expression, with their indices, sorted by their text."""
        return sorted((a for a in e.atoms(AppliedUndef) if key_of(a) in self.names), key=spelled)

    def _exponent_term(self, x: Any) -> None:
        """Add a term ``x`` of the exponent of the path integral over one unit to the lists of terms.

        A term with one hatted field is left out unless this field is a product of weights with a vector; the
        definitions of other fields are added by :meth:`_lower`. The derivatives of every term with respect to
        one and to two order parameters are added; a second derivative by the same one is halved.
        """
        hats = list(x.hats)
        if len(hats) == 2:
            first, second = hats[0].field, hats[1].field
            into = self.covariances if first.func == second.func else self._crossed
            self._product(into, first, None, x.addend, (), second)
        # A term with one hatted field is part of the equation of this field. It is added here if the field is
        # a product of weights with a vector (`driven`); `_lower` adds the definitions of other fields.
        elif key_of(hats[0].field) in self.driven:
            self._product(self.kernels, hats[0].field, None, x.addend, ())
        parameters = self.parameters_in(x.addend.expr)
        for k, a in enumerate(parameters):
            first = x.weight * slope(x.addend.expr, a)
            self._influence(self.influences, x, first, (a,))
            for b in parameters[k:]:
                second = slope(first, b) / (2 if a == b else 1)
                if second != 0:
                    self._influence(self.second_influences, x, second, (a, b))

    def _influence(self, into: list[TermArrays], x: Any, e: Expr, by: tuple[AppliedUndef, ...]) -> None:
        """Add a derivative of the exponent of the path integral over one unit to the list ``into``.

        ``x`` is the term of the exponent, ``e`` the derivative of its coefficient, and ``by`` are the order
        parameters with respect to which it is a derivative.
        """
        body = Addend(Mul(*x.hats) * e, x.addend.over, x.addend.reach)
        self._product(into, None, None, body, by)

    def _product(
        self,
        into: list[TermArrays],
        symbol: AppliedUndef | None,
        parameter: AppliedUndef | None,
        body: Addend,
        by: tuple[AppliedUndef, ...],
        beside: AppliedUndef | None = None,
    ) -> None:
        """Schedule that the arrays of a term ``body`` are added to ``into`` once all fields have numbers.

        ``body`` is an expression with the ranges of its indices and times; each of its addends gives arrays
        of its own. ``symbol`` is the order parameter or field in whose equation the term stands (None for
        derivatives of the exponent), and ``parameter`` is the same if it is an order parameter, else None.
        ``by`` are the order parameters with respect to which ``body`` is a derivative. ``beside`` is the
        second field if the term is the covariance of two sources.
        """
        grid = self.sizes.grid(body.over, body.reach)
        size = length(grid)
        if not size:
            return
        for weight, parts, hats in self.monomials(body.expr):
            groups = self._groups(parts, hats, two=parameter is not None)
            declared = [self.feature(x, grid) for x in groups]
            for x in declared:
                if x is not None and x[0] in self.features:
                    self.nodes.declare(*x)
            plain = [*(h.field for h in hats), *([] if beside is None else [beside])]
            fixed = [(str(x.func), self.nodes.find(key_of(x), self.arguments(x, grid))) for x in plain]
            targets = []
            for a in by:
                targets.append(self.parameters.find(key_of(a), self.arguments(a, grid)))
            register = self.nodes if parameter is None else self.parameters
            equations = (
                None if symbol is None else register.find(key_of(symbol), self.arguments(symbol, grid))
            )
            self.pending.append(
                (into, self._maker(weight, grid, equations, targets, declared, fixed, len(hats)))
            )

    def _maker(
        self,
        weight: Expr,
        grid: IndexGrid,
        equations: IntegerArray | None,
        targets: list[IntegerArray],
        declared: list[tuple[FunctionKey, list[IntegerArray]] | None],
        fixed: list[tuple[str, IntegerArray]],
        hats: int,
    ) -> Callable[[], TermArrays]:
        """Return a function that makes the arrays of a term; it is called once all fields have numbers.

        ``weight`` is the deterministic factor and ``grid`` holds all values of indices and times.
        ``equations`` are numbers of the order parameter or field in whose equation the term stands, and
        ``targets`` those of order parameters with respect to which it is a derivative. ``declared`` are keys
        and arguments of functions of fields that get numbers later; ``fixed`` are names and numbers of fields
        or hats, and ``hats`` is how many of them are hats. A hat is the response field conjugate to a
        field: the average of a field times a hat is the response of the field.
        """

        def make() -> TermArrays:
            """Return the arrays of the term: numbers of order parameters, fields and hats at all indices."""
            size = length(grid)
            none = np.full(size, CONSTANT)
            factors = [none if x is None else self.nodes.find(*x) for x in declared]
            columns = [*(numbers for _, numbers in fixed), *factors, none, none][:2]
            marks = [x for x in (equations, *targets) if x is not None]
            main, *more = marks
            other = [*more, none][0]
            extra = more[1] if len(more) > 1 else none
            kept = (main >= 0) & np.all([x >= 0 for x in more], axis=0) if more else main >= 0
            when = grid[t] if s not in grid else np.maximum(grid[t], grid[s])
            rows = np.flatnonzero(kept)
            ends = np.searchsorted(when[rows], np.arange(self.sizes.times), side="right")
            cut = {x: v[rows] for x, v in grid.items()}
            features = [(str(x[0][0]), v) for x, v in zip(declared, factors, strict=True) if x is not None]
            for name, numbers in (*fixed, *features):
                if (numbers[rows] < 0).any():
                    raise Unserved(
                        f"the field {name} has no definition at some indices or times at which a term with "
                        f"the coefficient {weight} uses it: define {name} there, or limit the ranges of the "
                        "definitions that use it"
                    )
            return TermArrays(
                weight,
                cut,
                ends,
                main[rows],
                columns[0][rows],
                columns[1][rows],
                np.stack([other[rows], extra[rows]]),
                hats,
            )

        return make

    def _groups(self, parts: list[Expr], hats: list[Hatted], two: bool) -> list[list[Expr]]:
        """Divide the random factors of a term into at most two groups, the two factors of an average.

        ``two`` is true if the term is part of the definition of an order parameter. Exactly two factors form
        a group each; more are divided into those at the time s and the others. All factors stay in one group
        if the term has ``hats``, if ``two`` is false, or if the division leaves a group empty.
        """
        if hats or not two:
            return [parts]
        if len(parts) == 2:
            return [[parts[0]], [parts[1]]]
        past = [
            x
            for x in parts
            if any(a.args[-1] == s for a in x.atoms(AppliedUndef) if key_of(a) in self.random)
        ]
        now = [x for x in parts if x not in past]
        return [now, past] if now and past else [parts]

    # -- values ----------------------------------------------------------------------------------------------

    def value(self, entries: TermArrays, values: Array, part: slice | None = None) -> Array:
        """Return the weights of a term as numbers, for all values of its indices or for the slice ``part``.

        ``entries`` are the arrays of the term. ``values`` are the values of all order parameters, which the
        weight may contain.
        """
        weight = self._weights.get(entries)
        if weight is None:
            weight = self._weights[entries] = self.weight(entries.weight, entries.grid)
        part = slice(0, len(entries.target)) if part is None else part
        return weight(values, part)

    def weight(self, e: Expr, grid: IndexGrid) -> WeightFunction:
        """Return an expression, at all points of a grid, as a compiled function of order parameters.

        The grid maps indices and times to arrays of one length. All other symbols and functions in the
        expression are replaced by their known values.
        """
        compiled = function(e)
        at: Any = {x: v - self.known.start(x) for x, v in grid.items() if not isinstance(x, Dummy)}
        leaves: list[tuple[IntegerArray | None, Any]] = []
        for x in compiled.leaves:
            data = self.known.data.get(str(x.func)) if isinstance(x, AppliedUndef) else None
            if isinstance(x, AppliedUndef) and key_of(x) in self.names:
                leaves.append((self.parameters.find(key_of(x), self.arguments(x, grid)), None))
            elif callable(data):
                leaves.append((None, np.vectorize(data, otypes=[float])(*self.arguments(x, grid))))
            elif data is not None and np.ndim(data) == len(x.args):
                leaves.append((None, self._entries(x, grid)))
            else:
                known = np.asarray(self.known.leaf(x, at, {}), float)
                leaves.append((None, known[..., 0] if known.ndim else known))
        return WeightFunction(compiled, leaves)

    def _entries(self, x: AppliedUndef, grid: IndexGrid) -> Array:
        """Return the entries of given data such as ``y(mu)`` at all points of a grid.

        The first entry along an axis belongs to the first value of its index, or to time zero. Shifted
        indices are periodic, times are not. Raises Unserved for an entry that the array does not have.
        """
        name = str(x.func)
        array, positions = self.known.arrays[name], []
        for k, (e, value) in enumerate(zip(x.args, self.arguments(x, grid), strict=True)):
            first = 0 if e.has(t, s) else self.known.literals.get((name, k), Literals()).first
            plain = e.is_Symbol or e.is_Integer or e.has(t, s)
            at = value - first if plain else (value - first) % array.shape[k]
            if ((at < 0) | (at >= array.shape[k])).any():
                raise Unserved(
                    f"{x} is read at the values {np.min(value)}..{np.max(value)} of {e}, and {name} has the "
                    f"entries {first}..{first + array.shape[k] - 1} along this axis"
                )
            positions.append(at)
        return np.asarray(array[tuple(positions)], float)


def has_kinks(lowered: LoweredFluctuations) -> bool:
    """Return whether a function of fields has a kink or a jump: a maximum, minimum, step, modulus or sign.

    Piecewise functions are not recognised.
    """
    return any(x.expr.has(Max, Min, Heaviside, Abs, sign) for x in lowered.features.values())


@dataclass(frozen=True, eq=False)
class WeightFunction:
    """The deterministic weight of a term at n values of its indices, as a function of order parameters.

    ``leaves`` has a pair for each argument of the compiled expression: (numbers of order parameters ``(n,)``,
    None), or (None, known values ``(n,)`` or ``()``).
    """

    compiled: CompiledFunction
    leaves: list[tuple[IntegerArray | None, Any]]

    def __call__(self, values: Array, part: slice) -> Array:
        """Return the weight of the term at the values of its indices in the slice ``part``.

        ``values`` are those of all order parameters. Order parameters that do not exist, such as responses
        that are not causal, count as zero.
        """
        arguments = []
        for numbers, known in self.leaves:
            if numbers is None:
                arguments.append(known[part] if known.ndim and len(known) > 1 else known)
            else:
                entries = numbers[part]
                arguments.append(np.where(entries >= 0, values[entries], 0.0))
        weights = np.asarray(self.compiled(*arguments), float)
        return np.broadcast_to(weights, (part.stop - part.start,))


_SLOTS = [Symbol(f"slot{k}", integer=True) for k in range(16)]
"""Symbols for the indices and times in functions of fields."""
