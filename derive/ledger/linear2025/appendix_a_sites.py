"""Appendix A.1.2: single-site functions and the action, (50)-(57)."""

from __future__ import annotations

from derive.ledger.entry import Entry
from derive.ledger.linear2025.claims import action

ENTRIES: tuple[Entry, ...] = (
    Entry(
        source="linear2025",
        number="50",
        title="integral over the errors",
        printed=(
            r"\int \prod_{t=0}^{\infty} \frac{d\mathbf{\Delta}(t)d\hat{\mathbf{\Delta}}(t)}{(2\pi)^{P}} "
            r"\exp\left(-\frac{1}{2}\sum_{tt'}\hat{\mathbf{\Delta}}(t)\cdot\hat{\mathbf{"
            r"\Delta}}(t')C_{v}(t,t') + "
            r"i\sum_{tt'}\hat{\mathbf{\Delta}}(t)\cdot\left(\mathbf{\Delta}(t')\delta(t-t') - "
            r"R_{vu}^{0}(t,t')\mathbf{\Delta}(t')\right)\right) \times "
            r"\exp\left(\sum_{t}j_{\Delta}(t)\cdot\mathbf{\Delta}(t) - "
            r"\frac{1}{2}\sum_{tt'}\hat{C}_{\Delta}(t,t')\mathbf{\Delta}(t)\cdot\mathbf{\Delta}(t')\right) "
            r"\\ = \prod_{\mu=1}^{P} "
            r"\mathcal{Z}_{\Delta}[C_{v},\hat{C}_{\Delta},R_{vu}^{0},j_{\Delta,\mu}(t)]"
        ),
        claim=action.site_samples,
        derived="path-integral route: exponent of the samples",
        verdict="misprint",
        why=(
            "R_vu comes with 1/alpha, which (35) gives ((1/P) i D R_vu) and (15), (65) have; the label "
            "noise sigma eps of (32) is missing. Networks reject both omissions, and so does the first "
            "line of (59)."
        ),
        evidence=("isotropic:sample_equation", "isotropic_action:response_slopes"),
    ),
    Entry(
        source="linear2025",
        number="51",
        title="single-site function of the errors",
        printed=(
            r"Z_{\Delta} = \int \prod_{t=0}^{\infty} \frac{d\Delta(t)d\hat{\Delta}(t)}{2\pi} "
            r"\exp\left(-\frac{1}{2}\sum_{tt'}\hat{\Delta}(t)\hat{\Delta}(t')C_{v}(t,t') + "
            r"i\sum_{tt'}\hat{\Delta}(t)\left(\Delta(t')\delta(t-t') - "
            r"R_{vu}^{0}(t,t')\Delta(t')\right)\right) \times \exp\left(\sum_{t}j_{\Delta}(t)\Delta(t) - "
            r"\frac{1}{2}\sum_{tt'}\hat{C}_{\Delta}(t,t')\Delta(t)\Delta(t')\right)"
        ),
        claim=action.site_samples,
        derived="path-integral route: exponent of the samples",
        verdict="misprint",
        why="As (50): 1/alpha and the label noise are missing.",
        evidence=("isotropic:sample_equation", "isotropic_action:response_slopes"),
    ),
    Entry(
        source="linear2025",
        number="52",
        title="single-site function of the features",
        printed=(
            r"\mathcal{Z}_{0} = \int \prod_{t=0}^{\infty} "
            r"\frac{dv(t)d\xi^{0}(t)d\hat{\xi}^{0}(t)dh^{0}(t)d\hat{h}^{0}(t)}{4\pi^{2}} \\ "
            r"\exp\left(-\frac{1}{2\alpha}\sum_{tt'}\hat{h}^{0}(t)\hat{h}^{0}(t')C_{\Delta}(t,t') - "
            r"\frac{1}{2\gamma_{0}^{2}\nu}\sum_{tt'}\hat{\xi}^{0}(t)\hat{\xi}^{0}(t')C_{g}^{1}(t,t')\right) "
            r"\\ \exp\left(i\sum_{tt'}\hat{h}^{0}(t)\left(\delta(t-t')h^{0}(t') - "
            r"R_{\Delta}(t,t')v(t')\right) + \sum_{t}j_{h^{0}}(t)h^{0}(t)\right) \\ "
            r"\exp\left(i\sum_{tt'}\hat{\xi}^{0}(t)\left(\delta(t-t')\xi^{0}(t') - "
            r"\frac{1}{\gamma_{0}}R_{gu}^{1}(t,t')h^{0}(t')\right) + \sum_{t}j_{v}(t)v(t)\right) \\ "
            r"\prod_{t}\delta\left(v(t) - w^{\star} + \xi^{0}(t) + \eta\sum_{t' < "
            r"t}C_{g}^{1}(t,t')h^{0}(t')\right)"
        ),
        claim=action.site_features,
        derived="path-integral route: exponent of the features",
        verdict="misprint",
        why=(
            "The conjugate terms -(Chat_v v v + Chat_h^0 h^0 h^0)/2, present for Delta in (51), are "
            "missing; without them the derivatives (58) are not averages. The rest is right, with eta "
            "C_g^1 (not eta gamma0, as in (65))."
        ),
        evidence=("isotropic_action:conjugate_slopes",),
    ),
    Entry(
        source="linear2025",
        number="53",
        title="single-site function of the first layer",
        printed=(
            r"\mathcal{Z}_{1} = \int \prod_{t} "
            r"\frac{d\chi^{1}(t)d\hat{\chi}^{1}(t)d\hat{\xi}^{1}(t)d\hat{\xi}^{1}(t)dh^{1}(t)dg^{1}(t)}{4"
            r"\pi^{2}} \\ "
            r"\exp\left(-\frac{1}{2}\sum_{tt'}\hat{\chi}^{1}(t)\hat{\chi}^{1}(t')C_{h}^{0}(t,t') - "
            r"\frac{1}{2}\sum_{tt'}\hat{\xi}^{1}(t)\hat{\xi}^{1}(t')C_{g}^{2}(t,t')\right) \\ "
            r"\exp\left(i\sum_{tt'}\hat{\chi}^{1}(t)\left(\delta(t-t')\chi^{1}(t') - "
            r"\frac{1}{\nu\gamma_{0}}R_{hr}^{0}(t,t')g^{1}(t')\right)\right) \\ "
            r"\exp\left(i\sum_{tt'}\hat{\xi}^{1}(t)\left(\delta(t-t')\xi^{1}(t') - "
            r"R_{gu}^{2}(t,t')h^{1}(t')\right)\right) \\ \exp\left(\sum_{t}\left[j_{h^{1}}(t)h^{1}(t) + "
            r"j_{g^{1}}(t)g^{1}(t)\right]\right) \\ \prod_{t}\delta\left(h^{1}(t) - \chi^{1}(t) - "
            r"\eta\gamma_{0}\sum_{t' < t}C_{h}^{0}(t,t')g^{1}(t')\right)\delta\left(g^{1}(t) - \xi^{1}(t) - "
            r"\eta\gamma_{0}\sum_{t' < t}C_{g}^{2}(t,t')h^{1}(t')\right)"
        ),
        claim=action.site_first,
        derived="path-integral route: exponent of the layers",
        verdict="misprint",
        why=(
            "Conjugate terms of C_h^1 and C_g^1 are missing, as in (52), and the measure has dxihat^1 "
            "twice for dxi^1 dxihat^1."
        ),
        evidence=("isotropic_action:conjugate_slopes",),
    ),
    Entry(
        source="linear2025",
        number="54",
        title="single-site functions of inner layers",
        printed=(
            r"\mathcal{Z}_{\ell} = \int \prod_{t} \frac{d\chi^{\ell}(t) d\hat{\chi}^{\ell}(t) "
            r"d\hat{\xi}^{\ell}(t) d\hat{\xi}^{\ell}(t) dh^{\ell}(t) dg^{\ell}(t)}{4\pi^{2}} \\ \exp "
            r"\left(-\frac{1}{2} \sum_{tt'} \hat{\chi}^{\ell}(t) \hat{\chi}^{\ell}(t') C_{h}^{\ell-1}(t,t') "
            r"- \frac{1}{2} \sum_{tt'} \hat{\xi}^{\ell}(t) \hat{\xi}^{\ell}(t') C_{g}^{\ell+1}(t,t') "
            r"\right) \\ \exp \left(i \sum_{tt'} \hat{\chi}^{\ell}(t) \left(\delta(t-t') \chi^{\ell}(t') - "
            r"R_{hr}^{\ell-1}(t,t') g^{\ell}(t') \right) \right) \\ \exp \left(i \sum_{tt'} "
            r"\hat{\xi}^{\ell}(t) \left(\delta(t-t') \xi^{\ell}(t') - R_{gu}^{\ell+1}(t,t') h^{\ell}(t') "
            r"\right) \right) \\ \exp \left(\sum_{t} \left[j_{h^{\ell}}(t) h^{\ell}(t) + j_{g^{\ell}}(t) "
            r"g^{\ell}(t) \right] \right) \\ \prod_{t} \delta \left(h^{\ell}(t) - \chi^{\ell}(t) - \eta "
            r"\gamma_{0} \sum_{t' < t} C_{h}^{\ell-1}(t,t') g^{\ell}(t') \right) \delta \left(g^{\ell}(t) - "
            r"\xi^{\ell}(t) - \eta \gamma_{0} \sum_{t' < t} C_{g}^{\ell+1}(t,t') h^{1}(t') \right)"
        ),
        claim=action.site_inner,
        derived="path-integral route: exponent of the layers",
        verdict="misprint",
        why=(
            "The memory of g^l holds h^l(t'), not h^1(t'): an identity of every network. Conjugate terms "
            "are missing and the measure has dxihat twice, as in (53)."
        ),
        evidence=("isotropic_network:memory_terms", "isotropic_action:conjugate_slopes"),
    ),
    Entry(
        source="linear2025",
        number="55",
        title="single-site function of the last layer",
        printed=(
            r"\mathcal{Z}_{L} = \int \frac{dh^{L}(t)d\hat{\chi}^{L}(t)d\chi^{L}(t)dg^{L}(t)}{2\pi} \\ "
            r"\exp\left(-\frac{1}{2}\sum_{tt'}\hat{\chi}^{L}(t)\hat{\chi}^{L}(t')C_{h}^{L-1}(t,t') + "
            r"i\sum_{tt'}\hat{\chi}^{L}(t)\left(\chi^{L}(t')\delta(t-t') - "
            r"R_{hr}^{L-1}(t,t')g^{L}(t')\right)\right) \\ \prod_{t} \delta\left(h^{L}(t) - \chi^{L}(t) - "
            r"\eta\gamma_{0}\sum_{t' < t}C_{h}^{L-1}(t,t')g^{L}(t')\right) \\ \left\langle \prod_{t} "
            r"\delta\left(g^{L}(t) - g^{L}(0) - \eta\gamma_{0}\sum_{t' < "
            r"t}h^{L}(t')\right)\right\rangle_{g^{L}(0) \sim \mathcal{N}(0,1)} \\ \exp\left(\sum_{t} "
            r"\left[j_{h^{L}}(t)h^{L}(t) + j_{g^{L}}(t)g^{L}(t)\right]\right)"
        ),
        claim=action.site_last,
        derived="path-integral route: exponent of the layers",
        verdict="misprint",
        why=(
            "Conjugate terms are missing, as in (52); one product over times stands for all. The rest is "
            "right."
        ),
        evidence=("isotropic_action:conjugate_slopes",),
    ),
    Entry(
        source="linear2025",
        number="56",
        title="generating function as an integral",
        printed=r"Z[j] = \int dq \exp(-DS[q, j])",
        verdict="definition",
        why="Definition of the action.",
    ),
    Entry(
        source="linear2025",
        number="57",
        title="action",
        printed=(
            r"S = -\frac{1}{2} \sum_{tt'} \left[C_v(t, t') \hat{C}_v(t, t') + \alpha C_{\Delta}(t, t') "
            r"\hat{C}_{\Delta}(t, t') \right] - \frac{\nu}{2} \sum_{\ell} \sum_{tt'} \left[C_{h^{\ell}}(t, "
            r"t') \hat{C}_{h^{\ell}}(t, t') + C_{g}^{\ell}(t, t') \hat{C}_{g}^{\ell}(t, t') \right] \\ + "
            r"\sum_{tt'} R_{vu}^{0}(t, t') R_{\Delta}(t', t) + \gamma_{0}^{-1} \sum_{tt'} R_{hr}^{0}(t, t') "
            r"R_{gu}^{1}(t', t) + \nu \sum_{\ell} \sum_{tt'} R_{hr}^{\ell}(t, t') R_{gu}^{\ell+1}(t', t) \\ "
            r"- \frac{1}{D} \sum_{\mu=1}^{P} \ln \mathcal{Z}_{\Delta}[j_{\Delta,\mu}] - \frac{1}{D} "
            r"\sum_{k=1}^{D} \mathcal{Z}_{0}[j_{h^{0},k}, j_{v,k}] - \frac{1}{D} \sum_{\ell=1}^{L} "
            r"\sum_{i=1}^{N} \ln \mathcal{Z}_{\ell}[j_{h^{\ell},i}, j_{g^{\ell},i}]"
        ),
        claim=action.f57,
        derived="path-integral route: action",
        verdict="misprint",
        why=(
            "Z_0 lacks its logarithm and C_h^0, with its conjugate and without nu, is missing from the "
            "first sum (the sum over l with nu runs over 1..L). Coefficients of all responses are right."
        ),
        evidence=("isotropic_action:conjugate_slopes",),
    ),
)
