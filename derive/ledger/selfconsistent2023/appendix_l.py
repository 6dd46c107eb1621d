"""Appendix L: momentum, (L.1)-(L.3)."""

from __future__ import annotations

from derive.ledger.entry import Entry
from derive.ledger.selfconsistent2023.claims import momentum

ENTRIES = (
    Entry(
        source="selfconsistent2023",
        number="L.1",
        title="momentum",
        printed=(
            r"\frac{\partial}{\partial t} \mathbf{W}^{\ell}(t) = \mathbf{Q}^{\ell}(t) \\ \tau \frac{d}{dt} "
            r"\mathbf{Q}^{\ell}(t) = -\mathbf{Q}^{\ell} + \frac{\gamma}{N} \sum_{\mu} \Delta_{\mu}(t) "
            r"\mathbf{g}_{\mu}^{\ell+1}(t) \phi \left(\mathbf{h}_{\mu}^{\ell}(t)\right)^{\top}"
        ),
        derived="",
        verdict="convention",
        why=("The training rule: MomentumFlow with time constant tau, started at rest."),
    ),
    Entry(
        source="selfconsistent2023",
        number="L.2",
        title="weights with momentum",
        printed=(
            r"\boldsymbol{W}^{\ell}(t) = \boldsymbol{W}^{\ell}(0) + \frac{\gamma}{N\tau} \int_{0}^{t} dt' "
            r"\int_{0}^{t'} dt'' e^{-(t'-t'')/\tau} \sum_{\mu} \Delta_{\mu}(t'') "
            r"\boldsymbol{g}_{\mu}^{\ell+1}(t'') \phi \left(\boldsymbol{h}_{\mu}^{\ell}(t'')\right)^{\top}"
        ),
        claim=momentum.l2,
        derived="memory of MomentumFlow",
        verdict="agrees",
        why=(
            "The solution of (L.1) with Q(0) = 0. The inner integral done first gives the engine's weight "
            "1 - exp(-(t - s)/tau) of the update at s, which tends to 1 with tau to 0."
        ),
        evidence=("momentum:weight_memory",),
    ),
    Entry(
        source="selfconsistent2023",
        number="L.3",
        title="fields with momentum",
        printed=(
            r"h_{\mu}^{\ell+1}(t) = \chi_{\mu}^{\ell+1}(t) + \frac{\gamma_0}{\tau} \int_0^t dt' "
            r"\int_0^{t'} dt'' e^{-(t'-t'')/\tau} \sum_{\alpha} \Delta_{\alpha}(t'') "
            r"g_{\alpha}^{\ell+1}(t'') \Phi_{\mu\alpha}^{\ell}(t,t'') \\ z_{\mu}^{\ell}(t) = "
            r"\xi_{\mu}^{\ell}(t) + \frac{\gamma_0}{\tau} \int_0^t dt' \int_0^{t'} dt'' e^{-(t'-t'')/\tau} "
            r"\sum_{\alpha} dt'' \Delta_{\alpha}(t'') \phi\left(h_{\alpha}^{\ell}(t'')\right) "
            r"G_{\mu\alpha}^{\ell+1}(t,t'')"
        ),
        claim=momentum.l3,
        derived="theory of mlp(rule='flow', momentum=tau)",
        verdict="agrees",
        why=(
            "The derived theory, with chi and xi as their sources and responses; a second dt'' is left "
            "over in the last line. Sources, responses and kernels keep their form: only the weight of "
            "past updates differs from plain descent, and it is smaller, so that nothing is added to it."
        ),
        evidence=("momentum:weight_memory", "momentum:networks_with_momentum"),
    ),
)
