"""What an experiment is, in a line."""

from __future__ import annotations

from numerics.experiment import Experiment
from numerics.experiment.activation import is_linear


def title(experiment: Experiment) -> str:
    """The network, its data and its training, with all numbers that are not at their defaults.

    >>> from numerics.experiment import Experiment
    >>> data = {"kind": "isotropic", "sample_ratio": 2.0, "noise": 0.1}
    >>> training = {"learning_rate": 0.1, "steps": 5}
    >>> print(title(Experiment.from_dict({"network": {"depth": 2}, "data": data, "training": training})))
    deep linear network: L = 2 hidden layers, gamma0 = 1, infinitely wide
    isotropic data: P/D = 2, noise 0.1; 5 steps of gradient descent at rate 0.1
    """
    apart = "\n" if experiment.spec.kind == "power-law" else "; "
    data = apart.join([_data(experiment), _training(experiment)])
    return f"{kind(experiment)} network: {', '.join(_network(experiment))}\n{data}"


def kind(experiment: Experiment) -> str:
    """What kind of network it is by its activation.

    >>> from numerics.experiment import Experiment
    >>> kind(Experiment.from_dict({"network": {"depth": 2, "activation": "tanh(2*h)"}}))
    'tanh(2*h)'
    """
    activation = experiment.network.activation
    return "deep linear" if is_linear(activation) else activation


def _network(experiment: Experiment) -> list[str]:
    network = experiment.network
    words = [f"L = {experiment.depth} hidden layers", f"gamma0 = {network.gamma0:g}"]
    words += ["biases"] if network.bias else []
    words += [f"{network.outputs} outputs"] if network.outputs > 1 else []
    words += [] if network.branch is None else [f"branches {network.branch:g}"]
    words += [] if network.init_variance == 1.0 else [f"variances {_list(network.init_variance)}"]
    words += [] if network.relative_widths is None else [f"widths N times {_list(network.relative_widths)}"]
    if experiment.spec.kind == "isotropic":
        wide = network.width_ratio is None
        words += ["infinitely wide"] if wide else [f"N/D = {_list(network.width_ratio)}"]
    if experiment.spec.kind == "power-law":
        words += ["infinitely wide"] if network.width is None else [f"N = {network.width}"]
    return words + (["NTK scaling"] if network.parametrization == "ntk" else [])


def _data(experiment: Experiment) -> str:
    data = experiment.data
    if experiment.spec.kind == "fixed" or data is None:
        held = experiment.held_out
        words = "" if held is None else f" and {len(held)} test points"
        return f"P = {len(experiment.targets)} samples{words}"
    noise = f", noise {data.noise:g}" if data.noise else ""
    if experiment.spec.kind == "power-law":
        size = "the population" if data.batch is None else f"batches of {data.batch}"
        law = f"{data.modes} modes, capacity {data.capacity:g}, source {data.source:g}"
        return f"power-law data: {law}; {size}{noise}"
    size = "the population"
    if data.sample_ratio is not None:
        size = f"P/D = {data.sample_ratio:g}"
    if data.batch_ratio is not None:
        size = f"new batches, B/D = {data.batch_ratio:g}"
    return f"isotropic data: {size}{noise}"


def _training(experiment: Experiment) -> str:
    training = experiment.training
    words = [f"{training.steps} steps of gradient descent at rate {training.learning_rate or 0:g}"]
    if training.rule == "flow":
        words = [f"gradient flow up to time {training.time:g}"]
    words += [f"decay {training.weight_decay:g}"] if training.weight_decay else []
    words += [f"momentum {training.momentum:g}"] if training.momentum else []
    words += [f"temperature {training.temperature:g}"] if training.temperature else []
    return ", ".join(words + (["centred"] if experiment.spec.centered else []))


def _list(value: object) -> str:
    return ", ".join(f"{x:g}" for x in value) if isinstance(value, list) else f"{value:g}"
