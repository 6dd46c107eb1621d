"""Random features: a readout trained on frozen random projections of structured inputs.

Inputs have M modes ``x_k = sqrt(lamda(k)) z_k``, ``z`` standard normal, and the target is ``sum_k
w_star(k) x_k``.  N features are fixed mixtures ``A x`` of the modes, ``A`` standard normal; the readout a
starts at zero and is trained.  The network is the vector ``A^T a/N`` that inputs are multiplied by, so this
is the forward pass:

    v = w_star - A^T a/N,  Delta = Z sqrt(lamda) v + sigma eps,

with the loss ``|Delta|^2/(2 P)``.  As for structured data the number M of modes is the reference size, and
:func:`derive.reduce.data.mode_sums` takes it out of the theory.
"""

from __future__ import annotations

from sympy import Expr, S, sqrt

from derive.calculus.symbols import t
from derive.errors import ProgramError
from derive.program.language import Attribute, Field, GaussianMatrix, GaussianVector, Mean, Population
from derive.program.network import Network
from derive.program.networks.options import NumberOrExpression, rule_of
from derive.program.networks.random_data import B, M, N, P, k, noise_strength, require_samples
from derive.program.program import Program
from derive.program.rules import TrainingRule
from derive.program.training import Gradient, Parametrization


def random_features(
    *,
    data: str = "full-batch",
    noise: bool | Expr = False,
    rule: str | TrainingRule | None = None,
    weight_decay: NumberOrExpression = 0,
    momentum: NumberOrExpression = 0,
) -> Program:
    """Return the training of a readout of N random features of structured inputs.

    The weights of the readout start at zero.

    Parameters
    ----------
    data : {"full-batch", "online", "population"}
        The same P samples at every step, B new ones at each step, or the limit of infinitely many samples.
    noise : bool or Expr
        Standard deviation of the labels' noise, or True for the symbol ``sigma``.
    rule : str or TrainingRule, optional
        A training rule or its name; by default "gd" for new samples at each step, else "flow". The mean over
        samples is in the loss; with many features, the rate of a mode with eigenvalue ``lamda`` is ``lamda``
        times that of the rule.
    weight_decay, momentum : number or Expr
        As in :func:`.training_rule`.

    Returns
    -------
    Program
        A program with the fields ``a``, the readout weights, on features; ``v``, the target minus the
        learnt vector, on modes; and ``Delta``, the errors, on samples (not with "population"). The
        correlation ``C_v`` of v is weighted by the eigenvalues, so that, as a sum over modes, it is the mean
        square of the error on new inputs without label noise.

    Raises
    ------
    ProgramError
        For unknown data, label noise without samples, and new samples at each step with a flow.

    Examples
    --------
    >>> [d.name for d in random_features().causal_order()]
    ['a', 'v', 'Delta', 'h0', 'g_a']
    """
    if data not in ("full-batch", "online", "population"):
        raise ProgramError(f"data = {data!r}: must be 'full-batch', 'online' or 'population'")
    fresh, strength = data == "online", noise_strength(noise)
    modes, features = Population("modes"), Population("features", ratio=N / M)
    samples = Population("samples", ratio=(B if fresh else P) / M)
    lamda, target = Attribute("lamda", modes), Attribute("w_star", modes)
    a, v, Delta = Field("a", features), Field("v", modes), Field("Delta", samples)
    A, start = GaussianMatrix("A", features, modes, M), GaussianVector("w", features, variance=0)
    seen = sqrt(lamda(k)) * v(t)
    lines = {a(t): start.symbol, v(t): target(k) - (A.T @ a(t)) / N}
    fields: tuple[Field, ...] = (a, v)
    drawn: tuple[GaussianMatrix | GaussianVector, ...] = (A,)
    loss = M * Mean(seen**2) / 2
    if data == "population":
        require_samples(noise)
    else:
        Z = GaussianMatrix("Z", samples, modes, M, fresh=fresh)
        eps = GaussianVector("eps", samples, source="eps", fresh=fresh)
        lines[Delta(t)] = Z @ seen + strength * eps.symbol
        fields, drawn = (a, v, Delta), (A, Z, *([eps] if strength != 0 else []))
        loss = Mean(Delta(t) ** 2) / 2
    net = Network(f"random features ({data})", fields, lines, (start,), drawn, attributes=(lamda, target))
    named = {"v": Gradient("h0", normal=-1 / M), "a": Gradient("g_a", normal=N / M)}
    unit = Parametrization(S.One, rate=N / M)
    rule = ("gd" if fresh else "flow") if rule is None else rule
    trained_by = rule_of(rule, "sum", weight_decay=weight_decay, momentum=momentum)
    notation = {seen: "C_v", **({} if data == "population" else {Delta(t): "C_Delta"})}
    return net.train(loss, trained_by, unit, gradients=named, notation=notation)
