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
    Matrix,
    MatrixSymbol,
    S,
    Sum,
    Symbol,
    powsimp,
    rsolve,
    simplify,
    solve,
    summation,
)
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average
from derive.errors import NotApplicable
from derive.program.program import Definition, Program
from derive.program.training import TrainingRule, held_at_rest
from derive.program.words import P, mu, s, t
from derive.reduce.chain import Chain
from derive.reduce.drift import single_site
from derive.reduce.homogeneous import neat, network_degree, output
from derive.reduce.langevin.output import exponential, output_rate
from derive.theory.conditioning import mean_field
from derive.theory.theory import Equation, Theory

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

    ``kappa`` is the degree of the network, and a weight at rest is ``held`` times its own update;
    ``balance`` is what follows for the outputs on the samples, and ``rate`` (of a flow, else None) how they
    come there.  ``trained`` is the output on the samples and ``anywhere`` that at another input, whose
    tangent kernel with the samples is the column ``k``, as matrix expressions in the final tangent kernel
    ``K`` and the targets ``y``, of which samples and channels number the rows together; ``ridge`` is what is
    added to K.  Weights of samples are a diagonal matrix.
    """

    kappa: Expr
    held: Expr
    ridge: Expr
    balance: Eq
    rate: Eq | None
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
    """Entries by name; the kernel K is symmetric, weights of samples are diagonal."""
    rows, cols = map(int, x.shape)

    def entry(i: int, j: int) -> Expr:
        if x.name not in "Kky":
            return Symbol(f"{x.name}{i + 1}", real=True) if i == j else S.Zero
        places = sorted((i, j)) if x.name == "K" else [i]
        return Symbol(x.name + "".join(str(n + 1) for n in places), real=True)

    return ImmutableMatrix(rows, cols, entry)


def representer(program: Program) -> Representer:
    """Kernel ridge regression as the rest point of the output of a homogeneous network.

    Weights at rest are ``held`` times their updates, which are errors times gradients of the outputs.  So
    ``theta . grad f`` is ``held`` times the tangent kernel times the errors; by Euler it is ``kappa f``.
    This holds for steps and for flows, with momentum, for either loss, any number of outputs and unequal
    widths.  That the weights do come to rest is not shown here.

    Raises NotHomogeneous for a network that is not homogeneous, :class:`NotApplicable` for a rule without
    decay or with noise, for updates that are no gradients, and for errors that are not linear in the output.

    >>> from sympy import Symbol
    >>> from derive.program import mlp
    >>> lam = Symbol("lam", positive=True)
    >>> found = representer(mlp(activation="relu", rule="flow", weight_decay=lam))
    >>> print(found.rate.rhs)
    -lam*(L + 1)*f(mu, t) + Sum(Delta(alpha, t)*K(mu, alpha, t, t), (alpha, 1, P))
    >>> print(found.ridge, "|", found.anywhere)
    lam*(L + 1) | k.T*((lam*(L + 1))*I + K)**(-1)*y
    >>> print(representer(mlp(2, "relu", "gd", "mean", weight_decay=lam)).ridge)
    3*P*lam
    """
    kappa, held = network_degree(program).kappa, _held(program)
    kernel = mean_field(program).observables
    if not kernel:
        raise NotApplicable(f"{program.name}: its updates are no gradients of its output")
    out = output(program)
    given = _error(program, out)
    gain = _gain(kernel[0], out.lhs, given.lhs)
    ridge = simplify(kappa / held)
    rate = None
    if not program.rule.discrete and _forgets(program.rule):
        strength, decay, _ = exponential(program.rule)
        lost = decay * kappa * out.lhs
        rate = Eq(Derivative(out.lhs, t), strength * gain - lost, evaluate=False)
    size: Expr = S.One
    for r in out.ranges:
        size *= r.upper - r.lower + 1
    return Representer(
        kappa,
        held,
        ridge,
        Eq(ridge * out.lhs, gain, evaluate=False),
        rate,
        *_at_rest(given, out.lhs, ridge, size),
    )


def _held(program: Program) -> Expr:
    """How many of its updates every weight holds at rest."""
    rules = [w.rule for w in program.trained()]
    if any(r.noise(t, s) != 0 for r in rules):
        raise NotApplicable("a rest point of the output needs decay, and no noise")
    held = {held_at_rest(r) for r in rules}
    if None in held:
        raise NotApplicable(f"a rest point of the output needs decay, which {rules[0]!r} has not")
    if len(held) != 1:
        raise NotApplicable(f"the weights decay differently: at rest they hold {held} of their updates")
    return held.pop()


def _forgets(rule: TrainingRule) -> bool:
    try:
        exponential(rule)
    except NotApplicable:
        return False
    return True


def _error(program: Program, out: Definition) -> Definition:
    """The definition of the error in the output."""
    found = [d for d in program.definitions if d.name in program.scalars and d.rhs.has(out.lhs)]
    if len(found) != 1:
        raise NotApplicable(f"{program.name} has {len(found)} errors in its output")
    return found[0]


def _gain(kernel: Equation, out: AppliedUndef, error: AppliedUndef) -> Expr:
    """The tangent kernel times the errors, over all samples and channels."""
    inner = kernel.ranges[len(kernel.ranges) // 2 :]
    past = dict(zip(out.args[:-1], [r.index for r in inner], strict=True))
    now = kernel.lhs.func(*[t if x == s else x for x in kernel.lhs.args])
    return Sum(now * error.xreplace(past), *[r.limits for r in inner])


def _at_rest(given: Definition, out: AppliedUndef, ridge: Expr, size: Expr) -> tuple[Expr, Expr]:
    """Solve ``K error = ridge f`` with ``error = a f + b y``; at another input ``ridge f = k . error``."""
    y = Function("y")(*out.args[:-1])
    a, b = (given.rhs.expand().coeff(x) for x in (out, y))
    if (given.rhs - a * out - b * y).expand() != 0 or a.has(out.func) or b.has(out.func):
        raise NotApplicable("the error is not linear in the output: another loss")
    K, k, targets = (MatrixSymbol(n, size, m) for n, m in (("K", size), ("k", S.One), ("y", S.One)))
    one = ridge * Identity(size)
    A, B = (_diagonal(x, size) for x in (a, b))
    trained = (one - K * A).inv() * K * B * targets
    return trained.doit(), (k.T * (one - A * K).inv() * B * targets).doit()


def _diagonal(e: Expr, size: Expr) -> Expr:
    """A number, or a number for each sample, as a matrix."""
    functions = e.atoms(AppliedUndef)
    if not functions:
        return e * Identity(size)
    if len(functions) > 1:
        raise NotApplicable(f"{e} is more than one weight of a sample")
    weight = functions.pop()
    return e.coeff(weight) * MatrixSymbol(str(weight.func), size, size)


# -- one unit, one sample: does anything survive? ------------------------------------------------------------


def rest_points(theory: Theory) -> tuple[tuple[Expr, Expr, Expr], ...]:
    """Where ``(<h^2>, <z^2>, f)`` of a linear network with one hidden layer and one sample come to rest.

    Raises :class:`NotApplicable` when the moments do not close.

    >>> from derive.theory import mean_field
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
