"""Appendix H: trainable biases, (H.1)-(H.3)."""

from __future__ import annotations

from derive.ledger.entry import Entry
from derive.ledger.selfconsistent2023.claims import bias

ENTRIES = (
    Entry(
        source="selfconsistent2023",
        number="H.1",
        title="layer with a bias",
        printed=(
            r"\boldsymbol{h}_{\mu}^{\ell+1}(t) = \frac{1}{\sqrt{N}} \boldsymbol{W}^{\ell}(t) \, "
            r"\phi\left(\boldsymbol{h}_{\mu}^{\ell}(t)\right) + \boldsymbol{b}^{\ell}(t)"
        ),
        claim=bias.h1,
        derived="forward definitions of mlp(L, bias=True)",
        verdict="definition",
        why=(
            "Definition; the program mlp(L, bias=True) calls b^l here b(ell + 1), after the layer that it is "
            "added to."
        ),
    ),
    Entry(
        source="selfconsistent2023",
        number="H.2",
        title="update of a bias",
        printed=(
            r"\frac{d}{dt}\boldsymbol{b}^{\ell}(t) = \gamma^{2} \sum_{\alpha} \Delta_{\alpha}(t) "
            r"\frac{\partial f_{\alpha}}{\partial b^{\ell}} = \frac{\gamma}{\sqrt{N}} \sum_{\alpha} "
            r"\Delta_{\alpha}(t) \boldsymbol{g}_{\alpha}^{\ell+1}(t) = \gamma_{0} \sum_{\alpha} "
            r"\Delta_{\alpha}(t) \boldsymbol{g}_{\alpha}^{\ell}(t)"
        ),
        claim=bias.h2,
        derived="updates of mlp(L, bias=True)",
        verdict="misprint",
        why=(
            "The last g must be g^{l+1}, as in the expression before it: b^l is added to h^{l+1} in (H.1). "
            "(H.3) uses the right one. On a finite network only g^{l+1} is the gradient."
        ),
        evidence=("bias:gradient",),
    ),
    Entry(
        source="selfconsistent2023",
        number="H.3",
        title="theory with biases",
        printed=(
            r"\left\{u^{\ell}\right\} \sim \mathcal{GP}\left(0, \mathbf{\Phi}^{\ell-1} + "
            r"\mathbf{1}\mathbf{1}^{\top}\right) , \left\{r^{\ell}\right\} \sim \mathcal{GP}\left(0, "
            r"\mathbf{G}^{\ell+1}\right) \\ h_{\mu}^{\ell}(t) = u_{\mu}^{\ell}(t) + \gamma_{0} "
            r"\int_{0}^{\infty} \mathrm{d}s \sum_{\alpha} \left[A_{\mu\alpha}^{\ell-1}(t, s) + "
            r"\Theta\left(t - s\right) \Delta_{\alpha}(s) \Phi_{\mu\alpha}^{\ell-1}(t, s)\right] "
            r"g_{\alpha}^{\ell}(s) \\ + \gamma_{0} \int_{0}^{t} \mathrm{d}s \sum_{\alpha} "
            r"\Delta_{\alpha}(s) g_{\alpha}^{\ell}(s) \\ z_{\mu}^{\ell}(t) = r_{\mu}^{\ell}(t) + \gamma_{0} "
            r"\int_{0}^{\infty} \mathrm{d}s \sum_{\alpha} \left[B_{\mu\alpha}^{\ell}(t, s) + \Theta\left(t "
            r"- s\right) \Delta_{\alpha}(s) G_{\mu\alpha}^{\ell+1}(t, s)\right] "
            r"\phi\left(h_{\alpha}^{\ell}(s)\right)"
        ),
        claim=bias.h3,
        derived="single-site equations of mlp(L, bias=True)",
        verdict="agrees",
        why=(
            "Same as derived with u the sum of two sources, one from the weights and one, equal for all "
            "samples and times, from the bias at the start. The upper limit infinity of the responses is t, "
            "because A and B vanish for s > t. In the responses of g to u either source may be pushed."
        ),
        evidence=("bias:networks_with_biases",),
    ),
)
