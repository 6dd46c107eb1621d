"""Numbers of an experiment for the symbols of its theory, and spectra of power-law data.

If the file has a number for each layer, the theory has a function of the layer, whose values are symbols.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Function, Symbol

from derive.program import Entrywise, P, P_train, eta, gamma0, t
from derive.program.networks.options import SAMPLE_WEIGHT
from derive.program.networks.random_data import B, M, N, alpha, alpha_B, nu
from derive.program.networks.random_data import sigma as noise
from derive.show import text
from derive.theory import Theory
from numerics.errors import SpecError
from numerics.experiment import theory as theories
from numerics.experiment.experiment import Experiment
from numerics.experiment.schedule import values_of
from numerics.experiment.schema import CONSTANTS, FileSection, Spec
from numerics.names import INPUT_KERNEL, INPUTS, TARGETS

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Spectrum:
    """Modes of random data with a spectrum.

    ``attributes`` holds the attributes of modes, such as eigenvalues, by name, each (n,). ``counts`` (n,) is
    the weight of each of these n modes in sums over modes.
    """

    attributes: Mapping[str, Array]
    counts: Array


NODES = 10
"""Largest number of nodes of an interval of modes.

The relative error of a sum over it is about (half its relative length)^20 / binomial(20, 10).
"""

STRETCH = 1.5
"""Largest ratio of two eigenvalues in an interval of modes, or of two indices of modes if that is larger."""


def power_law(capacity: float, source: float, modes: int, *, every: bool = False) -> Spectrum:
    """Return the modes of power-law data: their eigenvalues ``lamda`` and target coefficients ``w_star``.

    For mode k, ``lamda = k^-capacity`` and ``w_star^2 lamda = k^(-capacity source - 1)``. With ``every`` all
    modes k = 1 ... ``modes`` are returned, each with the count 1. Without, nodes and weights of quadrature
    stand for the modes: at most NODES nodes for each of several intervals of modes.

    >>> spectrum = power_law(1.5, 1.0, 100_000)
    >>> len(spectrum.counts), round(float(spectrum.counts.sum()), 6)
    (338, 100000.0)
    """
    if every:
        k, counts = np.arange(1.0, modes + 1), np.ones(modes)
    else:
        pieces = list(_stretches(modes, STRETCH ** (1 / max(capacity, 1.0))))
        k, counts = (np.concatenate([x[i] for x in pieces]) for i in (0, 1))
    eigenvalues = k**-capacity
    return Spectrum(
        {"lamda": eigenvalues, "w_star": np.sqrt(k ** (-capacity * source - 1) / eigenvalues)}, counts
    )


def _stretches(modes: int, ratio: float) -> list[tuple[Array, Array]]:
    """Return quadrature rules for sums over the modes 1 ... ``modes``: (nodes, weights) for each interval.

    In an interval the last mode divided by the first is at most ``ratio``.
    """
    stretches, first = [], 1
    while first <= modes:
        count = min(modes + 1 - first, max(1, int(first * (ratio - 1))))
        stretches.append(gauss_sum(first, count, NODES))
        first += count
    return stretches


def gauss_sum(first: int, count: int, nodes: int) -> tuple[Array, Array]:
    """Return nodes and weights for sums over the integers ``first .. first + count - 1``.

    The rule is Gauss's for this discrete measure, from the recurrence of its orthogonal polynomials (those of
    Chebyshev and Gram).  It is exact for polynomials of degree ``2 nodes - 1``. If ``count`` is at most
    ``nodes``, the nodes are the integers themselves, with weights 1.

    >>> k, weights = gauss_sum(5, 1000, 4)
    >>> round(float(weights @ k**7) / sum(n**7 for n in range(5, 1005)), 12)
    1.0
    """
    if count <= nodes:
        return first + np.arange(float(count)), np.ones(count)
    n = np.arange(1.0, nodes)
    off = 0.5 * n * np.sqrt((count**2 - n**2) / (4 * n**2 - 1))
    x, vectors = np.linalg.eigh(np.diag(off, 1) + np.diag(off, -1))
    return first + (count - 1) / 2 + x, count * vectors[0] ** 2


def numbers_of(experiment: Experiment) -> dict[Symbol, float]:
    """Return the numbers of the file for the symbols of the theory, sizes included.

    Left out are numbers that neither the file nor a default gives, expressions in t, a number of outputs of
    1, and zeros, except for zeros of lists and for the noise of random data, which is 0 if it is missing. A
    list gives one symbol for each layer. On fixed samples P counts training samples and test points, and
    P_train, which is given with test points only, training samples. Raises
    :class:`~numerics.errors.SpecError` for fixed samples without arrays.

    >>> from numerics.experiment.experiment import Experiment
    >>> spec = {"network": {"depth": 1, "width_ratio": 2.0}, "data": {"kind": "isotropic", "noise": 0.3}}
    >>> {str(k): v for k, v in numbers_of(Experiment.from_dict(spec)).items()}
    {'gamma0': 1.0, 'nu': 2.0, 'sigma': 0.3}
    """
    spec = experiment.spec
    numbers: dict[Symbol, Any] = {x: experiment.value(key) for x, key, _ in MEANING}
    del numbers[theories.kept if spec.training.rule == "flow" else theories.tau]
    if spec.network.outputs == 1:
        del numbers[theories.C]
    numbers |= {theories.CONSTANTS[key]: x for key, x in spec.training.constants.items()}
    # A number that is zero is left out here. A list or a text depends on layer or time, so that it is not a
    # single number.
    numbers = {x: v for x, v in numbers.items() if v and not isinstance(v, list | str)}
    if spec.kind == "fixed":
        numbers[P] = experiment.sample_count
        if experiment.held_out is not None:
            numbers[P_train] = len(experiment.targets)
        if not isinstance(spec.network.init_variance, list):
            numbers[theories.sigma] = np.sqrt(spec.network.init_variance)
    elif spec.data is not None:
        numbers[noise] = spec.data.noise or 0.0
    for name, values in layered_numbers(spec).items():
        numbers |= {theories.of_layer(name, k): v for k, v in values.items()}
    return {x: float(v) for x, v in numbers.items()}


MEANING: tuple[tuple[Symbol, str, str], ...] = (
    (gamma0, "network.gamma0", "feature-learning strength"),
    (eta, "training.learning_rate", "learning rate"),
    (theories.beta, "network.branch", "multiplier of a residual branch"),
    (theories.C, "network.outputs", "outputs"),
    (theories.decay, "training.weight_decay", "weight decay"),
    (theories.temperature, "training.temperature", "temperature of Langevin noise"),
    (theories.tau, "training.momentum", "time constant of the decay of the velocity"),
    (theories.kept, "training.momentum", "share of the velocity that a step keeps"),
    (theories.CONSTANTS["beta1"], "training.beta1", "share of the mean gradient that a step keeps"),
    (theories.CONSTANTS["beta2"], "training.beta2", "share of the mean square that a step keeps"),
    (theories.CONSTANTS["epsilon"], "training.epsilon", "number added to the root of the mean square"),
    (nu, "network.width_ratio", "units of a layer for each input dimension, N/D"),
    (alpha, "data.sample_ratio", "samples for each input dimension, P/D"),
    (alpha_B, "data.batch_ratio", "samples of a batch for each input dimension, B/D"),
    (M, "data.modes", "modes of the data"),
    (N, "network.width", "units of a layer"),
    (B, "data.batch", "samples of a batch"),
)
"""Symbols of a theory, the key of the file that gives each its number, and its meaning."""

RESTING = "feature-learning strength over sqrt(N), zero at infinite width"
"""Meaning of gamma0 in NTK scaling on fixed samples."""

OF_FIXED = (
    (P, "data.targets", "samples"),
    (P_train, "data.targets", "samples that are trained on, of P"),
    (theories.sigma, "network.init_variance", "standard deviation of the initial weights"),
)
OF_RANDOM = ((noise, "data.noise", "standard deviation of the noise in the labels"),)
"""Symbols, keys and meanings for fixed samples, and for random ones."""


def legend(spec: Spec, theory: Theory) -> str:
    """Return the losses of random data, and the symbols of a theory with their keys of the file, as text.

    Losses are left out on fixed samples. A line of a symbol holds the printed symbol, its key and its
    meaning, and for an expression in t its text. Symbols that no key gives, such as indices, are left out.

    >>> from numerics.experiment.experiment import Experiment
    >>> data = {"kind": "isotropic", "sample_ratio": 2.0, "noise": 0.3}
    >>> e = Experiment.from_dict({"network": {"depth": 1}, "data": data})
    >>> print(legend(e.spec, theories.theory_of(e)))
    Losses
      train_loss = C_Δ(t,t)
      test_loss  = σ² + C_v(t,t)
    <BLANKLINE>
    Symbols
      γ₀  network.gamma0: feature-learning strength
      η   training.learning_rate: learning rate
      α   data.sample_ratio: samples for each input dimension, P/D
      σ   data.noise: standard deviation of the noise in the labels
    """
    rule: Any = theory.program.rule if spec.training.entrywise else None
    own_rule = rule if isinstance(rule, Entrywise) else None
    fixed, asked = spec.kind == "fixed", set(theory.symbols.values())
    asked |= set() if own_rule is None else own_rule.parameters
    lines = []
    if not fixed:
        losses = theory.losses(noise if spec.data is not None and spec.data.noise else 0)
        lines = ["Losses", *(f"  {k:10} = {text(v)}" for k, v in losses.items()), ""]
    rows = (*MEANING, *(OF_FIXED if fixed else OF_RANDOM))
    moving = {x: Function(x.name)(t) for x in theories.moving_symbols(spec)}
    symbols = []
    for x, key, words in rows:
        if x in moving:
            symbols.append((text(moving[x]), key, f"{words}, {getattr(spec.training, key.split('.')[1])}"))
        elif x in asked:
            symbols.append((text(x), key, RESTING if x == gamma0 and spec.features_rest else words))
    width = max((len(name) for name, *_ in symbols), default=0)
    return "\n".join([*lines, "Symbols", *(f"  {x:{width}}  {key}: {words}" for x, key, words in symbols)])


def arrays_of(experiment: Experiment) -> dict[str, Array]:
    """Return the arrays of the theory: for fixed samples ``K_x`` (P, P) and ``y`` (P,) or (P, C).

    A coefficient of a rule in steps that the file gives as an expression in t is an array with a number for
    each step, such as ``eta`` (T,); random data have no other arrays. For an entrywise rule the inputs ``x``
    (P, D) of all points are included.

    With P* test points, these come last: ``K_x`` is (P + P*, P + P*), unknown targets are zero, and the array
    ``rho`` is the weight of each in the loss, one for training samples and zero for test points.

    >>> from numerics.experiment.experiment import Experiment
    >>> network = {"network": {"depth": 2}}
    >>> e = Experiment.from_dict(network, inputs=[[1.0]], targets=[3.0], test_inputs=[[2.0]])
    >>> for name, array in arrays_of(e).items(): print(name, array.tolist())
    K_x [[1.0, 2.0], [2.0, 4.0]]
    y [3.0, 0.0]
    rho [1.0, 0.0]
    """
    tables = _schedules(experiment)
    if experiment.spec.kind != "fixed":
        return tables
    y, held = experiment.targets, experiment.held_out
    if experiment.training.entrywise:
        tables[INPUTS] = inputs_of(experiment)
    if held is None:
        return {INPUT_KERNEL: experiment.kernel, TARGETS: y, **tables}
    unseen = np.zeros((len(held), *y.shape[1:])) if held.targets is None else held.targets
    weight = np.concatenate([np.ones(len(y)), np.zeros(len(held))])
    return {INPUT_KERNEL: held.kernel, TARGETS: np.concatenate([y, unseen]), SAMPLE_WEIGHT: weight, **tables}


def inputs_of(experiment: Experiment) -> Array:
    """Return the inputs of all points (P + P*, D), training samples first.

    The experiment must have inputs.
    """
    held = experiment.held_out
    parts = [experiment.inputs, None if held is None else held.inputs]
    return np.concatenate([x for x in parts if x is not None])


def _schedules(experiment: Experiment) -> dict[str, Array]:
    """Return, by name, the values at each step of coefficients given as expressions in t.

    It is empty for a flow, whose program contains the expressions.
    """
    if experiment.training.rule == "flow" or not experiment.training.schedules:
        return {}
    schedules = theories.schedules_of(experiment.spec)
    return {name: values_of(x, experiment.times) for name, x in schedules.items()}


def spectrum_of(experiment: Experiment, *, every: bool = False) -> Spectrum | None:
    """Return the modes of power-law data: all with ``every``, else nodes that represent them to rounding.

    None for other data, or if a number of the power laws is missing.
    """
    data = experiment.spec.data
    if data is None or data.capacity is None or data.source is None or data.modes is None:
        return None
    return power_law(data.capacity, data.source, data.modes, every=every)


def layered_numbers(spec: Spec) -> dict[str, dict[int, float]]:
    """Return the lists of [network] as functions of the layer: {name: {layer: number}}.

    The names are those of functions in programs and theories: "sigma" for ``sigma(ell)``, from layer 0, the
    square roots of the initial variances; "a" and "nu", from layer 1, for relative widths and width ratios.
    """
    network = spec.network
    functions: dict[str, dict[int, float]] = {}
    if spec.kind == "fixed" and isinstance(network.init_variance, list):
        functions["sigma"] = {k: float(np.sqrt(v)) for k, v in enumerate(network.init_variance)}
    if network.relative_widths is not None:
        functions["a"] = dict(enumerate(network.relative_widths, 1))
    if isinstance(network.width_ratio, list):
        functions["nu"] = dict(enumerate(network.width_ratio, 1))
    return functions


NEEDED = {
    **dict.fromkeys(("gd", "sgd", *CONSTANTS), ("learning_rate", "steps")),
    "flow": ("time",),
    "power-law": ("capacity", "source", "modes"),
}
"""Keys that a rule or a kind of data needs for numbers."""


def layer_ratios(experiment: Experiment) -> list[float]:
    """Return the number of neurons of each hidden layer, relative to the size to which all ratios refer.

    This size is the width N of the program, and the input dimension D for isotropic data. If one ratio holds
    for all layers, the list has one entry: 1 for fixed samples without relative widths and for power-law
    data.

    >>> spec = {"network": {"depth": 2, "width_ratio": [1.0, 4.0]}, "data": {"kind": "isotropic"}}
    >>> layer_ratios(Experiment.from_dict(spec))
    [1.0, 4.0]

    Raises SpecError for isotropic data without ``network.width_ratio``.
    """
    network = experiment.network
    if experiment.spec.kind != "isotropic":
        return list(network.relative_widths or [1.0])
    if network.width_ratio is None:
        raise SpecError(
            "network.width_ratio",
            None,
            "is left out: the layers are infinitely wide",
            "the ratio of neurons to features for finite networks",
        )
    return network.width_ratio if isinstance(network.width_ratio, list) else [network.width_ratio]


def require_numbers(experiment: Experiment, *, depth: bool = True) -> None:
    """Raise SpecError for the first number or array that is missing and that a computation needs.

    ``depth=False`` lets the number of layers be a symbol.

    >>> from numerics.experiment.experiment import Experiment
    >>> require_numbers(Experiment.from_dict({"network": {"depth": 2}}))
    Traceback (most recent call last):
    numerics.errors.SpecError: training.learning_rate: is missing; rule "gd" needs it (accepted: ...
    """
    spec = experiment.spec
    if depth:
        _ = experiment.depth
    for key in NEEDED[spec.training.rule]:
        _require(spec.training, "training", key, f'rule "{spec.training.rule}"')
    if spec.kind == "fixed":
        _ = experiment.kernel
    if spec.data is not None and spec.kind == "power-law":
        for key in NEEDED["power-law"]:
            _require(spec.data, "data", key, 'data.kind = "power-law"')
        if spec.training.rule == "sgd":
            _require(spec.data, "data", "batch", 'rule "sgd"')
            _require(spec.network, "network", "width", 'rule "sgd"')


def _require(table: FileSection, name: str, key: str, what: str) -> None:
    """Raise SpecError if the key ``key`` is missing in the table ``name`` of the file.

    ``table`` is the table, and ``what`` says in words which key or rule needs it.
    """
    if getattr(table, key) is None:
        accepted = type(table).model_fields[key].description or ""
        raise SpecError(f"{name}.{key}", None, f"is missing; {what} needs it", accepted)
