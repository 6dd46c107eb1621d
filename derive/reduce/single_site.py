"""One hidden layer as a Markov process of each unit, and the equation of its density (eq. E.2, K.3).

If the inputs are fixed and weights relax exponentially, the integral equations of a unit are stochastic
differential equations: memory kernels and source covariances give the relaxation rate of a field, its noise
and the drift by updates. The density of the fields then obeys a continuity equation, with noise a
Fokker-Planck equation, and averages obey Ito's rule.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

from sympy import (
    Add,
    Derivative,
    Dummy,
    Eq,
    Expr,
    Function,
    Integer,
    Integral,
    S,
    Sum,
    Symbol,
    sympify,
)
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average
from derive.calculus.functional import functional_derivative
from derive.calculus.sums import binding, defined, drawn_out, over, placed, rename_all_bound, rewritten
from derive.calculus.symbols import P, primed, t
from derive.errors import NotApplicable
from derive.linear.projection import tidy_sums
from derive.reduce.memoryless import Motion, motions
from derive.show.latex import aligned_latex
from derive.show.summary import Summarised
from derive.theory import Equation, Theory


@dataclass(frozen=True, repr=False)
class SingleSite(Summarised):
    """Stochastic process of one unit of a hidden layer.

    ``flows`` are the equations of motion of the fields with a source or memory, such as h and z. Their
    indices on which nothing depends, as that of samples for z, are left out by :func:`single_site`.
    ``definitions`` gives other fields, such as ``g = phi'(h) z``, in terms of them.
    """

    theory: Theory
    flows: tuple[Motion, ...]
    definitions: dict[Expr, Expr]

    def flow(self, name: str) -> Motion:
        """Return the equation of motion of the field ``name``; raise KeyError if it has none."""
        for x in self.flows:
            if str(x.field.func) == name:
                return x
        known = ", ".join(str(x.field) for x in self.flows)
        raise KeyError(f"there is no equation of motion of {name}; there are those of {known}")

    def moment_rate(self, body: Expr) -> Expr:
        """Return ``d<body>/dt`` by Ito's rule for a function of fields at time t.

        In discrete time, return ``<body>`` after the next step. Raises NotApplicable for functions of t that
        have no equation of motion, for fields at another time, in a flow or with noise for a field in
        a sum over its index, and with noise in discrete time for a function that is not a polynomial.

        >>> from derive import mean_field, mlp
        >>> from derive.program import alpha, mu
        >>> h = Function("h")
        >>> site = single_site(mean_field(mlp(1, rule="flow")))
        >>> print(site.moment_rate(h(1, mu, t) * h(1, alpha, t)))
        gamma0*<g(1, t)*h(1, alpha, t)>*Sum(Delta(alpha_, t)*K_x(mu, alpha_), (alpha_, 1, P)) + ...
        """
        body = self.unfolded(body)
        moving = {str(x.field.func): x for x in self.flows}
        atoms = sorted((a for a in body.atoms(AppliedUndef) if str(a.func) in moving), key=str)
        self._require_rates(body, atoms)
        motion: dict[Expr, Expr] = {}
        for a in atoms:
            x = moving[str(a.func)]
            velocity = rename_all_bound(self.unfolded(x.velocity), body.free_symbols)
            motion[a] = placed(velocity, x.field, a)
        if self.theory.program.rule.discrete:
            total = self._with_noise(body, atoms).xreplace({a: a + v for a, v in motion.items()})
        else:
            total = Add(*[body.diff(a) * v for a, v in motion.items()]) + self._noise(body, atoms)
        random = frozenset(moving)
        # move constant factors in front of sums, so that the average acts on the sums
        parts = [drawn_out(x, lambda y: not y.atoms(AppliedUndef)) for x in Add.make_args(total.expand())]
        return tidy_sums(Average(Add(*parts)).linear(random)) if total != 0 else S.Zero

    def _require_rates(self, body: Expr, fields: list[AppliedUndef]) -> None:
        """Raise NotApplicable unless the rate of the average of ``body`` can be derived.

        Every function of t in ``body`` must be one of ``fields``, the fields with an equation of motion, at
        time t. In a flow, or with noise, a field must not stand in a sum over its own index.
        """
        known = ", ".join(str(x.field) for x in self.flows)
        for a in sorted(body.atoms(AppliedUndef), key=str):
            if (t in a.args and a not in fields) or (a in fields and a.args[-1] != t):
                raise NotApplicable(
                    f"the rate of a moment with {a} is not derived: each function of t in a moment must be a "
                    "field with an equation of motion, and each such field must be taken at time t; these "
                    f"fields are {known}"
                )
        if self.theory.program.rule.discrete and not self._noisy(fields):
            return
        for x in sorted(body.atoms(Sum, Integral), key=str):
            if summed := [a for a in fields if x.has(a) and {*x.variables} & a.free_symbols]:
                raise NotApplicable(
                    f"the rate of a moment with {x} is not derived, because {summed[0]} stands in a sum over "
                    "its index: take the moment of one term, and add the rates"
                )

    def _noisy(self, fields: list[AppliedUndef]) -> list[AppliedUndef]:
        """Return the fields that have noise."""
        noisy = {x.field.func for x in self.flows if x.diffusion != 0}
        return [a for a in fields if a.func in noisy]

    def _noise(self, body: Expr, fields: list[AppliedUndef]) -> Expr:
        """Return the term of Ito's rule that noise adds to the rate of ``body``, a function of fields.

        It is half the sum over pairs of noisy fields of the covariance of their noise times the second
        derivative of ``body`` by both.
        """
        moving = {x.field.func: x for x in self.flows}
        total: Expr = S.Zero
        for a, b in product(self._noisy(fields), repeat=2):
            if a.func == b.func:
                x = moving[a.func]
                names = binding(x.field, a) | binding(x.partner, b)
                total += body.diff(a, b) * x.diffusion.xreplace(names) / 2
        return total

    def _with_noise(self, body: Expr, fields: list[AppliedUndef]) -> Expr:
        """Return the average of ``body``, a polynomial in ``fields``, over the Gaussian noise of a step.

        The result is a polynomial in the fields without noise. The average is the exponential of the operator
        :meth:`_noise`, whose series ends for a polynomial. Raises NotApplicable for another function of
        fields with noise.
        """
        symbols = {a: Dummy(str(a)) for a in self._noisy(fields)}
        if symbols and not body.xreplace(symbols).is_polynomial(*symbols.values()):
            raise NotApplicable(
                f"the average of {body} after a step with noise is not derived: in discrete time with noise "
                f"the averaged function must be a polynomial in {', '.join(map(str, symbols))} without sums"
            )
        total, power, n = S.Zero, body, 0
        while power != 0:
            total, n = total + power, n + 1
            power = self._noise(power, fields).expand() / n
        return total

    def unfolded(self, body: Expr) -> Expr:
        """Return an expression in terms of the fields that have equations of motion.

        Other fields are replaced by their definitions, and indices on which a field does not depend are left
        out.
        """
        flows = {str(x.field.func): x.field for x in self.flows}

        def fewer(x: AppliedUndef) -> AppliedUndef:
            """Return a field with only those indices that it has in its equation of motion."""
            kept = flows[str(x.func)].args
            layer = int(sympify(kept[0]).is_Integer)  # 1 if the first argument is a layer, which is kept
            return x.func(*x.args[:layer], *x.args[len(x.args) - len(kept) + layer :])

        body = rewritten(body, flows, fewer)
        return defined(body, self.definitions.items())

    # -- the density -----------------------------------------------------------------------------------------

    def drift_pde(self, samples: int | None = None) -> Eq:
        """Return the equation of the joint density ``p`` of the fields of a unit, at all samples.

        With ``samples``, an integer of at least 1, it is an ordinary SymPy equation for ``p(h1, .., hP, z,
        t)``. With None, P is symbolic: the coordinate ``h(mu)`` stands for all of them in ``p(h(mu), z, t)``,
        and derivatives are summed over samples.

        >>> from derive import mean_field, mlp
        >>> print(single_site(mean_field(mlp(1, rule="flow"))).drift_pde(1).rhs)
        -g*gamma0*Delta(1, t)*K_x(1, 1)*Derivative(p(h1, g, t), h1) - gamma0*h1*Delta(1, t)*Derivative(p(h1,
        g, t), g)
        """
        if samples is not None:
            require_samples(samples, "drift_pde")
        # `density` stands for the unknown density p, slope(x) for dp/dx, and slope(x, y) for d^2 p/(dx dy).
        density, slope = Dummy("p"), Function("slope")
        total = density * self.compression()
        for x in self.flows:
            point, other = _coordinate(x.field), _coordinate(x.partner)
            total -= over(self.in_coordinates(x.velocity) * slope(point), x.ranges)
            both = (*x.ranges, *[r.renamed(primed(r.index)) for r in x.ranges])
            total += over(x.diffusion / 2 * slope(point, other), both) if x.diffusion != 0 else S.Zero
        points = [_coordinate(x.field) for x in self.flows]
        if samples is not None:
            members = self.members(samples)
            points, total = [*members.values()], total.subs(P, samples).doit().xreplace(members)
            total = total.replace(slope, lambda *v: slope(*sorted(v, key=str))).expand()
        p = Function("p")(*points, t)
        written = total.replace(slope, lambda *v: Derivative(p, *v)).xreplace({density: p})
        return Eq(Derivative(p, t), written, evaluate=False)

    def members(self, samples: int) -> dict[Expr, Symbol]:
        """Return the coordinates of the density for a number of samples: ``h(1)`` is mapped to ``h1``.

        Raises NotApplicable if the number is not an integer of at least 1, or if another index has a range of
        symbolic length.
        """
        require_samples(samples, "members")
        coordinates = {}
        for x in self.flows:
            uppers = [r.upper.subs(P, samples) for r in x.ranges]
            if not all(n.is_Integer for n in uppers):
                raise NotApplicable(
                    f"the density needs integer ranges, and the indices of {x.field} run to {uppers}: give "
                    "numbers in the program"
                )
            for at in product(*[range(int(r.lower), n + 1) for r, n in zip(x.ranges, uppers, strict=True)]):
                names = {r.index: sympify(k) for r, k in zip(x.ranges, at, strict=True)}
                member, name = _coordinate(x.field).xreplace(names), "_".join(map(str, at))
                coordinates[member] = Symbol(f"{x.field.func}{name}", real=True)
        return coordinates

    def compression(self) -> Expr:
        """Return the relative growth rate ``d log p/dt`` of the density p along a path of the drift.

        It is minus the divergence of the drift, the sum over the fields of its derivative by the field.
        """
        total = S.Zero
        for x in self.flows:
            point, velocity = _coordinate(x.field), self.in_coordinates(x.velocity)
            known = isinstance(point, AppliedUndef)
            slope = functional_derivative(velocity, point, x.ranges) if known else velocity.diff(point)
            total -= over(slope, x.ranges).doit() if x.ranges else slope
        return sympify(total)

    def in_coordinates(self, e: Expr) -> Expr:
        """Return an expression with fields replaced by the coordinates of the density, ``h(mu)`` or ``z``."""
        names = {str(x.field.func) for x in self.flows}
        opened = self.unfolded(e)
        fields = [a for a in opened.atoms(AppliedUndef) if str(a.func) in names]
        return opened.xreplace({a: _coordinate(a) for a in fields})

    def _repr_latex_(self) -> str:
        return aligned_latex((x.eq for x in self.flows), self.theory)


def single_site(theory: Theory) -> SingleSite:
    """Return the stochastic differential equations of one hidden layer under gradient flow.

    Weights may decay and diffuse. Raises :class:`NotApplicable` for discrete steps, for memory that is not
    exponential (momentum), and for deeper networks, whose sources change with the fields.

    >>> from derive import mean_field, mlp
    >>> lam, T = Symbol("lam", positive=True), Symbol("T", positive=True)
    >>> site = single_site(mean_field(mlp(1, rule="flow", weight_decay=lam, temperature=T)))
    >>> print(site.flow("g").velocity, "|", site.flow("g").diffusion)
    gamma0*Sum(Delta(alpha, t)*h(1, alpha, t), (alpha, 1, P)) - lam*g(1, t) | 2*T
    """
    whole = every_index(require_flow(theory))
    unused = {str(x.field.func): _unused_arguments(x) for x in whole.flows}

    def pruned(e: Expr) -> Expr:
        """Return an expression whose fields lack the indices on which their processes do not depend."""

        def fewer(x: AppliedUndef) -> AppliedUndef:
            """Return one field without the indices on which its process does not depend."""
            return x.func(*[y for k, y in enumerate(x.args) if k not in unused[str(x.func)]])

        return rewritten(e, unused, fewer)

    flows = tuple(
        replace(
            x,
            field=pruned(x.field),
            partner=pruned(x.partner),
            gains=tuple(y.map(pruned) for y in x.gains),
            ranges=tuple(r for r in x.ranges if pruned(x.field).has(r.index)),
        )
        for x in whole.flows
    )
    return SingleSite(theory, flows, {k: pruned(v) for k, v in whole.definitions.items()})


def every_index(theory: Theory) -> SingleSite:
    """Return the process of one unit with all indices of its fields, also those on which nothing depends.

    Time may be discrete.
    """
    only = (e for e in theory.equations if all(x.kind == "definition" for x in e.terms))
    return SingleSite(theory, motions(theory), {_unlayered(e.lhs, e): _unlayered(e.rhs, e) for e in only})


def require_samples(samples: object, what: str) -> None:
    """Raise NotApplicable, naming the method ``what``, unless ``samples`` is an integer of at least 1."""
    if isinstance(samples, bool) or not (isinstance(samples, int | Integer) and samples >= 1):
        raise NotApplicable(f"{what}({samples!r}): the number of samples must be an integer >= 1, such as 2")


def require_flow(theory: Theory) -> Theory:
    """Return the theory unchanged if time is continuous; raise NotApplicable if it is discrete."""
    if theory.program.rule.discrete:
        raise NotApplicable(
            "differential equations in time need a training rule in continuous time, such as GradientFlow, "
            "and the theory has discrete steps"
        )
    return theory


def _unused_arguments(x: Motion) -> tuple[int, ...]:
    """Return the positions of those indices of a field on which its process does not depend.

    Such an index is not in the drift, apart from the field itself, and not in the covariances of the noise
    and of the initial value.
    """
    used = (x.velocity.subs(x.field, 0) + x.start + x.diffusion).free_symbols
    pairs = enumerate(zip(x.field.args, x.partner.args, strict=True))
    return tuple(k for k, (a, b) in pairs if a != b and a.is_Symbol and not {a, b} & used)


# -- notation ------------------------------------------------------------------------------------------------


def _unlayered(e: Expr, equation: Equation) -> Expr:
    """Return an expression with numbers in place of indices that take one value only, such as a single layer.

    ``equation`` gives the ranges of the indices.
    """
    values = {r.index: r.lower for r in equation.ranges if r.lower == r.upper}
    return e.xreplace(values)


def _coordinate(field: Expr) -> Expr:
    """Return the coordinate ``h(mu)`` or ``z`` of a field: without layer and time."""
    kept = [x for x in field.args if x != t and not sympify(x).is_Integer]
    return Function(str(field.func))(*kept) if kept else Symbol(str(field.func), real=True)
