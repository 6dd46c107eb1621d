"""Appendix A.1.2: saddle point, auxiliary fields, responses, (58)-(64)."""

from __future__ import annotations

from derive.ledger.entry import Entry
from derive.ledger.linear2025.claims import action, averages, full_batch

ENTRIES: tuple[Entry, ...] = (
    Entry(
        source="linear2025",
        number="58",
        title="saddle point: conjugates of correlations",
        printed=(
            r"\frac{\partial \mathcal{S}}{\partial \hat{C}_{v}(t,t')} = -\frac{1}{2}C_{v}(t,t') + "
            r"\frac{1}{2D} \sum_{k=1}^{D} \langle v(t)v(t')\rangle_{k} = 0 \\ \frac{\partial "
            r"\mathcal{S}}{\partial \hat{C}_{h}^{0}(t,t')} = -\frac{1}{2}C_{h}^{0}(t,t') + \frac{1}{2D} "
            r"\sum_{k=1}^{D} \langle h^{0}(t)h^{0}(t')\rangle_{k} = 0 \\ \frac{\partial "
            r"\mathcal{S}}{\partial \hat{C}_{\Delta}(t,t')} = -\frac{\alpha}{2}C_{\Delta}(t,t') + "
            r"\frac{1}{2D} \sum_{\mu=1}^{P} \langle \Delta(t)\Delta(t')\rangle_{\mu} = 0 \\ \frac{\partial "
            r"\mathcal{S}}{\partial \hat{C}_{h}^{\ell}(t,t')} = -\frac{\nu}{2}C_{h}^{\ell}(t,t') + "
            r"\frac{1}{2D} \sum_{i=1}^{N} \langle h^{\ell}(t)h^{\ell}(t')\rangle_{i} = 0 \\ \frac{\partial "
            r"\mathcal{S}}{\partial \hat{C}_{g}^{\ell}(t,t')} = -\frac{\nu}{2}C_{h}^{\ell}(t,t') + "
            r"\frac{1}{2D} \sum_{i=1}^{N} \langle g^{\ell}(t)g^{\ell}(t')\rangle_{i} = 0"
        ),
        claim=action.f58,
        derived="path-integral route: saddle point",
        verdict="misprint",
        why="The last line must hold C_g^l. All weights (1, alpha, nu) are right for the repaired action.",
        evidence=("isotropic_action:conjugate_slopes",),
    ),
    Entry(
        source="linear2025",
        number="59",
        title="saddle point: responses",
        printed=(
            r"\frac{\partial \mathcal{S}}{\partial R_{vu}^{0}(t',t)} = R_{\Delta}(t,t') + \frac{i}{P} "
            r"\sum_{\mu=1}^{P} \left\langle \Delta(t) \hat{\Delta}(t') \right\rangle_{\mu} = 0 \\ "
            r"\frac{\partial \mathcal{S}}{\partial R_{\Delta}(t',t)} = R_{vu}(t,t') + \frac{i}{D} "
            r"\sum_{k=1}^{D} \left\langle v(t) \hat{h}^{0}(t') \right\rangle_{k} = 0 \\ \frac{\partial "
            r"\mathcal{S}}{\partial R_{hr}^{0}(t',t)} = \gamma_{0}^{-1} R_{gu}^{1}(t,t') + "
            r"\frac{i}{N\gamma_{0}} \sum_{i=1}^{N} \left\langle g^{1}(t) \hat{\xi}^{1}(t') "
            r"\right\rangle_{i} = 0 \\ \frac{\partial \mathcal{S}}{\partial R_{gu}^{1}(t',t)} = "
            r"\gamma_{0}^{-1} R_{hr}^{0}(t,t') + \frac{i}{D\gamma_{0}} \sum_{k=1}^{D} \left\langle h^{0}(t) "
            r"\hat{\chi}^{0}(t') \right\rangle_{k} = 0 \\ \frac{\partial \mathcal{S}}{\partial "
            r"R_{hr}^{\ell}(t',t)} = \nu R_{gu}^{\ell+1}(t,t') + \frac{i}{D} \sum_{i=1}^{N} \left\langle "
            r"g^{\ell+1}(t) \hat{\xi}^{\ell+1}(t') \right\rangle_{i} = 0 \\ \frac{\partial "
            r"\mathcal{S}}{\partial R_{gu}^{\ell+1}(t',t)} = \nu R_{hr}^{\ell}(t,t') + \frac{i}{D} "
            r"\sum_{i=1}^{N} \left\langle h^{\ell}(t) \hat{\chi}^{\ell}(t') \right\rangle_{i} = 0"
        ),
        claim=action.f59,
        derived="path-integral route: saddle point",
        verdict="misprint",
        why=(
            "Weights and signs are right, but hats are exchanged in the last four lines: chihat^1, "
            "xihat^0, chihat^{l+1}, xihat^l must stand for xihat^1, chihat^0, xihat^{l+1}, chihat^l, as in "
            "(45), (48)."
        ),
        evidence=("isotropic_action:response_slopes",),
    ),
    Entry(
        source="linear2025",
        number="60",
        title="conjugates of correlations vanish",
        printed=(
            r"\hat{C}_{\Delta}(t,t') = 0 , \ \hat{C}_v(t,t') = 0 , \ \hat{C}_h^{\ell}(t,t') = 0 , \ "
            r"\hat{C}_g^{\ell}(t,t') = 0"
        ),
        claim=action.f60,
        derived="path-integral route: conjugates",
        verdict="agrees",
        why="Averages of conjugate fields vanish at the saddle point.",
        evidence=("isotropic_action:vanishing_conjugates",),
    ),
    Entry(
        source="linear2025",
        number="61",
        title="auxiliary Gaussian fields",
        printed=(
            r"\exp\left(-\frac{1}{2}\sum_{tt'}\hat{\Delta}(t)\hat{\Delta}(t')C_{v}(t,t')\right) = "
            r"\left\langle "
            r"\exp\left(-i\sum_{t}\hat{\Delta}(t)u_{\Delta}(t)\right)\right\rangle_{u_{\Delta}\sim"
            r"\mathcal{N}(0,C_{v})} \\ "
            r"\exp\left(-\frac{1}{2\alpha}\sum_{tt'}\hat{h}^{0}(t)\hat{h}^{0}(t')C_{\Delta}(t,t')\right) = "
            r"\left\langle "
            r"\exp\left(-i\sum_{t}\hat{h}^{0}(t)u^{0}(t)\right)\right\rangle_{u^{0}\sim\mathcal{N}(0,"
            r"\alpha^{-1}C_{\Delta})} \\ "
            r"\exp\left(-\frac{1}{2}\sum_{tt'}\hat{\chi}^{\ell}(t)\hat{\chi}^{\ell}(t')C_{h}^{\ell-1}(t,t')"
            r"\right) = \left\langle "
            r"\exp\left(-i\sum_{t}\hat{\chi}^{\ell}(t)u^{\ell}(t)\right)\right\rangle_{u^{\ell}\sim"
            r"\mathcal{N}(0,C_{h}^{\ell-1})} \\ "
            r"\exp\left(-\frac{1}{2\gamma_{0}^{2\nu}}\sum_{tt'}\hat{\xi}^{0}(t)\hat{"
            r"\xi}^{0}(t')C_{g}^{1}(t,t')\right) = \left\langle "
            r"\exp\left(-i\sum_{t}\hat{\xi}^{0}(t)r^{0}(t)\right)\right\rangle_{r^{0}\sim\mathcal{N}(0,"
            r"\gamma_{0}^{-2}\nu^{-1}C_{h}^{\ell-1})} \\ "
            r"\exp\left(-\frac{1}{2}\sum_{tt'}\hat{\xi}^{\ell}(t)\hat{\xi}^{\ell}(t')C_{g}^{\ell+1}(t,t')"
            r"\right) = \left\langle "
            r"\exp\left(-i\sum_{t}\hat{\xi}^{\ell}(t)r^{\ell}(t)\right)\right\rangle_{r^{0}\sim"
            r"\mathcal{N}(0,C_{0}^{\ell+1})}"
        ),
        claim=averages.f61,
        derived="path-integral route: sources",
        verdict="misprint",
        why=(
            "In the text at hand the fourth line has gamma0^{2 nu} for gamma0^2 nu and covariance "
            "C_h^{l-1} for C_g^1, and the last line r^0 with C_0^{l+1} for r^l with C_g^{l+1}. "
            "Characteristic functions decide."
        ),
        evidence=("isotropic_average:auxiliary_fields",),
    ),
    Entry(
        source="linear2025",
        number="62",
        title="equation of the errors",
        printed=(
            r"\int \prod_{t} \frac{d\hat{\Delta}(t)}{2\pi} \left\langle \exp\left(i\sum_{t} \hat{\Delta}(t) "
            r"\left[\Delta(t) - u_{\Delta}(t) - \sum_{t'} R_{vu}^{0}(t, t') \Delta(t')\right]\right) "
            r"\right\rangle_{u_{\Delta}} \\ = \left\langle \delta \left(\Delta(t) - u_{\Delta}(t) - "
            r"\sum_{t'} R_{vu}^{0}(t, t') \Delta(t')\right) \right\rangle_{u_{\Delta}(t) \sim "
            r"\mathcal{N}(0, C_{v})} \\ \implies \Delta(t) = u_{\Delta}(t) + \sum_{t'} R_{vu}^{0}(t, t') "
            r"\Delta(t'), u_{\Delta}(t) \sim \mathcal{N}(0, C_{v})"
        ),
        claim=full_batch.f62,
        derived="isotropic theory, equation of Delta",
        verdict="misprint",
        why="1/alpha in front of R_vu and the label noise are missing; (65) has both.",
        evidence=("isotropic:sample_equation", "isotropic_action:response_slopes"),
    ),
    Entry(
        source="linear2025",
        number="63",
        title="conjugate fields differentiate by sources",
        printed=(
            r"R_{\Delta}(t,t') = -i \left\langle \Delta(t) \hat{\Delta}(t') \right\rangle \\ = -i \int "
            r"\left[\prod_{t} \frac{d\Delta(t) d\hat{\Delta}(t)}{2\pi} \right] \Delta(t) \hat{\Delta}(t') "
            r"\left\langle \exp\left(i \sum_{t} \hat{\Delta}(t) \left[\Delta(t) - u_{\Delta}(t) - \sum_{t'} "
            r"R_{vu}^{0}(t,t') \Delta(t') \right] \right) \right\rangle_{u_{\Delta}} \\ = \int "
            r"\left[\prod_{t} \frac{d\Delta(t) d\hat{\Delta}(t)}{2\pi} \right] \Delta(t) \left\langle "
            r"\frac{\partial}{\partial u_{\Delta}(t')} \exp\left(i \sum_{t} \hat{\Delta}(t) \left[\Delta(t) "
            r"- u_{\Delta}(t) - \sum_{t'} R_{vu}^{0}(t,t') \Delta(t') \right] \right) "
            r"\right\rangle_{u_{\Delta}} \\ = \sum_{t''} \left\langle \Delta(t) [C_{v}]^{-1}(t',t'') "
            r"u_{\Delta}(t'') \right\rangle_{u_{\Delta}} = \left\langle \frac{\partial \Delta(t)}{\partial "
            r"u_{\Delta}(t')} \right\rangle_{u_{\Delta}}"
        ),
        claim=full_batch.f62,
        derived="path-integral route: responses",
        verdict="misprint",
        why=(
            "Signs and Stein's lemma are right; 1/alpha is missing in front of R_vu and the label noise, "
            "as in (62)."
        ),
        evidence=("isotropic:sample_equation", "isotropic_action:response_slopes"),
    ),
    Entry(
        source="linear2025",
        number="64",
        title="responses",
        printed=(
            r"R_{\Delta}(t,t') = \left\langle \frac{\partial \Delta(t)}{\partial u_{\Delta}(t')} "
            r"\right\rangle , \ R_{vu}^{0}(t,t') = \left\langle \frac{\partial v(t)}{\partial u^{0}(t')} "
            r"\right\rangle , \ R_{hr}^{0}(t,t') = \left\langle \frac{\partial h^{0}(t)}{\partial "
            r"r^{0}(t')} \right\rangle \\ R_{hr}^{\ell}(t,t') = \left\langle \frac{\partial "
            r"h^{\ell}(t)}{\partial r^{\ell}(t')} \right\rangle , \ R_{gu}^{\ell}(t,t') = \left\langle "
            r"\frac{\partial g^{\ell}(t)}{\partial u^{\ell}(t')} \right\rangle"
        ),
        claim=full_batch.f66,
        derived="order parameters of the isotropic theory",
        verdict="agrees",
        why="The theory's responses, r^0 and u^0 entering v and h^0 with factor one.",
        evidence=("isotropic_responses:full_batch",),
    ),
)
