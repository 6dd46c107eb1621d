"""How far the stream of a residual network has moved since the start, as equations of its own.

With ``x_t = x_0 + dx_t`` for every field upwards, its correlations are ``C(t, s) = C(0, 0) + E(t) + E(s) +
D(t, s)``, where ``E(t) = <(x_t - x_0) x_0>`` and ``D(t, s) = <(x_t - x_0)(x_s - x_0)>``.  Put into the closed
equations, what a network has at the start cancels exactly, and what is left can be counted.
"""

from __future__ import annotations

from dataclasses import replace

from sympy import Add, Expr, Function, S
from sympy.core.function import AppliedUndef

from derive.errors import NotApplicable
from derive.scale.depth_steps import Row, Steps


def changes(steps: Steps, field: str = "x") -> Steps:
    """The rows of the field's changes put in place of those of its correlations.

    ``D_x_t_s(ell)`` and ``E_x_t(ell)`` are as above, ``d_R_xU_t(ell)`` is the change of a response to a
    frozen source; responses that are the same function at (t, t) and (0, 0) have one name.  Nonlinear layers
    have the covariance ``K`` of their branch's output in the place of C: its parts are ``K_0_0``, ``KE_t``,
    ``KD_t_s``.  Raises :class:`NotApplicable` if the field has no correlations.

    >>> from derive.scale.depth_steps import at_steps
    >>> from derive.theory import mean_field
    >>> from derive.depth import cross_layer
    >>> from derive.program import depth_program
    >>> moved = changes(at_steps(cross_layer(mean_field(depth_program())), 1))
    >>> for x in moved.row("D_x_1_1").terms: print(x)
    2*over_layers*E_x_1(k - 1)*R_xu_0_0(ell, k)*R_xu_1_0(ell, k)
    d_R_xU_1(ell)**2
    d_R_xV_1(ell)**2
    over_layers*C_dx_0_0(k + 1)*R_xr_1_0(ell, k)**2
    over_layers*C_x_0_0(k - 1)*R_xu_1_0(ell, k)**2
    over_layers*D_x_1_1(k - 1)*R_xu_0_0(ell, k)**2
    """
    return _Changes(steps, field).result()


class _Changes:
    def __init__(self, steps: Steps, field: str) -> None:
        self.steps, self.field, self.c = steps, field, f"C_{field}"
        if f"{self.c}_0_0" not in {r.name for r in steps.rows}:
            raise NotApplicable(f"the steps have no correlations of {field}")
        self.times = range(1, steps.last + 1)

    def result(self) -> Steps:
        rows = [replace(r, rhs=self.put(r.rhs), neighbour=self.put(r.neighbour)) for r in self.steps.rows]
        own = {r.name: r for r in rows}
        kept = [r for r in rows if not self.replaced(r.name)]
        added: list[Row] = []
        for x in self.frozen():
            first = own[f"{x}_0"]
            for now in self.times:
                for r in (r for r in rows if r.name == f"{x}_{now}" and r.symbol.args):
                    before = next(y for y in rows if y.name == first.name and y.symbol.args == r.symbol.args)
                    added.append(self.row(f"d_{x}_{now}", r, r.rhs - before.rhs))
        for now in self.times:
            at_start = own[f"{self.c}_0_0"].rhs
            with_start = own[f"{self.c}_{now}_0"]
            added.append(self.row(f"E_{self.field}_{now}", with_start, with_start.rhs - at_start))
            for past in range(1, now + 1):
                r = own[f"{self.c}_{now}_{past}"]
                rest = own[f"{self.c}_{now}_0"].rhs + own[f"{self.c}_{past}_0"].rhs - at_start
                added.append(self.row(f"D_{self.field}_{now}_{past}", r, r.rhs - rest))
        return replace(self.steps, rows=(*kept, *added))

    def row(self, name: str, like: Row, rhs: Expr) -> Row:
        symbol = Function(name)(*like.symbol.args)
        value = rhs.expand()
        near = [
            x
            for x in Add.make_args(value)
            if isinstance(x, AppliedUndef) and x.func == symbol.func and x.args[1:] == symbol.args[1:]
        ]
        return Row(symbol, value, near[0] if near else S.Zero, like.now, like.past)

    def frozen(self) -> list[str]:
        """Answers of the field to sources that are one number for all times."""
        heads = {self.steps.kinds[r.name] for r in self.steps.rows if r.past is None and r.symbol.args}
        return sorted(x for x in heads if x.startswith(f"R_{self.field}"))

    def jumping(self) -> dict[str, str]:
        """Responses at equal times that obey the equation of the first step."""
        found: dict[str, str] = {}
        for r in self.steps.rows:
            kind = self.steps.kinds[r.name]
            if r.past == r.now and r.past > 0 and kind.startswith(f"R_{self.field}"):
                head = r.name.removesuffix(f"_{r.now}_{r.now}")
                rows = [[y for y in self.steps.rows if y.name == f"{head}_{i}_{i}"] for i in (0, r.now)]
                alike = all(
                    (b.rhs - b.neighbour) == (a.rhs - a.neighbour) for a, b in zip(*rows, strict=True)
                )
                if alike:
                    found[r.name] = f"{head}_0_0"
        return found

    def replaced(self, name: str) -> bool:
        kind = self.steps.kinds.get(name, "")
        gone = {f"{x}_{now}" for x in self.frozen() for now in self.times} | set(self.jumping())
        return name in gone or (kind.startswith(self.c) and name != f"{self.c}_0_0")

    def put(self, e: Expr) -> Expr:
        names = {str(a.func) for a in e.atoms(AppliedUndef)}
        same = {a: b for a, b in self.jumping().items() if a in names}
        e = e.replace(
            lambda x: isinstance(x, AppliedUndef) and str(x.func) in same,
            lambda x: Function(same[str(x.func)])(*x.args),
        )
        e = self.branch_covariance(e)
        for now in self.times:
            for x in self.frozen():
                e = _split(e, f"{x}_{now}", (f"{x}_0", f"d_{x}_{now}"))
            for c, f in ((self.c, f"_{self.field}"), ("K", "")):
                d, o = ("D", "E") if c == self.c else ("KD", "KE")
                e = _split(e, f"{c}_{now}_0", (f"{c}_0_0", f"{o}{f}_{now}"))
                for past in range(1, now + 1):
                    parts = (f"{c}_0_0", f"{o}{f}_{now}", f"{o}{f}_{past}", f"{d}{f}_{now}_{past}")
                    e = _split(e, f"{c}_{now}_{past}", parts)
        return e.expand()

    def branch_covariance(self, e: Expr) -> Expr:
        """``<phi phi> - <phi><phi>`` by one name: the means drop out."""
        if not any(str(a.func).startswith("V_00_") for a in e.atoms(AppliedUndef)):
            return e

        def put(x: AppliedUndef) -> Expr:
            later, earlier = sorted(str(x.func).split("_")[2:], reverse=True)
            means = Function(f"M_0_{later}")(*x.args) * Function(f"M_0_{earlier}")(*x.args)
            return Function(f"K_{later}_{earlier}")(*x.args) + means

        return e.replace(
            lambda x: isinstance(x, AppliedUndef) and str(x.func).startswith("V_00_"), put
        ).expand()


def _split(e: Expr, name: str, parts: tuple[str, ...]) -> Expr:
    return e.replace(
        lambda x: isinstance(x, AppliedUndef) and str(x.func) == name,
        lambda x: Add(*[Function(p)(*x.args) for p in parts]),
    )
