"""Where weight decay takes the output of a homogeneous network: kernel ridge regression (selfconsistent2023
J.1).

Euler's identity ``theta . grad f = kappa f`` turns the decay of weights into decay of the output; an output
that does not move any more is linear in the targets.
"""

from __future__ import annotations

from dataclasses import dataclass

from sympy import (
    Derivative,
    Dummy,
    Eq,
    Expr,
    Function,
    Identity,
    ImmutableMatrix,
    KroneckerDelta,
    Matrix,
    MatrixSymbol,
    S,
    Sum,
    Symbol,
    factor,
    powsimp,
    rsolve,
    simplify,
    solve,
    summation,
)
from sympy.core.function import UndefinedFunction

from derive.meanfield.averages import Average
from derive.meanfield.path_integral.functional import functional_derivative
from derive.meanfield.reductions.chain import Chain
from derive.meanfield.reductions.drift import single_site
from derive.meanfield.reductions.homogeneous import neat, network_degree
from derive.meanfield.reductions.langevin.output import OutputRate, exponential, output_rate
from derive.meanfield.reductions.projection import NotApplicable
from derive.meanfield.theory import Theory
from derive.program.builders.sample_weights import has_sample_weights
from derive.program.expressions import IndexRange, P, alpha, mu, t
from derive.program.program import Program

# -- Euler's identity ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Euler:
    """``sum of W . df/dW``, weight by weight (at the family's index) and in all, in units of the output."""

    shares: tuple[tuple[str, Expr], ...]
    total: Expr


def euler(program: Program) -> Euler:
    """Euler's identity, found without the degree of the network: from local homogeneity and transposition.

    In each layer ``g h = p phi(h) z`` for an activation of degree p, and ``phi(h) . W^T g' = (W phi(h)) .
    g'``, where ``W phi(h)`` is the next layer's field: the overlaps of g and h grow by p a layer, from the
    output down.  Raises :class:`NotApplicable` (or NotHomogeneous) for a network that is no such chain.

    >>> from derive.program import mlp
    >>> found = euler(mlp(activation="quadratic", rule="flow"))
    >>> print(found.total, found.shares)
    2**(L + 1) - 1 (('W0', 2**L), ('W', 2**(L - ell)), ('w', 1))
    """
    rate, chain = output_rate(program), Chain(program)
    power, x, n = chain.power(), Function("x"), Dummy("n", integer=True)
    below = rsolve(x(n) - power * x(n - 1), x(n), {x(0): 1})  # n layers below the output
    shares, total = [], S.Zero
    for share in rate.shares:
        above = S.Zero if share.site is None else program.depth - share.site + 1
        value = powsimp(simplify(below.subs(n, above)))
        shares.append((share.weight, value))
        for r in share.layers:
            value = S.Zero if (r.upper - r.lower).is_negative else _geometric(value, *r.limits)
        total += value
    return Euler(tuple(shares), neat(total))


def _geometric(value: Expr, index: Expr, lower: Expr, upper: Expr) -> Expr:
    ratio = simplify(value.subs(index, index + 1) / value)
    if ratio.has(index) or ratio == 1:
        return summation(value, (index, lower, upper))
    first = value.subs(index, lower)
    return simplify(first * (ratio ** (upper - lower + 1) - 1) / (ratio - 1))


# -- ridge regression ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Representer:
    """The output at rest of a homogeneous network with weight decay.

    ``rate`` is the equation of the output on the samples; ``trained`` the output there and ``anywhere`` at
    another input, whose tangent kernel with the samples is the column ``k``, as matrix expressions in the
    final tangent kernel ``K`` and the targets ``y``; ``ridge`` is what is added to K.
    """

    rate: Eq
    ridge: Expr
    trained: Expr
    anywhere: Expr

    def explicit(self, samples: int) -> tuple[Matrix, Expr]:
        """``trained`` and ``anywhere`` with kernels and targets of symbols ``K12``, ``k1``, ``y1``."""
        found = []
        for e in (self.trained, self.anywhere):
            sized = e.subs(P, samples).doit()
            found.append(sized.xreplace({x: _symbols(x) for x in sized.atoms(MatrixSymbol)}).doit())
        return Matrix(found[0]).applyfunc(simplify), simplify(Matrix(found[1])[0, 0])


def _symbols(x: MatrixSymbol) -> Matrix:
    """Entries by name; the kernel K is symmetric."""
    rows, cols = map(int, x.shape)

    def entry(i: int, j: int) -> Expr:
        places = sorted((i, j)) if x.name == "K" else [i]
        return Symbol(x.name + "".join(str(n + 1) for n in places), real=True)

    return ImmutableMatrix(rows, cols, entry)


def representer(program: Program) -> Representer:
    """Kernel ridge regression as the rest point of the output of a homogeneous network.

    Raises NotHomogeneous for other networks, :class:`NotApplicable` for a rule that is no gradient flow with
    decay alone, for samples with weights, and if Euler's identity and the degree of the network disagree.

    >>> from sympy import Symbol
    >>> from derive.program import mlp
    >>> lam = Symbol("lam", positive=True)
    >>> found = representer(mlp(activation="relu", rule="flow", weight_decay=lam))
    >>> print(found.rate.rhs)
    -lam*(L + 1)*f(mu, t) + Sum(Delta(alpha, t)*K(mu, alpha, t, t), (alpha, 1, P))
    >>> print(found.ridge, "|", found.anywhere)
    lam*(L + 1) | k.T*((lam*(L + 1))*I + K)**(-1)*y
    """
    strength, decay, noise = exponential(program.rule)
    if decay == 0 or noise != 0:
        raise NotApplicable("a rest point of the output needs decay, and no noise")
    if has_sample_weights(program):
        raise NotApplicable(
            "samples with weights: leave sample_weights out, `anywhere` is the output at other inputs"
        )
    kappa = network_degree(program).kappa
    rate, total = output_rate(program), euler(program).total
    if simplify(kappa - total) != 0:
        raise NotApplicable(f"Euler's identity gives {total}, the degree of the network is {kappa}")
    lost = decay * kappa
    equation = Eq(Derivative(rate.output, t), rate.gain - lost * rate.output, evaluate=False)
    ridge = simplify(lost / strength)
    return Representer(equation, ridge, *_at_rest(rate, ridge, program))


def _at_rest(rate: OutputRate, ridge: Expr, program: Program) -> tuple[Expr, Expr]:
    """Solve ``gain = ridge f`` for outputs on the samples, and for errors; elsewhere ridge f = k . error."""
    f, error = Function("f"), Function("error")
    given = next(d for d in program.definitions if d.rhs.has(rate.output)).rhs.xreplace({rate.output: f(mu)})
    if given.diff(f(mu)).has(f):
        raise NotApplicable("the error is not linear in the output: another loss")
    back = solve(given - error(mu), f(mu))[0]
    k = MatrixSymbol("k", P, 1)
    trained = _linear_solution(given, f(mu), f, ridge)
    residual = _linear_solution(error(mu), back, error, ridge)
    return trained, (k.T * residual / ridge).doit()


def _linear_solution(error: Expr, value: Expr, unknown: UndefinedFunction, ridge: Expr) -> Expr:
    """Solve ``sum_alpha K(mu, alpha) error(alpha) = ridge value(mu)`` for ``unknown``, as matrices."""
    y, kernel = Function("y"), Function("K")
    nu = Dummy("nu", integer=True, positive=True)
    rest = Sum(kernel(mu, alpha) * error.xreplace({mu: alpha}), (alpha, 1, P)) - ridge * value

    def matrix(to: UndefinedFunction) -> tuple[Expr, Expr]:
        slope = functional_derivative(rest, to(nu), (IndexRange(nu, S.One, P),)).expand()
        return slope.coeff(kernel(mu, nu)), factor(slope.coeff(KroneckerDelta(mu, nu)))

    K, column = MatrixSymbol("K", P, P), MatrixSymbol("y", P, 1)
    (a, b), (c, d) = matrix(unknown), matrix(y)
    left, right = K + b / a * Identity(P), c / a * K + d / a * Identity(P)
    return (-left.inv() * right * column).doit()


# -- one unit, one sample: does anything survive? ------------------------------------------------------------


def rest_points(theory: Theory) -> tuple[tuple[Expr, Expr, Expr], ...]:
    """Where ``(<h^2>, <z^2>, f)`` of a linear network with one hidden layer and one sample come to rest.

    Raises :class:`NotApplicable` when the moments do not close.

    >>> from derive.meanfield import mean_field
    >>> from derive.program import mlp
    >>> lam = Symbol("lam", positive=True)
    >>> for x in rest_points(mean_field(mlp(1, rule="flow", weight_decay=lam))): print(x[2])
    0
    y + lam/(sqrt(K)*gamma0)
    y - lam/(sqrt(K)*gamma0)
    """
    site = single_site(theory)
    f, delta = next((e.lhs, e.rhs) for e in theory.scalars if e.rhs.has(Average))
    h, z = (x.field for x in site.flows)
    names = [Dummy(n, real=True) for n in ("H", "G", "X")]
    moments = dict(zip((h**2, z**2, h * z), names, strict=True))
    needed = {site.unfolded(x.body) for x in delta.atoms(Average)} - set(moments)
    if needed:
        raise NotApplicable(f"the output needs <{min(needed, key=str)}>, no moment of h and z: not linear")
    out = delta.replace(lambda x: isinstance(x, Average), lambda x: moments[site.unfolded(x.body)])
    error = next(e.rhs for e in theory.scalars if e.rhs.has(f)).xreplace({f: out})
    values = {Function("K_x")(1, 1): Symbol("K", positive=True), Function("y")(1): Symbol("y", positive=True)}
    rates = []
    for body in moments:
        rate = site.moment_rate(body).subs(P, 1).doit().xreplace({mu: S.One})
        own = {k.xreplace({mu: S.One}): v for k, v in moments.items()}
        rate = rate.replace(lambda x: isinstance(x, Average), lambda x, own=own: own.get(x.body, x))
        rate = rate.replace(Function("Delta"), lambda *_: error).xreplace({mu: S.One}).xreplace(values)
        if rate.has(Average):
            raise NotApplicable(f"the rate of <{body}> needs {sorted(rate.atoms(Average), key=str)[0]}")
        rates.append(rate)
    final = out.xreplace({mu: S.One}).xreplace(values)
    found = solve(rates, names, dict=True)
    return tuple((x[names[0]], x[names[1]], simplify(final.subs(x))) for x in found)
