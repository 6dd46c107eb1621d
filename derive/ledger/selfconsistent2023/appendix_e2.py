"""Appendix E: the drift equation of two-layer networks, (E.2)."""

from __future__ import annotations

from derive.ledger.entry import Entry
from derive.ledger.selfconsistent2023.claims import drift

ENTRIES = (
    Entry(
        source="selfconsistent2023",
        number="E.2",
        title="drift equation of the joint density",
        printed=(
            r"\frac{\partial}{\partial t}p(\boldsymbol{h},z,t) = "
            r"-p(\boldsymbol{h},z,t)z(t)\sum_{\mu}\Delta_{\mu}(t)K_{\mu\mu}^{x}\ddot{\phi}(h_{\mu}(t)) \\ "
            r"-\gamma_{0}\sum_{\mu\alpha}K_{\mu\alpha}^{x}\Delta_{\alpha}\dot{\phi}(h_{\alpha}(t))z(t)\frac{"
            r"\partial "
            r"p(\boldsymbol{h},\boldsymbol{z},t)}{\partial h_{\mu}} - "
            r"\gamma_{0}\sum_{\mu\alpha}\Delta_{\alpha}\phi(h_{\alpha})\frac{\partial "
            r"p(\boldsymbol{h},\boldsymbol{z},t)}{\partial z_{\mu}} \\ \frac{\partial}{\partial "
            r"t}\Delta_{\mu}(t) = -\sum_{\alpha=1}^{P}\left[G_{\mu\alpha}^{1}(t)K_{\mu\alpha}^{x} + "
            r"\Phi_{\mu\alpha}^{1}(t)\right]\Delta_{\alpha}(t) \\ \Phi_{\mu\alpha}^{1}(t) = \left\langle "
            r"\phi\left(h_{\mu}^{1}(t)\right)\phi\left(h_{\alpha}^{1}(t)\right)\right\rangle, "
            r"G_{\mu\alpha}^{1}(t) = \left\langle "
            r"z^{1}(t)^{2}\dot{\phi}\left(h_{\mu}^{1}(t)\right)\dot{\phi}(h_{\alpha}^{1}(t))\right\rangle"
        ),
        claim=drift.e2,
        derived="reduction: drift equation of mlp(1), any activation",
        verdict="misprint",
        why=(
            "The first term is minus p times the divergence of the velocity (E.1) and must have its "
            "factor gamma0; without it the total probability changes. The sum over mu in the last term "
            "holds for one z_mu for each sample, which the bold z suggests; with the one number z of "
            "(E.1) it counts that term P times."
        ),
        evidence=("drift:density_equation",),
    ),
)
