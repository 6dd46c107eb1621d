"""Covariances of outputs and tangent kernels of networks of N units at the start of training, times N.

From the fluctuations of a program (`derive.fluctuations`) the module derives closed forms or Gaussian
averages. One backward sweep over the order parameters of time 0 gives the total derivatives psi of an
observable by each of them, ``psi = e + D^T psi``. Here D is the matrix of direct derivatives, and e is one
for the observable itself. The covariance is then ``N Cov = psi kappa psi'``, where kappa is N times the
covariance of the order parameters from the random units alone. With a symbolic number of layers the sweep is
a recursion in the layer, which is summed.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

from sympy import (
    Add,
    Dummy,
    Eq,
    Expr,
    Function,
    Pow,
    S,
    Sum,
    Symbol,
    cancel,
    factor,
    factorint,
    summation,
    sympify,
)
from sympy.core.function import AppliedUndef

from derive.calculus.gaussian import GaussianAverage
from derive.calculus.symbols import IndexRange, converted, ell, s, t
from derive.errors import NotApplicable, require_type
from derive.program.program import Program
from derive.scale.fluctuations.initial_unit import InitialUnits
from derive.show.conditions import ConditionalResult
from derive.show.latex import aligned_latex
from derive.theory.fluctuations import fluctuations


@dataclass(frozen=True, repr=False)
class InitialCovariance(ConditionalResult):
    """N times the covariance of two observables at the start of training.

    Parameters
    ----------
    program : Program
        Network of N units.
    first : Expr
        First observable, without its times.
    second : Expr
        Second observable, without its times.
    value : Expr
        N times their covariance to leading order, in terms of the kernels of infinite width.
    kernels : tuple[Eq, ...]
        Equations of the kernels that remain in ``value``, such as Gaussian averages of an activation. Each is
        given in terms of those before it. Empty for a symbolic depth.
    """

    program: Program
    first: Expr
    second: Expr
    value: Expr
    kernels: tuple[Eq, ...] = ()

    def _repr_latex_(self) -> str:
        covariance = Function("C")(self.first, self.second)
        return aligned_latex((Eq(covariance, self.value, evaluate=False), *self.kernels))

    def conditions(self) -> tuple[str, ...]:
        """Return the derived and assumed statements about the covariance.

        Returns
        -------
        tuple[str, ...]
            Sentences that begin with "derived: " or "assumed: ".
        """
        return (
            "derived: N Cov to leading order in 1/N, from averages over the units of each layer and from the "
            "derivatives of each kernel by the one before it",
            "assumed: the widths of all layers go to infinity together, for a fixed depth and fixed samples",
        )


@dataclass(frozen=True, repr=False)
class InitialMean(ConditionalResult):
    """Observable of infinitely wide networks at the start of training.

    Parameters
    ----------
    program : Program
        Network.
    observable : Expr
        Observable, without its times.
    value : Expr
        Its value, in terms of the kernels of infinite width.
    kernels : tuple[Eq, ...]
        Equations of the kernels that remain in ``value``, such as Gaussian averages of an activation. Each is
        given in terms of those before it. Empty for a symbolic depth.
    """

    program: Program
    observable: Expr
    value: Expr
    kernels: tuple[Eq, ...] = ()

    def _repr_latex_(self) -> str:
        return aligned_latex((Eq(self.observable, self.value, evaluate=False), *self.kernels))

    def conditions(self) -> tuple[str, ...]:
        """Return the derived and assumed statements about the value of the observable.

        Returns
        -------
        tuple[str, ...]
            Sentences that begin with "derived: " or "assumed: ".
        """
        return (
            "derived: averages over one unit of each layer, whose inputs through random weights are Gaussian",
            "assumed: the widths of all layers go to infinity together, for a fixed depth and fixed samples",
        )


def initial_mean(program: Program, observable: tuple[Any, ...]) -> InitialMean:
    """Return the value of an observable at the start of training, at infinite width.

    Parameters
    ----------
    program : Program
        Network whose weights are drawn at the start.
    observable : tuple[Any, ...]
        Name and indices, as in :func:`initial_covariance`.

    Returns
    -------
    InitialMean
        Value.

    Raises
    ------
    NotApplicable, KeyError, TypeError
        As :func:`initial_covariance`.

    Examples
    --------
    >>> from derive.program import alpha, mlp, mu
    >>> print(initial_mean(mlp(), ("K", mu, alpha)).value)
    (L + 1)*K_x(mu, alpha)
    """
    require_type(program, Program, "initial_mean", "a program")
    units = InitialUnits(fluctuations(program))
    atom = _member(units, observable, any_layer=not program.depth.is_Integer)
    if not program.depth.is_Integer:
        value = _LayerSweep(units).mean(atom)
        return InitialMean(program, _timeless(atom), _timeless(value))
    value = _tidied(_with_kernels(units, units.mean(atom)))
    return InitialMean(program, _timeless(atom), _timeless(value), _equations(units, value))


def initial_covariance(
    program: Program, first: tuple[Any, ...], second: tuple[Any, ...] | None = None
) -> InitialCovariance:
    """Return N times the covariance of two observables at the start of training.

    Parameters
    ----------
    program : Program
        Network whose weights are drawn at the start.
    first : tuple[Any, ...]
        Name of an observable and its indices without times, such as ``("K", mu, alpha)`` for the tangent
        kernel, ``("f", mu)`` for the output, or ``("Phi", 2, mu, alpha)`` for a kernel of layer 2 (``"H"`` in
        a linear network). With a symbolic depth the layer is a number, ``L``, or ``L`` minus a number.
        Different symbols are different samples.
    second : tuple[Any, ...] | None, optional
        Second observable; the first one by default.

    Returns
    -------
    InitialCovariance
        N times the covariance in terms of the kernels of infinite width; with a symbolic depth a function of
        ``L``.

    Raises
    ------
    NotApplicable
        With a symbolic depth, if the kernels of infinite width are not powers of a number in the layer, or
        for a residual network; also if it depends on the depth which of two layers comes first. With any
        depth, if a response at time 0 is not zero, if an index is outside its range, or if the fluctuations
        of the program are not derived, as for Muon.
    KeyError
        If there is no observable of that name.
    TypeError
        For a wrong number of indices.

    Examples
    --------
    >>> from derive.program import mlp, mu
    >>> print(initial_covariance(mlp(), ("f", mu)).value)
    K_x(mu, mu)/gamma0**2
    >>> print(initial_covariance(mlp(), ("K", mu, mu)).value)
    2*L*(L + 1)*(2*L + 1)*K_x(mu, mu)**2/3
    """
    require_type(program, Program, "initial_covariance", "a program")
    theory = fluctuations(program)
    units = InitialUnits(theory)
    atoms = [_member(units, x) for x in (first, first if second is None else second)]
    sweep: _Sweep | _LayerSweep = _Sweep(units) if program.depth.is_Integer else _LayerSweep(units)
    value = sweep.covariance(*atoms)
    named = _equations(units, value) if program.depth.is_Integer else ()
    return InitialCovariance(program, _timeless(atoms[0]), _timeless(atoms[1]), _timeless(value), named)


def _member(units: InitialUnits, name_and_indices: tuple[Any, ...], any_layer: bool = False) -> AppliedUndef:
    """Return the order parameter at time 0 that ``name_and_indices`` denotes, such as ``("K", mu, alpha)``.

    With ``any_layer`` the layer may be a symbol. Raises TypeError for a wrong number of indices, KeyError for
    an unknown name, and NotApplicable for an index outside its range.
    """
    if not name_and_indices:
        raise TypeError('() names no order parameter: write it as ("K", mu, alpha), its name and its indices')
    name, *indices = name_and_indices
    q = units.theory.parameter(name)
    times = sum(x in (t, s) for x in q.symbol.args)
    if len(indices) != len(q.symbol.args) - times:
        raise TypeError(
            f"{name} has {len(q.symbol.args) - times} indices besides the times, as in {q.symbol}, and "
            f"{len(indices)} are given"
        )
    observable: AppliedUndef = q.symbol.func(*map(converted, indices), *[S.Zero] * times)
    ranges = {r.index: r for r in q.ranges}
    for index, value in zip(q.symbol.args, observable.args, strict=True):
        if index in ranges:
            shown = f"{name}({', '.join(map(str, indices))})"
            _require_inside(shown, value, ranges[index], any_layer)
    return observable


def _require_inside(observable: str, value: Expr, inside: IndexRange, any_layer: bool) -> None:
    """Raise NotApplicable unless ``value``, an index of an observable, is in the range ``inside``.

    Without ``any_layer`` a layer is a number, or the symbolic number of layers minus a number.
    """
    below, above = sympify(inside.lower) - value, value - sympify(inside.upper)
    number = not value.is_number or value.is_Integer
    known = any_layer or inside.index != ell or below.is_number or above.is_number
    if number and known and not (below.is_positive or above.is_positive):
        return
    end = f", or {inside.upper} minus a number" if sympify(inside.upper).free_symbols else ""
    raise NotApplicable(
        f"{observable}: the index {inside.index} = {value} must be an integer from "
        f"{inside.lower} to {inside.upper}{end}"
    )


def _timeless(e: Expr) -> Expr:
    """Return an expression in which functions lack their times, which are trailing arguments 0."""

    def without(a: AppliedUndef) -> Expr:
        """Return a function without those arguments at its end that are zero."""
        args = list(a.args)
        while args and args[-1] == 0:
            args.pop()
        return a.func(*args)

    return e.xreplace({a: without(a) for a in e.atoms(AppliedUndef)})


# -- a number of layers --------------------------------------------------------------------------------------


class _Sweep:
    """Total derivatives of observables by order parameters, for networks with a known number of layers.

    The order parameters at time 0 depend on each other from layer to layer; the sweep goes from an observable
    back to those on which it depends.
    """

    def __init__(self, units: InitialUnits) -> None:
        self.units = units

    def influence(self, atom: AppliedUndef) -> dict[AppliedUndef, Expr]:
        """Return the total derivatives of one order parameter by all those on which it depends.

        They are ``psi = e + D^T psi``, where D is the matrix of direct derivatives between order parameters
        at time 0, and e is one for the order parameter ``atom`` itself.
        """
        rows: dict[AppliedUndef, dict[AppliedUndef, Expr]] = {}
        order: list[AppliedUndef] = []
        self._visit(atom, rows, order)
        psi: dict[AppliedUndef, Expr] = {atom: S.One}
        for first in reversed(order):
            for second, slope in rows[first].items():
                psi[second] = psi.get(second, S.Zero) + psi[first] * slope
        return psi

    def _visit(
        self,
        atom: AppliedUndef,
        rows: dict[AppliedUndef, dict[AppliedUndef, Expr]],
        order: list[AppliedUndef],
    ) -> None:
        """Find the order parameters on which ``atom`` depends, directly or through others.

        ``rows`` gets the direct derivatives of each (a row of the matrix D), and ``order`` gets each order
        parameter after all those on which it depends.
        """
        if atom in rows:
            return
        rows[atom] = self.units.feedback(atom)
        for earlier in rows[atom]:
            self._visit(earlier, rows, order)
        order.append(atom)

    def covariance(self, first: AppliedUndef, second: AppliedUndef) -> Expr:
        """Return N times the covariance over networks of two observables at the start of training."""
        first_slopes, second_slopes = self.influence(first), self.influence(second)
        total = []
        for (a, x), (b, y) in product(first_slopes.items(), second_slopes.items()):
            if x != 0 and y != 0 and self.units.place(a) == self.units.place(b) is not None:
                total.append(x * y * self.units.noise(a, b))
        return _tidied(_with_kernels(self.units, Add(*total)))


def _is_plain(value: Expr) -> bool:
    """Return whether a kernel's value is a polynomial of other kernels, without a Gaussian average."""
    atoms = value.atoms(AppliedUndef)
    return not value.has(GaussianAverage) and bool(value.is_polynomial(*atoms))


def _with_kernels(units: InitialUnits, e: Expr) -> Expr:
    """Return an expression with each order parameter replaced by its value if this is a polynomial.

    The value is a polynomial of order parameters of earlier layers; the replacement is repeated. Order
    parameters that are Gaussian averages stay.
    """
    while True:
        values = {a: units.mean(a) for a in units.members_in(e)}
        polynomials = {a: x for a, x in values.items() if _is_plain(x)}
        if not polynomials:
            return e
        e = units.canonical(e.xreplace(polynomials))


def _named_kernels(units: InitialUnits, e: Expr) -> list[tuple[Expr, Expr]]:
    """Return (order parameter, value) for the order parameters in an expression and in their values.

    Each pair stands after those on which its value depends.
    """
    values_: dict[Expr, Expr] = {}

    def visit(e: Expr) -> None:
        """Add the order parameters in an expression to the result, after those on which they depend."""
        for a in units.members_in(e):
            if a not in values_:
                value = _with_kernels(units, units.mean(a))
                visit(value)
                values_[a] = value

    visit(e)
    return list(values_.items())


def _equations(units: InitialUnits, value: Expr) -> tuple[Eq, ...]:
    """Return equations ``kernel = its value`` for the kernels that remain in ``value``, without times.

    A kernel is an order parameter of a layer. Those of earlier layers come first.
    """
    named = _named_kernels(units, value)
    return tuple(Eq(_timeless(a), _timeless(x), evaluate=False) for a, x in named)


def _tidied(e: Expr) -> Expr:
    """Return an expression, factored if it is a polynomial of order parameters without Gaussian averages."""
    return factor(e) if _is_plain(e) else e


# -- any number of layers ------------------------------------------------------------------------------------


def _powers_together(e: Expr, depth: Symbol) -> Expr:
    """Return an expression, factored, with powers ``n^depth`` of integers as powers of primes.

    For example ``4^depth`` becomes ``(2^depth)^2``, so that equal powers are collected.
    """
    slots: dict[Expr, Expr] = {}

    def of_primes(x: Pow) -> Expr:
        """Return a power of an integer as a product of powers of primes, with symbols for ``prime^depth``."""
        multiple = x.exp.expand().coeff(depth)
        product_ = Pow(x.base, (x.exp - multiple * depth).expand())
        for p, n in factorint(x.base).items():
            product_ *= slots.setdefault(p, Dummy(f"power_of_{p}", positive=True)) ** (n * multiple)
        return product_

    powers = e.replace(lambda x: isinstance(x, Pow) and x.base.is_Integer and x.has(depth), of_primes)
    return factor(powers).xreplace({x: Pow(p, depth) for p, x in slots.items()})


@dataclass(frozen=True)
class _Slope:
    """Direct derivative of an observable by one kernel, for each of the layers ``first`` to ``last``.

    ``atom`` is the kernel (an order parameter of a layer) at the layer ``ell``, and ``value`` is the
    derivative as a function of ell.
    """

    atom: AppliedUndef
    value: Expr
    first: Expr
    last: Expr


class _LayerSweep:
    """Derivatives of observables by the kernels of all layers, for a symbolic number of layers.

    A kernel is an order parameter of one layer. It must be a constant times that of a neighbouring layer, so
    that the sweep from layer to layer has a closed form.
    """

    def __init__(self, units: InitialUnits) -> None:
        self.units = units
        self.depth = units.theory.program.depth
        self._growths: dict[Expr, tuple[int, Expr]] = {}
        if any(q.home is not None and q.home.shared for q in units.theory.parameters):
            raise NotApplicable(
                "the layers of a residual network share their units, so that kernels do not follow from one "
                "neighbouring layer: give a number of layers"
            )

    # -- kernels of infinite width ---------------------------------------------------------------------------

    def at(self, atom: AppliedUndef, layer: Expr) -> AppliedUndef:
        """Return an order parameter with its layer replaced by ``layer``.

        ``atom`` is the order parameter, which must belong to a layer.
        """
        place = self.units.family(atom).symbol.args.index(ell)
        args = list(atom.args)
        args[place] = layer
        member: AppliedUndef = atom.func(*args)
        return member

    def layer(self, atom: AppliedUndef) -> Expr | None:
        """Return the layer of an order parameter; None if its family has no layer index ell."""
        args = self.units.family(atom).symbol.args
        return atom.args[args.index(ell)] if ell in args else None

    def growth(self, atom: AppliedUndef) -> tuple[int, Expr]:
        """Return (step, factor) of a kernel that is a geometric sequence in the layer.

        The kernel (order parameter of a layer) is the factor times the same kernel at the layer ``ell +
        step``, where step is -1 or 1.

        Raises
        ------
        NotApplicable
            If it is not a constant times the same kernel of one neighbouring layer.
        """
        kernel = self.at(atom, ell)
        if kernel not in self._growths:
            self._growths[kernel] = self._growth(kernel)
        return self._growths[kernel]

    def _growth(self, kernel: AppliedUndef) -> tuple[int, Expr]:
        """Return (step, factor): ``kernel`` is the factor times itself at the layer ``ell + step``.

        This derives the result; :meth:`growth` keeps it in memory. ``step`` is -1 or 1. Raises NotApplicable
        if the kernel has another recursion.
        """
        for step in (-1, 1):
            neighbour = self.at(kernel, ell + step)
            factor_ = cancel(self.units.mean(kernel) / neighbour)
            if not self.units.members_in(factor_) and not factor_.has(ell):
                row = {neighbour: factor_} if factor_ != 0 else {}
                if all(cancel(x - row.get(a, 0)) == 0 for a, x in self.units.feedback(kernel).items()):
                    return step, factor_
        raise NotApplicable(
            f"the kernel {_timeless(kernel)} must be a constant times the same kernel of one neighbouring "
            "layer, and is not: give a number of layers"
        )

    def solved(self, e: Expr) -> Expr:
        """Return an expression with each order parameter replaced by its closed form in the layer."""
        return self.units.canonical(e.xreplace({a: self.value(a) for a in self.units.members_in(e)}))

    def value(self, atom: AppliedUndef) -> Expr:
        """Return a kernel (order parameter of one layer) at infinite width, as a function of its layer.

        Raises NotApplicable for an order parameter that does not belong to a layer.
        """
        layer = self.layer(atom)
        if layer is None:
            raise NotApplicable(
                f"the order parameter {atom} does not belong to a single layer, so that it is not derived as "
                "a function of the layer: give a number of layers"
            )
        step, factor_ = self.growth(atom)
        end = S.One if step == -1 else self.depth
        start = self.solved(self.units.mean(self.at(atom, end)))
        return start * factor_ ** ((layer - end) * -step)

    def mean(self, atom: AppliedUndef) -> Expr:
        """Return the value of an observable at infinite width, as a function of the number of layers."""
        return _powers_together(self.solved(self.units.mean(atom)).doit(), self.depth)

    # -- derivatives of an observable ------------------------------------------------------------------------

    def slopes(self, atom: AppliedUndef) -> list[_Slope]:
        """Return the direct derivatives of an observable by each kernel in its definition.

        A kernel is an order parameter of one layer. A sum over layers in the definition gives one derivative
        for a range of layers. Raises NotApplicable if the definition contains an order parameter that does
        not belong to a layer, or a sum over another index.
        """
        slopes = []
        for term in Add.make_args(self.units.mean(atom)):
            body, first, last = term, None, None
            if isinstance(term, Sum):
                body, ((index, first, last),) = term.function, term.limits
                if index != ell:
                    raise NotApplicable(f"the sum {term} in an observable must be over the layers {ell}")
            for a in self.units.members_in(body):
                layer, slope = self.layer(a), self.solved(body.diff(a))
                if layer is None:
                    raise NotApplicable(
                        f"the observable {_timeless(atom)} contains {_timeless(a)}, which is not a kernel of "
                        "a layer: give a number of layers"
                    )
                if first is None:
                    slopes.append(_Slope(self.at(a, ell), slope, layer, layer))
                else:
                    distance = layer - ell
                    slopes.append(
                        _Slope(
                            self.at(a, ell),
                            slope.subs(ell, ell - distance),
                            first + distance,
                            last + distance,
                        )
                    )
        return slopes

    def influence(self, atom: AppliedUndef) -> list[_Slope]:
        """Return the total derivatives of an observable by the kernels, each in a range of layers.

        A direct derivative is carried from layer to layer by the factor by which its kernel grows in a
        layer. A kernel at one layer depends on those at the layers before it (after it, for a kernel that
        follows from the layer above), and a sum over all layers on those of all layers.
        """
        total = []
        for x in self.slopes(atom):
            step, factor_ = self.growth(x.atom)
            summed_layer = Symbol("j", integer=True)
            propagation = factor_ ** ((summed_layer - ell) * -step)
            # A kernel at ell changes the kernels that are computed from it, at the layers j in the sum. If a
            # kernel is computed from the layer below (step = -1), these are the layers from ell up, else
            # those up to ell.
            low, high = (ell, x.last) if step == -1 else (x.first, ell)
            if x.first == x.last:
                added = propagation.subs(summed_layer, x.first) * x.value.subs(ell, x.first)
                first, last = (S.One, x.last) if step == -1 else (x.first, self.depth)
            else:
                self._require_all_layers(x, step)
                added = summation(propagation * x.value.subs(ell, summed_layer), (summed_layer, low, high))
                first, last = S.One, self.depth
            total.append(_Slope(x.atom, added, first, last))
        return total

    def _require_all_layers(self, x: _Slope, step: int) -> None:
        """Raise NotApplicable unless the layers ``first`` to ``last`` of a derivative reach the required end.

        ``x`` is the derivative by a kernel at these layers. For ``step = -1``, kernels follow from those of
        the layer below, and ``first`` must be layer 1; for ``step = 1`` they follow from the layer above, and
        ``last`` must be the last layer.
        """
        ends = (x.first == 1 and step == -1) or (x.last == self.depth and step == 1)
        if not ends:
            raise NotApplicable(
                f"the observable contains {x.atom} at the layers {x.first} to {x.last} only; these must "
                f"{'begin at layer 1' if step == -1 else 'end at the last layer'}: give a number of layers"
            )

    # -- covariance ------------------------------------------------------------------------------------------

    def covariance(self, first: AppliedUndef, second: AppliedUndef) -> Expr:
        """Return N times the covariance of two observables, a function of the number of layers."""
        least = self._least_depth(first, second)
        total = self.solved(self.units.noise(first, second))
        first_slopes, second_slopes = self.influence(first), self.influence(second)
        for x, y in product(first_slopes, second_slopes):
            if x.value * y.value != 0 and self._noisy(x.atom, y.atom):
                low, high = self._larger(x.first, y.first, least), self._smaller(x.last, y.last, least)
                total += self._over_layers(x, y, low, high)
        if any(self.units.place(x) for x in (first, second)) and (first_slopes or second_slopes):
            total += self._mixed(first, second_slopes, least) + self._mixed(second, first_slopes, least)
        return _powers_together(total, self.depth)

    def _noisy(self, a: AppliedUndef, b: AppliedUndef) -> bool:
        """Return whether two kernels of one layer have a covariance at fixed kernels of the other layers."""
        layers = (S.One, ell, self.depth)
        return any(self.units.noise(self.at(a, x), self.at(b, x)) != 0 for x in layers)

    def _over_layers(self, x: _Slope, y: _Slope, low: Expr, high: Expr) -> Expr:
        """Return the noise of two kernels times the derivatives by them, summed over the layers low to high.

        The noise of the first and of the last layer of the network may differ from that of the others.
        """

        def of_layer(layer: Expr) -> Expr:
            noise = self.units.noise(self.at(x.atom, layer), self.at(y.atom, layer))
            return self.solved(noise) * (x.value * y.value).subs(ell, layer)

        total = S.Zero
        if low == 1:
            total, low = total + of_layer(S.One), low + 1
        if high == self.depth:
            total, high = total + of_layer(self.depth), high - 1
        return total + summation(of_layer(ell).expand(), (ell, low, high))

    def _mixed(self, atom: AppliedUndef, slopes: list[_Slope], least: int) -> Expr:
        """Return the part of N Cov from the noise that ``atom`` shares with the kernels of its layer.

        ``atom`` is one observable, ``slopes`` are the total derivatives of the other by the kernels, and
        ``least`` is the least number of layers of the network. The result is zero if ``atom`` is not an
        average over units.
        """
        place = self.units.place(atom)
        if place is None:
            return S.Zero
        layer, total = place[1], S.Zero
        for x in slopes:
            noise = self.units.noise(atom, self.at(x.atom, layer)) * x.value.subs(ell, layer)
            if noise != 0 and self._between(x.first, layer, x.last, least):
                total += noise
        return self.solved(total)

    # -- order of layers -------------------------------------------------------------------------------------

    def _least_depth(self, *atoms: AppliedUndef) -> int:
        """Return the least number of layers of a network in which the layers of all ``atoms`` exist.

        Layers are numbers, or the number of layers minus a number.
        """
        layers = (layer for atom in atoms if (layer := self.layer(atom)) is not None)
        return max([1, *(int(x if x.is_Integer else self.depth - x + 1) for x in layers)])

    def _between(self, first: Expr, layer: Expr, last: Expr, least: int) -> bool:
        """Return whether a layer is one of those from ``first`` to ``last``, as :meth:`_larger` decides.

        ``least`` is the least number of layers of the network.
        """
        after = self._larger(first, layer, least) == layer
        return bool(after and self._larger(layer, last, least) == last)

    def _larger(self, a: Expr, b: Expr, least: int) -> Expr:
        """Return the larger of two layers in every network of at least ``least`` layers.

        Raises NotApplicable if that depends on the number of layers.
        """
        difference = (a - b).subs(self.depth, Dummy(integer=True, nonnegative=True) + least)
        if difference.is_nonnegative:
            return a
        if difference.is_nonpositive:
            return b
        raise NotApplicable(
            f"which of the layers {a} and {b} comes first depends on the number of layers: give a number of "
            "layers"
        )

    def _smaller(self, a: Expr, b: Expr, least: int) -> Expr:
        """Return the smaller of two layers in every network of at least ``least`` layers."""
        return a if self._larger(a, b, least) == b else b
