"""Appendix A.1.1 and the generating function, (22)-(32)."""

from __future__ import annotations

from derive.ledger.entry import Entry
from derive.ledger.linear2025.claims import full_batch, network

ENTRIES: tuple[Entry, ...] = (
    Entry(
        source="linear2025",
        number="22",
        title="deep linear network",
        printed=(
            r"f(\boldsymbol{x}) = \frac{\sqrt{D}}{N\gamma_0} (\boldsymbol{w}^L)^{\top} \prod_{\ell=1}^{L-1} "
            r"\left(\frac{1}{\sqrt{N}} \boldsymbol{W}^{\ell} \right) \left(\frac{1}{\sqrt{D}} "
            r"\boldsymbol{W}^0 \right) \boldsymbol{x}"
        ),
        verdict="definition",
        why="Equation (1) again.",
    ),
    Entry(
        source="linear2025",
        number="23",
        title="training loss",
        printed=(
            r"\hat{\mathcal{L}}(t) = \frac{1}{P} \sum_{\mu=1}^{P} \left[\Delta_{\mu}(t) \right]^{2}, \ "
            r"\Delta_{\mu}(t) \equiv y_{\mu} - f(\boldsymbol{x}_{\mu}) = \frac{1}{\sqrt{D}} "
            r"\boldsymbol{w}^{*} \cdot \boldsymbol{x}_{\mu} + \sigma \epsilon_{\mu} - "
            r"f(\boldsymbol{x}_{\mu})"
        ),
        verdict="convention",
        why="Mean square error without 1/2; (25) belongs to half of it, see (24).",
        evidence=("isotropic_network:update_scale",),
    ),
    Entry(
        source="linear2025",
        number="24",
        title="descent with raw rate N eta gamma0^2",
        printed=(
            r"\boldsymbol{w}^{L}(t+1) = \boldsymbol{w}^{L}(t) - "
            r"N\eta\gamma_{0}^{2}\nabla_{\boldsymbol{w}^{L}}\hat{\mathcal{L}}(t), \ "
            r"\boldsymbol{W}^{\ell}(t+1) = \boldsymbol{W}^{\ell}(t) - "
            r"N\eta\gamma_{0}^{2}\nabla_{\boldsymbol{W}^{\ell}}\hat{\mathcal{L}}(t), \ \ell \in \{0, ..., "
            r"L-1\}"
        ),
        derived="program isotropic: rule and updates",
        verdict="misprint",
        why=(
            "With the loss (23) the step is twice that of (25), (4) and of everything that follows: the "
            "loss needs a factor 1/2 or the raw rate is N eta gamma0^2/2. Numerical gradients give the "
            "ratio 2."
        ),
        evidence=("isotropic_network:update_scale",),
    ),
    Entry(
        source="linear2025",
        number="25",
        title="weights as sums of updates",
        printed=(
            r"\mathbf{W}^{0}(t) = \mathbf{W}^{0}(0) + \frac{\eta \gamma_{0}}{\sqrt{D}} \sum_{t' < t} "
            r"\mathbf{g}^{1}(t') \mathbf{h}^{0}(t')^{\top} \\ \mathbf{W}^{\ell}(t) = \mathbf{W}^{\ell}(0) + "
            r"\frac{\eta \gamma_{0}}{\sqrt{N}} \sum_{t' < t} \mathbf{g}^{\ell+1}(t') "
            r"\mathbf{h}^{\ell}(t')^{\top} \\ \mathbf{w}^{L}(t) = \mathbf{w}^{L}(0) + \eta \gamma_{0} "
            r"\sum_{t' < t} \mathbf{h}^{L}(t')"
        ),
        claim=network.f25,
        derived="program isotropic: updates",
        verdict="agrees",
        why="The gradient of half the loss (23), in all layers.",
        evidence=("isotropic_network:update_scale", "isotropic_network:memory_terms"),
    ),
    Entry(
        source="linear2025",
        number="26",
        title="averaged vectors",
        printed=(
            r"\boldsymbol{h}^{0}(t) = \frac{\sqrt{D}}{P} \boldsymbol{X}^{\top} \boldsymbol{\Delta}(t) \quad "
            r", \quad \boldsymbol{\Delta}(t) = \frac{1}{\sqrt{D}} \boldsymbol{X} \boldsymbol{v}(t) + \sigma "
            r"\boldsymbol{\epsilon} \quad , \quad \boldsymbol{v}(t) = \boldsymbol{w}_{\star} - "
            r"\frac{\sqrt{D}}{N \gamma_{0}} \boldsymbol{W}^{0}(t)^{\top} \boldsymbol{g}^{1}(t) \\ "
            r"\boldsymbol{h}^{\ell+1}(t) = \frac{1}{\sqrt{N}} \boldsymbol{W}^{\ell}(t) "
            r"\boldsymbol{h}^{\ell}(t) , \quad \ell \in \{0, 1, ..., L-1\} \\ \boldsymbol{g}^{L}(t) = "
            r"\boldsymbol{w}^{L}(t) \\ \boldsymbol{g}^{\ell}(t) = \frac{1}{\sqrt{N}} "
            r"\boldsymbol{W}^{\ell}(t)^{\top} \boldsymbol{g}^{\ell+1}(t) , \quad \ell \in \{1, ..., L-1\}"
        ),
        claim=network.f26,
        derived="program isotropic: definitions",
        verdict="misprint",
        why=(
            "As in (5), h^1 = W^0 h^0/sqrt(D); (28) has it right. The noise vector below lives in R^P, not "
            "R^D."
        ),
        evidence=("isotropic_network:first_layer_scale",),
    ),
    Entry(
        source="linear2025",
        number="26 text",
        title="fields closed by memory terms",
        printed=(
            r"\boldsymbol{h}^{\ell+1}(t) = \boldsymbol{\chi}^{\ell+1}(t) + \eta \gamma_0 \sum_{t' < t} "
            r"C_h^{\ell}(t, t') \boldsymbol{g}^{\ell+1}(t') \\ \boldsymbol{g}^{\ell}(t) = "
            r"\boldsymbol{\xi}^{\ell}(t) + \eta \gamma_0 \sum_{t' < t} C_g^{\ell+1}(t, t') "
            r"\boldsymbol{h}^{\ell}(t') \\ \boldsymbol{v}(t) = \boldsymbol{w}_{\star} - \frac{\sqrt{D}}{N "
            r"\gamma_0} \boldsymbol{W}^0(0)^{\top} \boldsymbol{g}^1(t) - \eta \sum_{t' < t} C_g^1(t, t') "
            r"\boldsymbol{h}^0(t')"
        ),
        claim=full_batch.a26_text,
        derived="memory terms of the isotropic theory",
        verdict="agrees",
        why=(
            "Identities of every network, C_h^0 being divided by D; gamma0 cancels in v, which gets eta "
            "C_g^1."
        ),
        evidence=("isotropic_network:memory_terms",),
    ),
    Entry(
        source="linear2025",
        number="27",
        title="correlation functions",
        printed=(
            r"C_h^{\ell}(t,t') \equiv \frac{1}{N} \boldsymbol{h}^{\ell}(t) \cdot \boldsymbol{h}^{\ell}(t') "
            r", C_g^{\ell}(t,t') \equiv \frac{1}{N} \boldsymbol{g}^{\ell}(t) \cdot \boldsymbol{g}^{\ell}(t')"
        ),
        verdict="definition",
        why="Definition; C_h^0 is divided by D, as (44) says.",
    ),
    Entry(
        source="linear2025",
        number="28",
        title="products with initial weights",
        printed=(
            r"\boldsymbol{\xi}^{0}(t) = \frac{\sqrt{D}}{N\gamma_{0}} \boldsymbol{W}^{0}(0)^{\top} "
            r"\boldsymbol{g}^{1}(t) , \ \boldsymbol{\chi}^{1}(t) = \frac{1}{\sqrt{D}} \boldsymbol{W}^{0}(0) "
            r"\boldsymbol{h}^{0}(t) \\ \boldsymbol{\chi}^{\ell+1}(t) = \frac{1}{\sqrt{N}} "
            r"\boldsymbol{W}^{\ell}(0) \boldsymbol{h}^{\ell}(t) , \ \boldsymbol{\xi}^{\ell}(t) = "
            r"\frac{1}{\sqrt{N}} \boldsymbol{W}^{\ell}(0)^{\top} \boldsymbol{g}^{\ell+1}(t)"
        ),
        claim=network.f28,
        verdict="definition",
        why="Definition, with the right 1/sqrt(D) at the first layer.",
    ),
    Entry(
        source="linear2025",
        number="29",
        title="disorder",
        printed=r"\mathcal{D} = \{ X, \epsilon, W^{0}(0), W^{1}(0), ..., w^{L}(0) \}",
        verdict="definition",
        why="Definition; w_star is random too, with unit variance, in (65).",
    ),
    Entry(
        source="linear2025",
        number="30",
        title="moment generating function",
        printed=(
            r"Z[\boldsymbol{j}_{v}, \boldsymbol{j}_{\Delta}, \{\boldsymbol{j}_{h^{\ell}}, "
            r"\boldsymbol{j}_{g^{\ell}}\}_{\ell \in [L]}] = \left\langle \exp\left(\sum_{t} "
            r"\left[\boldsymbol{j}_{v}(t) \cdot \boldsymbol{v}(t) + \boldsymbol{j}_{\Delta}(t) \cdot "
            r"\boldsymbol{\Delta}(t) + \sum_{\ell} \boldsymbol{j}_{h^{\ell}}(t) \cdot "
            r"\boldsymbol{h}^{\ell}(t) + \boldsymbol{j}_{g^{\ell}}(t) \cdot "
            r"\boldsymbol{g}^{\ell}(t)\right]\right)\right\rangle_{\mathcal{D}}"
        ),
        verdict="definition",
        why="Definition, real sources.",
    ),
    Entry(
        source="linear2025",
        number="31",
        title="moments from the generating function",
        printed=(
            r"\langle v_i(t)v_k(t')\rangle_{\mathcal{D}} = \frac{\partial^2}{\partial j_{v,i}(t)\partial "
            r"j_{v,k}(t')} Z[\boldsymbol{j}_v, \boldsymbol{j}_{\Delta}, \{\boldsymbol{j}_{h^{\ell}}, "
            r"\boldsymbol{j}_{g^{\ell}}\}_{\ell \in [L]}]"
        ),
        derived="path-integral route",
        verdict="agrees",
        why="With real sources as in (30), at j = 0.",
        evidence=("isotropic_average:generating_function",),
    ),
    Entry(
        source="linear2025",
        number="32",
        title="delta functions as Fourier integrals",
        printed=(
            r"1 = \int d\mathbf{\Delta}(t)\delta\left(\mathbf{\Delta}(t) - "
            r"\frac{1}{\sqrt{D}}\mathbf{X}\mathbf{v}(t) - \sigma\epsilon\right) = \int "
            r"\frac{d\mathbf{\Delta}(t)d\hat{\mathbf{\Delta}}(t)}{(2\pi)^{P}} "
            r"\exp\left(i\hat{\mathbf{\Delta}}(t) \cdot \left[\mathbf{\Delta}(t) - "
            r"\frac{1}{\sqrt{D}}\mathbf{X}\mathbf{v}(t) - \sigma\epsilon\right]\right) \\ 1 = \int "
            r"d\mathbf{h}^{0}(t)\delta\left(\mathbf{h}^{0}(t) - "
            r"\frac{\sqrt{D}}{P}\mathbf{X}^{T}\mathbf{\Delta}(t)\right) = \int "
            r"\frac{d\mathbf{h}^{0}(t)d\hat{\mathbf{h}}^{0}(t)}{(2\pi)^{D}} "
            r"\exp\left(i\hat{\mathbf{h}}^{0}(t) \cdot \left[\mathbf{h}^{0}(t) - "
            r"\frac{\sqrt{D}}{P}\mathbf{X}^{T}\mathbf{\Delta}(t)\right]\right)"
        ),
        derived="path-integral route: imposed definitions",
        verdict="agrees",
        why="Textbook identity, one 2 pi an entry.",
        evidence=("isotropic_average:generating_function",),
    ),
)
