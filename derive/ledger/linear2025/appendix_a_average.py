"""Appendix A.1.2: averages over the disorder, (33)-(49)."""

from __future__ import annotations

from derive.ledger.entry import Entry
from derive.ledger.linear2025.claims import averages

ENTRIES: tuple[Entry, ...] = (
    Entry(
        source="linear2025",
        number="33",
        title="average over the data",
        printed=(
            r"\left\langle "
            r"\exp\left(-i\operatorname{Tr}\boldsymbol{X}^{\top}\sum_{t=0}^{\infty}\left[\frac{1}{\sqrt{D}}"
            r"\hat{\boldsymbol{\Delta}}(t)\boldsymbol{v}(t)^{\top} + "
            r"\frac{\sqrt{D}}{P}\boldsymbol{\Delta}(t)\hat{\boldsymbol{h}}^{0}(t)^{\top}\right]\right)"
            r"\right\rangle_{\boldsymbol{X}}"
        ),
        derived="path-integral route: average over X",
        verdict="agrees",
        why="What (32) leaves of X; (34) and (35) are its average.",
        evidence=("isotropic_average:data_average",),
    ),
    Entry(
        source="linear2025",
        number="34",
        title="average over the data: correlations",
        printed=(
            r"= "
            r"\exp\left(-\frac{1}{2}\sum_{tt'}\hat{\boldsymbol{\Delta}}(t)\cdot\hat{\boldsymbol{"
            r"\Delta}}(t')\underbrace{\frac{1}{D}\boldsymbol{v}(t)\cdot\boldsymbol{v}(t')}_{C_{v}(t,t')} - "
            r"\frac{D}{2P}\sum_{tt'}\hat{\boldsymbol{h}}^{0}(t)\cdot\hat{\boldsymbol{h}}^{0}(t')"
            r"\underbrace{\frac{1}{P}\boldsymbol{\Delta}(t)\cdot\boldsymbol{\Delta}(t')}_{C_{\Delta}(t,t')}"
            r"\right)"
        ),
        claim=averages.f34,
        derived="path-integral route: average over X",
        verdict="agrees",
        why="Squares of the two terms, 1/D and D/P^2.",
        evidence=("isotropic_average:data_average",),
    ),
    Entry(
        source="linear2025",
        number="35",
        title="average over the data: cross term",
        printed=(
            r"\times "
            r"\exp\left(-\frac{1}{P}\sum_{tt'}\underbrace{\hat{\Delta}(t)\cdot\Delta(t)}_{iPR_{"
            r"\Delta}(t',t)}\underbrace{v(t)\cdot\hat{h}^{0}(t')}_{iDR_{vu}^{0}(t,t')}\right)"
        ),
        claim=averages.f35,
        derived="path-integral route: average over X",
        verdict="misprint",
        why=(
            "Dhat(t) meets Delta(t'), as the label iP R_Delta(t',t) below says, not Delta(t). The factor "
            "1/P is right."
        ),
        evidence=("isotropic_average:data_average",),
    ),
    Entry(
        source="linear2025",
        number="36",
        title="correlations and responses of the data",
        printed=(
            r"C_{v}(t,t') \equiv \frac{1}{D} \boldsymbol{v}(t) \cdot \boldsymbol{v}(t') , C_{\Delta}(t,t') "
            r"\equiv \frac{1}{P} \boldsymbol{\Delta}(t) \cdot \boldsymbol{\Delta}(t') \\ R_{vu}^{0}(t,t') "
            r"\equiv -\frac{i}{D} \boldsymbol{v}(t) \cdot \hat{\boldsymbol{h}}^{0}(t') , R_{\Delta}(t,t') "
            r"\equiv -\frac{i}{P} \boldsymbol{\Delta}(t) \cdot \hat{\boldsymbol{\Delta}}(t')"
        ),
        claim=averages.f36,
        verdict="definition",
        why="Definition; with -i these are the responses of (64).",
    ),
    Entry(
        source="linear2025",
        number="37",
        title="definition of C_v enforced",
        printed=(
            r"1 = \int \frac{dC_v(t, t')d\hat{C}_v(t, t')}{4\pi D^{-1}} \exp\left(\frac{D}{2}\hat{C}_v(t, "
            r"t')C_v(t, t') - \frac{1}{2}\hat{C}_v(t, t')\boldsymbol{v}(t) \cdot \boldsymbol{v}(t')\right)"
        ),
        derived="path-integral route: order parameters",
        verdict="agrees",
        why="D dC dChat/(4 pi) integrates to one along the imaginary axis.",
        evidence=("isotropic_average:order_parameters",),
    ),
    Entry(
        source="linear2025",
        number="38",
        title="definition of C_Delta enforced",
        printed=(
            r"1 = \int \frac{dC_{\Delta}(t, t')d\hat{C}_{\Delta}(t, t')}{4\pi P^{-1}} "
            r"\exp\left(\frac{P}{2}\hat{C}_{\Delta}(t, t')C_{\Delta}(t, t') - "
            r"\frac{1}{2}\hat{C}_{\Delta}(t, t')\boldsymbol{\Delta}(t) \cdot \boldsymbol{\Delta}(t')\right)"
        ),
        derived="path-integral route: order parameters",
        verdict="agrees",
        why="As (37), with P.",
        evidence=("isotropic_average:order_parameters",),
    ),
    Entry(
        source="linear2025",
        number="39",
        title="definition of R_vu enforced",
        printed=(
            r"1 = \int \frac{dR_{vu}^{0}(t, t')dR_{\Delta}(t', t)}{2\pi D^{-1}} \exp\left(-DR_{vu}^{0}(t, "
            r"t')R_{\Delta}(t', t) - i\boldsymbol{v}(t) \cdot \hat{\boldsymbol{h}}^{0}(t')R_{\Delta}(t', "
            r"t)\right)"
        ),
        derived="path-integral route: order parameters",
        verdict="agrees",
        why=(
            "R_Delta runs along the imaginary axis; the constraint is D R_vu = -i v.hhat^0, as (36) defines."
        ),
        evidence=("isotropic_average:order_parameters",),
    ),
    Entry(
        source="linear2025",
        number="40",
        title="fields of the first matrix",
        printed=(
            r"\chi^{1}(t) = \frac{1}{\sqrt{D}} \mathbf{W}^{0}(0) \mathbf{h}^{0}(t) , \ \xi^{0}(t) = "
            r"\frac{\sqrt{D}}{N\gamma_{0}} \mathbf{W}^{0}(t) \mathbf{g}^{1}(t)"
        ),
        derived="sources of W0",
        verdict="misprint",
        why=(
            "xi^0 is made of the initial W^0(0), transposed, as in (28). With W^0(t) the updates would "
            "count twice."
        ),
        evidence=("isotropic_network:memory_terms",),
    ),
    Entry(
        source="linear2025",
        number="41",
        title="average over the first matrix",
        printed=(
            r"\left\langle "
            r"\exp\left(-i\operatorname{Tr}\boldsymbol{W}^{0}(0)^{\top}\sum_{t=0}^{\infty}\left[\frac{1}{"
            r"\sqrt{D}}\hat{\boldsymbol{\chi}}^{1}(t)\boldsymbol{h}^{0}(t)^{\top} + "
            r"\frac{\sqrt{D}}{N\gamma_{0}}\boldsymbol{g}^{1}(t)\hat{\boldsymbol{\xi}}^{0}(t)^{\top}\right]"
            r"\right)\right\rangle_{\boldsymbol{W}^{0}(0)}"
        ),
        derived="path-integral route: average over W0",
        verdict="agrees",
        why="What the delta functions leave of W^0(0).",
        evidence=("isotropic_average:first_matrix_average",),
    ),
    Entry(
        source="linear2025",
        number="42",
        title="average over the first matrix: correlations",
        printed=(
            r"= \exp \left(-\frac{1}{2} \sum_{tt'} \hat{\boldsymbol{\chi}}^{1}(t) \cdot "
            r"\hat{\boldsymbol{\chi}}^{1}(t') \underbrace{\frac{1}{D} \boldsymbol{h}^{0}(t) \cdot "
            r"\boldsymbol{h}^{0}(t')}_{C_{h}^{0}(t,t')} - \frac{D}{2N \gamma_{0}^{2}} \sum_{tt'} "
            r"\hat{\boldsymbol{\xi}}^{0}(t) \cdot \hat{\boldsymbol{\xi}}^{0}(t') \underbrace{\frac{1}{N} "
            r"\boldsymbol{g}^{1}(t) \cdot \boldsymbol{g}^{1}(t')}_{C_{h}^{0}(t,t')} \right)"
        ),
        claim=averages.f42,
        derived="path-integral route: average over W0",
        verdict="misprint",
        why="The second bracket, g^1.g^1/N, is C_g^1 as in (44), not C_h^0; exponents are right.",
        evidence=("isotropic_average:first_matrix_average",),
    ),
    Entry(
        source="linear2025",
        number="43",
        title="average over the first matrix: cross term",
        printed=(
            r"\times \exp\left(-\frac{1}{N\gamma_0} \sum_{tt'} \underbrace{\hat{\boldsymbol{\chi}}^1(t) "
            r"\cdot \boldsymbol{g}^1(t')}_{iNR_{gu}^1(t',t)} \underbrace{\boldsymbol{h}^0(t) \cdot "
            r"\hat{\boldsymbol{\xi}}^0(t')}_{iDR_{hr}^0(t,t')}\right)"
        ),
        claim=averages.f43,
        derived="path-integral route: average over W0",
        verdict="agrees",
        why="Factor and times are right.",
        evidence=("isotropic_average:first_matrix_average",),
    ),
    Entry(
        source="linear2025",
        number="44",
        title="correlations of the first matrix",
        printed=(
            r"C_h^0(t,t') \equiv \frac{1}{D} \boldsymbol{h}^0(t) \cdot \boldsymbol{h}^0(t') , C_g^1(t,t') "
            r"\equiv \frac{1}{N} \boldsymbol{g}^1(t) \cdot \boldsymbol{g}^1(t')"
        ),
        verdict="definition",
        why="Definition; C_h^0 over D.",
    ),
    Entry(
        source="linear2025",
        number="45",
        title="responses of the first matrix",
        printed=(
            r"R_{gu}^{1}(t,t') \equiv \frac{1}{N} \boldsymbol{g}^{1}(t) \cdot "
            r"\hat{\boldsymbol{\chi}}^{1}(t') , \ R_{hr}^{0}(t,t') \equiv \frac{1}{D} \boldsymbol{h}^{0}(t) "
            r"\cdot \hat{\boldsymbol{\xi}}^{0}(t')"
        ),
        claim=averages.f45,
        derived="path-integral route: responses",
        verdict="misprint",
        why=(
            "A factor -i is missing in both, as (36) and (48) have it: <g chihat> is imaginary, -i times "
            "it is the response."
        ),
        evidence=("isotropic_action:response_definition",),
    ),
    Entry(
        source="linear2025",
        number="46",
        title="fields of the inner matrices",
        printed=(
            r"\chi^{\ell+1}(t) = \frac{1}{\sqrt{N}} \mathbf{W}^{\ell}(0) \mathbf{h}^{\ell}(t) , \ "
            r"\boldsymbol{\xi}^{\ell}(t) = \frac{1}{\sqrt{N}} \mathbf{W}^{\ell}(0)^{\top} "
            r"\boldsymbol{g}^{\ell+1}(t)"
        ),
        verdict="definition",
        why="Equation (28) again.",
    ),
    Entry(
        source="linear2025",
        number="47",
        title="average over an inner matrix",
        printed=(
            r"\left\langle \exp\left(\frac{i}{\sqrt{N}} \operatorname{Tr} \boldsymbol{W}^{\ell}(0)^{\top} "
            r"\sum_{t} \left[\hat{\boldsymbol{\chi}}^{\ell+1}(t) \boldsymbol{h}^{\ell}(t)^{\top} + "
            r"\boldsymbol{g}^{\ell+1}(t) \hat{\boldsymbol{\xi}}^{\ell}(t)^{\top}\right] \right) "
            r"\right\rangle_{\boldsymbol{W}^{\ell}(0)} \\ = \exp\left(-\frac{1}{2} \sum_{tt'} "
            r"\hat{\boldsymbol{\chi}}^{\ell+1}(t) \cdot \hat{\boldsymbol{\chi}}^{\ell+1}(t') "
            r"\underbrace{\frac{1}{N} \boldsymbol{h}^{\ell}(t) \cdot "
            r"\boldsymbol{h}^{\ell}(t')}_{C_{h}^{\ell}(t,t')} - \frac{1}{2} \sum_{tt'} "
            r"\hat{\boldsymbol{\xi}}^{\ell}(t) \cdot \hat{\boldsymbol{\xi}}^{\ell}(t') "
            r"\underbrace{\frac{1}{N} \boldsymbol{g}^{\ell+1}(t) \cdot "
            r"\boldsymbol{g}^{\ell+1}(t')}_{C_{g}^{\ell+1}(t,t')}\right) \\ \times \exp\left(-\frac{1}{N} "
            r"\sum_{tt'} \hat{\boldsymbol{\chi}}^{\ell+1}(t) \cdot \boldsymbol{g}^{\ell+1}(t') "
            r"\underbrace{\boldsymbol{h}^{\ell}(t) \cdot "
            r"\hat{\boldsymbol{\xi}}^{\ell}(t')}_{iNR_{hr}^{\ell}(t,t')}\right)"
        ),
        claim=averages.f47,
        derived="path-integral route: average over W",
        verdict="agrees",
        why="The sign of i differs from (41), which a symmetric average does not see.",
        evidence=("isotropic_average:hidden_average",),
    ),
    Entry(
        source="linear2025",
        number="48",
        title="order parameters of the inner matrices",
        printed=(
            r"C_h^{\ell}(t,t') \equiv \frac{1}{N} \boldsymbol{h}^{\ell}(t) \cdot \boldsymbol{h}^{\ell}(t') "
            r", C_g^{\ell+1}(t,t') \equiv \frac{1}{N} \boldsymbol{g}^{\ell+1}(t) \cdot "
            r"\boldsymbol{g}^{\ell+1}(t') \\ R_{hr}^{\ell}(t,t') \equiv -\frac{i}{N} "
            r"\boldsymbol{h}^{\ell}(t) \cdot \hat{\boldsymbol{\xi}}^{\ell}(t') , R_{gu}^{\ell+1}(t,t') "
            r"\equiv -\frac{i}{N} \boldsymbol{g}^{\ell+1}(t) \cdot \hat{\boldsymbol{\chi}}^{\ell+1}(t')"
        ),
        claim=averages.f48,
        verdict="definition",
        why="Definition, with -i.",
    ),
    Entry(
        source="linear2025",
        number="49",
        title="ratios",
        printed=r"\alpha \equiv \frac{P}{D} , \ \nu \equiv \frac{N}{D}",
        verdict="definition",
        why="Definition.",
    ),
)
