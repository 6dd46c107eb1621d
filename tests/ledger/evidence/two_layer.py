"""The two-layer linear network (D.21), F.5-F.14: printed equations against march and reductions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import mpmath
import numpy as np
from scipy.integrate import solve_ivp
from sympy import Basic, Expr, Function, Symbol, lambdify, log
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average
from derive.calculus.symbols import alpha, mu, t
from derive.program import P, gamma0
from derive.reduce.moments import TwoLayer
from derive.reduce.moments import two_layer as reduction
from derive.reduce.whitened import Whitened, norm, output, whitened_limits
from derive.reduce.whitened import series_radius as derived_radius
from derive.reduce.whitened import whitened as on_whitened_data
from numerics.solver.grid import flow_grid
from tests.derive.once import mean_field, mlp
from tests.ledger.claims import claimed
from tests.ledger.claims.selfconsistent2023.two_layer import G_t, H_y, error, f, y
from tests.ledger.evidence.base import Evidence, Finding, agrees, conclude, contradicts
from tests.ledger.evidence.engine import Array, Solved, solved
from tests.ledger.evidence.explicit import at_time, number, written_out

KERNEL, TARGETS = np.array([[1.0, 0.4], [0.4, 0.7]]), np.array([0.8, -0.5])
GAMMA, END = 1.3, 1.0

FLOW = 1e-6
"""Of a march of the flow: fourth-order steps, whose halving changes it by less (checked in
kernel_equations)."""


def claim(number: str) -> dict[str, Any]:
    """Return the printed right-hand sides."""
    return dict(claimed("selfconsistent2023", number))


@lru_cache(maxsize=1)
def derived() -> TwoLayer:
    """Return the engine's differential equations."""
    return reduction(mean_field(mlp(1, rule="flow")))


@lru_cache(maxsize=1)
def derived_whitened() -> Whitened:
    """Return the engine's equations on whitened data, and their solution."""
    return on_whitened_data(derived())


def flow(kernel: Array, targets: Array, gamma: float, end: float, pieces: int = 120) -> tuple[Array, Solved]:
    """Return the nodes of the engine's march of the flow, and the solution there."""
    grid = flow_grid(np.array([0.0, end]), step=end / pieces)
    return grid.nodes, solved(kernel, targets, grid.weights, depth=1, gamma=gamma)


def equal_times(run: Solved) -> tuple[Array, Array, Array]:
    """Return H (T,P,P), G (T) and Delta (T,P) at equal times."""
    return np.einsum("tmta->tma", run.H[1]), np.einsum("tt->t", run.G[1]), run.error


def _sample_value(a: AppliedUndef, H: Array, G: float, delta: Array) -> complex:
    index = [int(x) - 1 for x in a.args if x.is_Integer]
    if len(index) < len(a.args):
        at_time(a, t)
    known: Mapping[str, Any] = {"Kx": KERNEL, "K_x": KERNEL, "H": H, "Delta": delta, "y": TARGETS}
    name = str(a.func)
    return complex(G if name == "G" else known[name][tuple(index)])


def _compiled_rates(gamma: float) -> Callable[[float, Array], Array]:
    """Return the rates of (F.7) as a compiled function of (H11, H12, H22, G, Delta1, Delta2)."""
    formulas = claim("F.7")
    names = [Symbol(k) for k in ("h11", "h12", "h22", "g", "d1", "d2")]

    def symbol(a: AppliedUndef) -> Expr:
        name, index = str(a.func), [int(x) for x in a.args if x.is_Integer]
        if len(index) < len(a.args):
            at_time(a, t)
        if name == "H":
            return names[{(1, 1): 0, (1, 2): 1, (2, 1): 1, (2, 2): 2}[index[0], index[1]]]
        if name == "G":
            return names[3]
        if name == "Delta":
            return names[3 + index[0]]
        return float(TARGETS[index[0] - 1]) if name == "y" else float(KERNEL[index[0] - 1, index[1] - 1])

    rows = [("dH", (1, 1)), ("dH", (1, 2)), ("dH", (2, 2)), ("dG", ()), ("dDelta", (1,)), ("dDelta", (2,))]
    found = []
    for name, index in rows:
        opened = written_out(formulas[name], {P: 2, **dict(zip((mu, alpha), index, strict=False))}).subs(
            gamma0, gamma
        )
        found.append(opened.xreplace({a: symbol(a) for a in opened.atoms(AppliedUndef)}))
    fast = lambdify([names], found, "numpy")
    return lambda _, x: np.array(fast(x), dtype=float)


def integrated(rate: Callable[[float, Array], Array], start: Array, times: Array) -> Array:
    """Return states (T, n) at ``times``, to 1e-11."""
    found = solve_ivp(
        rate, (0.0, float(times[-1])), start, method="DOP853", t_eval=times, rtol=1e-11, atol=1e-12
    )
    return np.asarray(found.y.T)


def _packed(H: Array, G: Array, delta: Array) -> Array:
    return np.column_stack([H[:, 0, 0], H[:, 0, 1], H[:, 1, 1], G, delta])


def kernel_equations() -> Evidence:
    """Check (D.21), F.5-F.7: the printed equations, integrated, against the march.

    They are compared with the engine's termwise, too.
    """
    times, run = flow(KERNEL, TARGETS, GAMMA, END)
    marched = _packed(*equal_times(run))
    start = np.array([KERNEL[0, 0], KERNEL[0, 1], KERNEL[1, 1], 1.0, *TARGETS])
    printed = integrated(_compiled_rates(GAMMA), start, times)
    coarse = _packed(*equal_times(flow(KERNEL, TARGETS, GAMMA, END, 60)[1]))[-1]
    moved = float(np.max(np.abs(marched[-1, :4] - marched[0, :4])))
    return conclude(
        "two_layer:kernel_equations",
        "H, G and Delta of the engine's march follow (F.7) integrated from K^x, 1 and y; field equations "
        "(F.5) and averaged "
        "products (F.6) are the engine's.",
        agrees("(F.7) integrated minus march", float(np.max(np.abs(printed - marched))), FLOW),
        agrees(
            "march minus march with doubled steps, over 16",
            float(np.max(np.abs(marched[-1] - coarse))) / 16,
            FLOW,
        ),
        *_termwise(),
        contradicts("change of the kernels in the run", moved, FLOW),
    )


def _termwise() -> list[Finding]:
    """Return findings on (F.5)-(F.7) minus the engine's right-hand sides, at random values, two samples."""
    d = derived()
    engine = {
        "F.5": {"dh": d.fields[0].rhs, "dg": d.fields[1].rhs},
        "F.6": {"dH": d.rates[0].rhs, "dG": d.rates[1].rhs},
        "F.7": {"dH": d.rate("H"), "dG": d.rate("G"), "dDelta": d.rate("Delta")},
    }
    rng = np.random.default_rng(6)
    fields = {k: rng.normal(size=2) for k in ("h", "gh", "Delta")}
    H, pair = rng.normal(size=(2, 2)), rng.normal(size=2)
    H = H + H.T

    def value(a: AppliedUndef) -> complex:
        name = str(a.func)
        index = [int(x) - 1 for x in a.args if x.is_Integer]
        if len(index) < len(a.args):
            at_time(a, t)
        if name == "g":
            return complex(pair[0])
        if name in fields:
            return complex(fields[name][index[-1]])
        return _sample_value(a, H, float(pair[1]), fields["Delta"])

    findings = []
    for number_, formulas in engine.items():
        gap = 0.0
        for name, mine in formulas.items():
            printed = claim(number_)[name]
            for m, a in ((1, 2), (2, 1), (2, 2)):
                at = {P: 2, mu: m, alpha: a}
                both = [
                    number(_averages(written_out(x, at)).subs(gamma0, GAMMA), value) for x in (printed, mine)
                ]
                gap = max(gap, abs(both[0] - both[1]))
        findings.append(agrees(f"({number_}) minus the engine's, termwise", gap, 1e-12))
    return findings


def _averages(e: Expr) -> Expr:
    """Return ``<g h_mu>`` of the engine by the name of the claims, without the layer."""

    def named(x: Expr) -> Expr:
        field = next(a for a in x.body.atoms(AppliedUndef) if str(a.func) == "h")
        return Function("gh")(field.args[-2], t)

    return e.replace(lambda x: isinstance(x, Average), named)


def initial_kernel() -> Evidence:
    """Check (F.7 text): H(0) is K^x; starting from the identity gives another loss."""
    times, run = flow(KERNEL, TARGETS, GAMMA, 0.3, 30)
    delta = run.error
    printed_start = np.array(
        [[float(claim("F.7 text")["H"].subs({mu: i, alpha: j})) for j in (1, 2)] for i in (1, 2)]
    )
    engine = derived().initial[0].rhs
    starts = [np.array([x[0, 0], x[0, 1], x[1, 1], 1.0, *TARGETS]) for x in (KERNEL, printed_start)]
    paths = [integrated(_compiled_rates(GAMMA), x, times)[:, 4:] for x in starts]
    slope = [float(TARGETS @ _compiled_rates(GAMMA)(0.0, x)[4:]) for x in starts]
    return conclude(
        "two_layer:initial_kernel",
        "From H(0) = K^x the errors are those of the march; from the printed identity they are off, and the "
        "loss starts with "
        f"slope {slope[1]:.4f} instead of {slope[0]:.4f}.",
        agrees("engine's H(0) is the input kernel", float(str(engine.func) != "K_x"), 0.5),
        agrees("Delta from K^x minus march", float(np.max(np.abs(paths[0] - delta))), FLOW),
        contradicts("Delta from the identity minus march", float(np.max(np.abs(paths[1] - delta))), FLOW),
        contradicts("slope of the loss, identity minus K^x", float(slope[1] - slope[0]), FLOW),
    )


# -- whitened data -------------------------------------------------------------------------------------------

LENGTH = float(np.linalg.norm(TARGETS))


def _whitened_flow(
    gamma: float = GAMMA, end: float = END, pieces: int = 120
) -> tuple[Array, Array, Array, Array]:
    """Return times, H_y, G and Delta along the targets of the march with K^x = 1."""
    times, run = flow(np.eye(2), TARGETS, gamma, end, pieces)
    H, G, delta = equal_times(run)
    n = TARGETS / LENGTH
    return times, np.einsum("tma,m,a->t", H, n, n), G, delta @ n


def _scalar(expr: Basic, gamma: float, unknowns: list[Expr]) -> Callable[..., Any]:
    names = [Symbol(f"x{k}") for k in range(len(unknowns))]
    placed = expr.subs({y: LENGTH, gamma0: gamma}).subs(dict(zip(unknowns, names, strict=True)))
    return lambdify(names, placed, "numpy")  # type: ignore[no-any-return]


def _path(
    formulas: list[Basic], unknowns: list[Expr], start: list[float], times: Array, gamma: float = GAMMA
) -> Array:
    rates = [_scalar(e, gamma, unknowns) for e in formulas]
    return integrated(lambda _, x: np.array([r(*x) for r in rates], dtype=float), np.array(start), times)


def whitened_reduction() -> Evidence:
    """Check F.8, F.9: integrated, against the march with K^x = 1."""
    times, H, G, delta = _whitened_flow()
    eight, nine = claim("F.8"), claim("F.9")
    three = _path([eight["dH_y"], eight["dG"], eight["dDelta"]], [H_y, G_t, error], [1.0, 1.0, LENGTH], times)
    two = _path([nine["dH_y"], nine["dDelta"]], [H_y, error], [1.0, LENGTH], times)
    marched, lazy = np.column_stack([H, G, delta]), LENGTH * np.exp(-2 * times)
    return conclude(
        "two_layer:whitened_reduction",
        "Along the targets the march with K^x = 1 follows (F.8) and its balanced form (F.9).",
        agrees("(F.8) minus march", float(np.max(np.abs(three - marched))), FLOW),
        agrees("(F.9) minus march", float(np.max(np.abs(two - marched[:, [0, 2]]))), FLOW),
        contradicts("lazy limit minus march", float(np.max(np.abs(lazy - delta))), FLOW),
        agrees("H_y minus G in the march", float(np.max(np.abs(H - G))), 1e-10),
    )


def conservation_law() -> Evidence:
    """Check F.10: the printed quantity along the march, and the final H_y."""
    _, H, _, delta = _whitened_flow(end=4.0, pieces=160)
    ten = claim("F.10")
    values = _scalar(ten["conserved"], GAMMA, [H_y, error])(H, delta)
    final = float(ten["H_y_final"].subs({y: LENGTH, gamma0: GAMMA}))
    return conclude(
        "two_layer:conservation_law",
        f"H_y^2 - gamma0^2 (y - Delta)^2 stays one along the march, and H_y ends at {final:.6f}.",
        agrees("derivative printed for it", float(ten["half_derivative"] != 0), 0.5),
        agrees("conserved quantity minus 1", float(np.max(np.abs(values - 1.0))), 1e-4),
        agrees("final H_y minus sqrt(1 + gamma0^2 y^2)", float(H[-1] - final), 1e-4),
        contradicts("change of H_y on the way", float(H[-1] - 1.0), 1e-3),
    )


def one_dimensional_flow() -> Evidence:
    """Check F.11: integrated, against the march and the engine's equation."""
    times, _, _, delta = _whitened_flow()
    eleven, w = claim("F.11"), derived_whitened()
    printed = _path([eleven["dDelta"]], [error], [LENGTH], times)[:, 0]
    outputs, lazy = _path([eleven["df"]], [f], [0.0], times)[:, 0], LENGTH * np.exp(-2 * times)
    at = np.linspace(0.05, 0.9, 7) * LENGTH
    mine = _scalar(w.output.rhs.subs({norm: y, output: f}), GAMMA, [f])(at)
    theirs = _scalar(eleven["df"], GAMMA, [f])(at)
    return conclude(
        "two_layer:one_dimensional_flow",
        "(F.11) integrated is the march with K^x = 1, in Delta and in f, and its rate is the engine's.",
        contradicts("lazy limit minus march", float(np.max(np.abs(lazy - delta))), FLOW),
        agrees("Delta from (F.11) minus march", float(np.max(np.abs(printed - delta))), FLOW),
        agrees("y - f from (F.11) minus march", float(np.max(np.abs(LENGTH - outputs - delta))), FLOW),
        agrees("printed rate minus engine's", float(np.max(np.abs(mine - theirs))), 1e-12),
    )


def learning_time() -> Evidence:
    """Check F.12: the closed form against the printed integral, and against the times of the march."""
    twelve = claim("F.12")
    times, _, _, delta = _whitened_flow()
    at = [len(times) // 2, len(times) - 1]
    gaps, quadrature, whole = [], [], []
    for k in at:
        level = {y: LENGTH, gamma0: GAMMA, f: LENGTH - float(delta[k])}
        closed = float(twelve["closed"].subs(level))
        integral = twelve["integral"]
        variable = integral.limits[0][0]
        inside = lambdify(variable, integral.function.subs(level), "mpmath")
        quadrature.append(closed - float(mpmath.quad(inside, [0, float(level[f])])))
        gaps.append(closed / 2 - times[k])
        whole.append(closed - times[k])
    return conclude(
        "two_layer:learning_time",
        "Half the closed form (F.12) at the output of the march is the time of the march; it equals the "
        "printed integral.",
        agrees("closed form minus integral", max(map(abs, quadrature)), 1e-12),
        agrees("half the closed form minus time of the march", max(map(abs, gaps)), FLOW * 10),
        contradicts("the whole closed form minus it", min(map(abs, whole)), FLOW * 10),
    )


def lazy_limit() -> Evidence:
    """Check F.13: the march as gamma0 goes to zero."""
    thirteen, gaps = claim("F.13"), []
    shape = lambdify(t, thirteen["Delta"], "numpy")
    for gamma in (0.2, 0.1):
        times, _, _, delta = _whitened_flow(gamma)
        gaps.append(float(np.max(np.abs(delta - LENGTH * shape(times)))))
    limits = whitened_limits(derived_whitened())
    rate = limits.lazy.rhs.subs(limits.lazy.lhs.args[0], error) - thirteen["dDelta"]
    power = float(np.log2(gaps[0] / gaps[1]))
    slow = float(np.max(np.abs(delta - LENGTH * shape(times / 2))))
    return conclude(
        "two_layer:lazy_limit",
        f"Delta approaches y exp(-2t) as the {power:.2f}th power of gamma0; the engine's limit is the "
        "printed rate.",
        agrees("power of gamma0 minus 2", power - 2.0, 0.05),
        contradicts("y exp(-t) minus march, over the difference at gamma0 = 0.1", slow, gaps[-1]),
        agrees("engine's limiting rate minus printed", float(rate != 0), 0.5),
    )


def rich_limit() -> Evidence:
    """Check F.14: the rate of (F.11) at fixed output as gamma0 grows."""
    w, printed = derived_whitened(), claim("F.14")["dDelta"]
    gaps = []
    for gamma in (20.0, 40.0):
        level = {y: 1.0, error: 0.6}
        mine = -float(w.output.rhs.subs({norm: 1.0, output: 0.4, gamma0: gamma}))
        gaps.append(mine / float(printed.subs(level).subs(gamma0, gamma)) - 1.0)
    below = -float(w.output.rhs.subs({norm: 1.0, output: 1e-4, gamma0: 40.0}))
    power = float(np.log2(gaps[0] / gaps[1]))
    return conclude(
        "two_layer:rich_limit",
        f"At f = 0.4 y the engine's rate over the printed one tends to 1 as the {-power:.2f}th power of "
        "gamma0; below f = 1/gamma0 it "
        "is 2 y instead.",
        agrees("power of gamma0 plus 2", power - 2.0, 0.05),
        agrees("relative difference at gamma0 = 40", gaps[1], 0.01),
        contradicts("half the printed rate, relative", 2 * (gaps[1] + 1) - 1, 0.01),
        agrees("df/dt minus 2 y at f = 1e-4", below + 2.0, 0.01),
    )


def series_radius() -> Evidence:
    """Check F.12 text: ratios of coefficients of the series in gamma0^2, and the engine's singularities."""
    level, goal = mpmath.mpf("0.5"), mpmath.mpf(2)

    def coefficient(n: int) -> Any:
        moment = mpmath.quad(lambda x: x ** (2 * n) / (goal - x), mpmath.linspace(0, level, 5))
        return mpmath.binomial(mpmath.mpf(-1) / 2, n) * moment

    measured = float(1 / mpmath.sqrt(abs(coefficient(121) / coefficient(120))))
    radius = float(derived_radius(derived_whitened()).radius.subs(output, 0.5))
    printed = float(claim("F.12 text")["radius"].subs(y, 2))
    late = float(derived_radius(derived_whitened()).radius.subs(output, 1.99))
    return conclude(
        "two_layer:series_radius",
        f"At f = y/4 the ratio of coefficients gives the radius {measured:.4f}; the engine's is 1/f = "
        f"{radius:.4g}, the printed 1/y = "
        f"{printed:.4g} is safe but not sharp.",
        agrees("measured over 1/f minus 1", measured / radius - 1.0, 0.03),
        contradicts("measured radius beyond the printed one", measured - printed, 0.03),
        agrees("printed over the derived radius where f is close to y, minus 1", printed / late - 1.0, 0.03),
    )


def learning_time_scaling() -> Evidence:
    """Check F.14 text: gamma0 t against log gamma0 at f = y/2; the printed scaling has slope 0."""
    w = derived_whitened()
    strengths = (10**5, 10**7)
    level = {norm: 2, output: 1}
    scaled = [float((g * w.time.rhs.subs(level).subs(gamma0, g)).evalf(60)) for g in strengths]
    slope = (scaled[1] - scaled[0]) / float(log(strengths[1]) - log(strengths[0]))
    printed = [float((g * claim("F.14 text")["time"]).subs(gamma0, g)) for g in strengths]
    flat = (printed[1] - printed[0]) / float(log(strengths[1]) - log(strengths[0]))
    asymptote = float(
        (strengths[1] * whitened_limits(w).learning_time.subs(level)).subs(gamma0, strengths[1])
    )
    return conclude(
        "two_layer:learning_time_scaling",
        f"From f = 0 the time to learn half of y = 2 is {scaled[0]:.3f}/gamma0 at gamma0 = 1e5 and "
        f"{scaled[1]:.3f}/gamma0 at 1e7: slope "
        f"{slope:.6f} in log(gamma0), 1/(2y) = 0.25, where the printed scaling has {flat:g}.",
        agrees("slope minus 1/(2y)", slope - 0.25, 1e-6),
        agrees("gamma0 t minus its derived asymptote, gamma0 = 1e7", scaled[1] - asymptote, 1e-6),
        contradicts("slope minus the printed one", slope - flat, 1e-6),
    )
