"""Networks: a program from a forward pass, a loss and a training rule.

``Network`` contains the forward pass; ``Network.train`` differentiates it (:mod:`derive.program.gradients`)
and assembles backward pass, error and updates to a :class:`Program`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from typing import Any

from sympy import (
    Add,
    Dummy,
    Expr,
    Function,
    Heaviside,
    KroneckerDelta,
    Mul,
    Pow,
    S,
    Sum,
    Symbol,
    factor_terms,
    log,
    sign,
)
from sympy.core.function import AppliedUndef

from derive.calculus.sums import defined, drawn_out, over, rename_all_bound
from derive.calculus.symbols import IndexRange, L, P, alpha, ell, expression, mu, primed, s, spelled, t
from derive.errors import ProgramError
from derive.program.averages import number_of
from derive.program.cases import without_cases_of_fields
from derive.program.gradients import LOSS, Gradients, name_of
from derive.program.language import (
    Attribute,
    Field,
    GaussianMatrix,
    GaussianVector,
    GaussianWeight,
    GivenVector,
    Mean,
    Product,
)
from derive.program.naming import (
    bare_matrices,
    calls_in,
    free_name,
    functions_in,
    inconsistent_uses,
    indices_of_layers,
    name_conflicts,
    size_as_index,
    wrong_heads,
)
from derive.program.nonlinear import NonlinearRule
from derive.program.parts import Definition, Parts, nested_products, ranges_of_family, ranges_of_loss
from derive.program.program import Program
from derive.program.rules import TrainingRule, fixed_symbols, function_names, with_noise
from derive.program.training import (
    Along,
    Gradient,
    Outer,
    Parametrization,
    TrainedMatrix,
    TrainedVector,
    by_name,
)
from derive.program.unused_layers import without_unused_layers, without_unused_members


@dataclass(frozen=True)
class Network:
    """Forward pass of a network.

    Parameters
    ----------
    name : str
        The name.
    fields : tuple of Field
        The vectors of the forward pass.
    forward : mapping of Expr to Expr, or tuple of Definition
        The expression of each field and scalar, for example ``W(ell) @ tanh(h(ell, mu, t))`` for ``h(ell + 1,
        mu, t)``. A vector of weights may be inside of a mean, ``Mean(w.symbol * h(L, mu, t))``.
    weights : tuple of GaussianMatrix or GaussianVector
        The trained weights.
    frozen : tuple of GaussianMatrix or GaussianVector
        The weights that are not trained.
    given : tuple of GivenVector
        Fixed vectors of the data.
    attributes : tuple of Attribute
        Constants of each unit.
    ranges : tuple of IndexRange
        The ranges of indices. By default the sample ``mu`` runs from 1 to P, and a layer as far as the
        matrices of its definition.
    depth : Expr
        The number of hidden layers, by default the symbol ``L``.

    Raises
    ------
    ProgramError
        If a tuple holds objects of another type than those named here, if a name, an index or a function
        with cases is invalid, or if a matrix is not applied to a vector.

    Examples
    --------
    >>> from sympy import tanh
    >>> from derive.program import GradientDescent, Population, eta
    >>> y, layer = Function("y"), Population("layer")
    >>> x, h, f = GivenVector("x", Population("input", given=True), "K_x"), Field("h", layer), Function("f")
    >>> W, w = GaussianMatrix("W", layer, x.population), GaussianVector("w", layer)
    >>> forward = {h(mu, t): W @ x(mu), f(mu, t): Mean(w.symbol * tanh(h(mu, t)))}
    >>> net = Network("one layer", (h,), forward, weights=(W, w), given=(x,))
    >>> program = net.train((y(mu) - f(mu, t))**2 / 2, GradientDescent(eta), Parametrization(S.One))
    >>> for d in program.definitions: print(d.lhs, "=", d.rhs)
    h(mu, t) = W @ x(mu)
    f(mu, t) = Mean(omega(t)*tanh(h(mu, t)))
    omega(t) = w
    Delta(mu, t) = -f(mu, t) + y(mu)
    g(mu, t) = (1 - tanh(h(mu, t))**2)*omega(t)
    """

    name: str
    fields: tuple[Field, ...]
    forward: tuple[Definition, ...] | Mapping[Expr, Expr]
    weights: tuple[GaussianWeight, ...] = ()
    frozen: tuple[GaussianWeight, ...] = ()
    given: tuple[GivenVector, ...] = ()
    attributes: tuple[Attribute, ...] = ()
    ranges: tuple[IndexRange, ...] = ()
    depth: Expr = L

    def _require_types(self) -> None:
        """Raise ProgramError for an argument that is not a tuple or list of the right type of objects."""
        kinds: dict[str, tuple[type, ...]] = {
            "fields": (Field,),
            "weights": (GaussianMatrix, GaussianVector),
            "frozen": (GaussianMatrix, GaussianVector),
            "given": (GivenVector,),
            "attributes": (Attribute,),
            "ranges": (IndexRange,),
        }
        if not isinstance(self.forward, Mapping):
            kinds["forward"] = (Definition,)
        for key, kind in kinds.items():
            value, names = getattr(self, key), " or ".join(x.__name__ for x in kind)
            also = ", or a mapping from fields to expressions" if key == "forward" else ""
            if not isinstance(value, tuple | list):
                raise ProgramError(
                    f"{key} of a network has the type {type(value).__name__}: give a tuple of {names}, also "
                    f"for a single one{also}"
                )
            wrong = next((x for x in value if not isinstance(x, kind)), None)
            if wrong is not None:
                raise ProgramError(f"{key} of a network contains {wrong!r}: give a tuple of {names}{also}")

    @cached_property
    def matrices(self) -> tuple[GaussianMatrix, ...]:
        """The matrices among the weights, trained ones first."""
        return tuple(w for w in (*self.weights, *self.frozen) if isinstance(w, GaussianMatrix))

    @cached_property
    def vectors(self) -> tuple[GaussianVector, ...]:
        """The vectors among the weights, trained ones first."""
        return tuple(w for w in (*self.weights, *self.frozen) if isinstance(w, GaussianVector))

    def definitions(self) -> tuple[Definition, ...]:
        """Return the forward pass as definitions with their ranges.

        Averages whose values a gradient needs, such as one inside another average, are definitions of their
        own.

        Returns
        -------
        tuple of Definition
            The definitions.

        Raises
        ------
        ProgramError
            If ``forward`` is a mapping and an index has no range, a matrix has a wrong number of indices, or
            a symbol is named like the time without being the time.
        """
        return self._named_averages(self._lines(), S.Zero)[0]

    def _lines(self) -> tuple[Definition, ...]:
        """Return the forward pass as definitions with their ranges; definitions of the user are unchanged."""
        if not isinstance(self.forward, Mapping):
            return tuple(self.forward)
        lines = ((lhs, expression(rhs)) for lhs, rhs in self.forward.items())
        return tuple(Definition(lhs, rhs, self._ranges(lhs, rhs)) for lhs, rhs in lines)

    def _parametrization(
        self, given: Parametrization | None, weights: Mapping[str, GaussianWeight]
    ) -> Parametrization:
        """Return the parametrization, the default for None.

        Raises :class:`ProgramError` for an object of another class, for names of unknown weights, and for
        factors that the weights cannot have (:meth:`_check_factors`).
        """
        p = Parametrization() if given is None else given
        if not isinstance(p, Parametrization):
            raise ProgramError(f"parametrization = {p!r}: must be a Parametrization(scale, rate, ...)")
        for key in ("rates", "fan_in"):
            _require_known(dict(getattr(p, key)), f"{key} of the parametrization", weights, "weight")
        self._check_factors(p, weights)
        return p

    def _check_factors(self, p: Parametrization, weights: Mapping[str, GaussianWeight]) -> None:
        """Raise :class:`ProgramError` for factors of weights that depend on indices which the weight lacks.

        ``p`` is the parametrization of the network. A weight is one number for all samples, so that a factor
        of its updates or of its initial values may depend on indices of its own family alone; only rates may
        depend on the time. A ratio of a population may depend on an index of layers or of a family. A
        ``fan_in`` of a vector is refused too.
        """
        lines = self._lines()
        families = {name: {r.index for r in ranges_of_family(w)} for name, w in weights.items()}
        indices = {mu, alpha, ell, *(r.index for r in self.ranges)}.union(*families.values())
        depth = expression(self.depth, "depth")
        indices |= {x for d in lines for x in d.lhs.args if x.is_Symbol} - {t, depth}
        factors: list[tuple[str, Expr, set[Symbol], bool]] = [
            ("scale of the parametrization", expression(p.scale), set(), False),
            ("rate of the parametrization", expression(p.rate), set(), True),
        ]
        for key in ("rates", "fan_in"):
            for name, value in dict(getattr(p, key)).items():
                if key == "fan_in" and isinstance(weights[name], GaussianVector):
                    raise ProgramError(
                        f"fan_in[{name!r}] = {value}: {name} is a vector, whose initial entries are not "
                        f"divided by a number of units; leave {name} out of fan_in, and give it a variance"
                    )
                factors.append((f"{key}[{name!r}]", value, families[name], key == "rates"))
        for name, w in weights.items():
            factors.append((f"variance of {name}", expression(w.variance), families[name], False))
            if isinstance(w, GaussianMatrix):
                factors.append((f"symmetry of {name}", expression(w.symmetry), families[name], False))
        layered = {ell}.union(*families.values())
        for population in {x.population for x in self.fields}:
            factors.append((f"ratio of {population.name}", expression(population.ratio), layered, False))
        for what, value, own, in_time in factors:
            symbols = value.free_symbols
            if wrong := sorted((symbols & (indices - own)) | (symbols & {s}), key=str):
                raise ProgramError(f"{what} = {value} depends on {wrong[0]}, {_remedy(wrong[0])}")
            if t in symbols and not in_time:
                raise ProgramError(
                    f"{what} = {value} depends on the time, but must be fixed before training: write a "
                    f"number without {t}"
                )

    def _named_averages(
        self, lines: tuple[Definition, ...], loss: Expr
    ) -> tuple[tuple[Definition, ...], Expr]:
        """Return forward pass and loss with new scalars in place of averages whose values a gradient needs.

        These are averages inside another average or inside a vector that a matrix is applied to, averages in
        which a scalar or the loss is not linear, averages of weights in the definition of a field, and all
        averages of a loss that contains a scalar outside of averages. The definitions of the new scalars come
        first. ``lines`` are the definitions of the forward pass.
        """
        fields = {x.name for x in self.fields}
        numbers = {d.name for d in lines} - fields
        ranges = {r.index: r for r in (IndexRange(mu, S.One, P), *self.ranges) if loss.has(r.index)}
        ranges |= {r.index: r for r in ranges_of_loss(lines, loss)}
        goal = Definition(Function(LOSS)(t), loss, tuple(ranges.values()))
        expressions = [e for d in (*lines, goal) for e in (d.lhs, d.rhs)]
        used = {name_of(a) for e in expressions for a in e.atoms(AppliedUndef, Symbol)}
        used |= {name for _, name in self._declared()}
        names = (x for x in map("average_{}".format, count(1)) if x not in used)
        scalars: dict[Mean, Definition] = {}

        def number(mean: Mean, d: Definition) -> Expr:
            """Return the scalar that stands for an average of the definition ``d``; make it at first use."""
            if mean not in scalars:
                sums = (IndexRange(*limits) for e in d.rhs.atoms(Sum) for limits in e.limits)
                known = (IndexRange(mu, S.One, P), *self.ranges, *d.ranges, *sums)
                scalars[mean] = number_of(mean, known, next(names))
            return scalars[mean].lhs

        def inside(e: Expr, d: Definition) -> Expr:
            """Return an expression with new scalars in place of all averages in it, the innermost first.

            ``d`` is the definition that contains the expression.
            """
            if not e.has(Mean):
                return e
            e = e.func(*[inside(x, d) if isinstance(x, Expr) else x for x in e.args])
            return number(e, d) if isinstance(e, Mean) else e

        def outside(e: Expr, d: Definition, needed: Container[Expr]) -> Expr:
            """Return an expression with new scalars in place of some averages.

            These are the averages in ``needed``, and those that are inside of another average. ``d`` is the
            definition that contains the expression.
            """
            if not e.has(Mean):
                return e
            if e in needed:
                return inside(e, d)
            deep = isinstance(e, Mean | Product)
            return e.func(
                *[
                    (inside(x, d) if deep else outside(x, d, needed)) if isinstance(x, Expr) else x
                    for x in e.args
                ]
            )

        def needed_in(d: Definition) -> set[Mean]:
            """Return the averages of a definition whose values are needed to differentiate it."""
            if d.name in fields:
                return {mean for mean in d.rhs.atoms(Mean) if any(v.uses(mean) for v in self.vectors)}
            bare = d.rhs.replace(lambda e: isinstance(e, Mean), lambda _: S.One)
            if d is goal and numbers & {name_of(a) for a in bare.atoms(AppliedUndef)}:
                # A loss that contains scalars, such as outputs, outside of averages is a function of scalars,
                # so that each of its averages becomes a scalar too.
                return set(d.rhs.atoms(Mean))
            return _nonlinear_averages(d.rhs)

        rewritten_lines = [replace(d, rhs=outside(d.rhs, d, needed_in(d))) for d in (*lines, goal)]
        return (*scalars.values(), *rewritten_lines[:-1]), rewritten_lines[-1].rhs

    def _ranges(self, lhs: AppliedUndef, rhs: Expr) -> tuple[IndexRange, ...]:
        """Return the ranges of the indices of ``lhs``, the left-hand side of a definition; layers last.

        A layer runs as far as the families of matrices in ``rhs`` have members. Other ranges are those of the
        network, with the sample ``mu`` from 1 to P by default. Raises ProgramError for an index without a
        range, a matrix with a wrong number of indices, and a symbol that is named like the time.
        """
        known = {r.index: r for r in (IndexRange(mu, S.One, P), *self.ranges)}
        matrices = {m.name: m for m in self.matrices}
        depth = expression(self.depth, "depth").free_symbols
        for p in sorted(rhs.atoms(Product), key=str):
            if (matrix := matrices.get(name_of(p.matrix))) is None:
                continue
            _require_member(lhs, matrix, p.matrix)
            if (family := matrix.index) is not None:
                first = p.matrix.args[0]
                for x in first.free_symbols - depth - {mu}:
                    known[x] = IndexRange(x, family.lower - (first - x), family.upper - (first - x))
        for x in (lhs.free_symbols | rhs.free_symbols) - {t}:
            if x.name == t.name:
                raise ProgramError(
                    f"{lhs}: the symbol {x} of this definition is not the symbol {x} of derive.program: "
                    f"import the symbol {x} from derive.program"
                )
        layered = any(x.name == name_of(lhs) and (x.layered or x.ordered) for x in self.fields)
        ranges_with_order: list[tuple[bool, IndexRange]] = []
        for i, a in enumerate(lhs.args[:-1]):
            for x in sorted(a.free_symbols - depth, key=spelled):
                if x not in known:
                    raise ProgramError(f"{lhs}: {_without_range(x)}")
                ranges_with_order.append((layered and i == 0, known[x]))
        return tuple(r for _, r in sorted(ranges_with_order, key=lambda x: x[0]))

    def __post_init__(self) -> None:
        """Raise ProgramError for invalid names and indices; write functions with cases by Max and Min."""
        self._require_types()
        lines = self.forward if isinstance(self.forward, Mapping) else [d.lhs for d in self.forward]
        for message in wrong_heads(lines, {r.index for r in self.ranges} | {mu, ell}):
            raise ProgramError(message)
        layer_indices = indices_of_layers(lines, {x.name for x in self.fields if x.layered or x.ordered})
        for message in name_conflicts(self._declared(), self.ranges, (), layer_indices):
            raise ProgramError(message)
        known: dict[Symbol, IndexRange] = {}
        for r in self.ranges:
            if known.setdefault(r.index, r) != r:
                one, other = (f"{x.index} = {x.lower}..{x.upper}" for x in (known[r.index], r))
                raise ProgramError(
                    f"ranges: {one} and {other} are two ranges of one index; use another symbol as the index "
                    "of one of them"
                )
        if isinstance(self.forward, Mapping):
            self._check_uses([(lhs, expression(rhs)) for lhs, rhs in self.forward.items()])
        else:
            self._check_uses([(d.lhs, d.rhs) for d in self.forward])
        self._read_cases()

    def _read_cases(self) -> None:
        """Write functions with cases of fields in the forward pass by Max, Min and Heaviside, in place."""
        if isinstance(self.forward, Mapping):
            lines = [(lhs, expression(rhs)) for lhs, rhs in self.forward.items()]
        else:
            lines = [(d.lhs, d.rhs) for d in self.forward]
        read = [self._read(rhs, spelled(lhs)) for lhs, rhs in lines]
        if all(x == rhs for x, (_, rhs) in zip(read, lines, strict=True)):
            return
        forward: Any = dict(zip((lhs for lhs, _ in lines), read, strict=True))
        if not isinstance(self.forward, Mapping):
            forward = tuple(replace(d, rhs=x) for d, x in zip(self.forward, read, strict=True))
        object.__setattr__(self, "forward", forward)

    def _read(self, e: Any, where: str) -> Expr:
        """Return an expression in which functions with cases of fields are written by Max, Min and Heaviside.

        ``where`` names the expression in error messages.
        """
        return without_cases_of_fields(expression(e), where, {v.symbol for v in self.vectors})

    def _check_uses(self, lines: list[tuple[Expr, Expr]], *more: Expr) -> None:
        """Raise :class:`ProgramError` for names with different indices, and matrices without a vector.

        ``lines`` are pairs of left- and right-hand sides, ``more`` further expressions.
        """
        weights = {w.name: len(w.symbol.args) for w in (*self.weights, *self.frozen)}
        expressions = [*(rhs for _, rhs in lines), *more]
        attributes = {x.name for x in self.attributes}
        for message in inconsistent_uses([lhs for lhs, _ in lines], weights, expressions, attributes):
            raise ProgramError(message)
        for message in bare_matrices({w.name for w in self.matrices}, expressions):
            raise ProgramError(message)

    def _check_indices(self, lines: tuple[Definition, ...], loss: Expr) -> None:
        """Raise :class:`ProgramError` for an index in the loss that no definition has, outside of a sum.

        The loss is summed over the indices of the definitions, ``lines``. Any other index must stand in a sum
        that the loss contains. A symbol is an index if it has a range in the network, or if it is in an
        argument of a function and either is an integer or does not occur anywhere as a number.
        """
        ranges = {r.index: r for r in (IndexRange(mu, S.One, P), *self.ranges)}
        # An attribute has the index of a unit, which is not an index of the loss: attributes are left out of
        # the search.
        units = {x.name for x in self.attributes}
        loss = loss.xreplace({a: S.One for a in loss.atoms(AppliedUndef) if name_of(a) in units})
        read = [a.args for a in loss.atoms(AppliedUndef) if not any(x.has(AppliedUndef) for x in a.args)]
        places = {x for args in read for a in args for x in a.free_symbols if x.is_integer}
        places |= {*ranges} | self._places_alone(lines, loss)
        places &= loss.free_symbols
        places -= {r.index for d in lines for r in d.ranges} | expression(self.depth, "depth").free_symbols
        for x in sorted(places, key=str):
            limits = f"{x}, ..." if x not in ranges else ", ".join(map(str, ranges[x].limits))
            raise ProgramError(
                f"the loss {loss} contains the index {x}, which is not an index of the forward pass, so "
                f"that the loss is not summed over {x}: write the sum in the loss, Sum(..., ({limits}))"
            )

    def _places_alone(self, lines: tuple[Definition, ...], loss: Expr) -> set[Symbol]:
        """Return the symbols that the loss contains as arguments of functions only, such as ``p`` in y(p).

        Symbols that the loss, a definition or a variance contains as a number are left out.
        """
        expressions = [loss, *(d.rhs for d in lines)]
        masks = {a: Dummy() for e in expressions for a in e.atoms(AppliedUndef)}
        numbers = {x for e in expressions for x in e.xreplace(masks).free_symbols}
        numbers |= {x for w in (*self.weights, *self.frozen) for x in expression(w.variance).free_symbols}
        calls = [a for a in loss.atoms(AppliedUndef) if not any(x.has(AppliedUndef) for x in a.args)]
        return {x for a in calls for arg in a.args for x in arg.free_symbols} - numbers - {t}

    def _check_times(self, lines: tuple[Definition, ...], loss: Expr) -> None:
        """Raise :class:`ProgramError` for a field or scalar at a time that is neither ``t`` nor 0.

        The value at another step, such as ``f(mu, 1)``, would act on earlier steps.
        """
        computed = {d.name: len(d.lhs.args) for d in lines}
        expressions = [(f"the loss {spelled(loss)}", loss), *((spelled(d.lhs), d.rhs) for d in lines)]
        for label, e in expressions:
            for a in sorted(e.atoms(AppliedUndef), key=spelled):
                if computed.get(name_of(a)) == len(a.args) > 0 and a.args[-1] not in (t, S.Zero):
                    raise ProgramError(
                        f"{label}: {a} is at another time than {t}; write {t}, or 0 for the start of "
                        "training: a quantity at any other time is not supported"
                    )

    def _check_rings(self, lines: tuple[Definition, ...], loss: Expr) -> None:
        """Raise :class:`ProgramError` for constants and a field that are shifted along one index.

        This is tested in the loss and in each definition; scalars and given vectors count as fields. The
        field is periodic in the index and the array of constants is not, so that no shift of both gives the
        gradient.
        """
        computed = {d.name for d in lines} | {x.name for x in self.given}
        layered = {x.name for x in self.fields if x.layered or x.ordered}
        for label, e in ((f"the loss {spelled(loss)}", loss), *((spelled(d.lhs), d.rhs) for d in lines)):
            shifted: dict[bool, set[Symbol]] = {True: set(), False: set()}
            for a in e.atoms(AppliedUndef):
                for k, x in enumerate(a.args):
                    if isinstance(x, Add) and not x.has(t, AppliedUndef) and (k or name_of(a) not in layered):
                        shifted[name_of(a) in computed] |= x.free_symbols
            for x in sorted(shifted[True] & shifted[False], key=spelled):
                raise ProgramError(
                    f"{label} shifts the index {x} in an array of constants, which is not periodic, and in "
                    f"a quantity that is periodic in {x}: shift only one of the two"
                )

    def _check_vectors(self, lines: tuple[Definition, ...]) -> None:
        """Raise :class:`ProgramError` for a matrix product in a scalar, or inside of another matrix product.

        The definition of a scalar must not contain a matrix product outside of averages. A matrix that is
        applied to a vector with another matrix product in it has no gradient.
        """
        fields = {x.name for x in self.fields}
        for d in lines:
            bare = d.rhs.replace(lambda e: isinstance(e, Mean), lambda _: S.One)
            if d.name not in fields and bare.has(Product):
                raise ProgramError(
                    f"{d.lhs} = {d.rhs} is a vector: list {d.name} among the fields, or take the Mean of "
                    "the vector"
                )
            for message in nested_products(d):
                raise ProgramError(message)

    def _constants_in_front(self, e: Expr) -> Expr:
        """Return the expression with constants moved out of matrix products, and into sums of these.

        ``W @ (c x(mu))`` becomes ``c (W @ x(mu))``, if x is a given vector of the data, and a factor of a sum
        of matrix products moves into the sum.
        """
        given = {x.name for x in self.given}
        units = given | {x.name for x in (*self.fields, *self.attributes, *self.weights, *self.frozen)}

        def constants_in_front(x: Product) -> Expr:
            """Return the product ``M @ (c x)`` as ``c (M @ x)``, if x is a given vector of the data."""
            factors = Mul.make_args(x.vector)
            varying = [y for y in factors if functions_in(y) & units or y.atoms(Symbol) & vectors]
            if (
                len(varying) != 1
                or not isinstance(varying[0], AppliedUndef)
                or name_of(varying[0]) not in given
            ):
                return x
            return Mul(*[y for y in factors if y != varying[0]]) * Product(x.matrix, x.transposed, varying[0])

        vectors = {w.symbol for w in (*self.weights, *self.frozen) if isinstance(w, GaussianVector)}
        e = e.replace(lambda x: isinstance(x, Product), constants_in_front)
        return e.replace(lambda x: isinstance(x, Mul) and x.has(Sum) and x.has(Product), _factors_in_sum)

    def _declared(self) -> list[tuple[str, str]]:
        """Return pairs (kind, name), such as ("field", "h"), of all that the network declares."""
        fields = {x.name for x in self.fields}
        heads = self.forward if isinstance(self.forward, Mapping) else [d.lhs for d in self.forward]
        declared = [("field", x.name) for x in self.fields]
        declared += [("number", x) for x in dict.fromkeys(map(name_of, heads)) if x not in fields]
        declared += [("given vector", x.name) for x in self.given]
        declared += [("kernel", x) for x in dict.fromkeys(x.kernel for x in self.given)]
        declared += [("attribute", x.name) for x in self.attributes]
        weights = (*self.weights, *self.frozen)
        return declared + [("matrix" if isinstance(w, GaussianMatrix) else "vector", w.name) for w in weights]

    def _taken(
        self,
        lines: tuple[Definition, ...],
        expressions: list[Expr],
        rules: Iterable[TrainingRule],
        feedback: Mapping[str, GaussianWeight],
        notation: Mapping[Expr, str],
    ) -> set[str]:
        """Return the names that the user has chosen, which derived quantities must avoid.

        ``expressions`` are expressions beside the forward pass ``lines``, such as the loss, and ``rules`` all
        training rules.
        """
        expressions = [
            *expressions,
            *(d.rhs for d in lines),
            *(expression(w.variance) for w in (*self.weights, *self.frozen)),
        ]
        taken = {name for _, name in self._declared()} | {w.name for w in feedback.values()}
        taken |= set(notation.values()).union(*map(functions_in, expressions))
        # An object that is not a rule is passed over here, and refused by Program later with the name of the
        # weight.
        for rule in rules:
            if hasattr(rule, "memory") and isinstance(rule, Hashable):
                fixed_symbols(rule)
                taken |= function_names(rule)
        return taken

    def _check(self, lines: tuple[Definition, ...]) -> None:
        """Raise ProgramError for definitions without a limit of infinite width, and for ambiguous names.

        Refused are means of vectors of two populations, layered fields that enter their own definition
        through a matrix without the layer index, and symbols that equal the second value of an integer index
        in a correlation, such as ``alpha`` beside ``mu``.
        """
        used = {x for d in lines for e in (d.lhs, d.rhs) for x in e.free_symbols}
        used |= {r.index for d in lines for r in d.ranges}
        partners = {primed(y): y for y in used if y.is_integer}
        for x in sorted(used & {*partners}, key=str):
            raise ProgramError(
                f"the symbol {x} has the name that correlations use for a second value of the index "
                f"{partners[x]}: give it another name"
            )
        self._check_tied_layers(lines)
        homes = {x.name: x.population.name for x in self.fields}
        homes |= {x.name: x.population.name for x in self.attributes}
        for lhs, mean in ((d.lhs, mean) for d in lines for mean in d.rhs.atoms(Mean)):
            places = {homes[name_of(a)] for a in mean.atoms(AppliedUndef) if name_of(a) in homes}
            places |= {v.population.name for v in self.vectors if v.uses(mean)}
            if len(places) > 1:
                raise ProgramError(
                    f"{lhs}: {mean} contains vectors of different populations, "
                    f"{' and '.join(sorted(places))}, and a mean must have one population: define a field "
                    "that is a matrix applied to one of the vectors, and use this field in the mean"
                )

    def _check_tied_layers(self, lines: tuple[Definition, ...]) -> None:
        """Raise :class:`ProgramError` if one matrix maps a layered field to itself at all layers."""
        layered = {x.name for x in self.fields if x.layered}
        depth = expression(self.depth, "depth").free_symbols
        for d in lines:
            index = d.lhs.args[0].free_symbols - depth if d.name in layered else set()
            for q in d.products() if index else ():
                (layer,) = index
                read = {name_of(a) for a in q.vector.atoms(AppliedUndef) if a.args and a.args[0].has(layer)}
                if d.name in read and not q.matrix.has(layer):
                    raise ProgramError(
                        f"{d.lhs}: all layers of {d.name} use the matrix {q.matrix}, which is allowed only "
                        "for the layers of an ordered field: make the field Field(..., ordered=True), "
                        f"with an index other than {ell}, or give the matrix the index {layer}"
                    )

    def _rules(self, rule: TrainingRule, rules: Mapping[str, TrainingRule] | None) -> dict[str, TrainingRule]:
        """Return the training rules of single weights, by name of the weight.

        Raises ProgramError for a name that is not that of a trained weight, and if ``rule``, the rule of all
        weights, is a mapping.
        """
        if isinstance(rule, Mapping):
            raise ProgramError(
                f'rule = {rule!r}: must be a rule such as GradientDescent(eta); rules={{"W": ...}} sets the '
                "rules of single weights"
            )
        named = by_name(
            rules or {}, "rules", '{"W": GradientDescent(eta)}, training rules by names of weights'
        )
        _require_known(named, "rules", {w.name for w in self.weights}, "trained weight")
        return named

    def train(  # noqa: PLR0913 (options of training, all keywords)
        self,
        loss: Expr,
        rule: TrainingRule,
        parametrization: Parametrization | None = None,
        *,
        gradients: Mapping[str, Gradient] | None = None,
        notation: Mapping[Expr, str] | None = None,
        feedback: Mapping[str, GaussianWeight] | None = None,
        learning_feedback: bool = False,
        error: str | None = None,
        together: bool = False,
        rules: Mapping[str, TrainingRule] | None = None,
    ) -> Program:
        """Return the program of a network that descends the gradient of a loss.

        An output is a scalar of the forward pass that the loss contains. For one output ``f`` the backward
        fields are gradients of the output at each sample and channel. With the default ``gradients`` they are
        ``g = scale sqrt(N N_l) df/dh`` for a field h of N_l units, where ``scale`` is that of the
        parametrization. The error is minus the derivative of the loss by the output; updates sum over samples
        and channels. With no or several outputs, for a loss that contains a mean over units, or if
        ``together``, the backward fields are gradients of minus the loss.

        Parameters
        ----------
        loss : Expr
            An expression of outputs and targets; it is summed over its indices.
        rule : TrainingRule
            The training rule of all weights that are not in ``rules``.
        parametrization : Parametrization, optional
            Scale and learning rates; by default mean-field scaling with gamma0.
        gradients : mapping of str to Gradient, optional
            Names and normalisations of gradients, by names of fields or scalars.
        notation : mapping of Expr to str, optional
            Names of correlation functions, as in :class:`Program`.
        feedback : mapping of str to GaussianMatrix or GaussianVector, optional
            Weights that replace those of these names, which must be trained, in the backward pass. They are
            not trained, except as ``learning_feedback`` says.
        learning_feedback : bool
            Whether feedback matrices receive the updates of the matrices that they replace. Feedback vectors
            stay as drawn in any case.
        error : str, optional
            The name of the error, by default ``Delta``. If the gradient is that of the loss, it is the name
            of the gradient by the output, with the name of the output behind it if there are several.
        together : bool
            Whether to take the gradient of the loss also for one output, instead of that of the output.
        rules : mapping of str to TrainingRule, optional
            Rules of single weights, by name: ``{"A": GradientDescent(eta, decay=lam)}``.

        Returns
        -------
        Program
            The program of the network and of its training.

        Raises
        ------
        ProgramError
            If the loss contains no output and no mean, or does not depend on a trained weight, or is not
            defined for every value of the outputs, or contains an index that no definition has; if a function
            has no derivative; if the forward pass has no limit of infinite width or no gradient, as with a
            mean over two populations or one matrix product inside another; if an option has a wrong type; or
            if it names a weight, field or scalar that the network does not have.
        """
        weights = {w.name: w for w in (*self.weights, *self.frozen)}
        p = self._parametrization(parametrization, weights)
        names = by_name(gradients or {}, "gradients", '{"h": Gradient("g")}, gradients by names of fields')
        feedback = by_name(feedback or {}, "feedback", '{"W": GaussianMatrix(...)}, by names of weights')
        _require_known(feedback, "feedback", {w.name for w in self.weights}, "trained weight")
        rules = self._rules(rule, rules)
        _require_kinds(names, feedback, weights)
        _require_notation(notation)
        self._check_vectors(self._lines())
        self._check_times(self._lines(), expression(loss))
        self._check_rings(self._lines(), expression(loss))
        forward, loss = self._named_averages(self._lines(), self._read(loss, "the loss"))
        forward = tuple(replace(d, rhs=self._constants_in_front(d.rhs)) for d in forward)
        self._check(forward)
        scalars = [d.name for d in forward if d.name not in {x.name for x in self.fields}]
        self._check_uses([(d.lhs, d.rhs) for d in forward], loss)
        self._check_indices(forward, loss)
        layered = [x.name for x in self.fields if x.layered or x.ordered]
        summed = ranges_of_loss(forward, loss)
        forward = without_unused_layers(forward, layered, over(loss, [r.limits for r in summed]))
        # `kept` are the ranges of the loss that are left: an index may have lost its range, or values of it,
        # together with the unused layers. The sums of the loss over ranges that are not in `kept` are written
        # into the loss.
        kept = ranges_of_loss(forward, loss)
        loss = over(loss, [r.limits for r in summed if r not in kept])
        shorter = {m.name: without_unused_members(m, forward) for m in self.matrices}
        network = replace(
            self,
            weights=tuple(shorter.get(w.name, w) for w in self.weights),
            frozen=tuple(shorter.get(w.name, w) for w in self.frozen),
        )
        feedback = {x: _of_members(v, weights[x], shorter.get(x)) for x, v in feedback.items()}
        outputs = sorted({name_of(a) for a in loss.atoms(AppliedUndef)} & set(scalars))
        _defined_everywhere(loss, outputs)
        whole = together or len(outputs) != 1 or loss.has(Mean)
        _require_known(names, "gradients", {d.name for d in forward}, "field or number")
        taken = self._taken(forward, [loss], (rule, *rules.values()), feedback, notation or {})
        _require_free(taken, names, error)
        taken |= {x for n in names.values() for x in (n.name, n.inner)}
        error = error or free_name("Delta", taken)
        target = delta = None
        lines = forward
        if whole:
            if not outputs and not loss.has(Mean):
                raise ProgramError(
                    f"the loss {loss} contains none of the outputs {', '.join(scalars) or '(none)'}"
                )
            lines = (*forward, Definition(Function(LOSS)(t), _summed(forward, loss)))
            for x in outputs:
                error_name = error if len(outputs) == 1 else free_name(f"{error}_{x}", taken)
                names.setdefault(x, Gradient(error_name, normal=S.One))
                taken |= {error_name}
        else:
            target = next(d.lhs for d in forward if d.name == outputs[0])
            delta = Function(error)(*target.args)
        data: tuple[Attribute | GivenVector, ...] = (*self.attributes, *self.given)
        taken |= {error}
        graph = Gradients(self.fields, lines, self.vectors, data, p, names, target, delta, frozenset(taken))
        assembly = _Assembly(network, forward, graph, loss, rule, rules)
        return assembly.program(feedback, learning_feedback, notation)


def _remedy(index: Symbol) -> str:
    """Return the end of a message: why a factor of weights cannot depend on ``index``, and what to write.

    The index is the second time ``s``, or an index that the family of the weight does not have.
    """
    if index == s:
        return (
            f"the second time of correlations, which a factor does not have: write a number, or {t} in a rate"
        )
    if index in (mu, alpha):
        return (
            "but weights and widths are the same for all samples: multiply the loss by a factor of samples, "
            "as in rho(mu)*(y(mu) - f(mu, t))**2/2"
        )
    return (
        "an index that the weights do not have: use indices of their own family, or a number for each weight"
    )


def _require_kinds(
    gradients: Mapping[str, Any], feedback: Mapping[str, Any], weights: Mapping[str, GaussianWeight]
) -> None:
    """Raise :class:`ProgramError` if a value of ``gradients`` or ``feedback`` has the wrong class.

    Values of ``gradients`` must be :class:`.Gradient`; a feedback weight must have the class of its weight.
    """
    for key, value, kind in (
        *((f"gradients[{x!r}]", v, Gradient) for x, v in gradients.items()),
        *((f"feedback[{x!r}]", v, type(weights[x])) for x, v in feedback.items()),
    ):
        if not isinstance(value, kind):
            raise ProgramError(f"{key} = {value!r}: must be a {kind.__name__}")


def _of_members(
    feedback: GaussianWeight, weight: GaussianWeight, shorter: GaussianMatrix | None
) -> GaussianWeight:
    """Return feedback matrices for those members of a family that are left when unused layers are removed.

    ``weight`` is the family before and ``shorter`` after. Feedback whose layers are not those of ``weight``
    is returned unchanged, and so are vectors, and all feedback if ``shorter`` is None.
    """
    if not isinstance(feedback, GaussianMatrix) or not isinstance(weight, GaussianMatrix) or shorter is None:
        return feedback
    return replace(feedback, index=shorter.index) if feedback.index == weight.index else feedback


def _factors_in_sum(x: Mul) -> Expr:
    """Return ``c Sum(W @ x)`` as ``Sum(c (W @ x))``; a product without such a sum is unchanged."""
    for total in x.args:
        if isinstance(total, Sum) and total.has(Product):
            others = Mul(*[y for y in x.args if y != total])
            return Sum(others * total.function, *rename_all_bound(total, others.free_symbols).limits)
    return x


def _nonlinear_averages(e: Expr) -> set[Mean]:
    """Return the averages m in an expression e for which ``de/dm`` depends on an average.

    Averages that are only inside of another average do not count.
    """
    masks = {mean: Dummy("mean", real=True) for mean in e.atoms(Mean)}
    masked = e.xreplace(masks)  # xreplace takes the outermost average, and its inner ones with it
    slopes = {mean: masked.diff(mask) for mean, mask in masks.items()}
    return {mean for mean, slope in slopes.items() if slope.has(*masks.values())}


def _require_member(lhs: AppliedUndef, matrix: GaussianMatrix, used: Expr) -> None:
    """Raise ProgramError if the line of ``lhs`` uses a matrix with another number of indices than it has.

    ``used`` is the matrix as it stands in a product: ``W``, or ``W(k)`` for a member of a family.
    """
    index = () if matrix.index is None else (matrix.index,)
    indices = [str(r.index) for r in (*index, *matrix.others)]
    if len(used.args) != len(indices):
        member = f"{matrix.name}({', '.join(indices)})" if indices else matrix.name
        family = f"a family over {', '.join(indices)}" if indices else "a single matrix"
        raise ProgramError(f"{lhs}: {used} @ ... must be {member} @ ..., because {matrix.name} is {family}")


def _without_range(x: Symbol) -> str:
    """Return the message for an index without a range; its name may be that of a symbol of the package."""
    known = next((y for y in (mu, ell, t) if y.name == x.name), None)
    remedy = f"give the network ranges=(IndexRange({x}, 1, ...),)"
    if known is None:
        return size_as_index(x) or f"the index {x} has no range; {remedy}"
    if x == known:
        return (
            f"no matrix with an index says how far {x} runs: {remedy}; for tied layers use "
            "Field(..., ordered=True), with another index"
        )
    return f"its {x} is not the symbol {x} of derive.program: import that one, or {remedy}"


@dataclass
class _Assembly:
    """Assembly of a trained program from a network, its graph of gradients, its loss and its rules.

    ``rule`` is the training rule of all weights except those in ``rules``, by name.
    """

    network: Network
    forward: tuple[Definition, ...]
    graph: Gradients
    loss: Expr
    rule: TrainingRule
    rules: Mapping[str, TrainingRule]

    def program(
        self, feedback: Mapping[str, GaussianWeight], learning: bool, notation: Mapping[Expr, str] | None
    ) -> Program:
        """Return the trained program, with ``feedback`` weights by the names of those that they replace.

        ``learning`` says whether feedback matrices are updated too; ``notation`` names correlations, by
        default ``Phi`` or ``H``, and ``G``. Raises :class:`ProgramError` if the loss does not depend on a
        trained weight, if a matrix is applied to a trained vector, or if a gradient cannot be derived.
        """
        net, graph = self.network, self.graph
        self._refuse_matrices_on_trained_vectors()
        updates = {w.name: graph.updates(w) for w in net.weights}
        lost = [name for name, terms in updates.items() if not terms]
        if lost:
            raise ProgramError(self._without_gradient(lost[0]))
        derived, aliases = self._backward()
        updates = {
            name: [self._without_aliases(u, aliases) for u in terms] for name, terms in updates.items()
        }
        edited = tuple(replace(d, rhs=_fed_back(d.rhs, feedback, net)) for d in derived)
        reads, definitions, updates = self._readouts(
            (*self.forward, *self._errors()), derived, edited, updates
        )
        matrices: list[Any] = []
        vectors = []
        for w in net.weights:
            terms: Any = updates[w.name]
            if isinstance(w, GaussianMatrix):
                variance = w.variance * graph.parametrization.fan_in_of(w)
                rule = with_noise(self.rules.get(w.name, self.rule), variance, w.name)
                update = replace(terms[0], more=tuple(terms[1:]), outside=self._outside(w, rule))
                matrices.append(TrainedMatrix(w, update, rule))
            else:
                along = _one_along(w.name, terms)
                rule = with_noise(self.rules.get(w.name, self.rule), expression(w.variance), w.name)
                vectors.append(TrainedVector(w, replace(along, outside=self._outside(w, rule)), rule))
        for name, v in feedback.items():
            if isinstance(v, GaussianMatrix):
                trained = next(w for w in matrices if w.name == name)
                matrices.append(replace(trained, initial=v) if learning else v)
        nodes = ((x, [n for n in graph.nodes if graph.owner[n] == x.name]) for x in net.fields)
        gradients = (replace(x, name=graph.called(n)) for x, vertices in nodes for n in (*vertices, x.name))
        names = {d.name for d in definitions}
        fields = tuple(dict.fromkeys((*net.fields, *gradients, *reads)))
        ours = {x.name for x in fields}
        definitions = tuple(_with_own_sums(d) if d.name in ours else d for d in definitions)
        parts = Parts(
            name=net.name,
            rule=self.rule,
            fields=tuple(x for x in fields if x.name in names or x in net.fields),
            definitions=definitions,
            # Finite networks draw matrices before vectors. The order of both is: random data and other
            # untrained weights, trained weights, feedback weights.
            matrices=(*(m for m in net.matrices if m in net.frozen), *matrices),
            vectors=(
                *(v for v in net.vectors if v in net.frozen),
                *vectors,
                *(v for v in feedback.values() if isinstance(v, GaussianVector)),
            ),
            given=net.given,
            attributes=net.attributes,
            scalars=tuple(dict.fromkeys(d.name for d in definitions if d.name not in ours)),
            constants=self._constants(
                [
                    *(d.rhs for d in definitions),
                    *(x for terms in updates.values() for u in terms for x in _expressions_of(u)),
                ],
                ours | {d.name for d in definitions},
                {v.name for v in feedback.values()},
            ),
            notation=self._notation(names) if notation is None else notation,
            scale=S.One if graph.error is None else expression(graph.parametrization.scale),
            depth=expression(net.depth, "depth"),
            loss=self.loss,
            descent=None if feedback else graph.parametrization,
        )
        return Program(**vars(parts.drop_idle_indices()))

    def _without_gradient(self, name: str) -> str:
        """Return the message for a weight by which the gradient of the loss is zero."""
        reasons = []
        if any(d.rhs.has(sign, Heaviside) for d in self.forward):
            reasons.append("step functions (sign, Heaviside), whose derivative is zero")
        calls = sorted((a for d in self.forward for a in d.rhs.atoms(AppliedUndef)), key=spelled)
        first = [a for a in calls if name_of(a) in self.graph.slots and a.args[-1] == S.Zero]
        if first:
            reasons.append(f"values at the first step, such as {first[0]}, which training does not change")
        if reasons:
            return (
                f"the gradient of the loss by {name} is zero, because the loss depends on it at most through "
                f"{' and '.join(reasons)}: list it among the frozen"
            )
        return f"the loss does not depend on {name}: leave it out, or list it among the frozen"

    def _outside(self, weight: GaussianWeight, rule: TrainingRule) -> Expr:
        """Return the factor by which the step of a nonlinear rule is multiplied in the update of a weight.

        A nonlinear rule acts on the normalised gradient ``A = -scale N dloss/dM``, without learning rate; the
        factor is the scale times the rate of the weight, and for a matrix this product divided by its fan-in
        over N. It is 1 for linear rules.
        """
        if not isinstance(rule, NonlinearRule):
            return S.One
        p = self.graph.parametrization
        fan_in = p.fan_in_of(weight) if isinstance(weight, GaussianMatrix) else S.One
        return expression(p.scale) * p.rate_of(weight.name) / fan_in

    def _refuse_matrices_on_trained_vectors(self) -> None:
        """Raise ProgramError if a matrix is applied to a trained vector, whose gradient has no field."""
        trained = [w for w in self.network.weights if isinstance(w, GaussianVector)]
        for d in self.forward:
            for product in d.rhs.atoms(Product):
                for w in (w for w in trained if w.uses(product.vector)):
                    raise ProgramError(
                        f"{d.lhs}: a matrix is applied to the trained weights {w.symbol}; define a field "
                        f"that is {w.symbol}, and apply the matrix to it"
                    )

    # -- the backward pass -----------------------------------------------------------------------------------

    def _backward(self) -> tuple[tuple[Definition, ...], dict[str, Definition]]:
        """Return the backward pass: definitions of the gradients that updates of weights need.

        Gradients that are a multiple of one field are in the second value, by name, except those with respect
        to scalars and functions of fields, and those whose names the user chose. The gradients in the second
        value are not part of the program: each use is replaced by the multiple.
        """
        graph = self.graph
        trained = {w.name for w in self.network.weights}
        todo = [name_of(u.by) for n in trained for u in graph.uses.get(n, ())]
        needed: set[str] = set()
        while todo:
            name = todo.pop()
            if name in needed or name not in graph.place or name == graph.root:
                continue
            needed.add(name)
            todo += [name_of(u.by) for u in graph.uses.get(name, ())]
        lines = [d for name in graph.place if name in needed for d in graph.definitions_of(name)]
        names_to_keep = {graph.called(n) for n in (*graph.names, *graph.scalars) if n in graph.slots}
        names_to_keep |= {graph.called(n) for n in graph.nodes}
        aliases: dict[str, Definition] = {}
        while True:
            alias = next((d for d in lines if d.name not in names_to_keep and self._is_alias(d, lines)), None)
            if alias is None:
                break
            aliases = {
                k: replace(d, rhs=self._replaced(d.rhs, {alias.name: alias})) for k, d in aliases.items()
            }
            aliases[alias.name] = alias
            lines = [replace(d, rhs=self._replaced(d.rhs, aliases)) for d in lines if d is not alias]
        scalars = graph.scalars
        neat = {graph.called(n) for n in scalars if n in graph.place and n != graph.root}
        return tuple(replace(d, rhs=_neat(d.rhs)) if d.name in neat else d for d in lines), aliases

    def _is_alias(self, d: Definition, lines: list[Definition]) -> bool:
        """Return whether the gradient that ``d`` defines is a number times one field.

        The field has no indices that the gradient does not have. Such a gradient is replaced by the multiple
        of the field. ``lines`` are all definitions of gradients; a gradient with several definitions is not
        replaced.
        """
        if sum(e.name == d.name for e in lines) != 1 or d.rhs.has(Product):
            return False
        _, local = self.graph.split(d.rhs)
        inside = d.lhs.free_symbols
        field = isinstance(local, AppliedUndef) and name_of(local) not in self.graph.vectors
        return field and name_of(local) != d.name and local.free_symbols <= inside

    def _replaced(self, e: Expr, aliases: Mapping[str, Definition]) -> Expr:
        """Return an expression with the multiple of a field in place of each gradient in ``aliases``.

        ``aliases`` maps the names of these gradients to their definitions.
        """
        new = defined(e, [(d.lhs, d.rhs) for d in aliases.values()])
        return e if new == e else self.graph.tidy(new)

    def _without_aliases(self, u: Any, aliases: Mapping[str, Definition]) -> Any:
        """Return an update with the multiple of a field in place of each gradient in ``aliases``.

        ``aliases`` maps the names of these gradients to their definitions. Numbers in the multiples are
        factors of the coefficient.
        """

        def constant_and_vector(x: Expr) -> tuple[Expr, Expr]:
            """Return a vector as (number, vector), with gradients that are multiples of a field replaced.

            A vector without such gradients is returned with the number 1.
            """
            new = self._replaced(x, aliases)
            return (S.One, x) if new == x else self.graph.split(new)

        if isinstance(u, Along):
            constant, vector = constant_and_vector(u.vector)
            gradient = None if u.gradient is None else u.gradient * constant
            return replace(u, coefficient=u.coefficient * constant, vector=vector, gradient=gradient)
        sides = [constant_and_vector(x) for x in (u.left, u.right)]
        constant = sides[0][0] * sides[1][0]
        gradient = None if u.gradient is None else u.gradient * constant
        return Outer(u.coefficient * constant, sides[0][1], sides[1][1], u.over, gradient)

    def _errors(self) -> tuple[Definition, ...]:
        """Return the definition of the error, minus the derivative of the loss by the output, in a tuple.

        The tuple is empty if the gradient is that of the loss as a whole, without an error.
        """
        output, error = self.graph.output, self.graph.error
        if output is None or error is None:
            return ()
        line = next(d for d in self.forward if d.lhs == output)
        lines = (replace(line, rhs=S.Zero), Definition(Function(LOSS)(t), _summed(self.forward, self.loss)))
        named = {name_of(output): Gradient(name_of(error))}
        alone = Gradients((), lines, (), (), Parametrization(S.One), named)
        return tuple(replace(d, rhs=_neat(d.rhs)) for d in alone.definitions_of(name_of(output)))

    # -- fields for vectors of weights in means --------------------------------------------------------------

    def _readouts(
        self,
        lines: tuple[Definition, ...],
        derived: tuple[Definition, ...],
        edited: tuple[Definition, ...],
        updates: Mapping[str, list[Any]],
    ) -> tuple[tuple[Field, ...], tuple[Definition, ...], dict[str, list[Any]]]:
        """Return fields for vectors of weights, and all definitions and updates rewritten with them.

        A vector of weights changes in time. In definitions its symbol stands for its present value; an update
        at the time s needs its value at s, which the field gives. ``lines`` are the forward pass and the
        errors, ``derived`` the backward pass, and ``edited`` the backward pass with feedback weights. The
        result contains the new fields, the forward pass, errors and ``edited`` with the definitions of the
        new fields, and the updates.
        """
        vectors = self.network.vectors
        new_fields: dict[str, tuple[Field, Definition]] = {}

        def with_fields(vector: Expr, indices: set[Symbol]) -> Expr:
            """Return an expression with multiples of fields in place of its vectors of weights.

            The value stays the same. A field of the backward pass is used only if its indices are among
            ``indices``.
            """
            for v in vectors:
                for member in v.uses(vector):
                    vector = vector.xreplace(
                        {member: self._field_of_weights(v, member, indices, derived, edited, new_fields)}
                    )
            return vector

        def updated(u: Any) -> Any:
            """Return a term of an update with equal multiples of fields for its vectors of weights."""
            indices = {r.index for r in u.over}.union(*(x.free_symbols for x in _expressions_of(u)))
            if isinstance(u, Along):
                return replace(u, vector=with_fields(u.vector, indices))
            return replace(u, left=with_fields(u.left, indices), right=with_fields(u.right, indices))

        changed = [self._means_changed(d, with_fields) for d in (*lines, *edited)]
        changed_updates = {name: [updated(u) for u in uses] for name, uses in updates.items()}
        for i, d in enumerate(changed[len(lines) :], len(lines)):
            changed[i] = self._with_new_fields(d, new_fields)
        at, new = len(self.forward), tuple(line for _, line in new_fields.values())
        return tuple(x for x, _ in new_fields.values()), (*changed[:at], *new, *changed[at:]), changed_updates

    def _means_changed(self, d: Definition, with_fields: Callable[[Expr, set[Symbol]], Expr]) -> Definition:
        """Return a definition in whose means vectors of weights are replaced by multiples of fields.

        The function ``with_fields`` replaces them in an expression.
        """

        def written(e: Expr, indices: set[Symbol], in_mean: bool) -> Expr:
            """Return an expression in whose means multiples of fields replace vectors of weights.

            ``in_mean`` says whether the expression is itself inside of a mean. ``indices`` are the indices of
            the definition and of the sums around the expression; the fields may have these indices only.
            """
            if not any(v.uses(e) for v in self.network.vectors):
                return e
            if isinstance(e, Sum):
                return Sum(written(e.function, indices | {*e.bound_symbols}, in_mean), *e.limits)
            if in_mean and not e.has(Sum):
                return with_fields(e, indices)
            if isinstance(e, AppliedUndef) or not e.args:
                return e
            return e.func(*[written(x, indices, in_mean or isinstance(e, Mean)) for x in e.args])

        rhs = written(d.rhs, {r.index for r in d.ranges}, False)
        if rhs == d.rhs:
            return d
        # Factors that are equal for all units move in front of sums over indices, such as samples. Means stay
        # inside of these sums.
        return replace(
            d,
            rhs=drawn_out(self.graph.tidy(rhs), lambda x: not self.graph.varies(x) and not x.has(Mean)),
        )

    def _with_new_fields(self, d: Definition, new_fields: dict[str, tuple[Field, Definition]]) -> Definition:
        """Return a definition of the backward pass with multiples of fields in place of vectors of weights.

        ``new_fields`` maps the names of fields to the field and its definition.
        """
        for v in (v for v in self.network.vectors if v.name in new_fields):
            for member in v.uses(d.rhs):
                d = replace(
                    d,
                    rhs=d.rhs.xreplace(
                        {member: self._field_of_weights(v, member, set(), (), (), new_fields)}
                    ),
                )
        return d

    def _field_of_weights(
        self,
        v: GaussianVector,
        member: Expr,
        indices: set[Symbol],
        derived: tuple[Definition, ...],
        edited: tuple[Definition, ...],
        new_fields: dict[str, tuple[Field, Definition]],
    ) -> Expr:
        """Return a multiple of a field that equals ``member``, a member of the vector ``v`` of weights.

        It is a field of the backward pass (``edited``) whose indices are among ``indices``, or else a new
        field, which is stored in ``new_fields``. The new field is the vector times its factor in
        ``derived``, the backward pass without feedback weights, or the vector itself.
        """
        for e in edited:
            for use in v.uses(e.rhs):
                factor = e.rhs / use
                names = dict(zip(use.args, member.args, strict=True))
                place = e.lhs.xreplace(names)
                others = {r.index for r in e.ranges} & place.free_symbols
                if factor.has(t, KroneckerDelta):
                    continue  # a delta is zero, and nothing is divided by it
                if not self.graph.varies(factor) and others <= indices:
                    return place / factor.xreplace(names)
        if v.name not in new_fields:
            candidates = (
                e.rhs / u
                for e in derived
                for u in v.uses(e.rhs)
                if not (e.rhs / u).free_symbols & ({r.index for r in e.ranges} - {*u.args})
            )
            alike = (x for x in candidates if not self.graph.varies(x) and not x.has(t, KroneckerDelta))
            factor = next(alike, S.One)
            home = next(x for x in self.network.fields if x.population.name == v.population.name)
            used = self.graph.taken | {self.graph.called(n) for n in self.graph.slots} | set(new_fields)
            used |= {x.name for x, _ in new_fields.values()}
            name = free_name("omega" if v.name == "w" else f"omega_{v.name}", used)
            layered = home.layered and v.population.site is not None
            site = (v.population.site,) if layered else ()
            self.graph.inside.add(name)
            lhs = Function(name)(*site, *(r.index for r in v.indices), t)
            line = Definition(lhs, factor * v.symbol, v.indices)
            new_fields[v.name] = Field(name, home.population, layered=layered), line
        _, line = new_fields[v.name]
        names = dict(zip(v.symbol.args, member.args, strict=True))
        return line.lhs.xreplace(names) / (line.rhs / v.symbol).xreplace(names)

    # -- names -----------------------------------------------------------------------------------------------

    def _notation(self, names: set[str]) -> dict[Expr, str]:
        """Return the names of correlations, by their vectors: one of the field h, one of its gradient.

        The result is empty without a field ``h``. The correlation of the first function of h that a matrix is
        applied to is ``Phi``, or that of h itself is ``H`` if there is no such function. The correlation of
        the gradients by h is ``G``; it is left out if the program has no field for them. A name that is taken
        gets a number behind it.
        """
        graph = self.graph
        if "h" not in graph.fields or "h" not in graph.slots:
            return {}
        h = Function("h")(*graph.slots["h"], t)
        node = next((n for n in graph.nodes if graph.owner[n] == "h"), None)
        vectors = {h: "H"} if node is None else {graph.written(Function(node)(*h.args)): "Phi"}
        # The correlation of the gradient by h is called G only if this gradient is a field of the program
        # (`there`), and not a mere multiple of a vector of weights.
        there = "h" in graph.place and graph.called("h") in names
        vectors |= {graph.backward(h): "G"} if there else {}
        return {vector: free_name(name, graph.taken | names) for vector, name in vectors.items()}

    def _constants(self, lines: list[Expr], computed: set[str], others: set[str]) -> tuple[str, ...]:
        """Return the names of undefined functions: targets, weights of samples, constants of layers.

        ``lines`` are the expressions to search besides the loss, variances and ratios. Weights, attributes,
        given vectors, functions of fields, and names in ``computed`` (fields, scalars) and ``others`` are
        left out.
        """
        net = self.network
        known = computed | others | {x.name for x in net.given}
        known |= {x.name for x in net.attributes} | {w.name for w in (*net.weights, *net.frozen)}
        populations = [x.population for x in net.fields]
        populations += [p for m in net.matrices for p in (m.rows, m.cols)]
        expressions = [self.loss, *lines, *(expression(p.ratio) for p in populations)]
        expressions += [expression(w.variance) for w in (*net.weights, *net.frozen)]
        names: dict[str, None] = {}
        for e in expressions:
            bare = e.replace(lambda x: isinstance(x, Product), lambda x: x.vector)
            for a in sorted(calls_in(bare), key=spelled, reverse=True):
                of_fields = any(name_of(b) in computed for x in a.args for b in x.atoms(AppliedUndef))
                if name_of(a) not in known and not of_fields:
                    names[name_of(a)] = None
        return tuple(names)


def _require_known(named: Mapping[str, Any], key: str, known: Collection[str], what: str) -> None:
    """Raise :class:`ProgramError` for a name in an option that the network does not have.

    ``key`` is the name of the option, and ``what`` the kind of the names, such as "weight", for the message.
    """
    for name in named:
        if name not in known:
            there = ", ".join(sorted(known))
            raise ProgramError(f"{key}: {name!r} is not a {what} of the network (there are {there})")


def _require_notation(notation: Mapping[Expr, str] | None) -> None:
    """Raise :class:`ProgramError` for a notation that does not map vectors to names."""
    pairs = notation.items() if isinstance(notation, Mapping) else [] if notation is None else [(None, None)]
    if not all(isinstance(vector, Expr) and isinstance(name, str) for vector, name in pairs):
        raise ProgramError(
            f"notation = {notation!r}: must map vectors to names of their correlations, such as "
            '{h(mu, t): "H"}'
        )


def _require_free(taken: set[str], gradients: Mapping[str, Gradient], error: str | None) -> None:
    """Raise :class:`ProgramError` for a chosen name of a gradient or error that is used or no identifier.

    ``taken`` are the names in use; names must also differ from each other. ``error`` is None if no name was
    chosen.
    """
    chosen = [
        (f"a gradient (gradients[{key!r}])", x)
        for key, n in gradients.items()
        for x in (n.name, n.inner)
        if x
    ]
    chosen += [("the error", error)] if error is not None else []
    seen: set[str] = set()
    for what, name in chosen:
        if name in taken or name in seen:
            raise ProgramError(f"{name} is the name of {what} and of another quantity: rename one of them")
        if not name.isidentifier():
            raise ProgramError(
                f"{name!r} cannot be the name of {what}: use letters, digits and underscores, and begin with "
                "a letter or an underscore"
            )
        seen.add(name)


def _one_along(name: str, uses: list[Along]) -> Along:
    """Return the updates from all uses of the vector of weights ``name`` as one sum over indices.

    The sum is over the indices of the use that has the most of them. Another use may have fewer indices. Its
    term is divided by the number of values of the missing indices, because the sum counts the term once for
    each of them. Raises ProgramError if a use has an index that is not in the sum.
    """
    if len(uses) == 1:
        return uses[0]
    over = max((u.over for u in uses), key=len)
    total = S.Zero
    for u in uses:
        others = [r for r in over if r not in u.over]
        if len(others) + len(u.over) != len(over):
            raise ProgramError(
                f"two definitions use the vector {name}, and each has an index that the other does not "
                "have: give each definition a vector of its own"
            )
        values = Mul(*[expression(r.upper) - expression(r.lower) + 1 for r in others])
        total += u.coefficient * u.vector / values
    return Along(S.One, total, over)


def _expressions_of(u: Along | Outer) -> tuple[Expr, ...]:
    """Return the expressions in an update: its coefficient and its vectors."""
    return (u.coefficient, u.vector) if isinstance(u, Along) else (u.coefficient, u.left, u.right)


def _fed_back(e: Expr, feedback: Mapping[str, GaussianWeight], net: Network) -> Expr:
    """Return a definition of the backward pass in which feedback weights replace weights.

    ``feedback`` maps the name of a replaced weight to the feedback weight.
    """

    def other(x: Expr) -> Expr:
        """Return the feedback weight for the symbol of a weight; the symbol itself if it has none."""
        v = feedback.get(name_of(x))
        return x if v is None else Function(v.name)(*x.args) if x.args else Symbol(v.name)

    e = e.replace(
        lambda x: isinstance(x, Product), lambda x: Product(other(x.matrix), x.transposed, x.vector)
    )
    fed = (v for v in net.weights if isinstance(v, GaussianVector) and v.name in feedback)
    return e.xreplace({x: other(x) for v in fed for x in v.uses(e)})


def _summed(lines: tuple[Definition, ...], loss: Expr) -> Expr:
    """Return a loss summed over its free indices, with ranges from the definitions ``lines``."""
    return over(loss, [r.limits for r in ranges_of_loss(lines, loss)])


def _defined_everywhere(loss: Expr, outputs: list[str]) -> None:
    """Raise :class:`ProgramError` if a logarithm or power in the loss may be undefined for real outputs.

    It is raised also if only the derivative may be undefined, or if SymPy cannot decide. Powers whose
    exponent is not a number are not checked. ``outputs`` are the names of the outputs; every sum counts as
    one that contains an output. An example is ``log(f)``, which is undefined at f <= 0.
    """
    masks = {a: Dummy("f", real=True) for a in loss.atoms(AppliedUndef)}
    of = {m for a, m in masks.items() if name_of(a) in outputs}
    body = loss.xreplace(masks)
    body, sums = body.replace(
        lambda e: isinstance(e, Sum),
        lambda e: Dummy("s", positive=True) if e.function.is_positive else Dummy("s", real=True),
        map=True,
    )
    for node in body.atoms(log, Pow):
        inside = node.args[0]
        if not inside.free_symbols & of and not any(x.name == "s" for x in inside.free_symbols):
            continue
        power = node.args[1] if isinstance(node, Pow) else None
        if power is not None and power.is_integer and power.is_nonnegative:
            continue
        if power is not None and not power.is_number:
            continue
        inverse = power is not None and power.is_integer
        whole = inside.is_nonzero if inverse else inside.is_positive
        if not whole:
            back = {m: a for a, m in masks.items()} | {m: e for e, m in sums.items()}
            while inside.has(*back):
                inside = inside.xreplace(back)
            raise ProgramError(
                f"the loss {loss} or its derivative may have no value where {inside} is "
                f"{'zero' if inverse else 'not positive'}, and outputs take every real value while they are "
                "learnt: write a loss that has a derivative at any real output, such as log(1 + exp(-f*y))"
            )


def _neat(e: Expr) -> Expr:
    """Return an expression with minus signs inside of differences: ``rho (y - f)``, not ``-rho (f - y)``."""
    constant, rest = factor_terms(e).as_coeff_Mul()
    factors = list(Mul.make_args(rest))
    if constant.is_negative:
        for i, x in enumerate(factors):
            if isinstance(x, Add):
                factors[i] = Add(*[-y for y in x.args])
                return -constant * Mul(*factors)
    return constant * Mul(*factors)


def _with_own_sums(d: Definition) -> Definition:
    """Return a definition whose summation indices are renamed if they are indices of the left-hand side."""
    return replace(d, rhs=rename_all_bound(d.rhs, [x for x in d.lhs.args if x.is_Symbol and x != t]))
