"""Appendix F.1: the two-layer linear network and its limits, (F.5)-(F.14)."""

from __future__ import annotations

from derive.ledger.entry import Entry
from derive.ledger.selfconsistent2023.claims import two_layer

ENTRIES = (
    Entry(
        source="selfconsistent2023",
        number="F.5",
        title="fields of the two-layer linear network",
        printed=(
            r"\frac{\partial}{\partial t} \boldsymbol{h}(t) = \gamma_0 g(t) \boldsymbol{K}^x "
            r"\boldsymbol{\Delta}(t) , \quad \frac{\partial}{\partial t} g(t) = \gamma_0 "
            r"\boldsymbol{\Delta}(t) \cdot \boldsymbol{h}(t)"
        ),
        claim=two_layer.f5,
        derived="reduction: two-layer equations",
        verdict="agrees",
        why="Time derivative of (D.11) with phi(h) = h.",
        evidence=("two_layer:kernel_equations",),
    ),
    Entry(
        source="selfconsistent2023",
        number="F.6",
        title="kernels of the two-layer linear network",
        printed=(
            r"\frac{\partial}{\partial t} \boldsymbol{H}(t) = \gamma_0 \boldsymbol{K}^x "
            r"\boldsymbol{\Delta} \left\langle g(t) \boldsymbol{h}(t)^\top \right\rangle + \gamma_0 "
            r"\left\langle g(t) \boldsymbol{h}(t) \right\rangle \boldsymbol{\Delta}^\top "
            r"\boldsymbol{K}^x \\ \frac{\partial}{\partial t} G(t) = 2\gamma_0 \left\langle g(t) "
            r"\boldsymbol{h}(t) \right\rangle \cdot \boldsymbol{\Delta}(t)"
        ),
        claim=two_layer.f6,
        derived="reduction: two-layer equations",
        verdict="agrees",
        why="Product rule on (F.5), averaged.",
        evidence=("two_layer:kernel_equations",),
    ),
    Entry(
        source="selfconsistent2023",
        number="F.7",
        title="closed two-layer equations",
        printed=(
            r"\frac{\partial}{\partial t} \boldsymbol{H}(t) = \gamma_0^2 \boldsymbol{K}^x "
            r"\boldsymbol{\Delta} (\boldsymbol{y} - \boldsymbol{\Delta})^\top + \gamma_0^2 "
            r"(\boldsymbol{y} - \boldsymbol{\Delta}) \boldsymbol{\Delta}^\top \boldsymbol{K}^x \\ "
            r"\frac{\partial}{\partial t} G(t) = 2\gamma_0^2 (\boldsymbol{y} - \boldsymbol{\Delta}) "
            r"\cdot \boldsymbol{\Delta}(t) \\ \frac{\partial}{\partial t} \boldsymbol{\Delta}(t) = "
            r"-[\boldsymbol{H}(t) + G(t) \boldsymbol{K}^x] \boldsymbol{\Delta}(t)"
        ),
        claim=two_layer.f7,
        derived="reduction: two-layer equations",
        verdict="agrees",
        why="(F.6) with <g h> = gamma0 (y - Delta), exact because f is that average divided by gamma0.",
        evidence=("two_layer:kernel_equations",),
    ),
    Entry(
        source="selfconsistent2023",
        number="F.7 text",
        title="initial conditions of the two-layer equations",
        printed=(
            r"\boldsymbol{H}(0) = \boldsymbol{I}, \quad G(0) = 1, \quad \boldsymbol{\Delta}(0) = "
            r"\boldsymbol{y}"
        ),
        claim=two_layer.f7_text,
        derived="order parameters of mlp(1) at t = 0",
        verdict="misprint",
        why=(
            "H(0) is K^x, the covariance of h(0) given below (E.1); the identity is its value for "
            "whitened data, while the equations are said to hold for any data. With a kernel other than "
            "the identity the printed start gives the wrong loss from the first instant."
        ),
        evidence=("two_layer:initial_kernel",),
    ),
    Entry(
        source="selfconsistent2023",
        number="F.8",
        title="whitened two-layer equations",
        printed=(
            r"\frac{\partial}{\partial t}H_{y}(t) = 2\gamma_{0}^{2}\Delta(t)(y - \Delta(t)), \quad "
            r"\frac{\partial}{\partial t}G(t) = 2\gamma_{0}^{2}\Delta(t)(y - \Delta(t)) \\ "
            r"\frac{\partial}{\partial t}\Delta(t) = -[H_{y}(t) + G(t)]\Delta(t)"
        ),
        claim=two_layer.f8,
        derived="reduction: whitened data",
        verdict="agrees",
        why="Projection of (F.7) on y for K^x = I; the other directions of H do not move.",
        evidence=("two_layer:whitened_reduction",),
    ),
    Entry(
        source="selfconsistent2023",
        number="F.9",
        title="balanced equations",
        printed=(
            r"\frac{\partial}{\partial t}H_{y}(t) = 2\gamma_{0}^{2}\Delta(t)\left(y - \Delta(t)\right), "
            r"\quad \frac{\partial}{\partial t}\Delta(t) = -2H_{y}(t)\Delta(t)"
        ),
        claim=two_layer.f9,
        derived="reduction: whitened data",
        verdict="agrees",
        why="H_y and G have the same derivative and the same start.",
        evidence=("two_layer:whitened_reduction",),
    ),
    Entry(
        source="selfconsistent2023",
        number="F.10",
        title="conservation law",
        printed=(
            r"\frac{1}{2}\frac{\partial}{\partial t}\left[H_y^2 - \gamma_0^2\left(y - "
            r"\Delta\left(t\right)\right)^2\right] = 2\gamma_0^2 H_y \Delta\left(y - \Delta\right) - "
            r"2\gamma_0^2 H_y \Delta\left(y - \Delta\right) = 0"
        ),
        claim=two_layer.f10,
        derived="reduction: conserved quantity found from the equations",
        verdict="agrees",
        why=(
            "Both terms of the derivative are equal on (F.9). The final H_y = sqrt(1 + gamma0^2 y^2) "
            "quoted below it follows."
        ),
        evidence=("two_layer:conservation_law",),
    ),
    Entry(
        source="selfconsistent2023",
        number="F.11",
        title="one-dimensional dynamics",
        printed=(
            r"\frac{\partial}{\partial t}\Delta\left(t\right) = -2\sqrt{1 + "
            r"\gamma_{0}^{2}\left(\Delta\left(t\right) - y\right)^{2}} \ \Delta\left(t\right) \implies "
            r"\frac{\partial}{\partial t}f = 2\sqrt{1 + \gamma_{0}^{2}f^{2}}\left(y - f\right)"
        ),
        claim=two_layer.f11,
        derived="reduction: separable equation",
        verdict="agrees",
        why="(F.9) on the hyperbola (F.10).",
        evidence=("two_layer:one_dimensional_flow",),
    ),
    Entry(
        source="selfconsistent2023",
        number="F.12",
        title="time to reach a given output",
        printed=(
            r"2t = \int_0^f \frac{\mathrm{d}s}{(y-s)\sqrt{1+\gamma_0^2 s^2}} = "
            r"\frac{1}{\sqrt{1+\gamma_0^2 y^2}} \tanh^{-1}\left(\frac{1+\gamma_0^2 y "
            r"f}{\sqrt{1+\gamma_0^2 y^2}\sqrt{1+\gamma_0^2 f^2}}\right) - \frac{1}{\sqrt{1+\gamma_0^2 "
            r"y^2}} \tanh^{-1}\left(\frac{1}{\sqrt{1+\gamma_0^2 y^2}}\right)"
        ),
        claim=two_layer.f12,
        derived="reduction: integral of the separable equation",
        verdict="agrees",
        why="The derivative in f of the closed form is the integrand, and it vanishes at f = 0.",
        evidence=("two_layer:learning_time",),
    ),
    Entry(
        source="selfconsistent2023",
        number="F.12 text",
        title="radius of convergence in gamma0",
        printed=r"\text{series in } \gamma_0^2 \text{ converges for } \gamma_0 < \frac{1}{y}",
        claim=two_layer.f12_text,
        derived="nearest singularity of the closed form in gamma0",
        verdict="agrees",
        why=(
            "True, but not sharp for f < y: the apparent branch points at gamma0 = +-i/y cancel between "
            "the two terms, and the nearest singularities are +-i/f, so the series converges for gamma0 "
            "< 1/f."
        ),
        evidence=("two_layer:series_radius",),
    ),
    Entry(
        source="selfconsistent2023",
        number="F.13",
        title="lazy limit",
        printed=r"\frac{\partial}{\partial t}\Delta(t) \sim -2\Delta(t) \implies \Delta(t) \sim e^{-2t}",
        claim=two_layer.f13,
        derived="limit gamma0 -> 0",
        verdict="agrees",
        why="Two layers of unit kernel give the rate 2; the prefactor is y.",
        evidence=("two_layer:lazy_limit",),
    ),
    Entry(
        source="selfconsistent2023",
        number="F.14",
        title="rich limit",
        printed=r"\frac{d}{dt}\Delta(t) \sim -2\gamma_0 (y - \Delta(t))\Delta(t)",
        claim=two_layer.f14,
        derived="limit gamma0 -> infinity",
        verdict="agrees",
        why=(
            "Leading order of (F.11) at fixed f > 0; it fails while f is below 1/gamma0, where df/dt = 2 y."
        ),
        evidence=("two_layer:rich_limit",),
    ),
    Entry(
        source="selfconsistent2023",
        number="F.14 text",
        title="time needed to learn at large gamma0",
        printed=r"\tau \sim \frac{1}{\gamma_0} \ll 1",
        claim=two_layer.f14_text,
        derived="large-gamma0 asymptotics of the integral (F.12)",
        verdict="wrong",
        why=(
            "From the start f = 0 of this theory the time to reach f is [log(2 gamma0 f) + "
            "log(y/(y-f))]/(2 gamma0 y): longer than 1/gamma0 by a logarithm, for which gamma0 t "
            "against log(gamma0) has slope 1/(2y) instead of 0. No other start has to be stipulated "
            "either: the logistic curve started at f = 1/(2 gamma0) is the limit."
        ),
        evidence=("two_layer:learning_time_scaling",),
    ),
)
