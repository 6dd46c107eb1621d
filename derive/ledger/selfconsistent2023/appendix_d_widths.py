"""Appendix D.8: widths and initial variances, (D.45)-(D.55); E.1: two layers."""

from __future__ import annotations

from derive.ledger.entry import Entry
from derive.ledger.selfconsistent2023.claims import nonlinear, widths

ENTRIES = (
    Entry(
        source="selfconsistent2023",
        number="D.45",
        title="kernels of layers of different widths",
        printed=(
            r"\Phi_{\mu\alpha}^{\ell}(t,s) = \frac{1}{N^{\ell}} "
            r"\phi\left(\boldsymbol{h}_{\mu}^{\ell}(t)\right) \cdot "
            r"\phi\left(\boldsymbol{h}_{\alpha}^{\ell}(s)\right) , \ G_{\mu\alpha}^{\ell}(t,s) = "
            r"\frac{1}{N^{\ell}} \boldsymbol{g}_{\mu}^{\ell}(t) \cdot \boldsymbol{g}_{\alpha}^{\ell}(s)"
        ),
        derived="order parameters of mlp(L, relative_widths)",
        verdict="definition",
        why=("Definition: averages over the units of the layer, N^ell = a_ell N of them."),
    ),
    Entry(
        source="selfconsistent2023",
        number="D.46",
        title="backward recursion with different widths",
        printed=(
            r"\boldsymbol{g}_{\mu}^{\ell}(t) = \boldsymbol{z}_{\mu}^{\ell}(t) \odot "
            r"\dot{\boldsymbol{\phi}}\left(\boldsymbol{h}_{\mu}^{\ell}(t)\right) , \ "
            r"\boldsymbol{z}_{\mu}^{\ell}(t) = \frac{1}{\sqrt{N^{\ell+1}}} \boldsymbol{W}^{\ell}(t)^{\top} "
            r"\boldsymbol{g}_{\mu}^{\ell+1}(t)"
        ),
        claim=widths.d46,
        derived="backward definitions of mlp(L, relative_widths)",
        verdict="agrees",
        why=(
            "Chain rule with g^l = sqrt(N^l) dh^{L+1}/dh^l: the layer's factor 1/sqrt(N^l) and the ratio "
            "sqrt(N^l/N^{l+1}) of the two normalisations leave 1/sqrt(N^{l+1})."
        ),
        evidence=("widths:gradients",),
    ),
    Entry(
        source="selfconsistent2023",
        number="D.47",
        title="update of an inner matrix with different widths",
        printed=(
            r"\frac{d}{dt}\mathbf{W}^{\ell} = \gamma^{2} \sum_{\mu} \Delta_{\mu} \frac{\partial "
            r"f_{\mu}}{\partial \mathbf{W}^{\ell}} = \gamma^{2} \sum_{\mu} \Delta_{\mu} \frac{\partial "
            r"f_{\mu}}{\partial \mathbf{h}_{\mu}^{\ell+1}} \cdot \frac{\partial "
            r"\mathbf{h}_{\mu}^{\ell+1}}{\partial \mathbf{W}^{\ell}} \\ = \frac{\gamma}{\sqrt{N^{\ell}} "
            r"\sqrt{N^{\ell+1}}} \sum_{\mu} \Delta_{\mu} \mathbf{g}_{\mu}^{\ell+1} \phi "
            r"\left(\mathbf{h}_{\mu}^{\ell}\right)^{\top}"
        ),
        claim=widths.d47,
        derived="updates of mlp(L, relative_widths)",
        verdict="agrees",
        why=(
            "Both widths enter, one from g^{l+1}, one from the layer; holds for ell = 1..L-1 (the first "
            "factor is 1/sqrt(D) for ell = 0, the second 1 for the readout)."
        ),
        evidence=("widths:gradients",),
    ),
    Entry(
        source="selfconsistent2023",
        number="D.48",
        title="fields under training with different widths",
        printed=(
            r"\mathbf{h}_{\mu}^{\ell}(t) = \mathbf{\chi}_{\mu}^{\ell}(t) + \frac{\gamma}{\sqrt{N^{\ell}}} "
            r"\sum_{\alpha} \int_{0}^{t} ds \ \Delta_{\alpha}(s) \mathbf{g}_{\alpha}^{\ell}(s) "
            r"\Phi_{\mu\alpha}^{\ell-1}(t,s) \\ \mathbf{z}_{\mu}^{\ell}(t) = \mathbf{\xi}_{\mu}^{\ell}(t) + "
            r"\frac{\gamma}{\sqrt{N^{\ell}}} \sum_{\alpha} \int_{0}^{t} ds \ \Delta_{\alpha}(s) "
            r"\phi\left(\mathbf{h}_{\alpha}^{\ell}(s)\right) G_{\mu\alpha}^{\ell+1}(t,s)"
        ),
        claim=widths.d48,
        derived="memory terms of mlp(L, relative_widths)",
        verdict="agrees",
        why=(
            "The layer that moves sets the rate: gamma/sqrt(N^l) for both h^l and z^l. In z the kernel "
            "G^{l+1} restores the factor N^{l+1} that z and the update divide by."
        ),
        evidence=("widths:networks_of_unequal_widths",),
    ),
    Entry(
        source="selfconsistent2023",
        number="D.49",
        title="tangent kernel with different widths",
        printed=(
            r"K_{\mu\alpha}^{\rm NTK} = \gamma^2 \sum_{\ell} \operatorname{Tr} \left[\frac{\partial "
            r"f_{\mu}}{\partial \boldsymbol{W}^{\ell}} \right]^{\top} \frac{\partial f_{\alpha}}{\partial "
            r"\boldsymbol{W}^{\ell}} = \Phi_{\mu\alpha}^{L} + \sum_{\ell=1}^{L-1} G_{\mu\alpha}^{\ell+1} "
            r"\Phi_{\mu\alpha}^{\ell} + G_{\mu\alpha}^{1} K_{\mu\alpha}^{x}"
        ),
        claim=widths.d49,
        derived="tangent kernel of mlp(L, relative_widths)",
        verdict="agrees",
        why=(
            "Every term is gamma^2 times a squared gradient, and all factors of the widths cancel. Here "
            "gamma^2 is written out, which (4) and (I.3) forget."
        ),
        evidence=("widths:gradients",),
    ),
    Entry(
        source="selfconsistent2023",
        number="D.50",
        title="average over a matrix between different widths",
        printed=(
            r"\left\langle \exp\left(i\sum_{\mu}\int_{0}^{\infty} dt "
            r"\left[\hat{\boldsymbol{\chi}}_{\mu}^{\ell+1}(t)^{\top} \boldsymbol{W}^{\ell}(0) "
            r"\phi\left(\boldsymbol{h}_{\mu}^{\ell}(t)\right) / \sqrt{N^{\ell}} + "
            r"\boldsymbol{g}_{\mu}^{\ell+1}(t)^{\top} \boldsymbol{W}^{\ell}(0) "
            r"\hat{\boldsymbol{\xi}}_{\mu}^{\ell}(t) / "
            r"\sqrt{N^{\ell+1}}\right]\right)\right\rangle_{\boldsymbol{W}^{\ell}(0)} \\ = "
            r"\exp\left(-\frac{\sigma_{\ell}^{2}}{2}\sum_{\mu\alpha}\int_{0}^{\infty} dt \int_{0}^{\infty} "
            r"ds \left[\hat{\boldsymbol{\chi}}_{\mu}^{\ell+1}(t) \cdot "
            r"\hat{\boldsymbol{\chi}}_{\mu}^{\ell+1}(t) \Phi_{\mu\alpha}^{\ell}(t,s) + "
            r"\hat{\boldsymbol{\xi}}_{\mu}^{\ell}(t) \cdot \hat{\boldsymbol{\xi}}_{\mu}^{\ell}(t) "
            r"G_{\mu\alpha}^{\ell+1}(t,s)\right]\right) \\ \times "
            r"\exp\left(-i\sigma_{\ell}^{2}\sqrt{\frac{a_{\ell}}{a_{\ell+1}}}\sum_{\mu\alpha}\int_{0}"
            r"^{\infty} dt \int_{0}^{\infty} ds A_{\mu\alpha}^{\ell}(t,s) "
            r"\boldsymbol{\chi}_{\mu}^{\ell+1}(t) \cdot \boldsymbol{g}_{\alpha}^{\ell+1}(s)\right)"
        ),
        claim=widths.d50,
        derived="path-integral route, disorder average",
        verdict="misprint",
        why=(
            "In the quadratic terms both conjugate fields carry mu, t; the second must carry alpha, s. The "
            "last term has chi where it needs chi_hat. The factors are right: sigma^2, no width in the "
            "quadratic terms, sqrt(a_l/a_{l+1}) in the cross term with A divided by N^l. Average over a "
            "Gaussian matrix for given small vectors."
        ),
        evidence=("widths:matrix_average",),
    ),
    Entry(
        source="selfconsistent2023",
        number="D.51",
        title="action with different widths",
        printed=(
            r"S = \sum_{\ell} a_{\ell} \operatorname{Tr} \left[\hat{\boldsymbol{\Phi}}^{\ell \top} "
            r"\boldsymbol{\Phi}^{\ell} + \boldsymbol{G}^{\ell \top} \hat{\boldsymbol{G}}^{\ell} - "
            r"\boldsymbol{A}^{\ell \top} \boldsymbol{B}^{\ell} \right] + \sum_{\ell} a_{\ell} \ln "
            r"\mathcal{Z}_{\ell}"
        ),
        claim=widths.d51,
        derived="path-integral route, action",
        verdict="agrees",
        why=(
            "Each layer counts with its number of units, in units of N. Its variation gives (D.53), with "
            "a_{l+1} a_l from the two layers that A^l and B^l join."
        ),
        evidence=("widths:networks_of_unequal_widths",),
    ),
    Entry(
        source="selfconsistent2023",
        number="D.52",
        title="single-site weight of a layer",
        printed=(
            r"\mathcal{Z}_{\ell} = \int \prod_{\mu t} \frac{\mathrm{d}\chi_{\mu}^{\ell}(t) \, "
            r"\mathrm{d}\hat{\chi}_{\mu}^{\ell}(t) \, \mathrm{d}\hat{\xi}_{\mu}^{\ell}(t) \, "
            r"\mathrm{d}\hat{\xi}_{\mu}^{\ell}(t)}{2\pi} \\ \times \exp\left(-\phi "
            r"\left(\boldsymbol{h}^{\ell}\right)^{\top} \hat{\boldsymbol{\Phi}}^{\ell} \phi "
            r"\left(\boldsymbol{h}^{\ell}\right) - \boldsymbol{g}^{\ell \top} \hat{\boldsymbol{G}}^{\ell} "
            r"\boldsymbol{g}^{\ell}\right) \exp\left(-\frac{\sigma_{\ell-1}^{2}}{2} "
            r"\hat{\boldsymbol{\chi}}^{\ell} \boldsymbol{\Phi}^{\ell-1} \hat{\boldsymbol{\chi}}^{\ell} - "
            r"\frac{\sigma_{\ell}^{2}}{2} \hat{\boldsymbol{\xi}}^{\ell} \boldsymbol{G}^{\ell+1} "
            r"\hat{\boldsymbol{\xi}}^{\ell}\right) \\ \times \exp\left(-i \, \sigma_{\ell-1}^{2} "
            r"\sqrt{\frac{a_{\ell-1}}{a_{\ell}}} \hat{\boldsymbol{\chi}}^{\ell} \boldsymbol{A}^{\ell-1} "
            r"\boldsymbol{g}^{\ell} - i \, \phi \left(\boldsymbol{h}^{\ell}\right)^{\top} "
            r"\boldsymbol{B}^{\ell} \hat{\boldsymbol{\xi}}^{\ell}\right) \exp\left(i \, "
            r"\boldsymbol{\chi}^{\ell} \cdot \hat{\boldsymbol{\chi}}^{\ell} + i \, \boldsymbol{\xi}^{\ell} "
            r"\cdot \hat{\boldsymbol{\xi}}^{\ell}\right)"
        ),
        derived="path-integral route, single-site weight",
        verdict="misprint",
        why=(
            "The measure has d xi_hat twice and 1/(2 pi) once: it must be d chi d chi_hat d xi d xi_hat/(2 "
            "pi)^2, as in (D.32). With one factor Z is 2 pi for each sample and time instead of 1 at "
            "vanishing conjugates. The exponent is right."
        ),
        evidence=("widths:measure",),
    ),
    Entry(
        source="selfconsistent2023",
        number="D.53",
        title="saddle point with different widths",
        printed=(
            r"\Phi^{\ell} = \left\langle \phi \left(\mathbf{h}^{\ell} \right) \phi \left(\mathbf{h}^{\ell} "
            r"\right)^{\top} \right\rangle, \quad \mathbf{G}^{\ell} = \left\langle \mathbf{g}^{\ell} "
            r"\mathbf{g}^{\ell \top} \right\rangle \\ \mathbf{A}^{\ell} = -i \left\langle \phi "
            r"\left(\mathbf{h}^{\ell} \right) \hat{\mathbf{\xi}}^{\ell \top} \right\rangle = \left\langle "
            r"\frac{\partial \phi \left(\mathbf{h}^{\ell} \right)}{\partial \mathbf{r}^{\ell \top}} "
            r"\right\rangle \\ a_{\ell} \mathbf{B}^{\ell} = -i a_{\ell+1} \sigma_{\ell}^{2} "
            r"\sqrt{\frac{a_{\ell}}{a_{\ell+1}}} \left\langle \hat{\mathbf{\chi}}^{\ell+1} "
            r"\mathbf{g}^{\ell+1,\top} \right\rangle \implies \mathbf{B}^{\ell} = \sigma_{\ell}^{2} "
            r"\sqrt{\frac{a_{\ell+1}}{a_{\ell}}} \left\langle \frac{\partial \mathbf{g}^{\ell+1}}{\partial "
            r"\mathbf{u}^{\ell+1}} \right\rangle"
        ),
        claim=widths.d53,
        derived="order parameters and responses of mlp(L, relative_widths, init_variance)",
        verdict="agrees",
        why=(
            "Right, for u and r of variances sigma_{l-1}^2 Phi^{l-1} and sigma_l^2 G^{l+1}. The "
            "engine's r is sqrt(a_{l+1}/a_l) times this one; in the same units its responses are these. "
            "B is the transpose of the average with chi_hat, and has a part at equal times if phi is "
            "not linear (see 14)."
        ),
        evidence=("widths:networks_of_unequal_widths",),
    ),
    Entry(
        source="selfconsistent2023",
        number="D.54",
        title="fields with different widths and variances",
        printed=(
            r"h_{\mu}^{\ell}(t) = u_{\mu}^{\ell}(t) + \int_{0}^{\infty} \sum_{\alpha=1}^{P} "
            r"\left[\sigma_{\ell-1}^{2} \sqrt{\frac{a_{\ell-1}}{a_{\ell}}} A_{\mu\alpha}^{\ell-1}(t,s) + "
            r"\frac{\gamma_{0}}{\sqrt{a_{\ell}}} \Theta\left(t-s\right) \Phi_{\mu\alpha}^{\ell-1}(t,s) "
            r"\right] \dot{\phi}\left(h_{\alpha}^{\ell}(s)\right) z_{\alpha}^{\ell}(s) \\ z_{\mu}^{\ell}(t) "
            r"= r_{\mu}^{\ell}(t) + \int_{0}^{\infty} \sum_{\alpha=1}^{P} \left[\sigma_{\ell}^{2} "
            r"\sqrt{\frac{a_{\ell+1}}{a_{\ell}}} B_{\mu\alpha}^{\ell}(t,s) + "
            r"\frac{\gamma_{0}}{\sqrt{a_{\ell}}} \Theta\left(t-s\right) G_{\mu\alpha}^{\ell+1}(t,s) \right] "
            r"\phi\left(h_{\alpha}^{\ell}(s)\right)"
        ),
        claim=widths.d54,
        derived="single-site equations of mlp(L, relative_widths, init_variance)",
        verdict="misprint",
        why=(
            "The error Delta_alpha(s) is missing in front of Phi and of G, where (D.48) and (13) have "
            "it (and ds in both lines). The factors of widths and variances are right, with A and B "
            "responses without 1/gamma0. Without the error networks reject the theory."
        ),
        evidence=("widths:error_in_the_memory",),
    ),
    Entry(
        source="selfconsistent2023",
        number="D.54 text",
        title="scaling of the responses with the widths",
        printed=(
            r"\mathbf{A}^{\ell-1} \sim \mathcal{O}\left(\frac{\gamma_0}{\sqrt{a_{\ell-1}}}\right) , \ "
            r"\mathbf{B}^\ell \sim \mathcal{O}\left(\frac{\gamma_0}{\sqrt{a_{\ell+1}}}\right) , \ "
            r"\tilde{\mathbf{A}}^\ell = \frac{\sqrt{a_\ell}}{\gamma_0} \mathbf{A}^\ell , \ "
            r"\tilde{\mathbf{B}}^\ell = \frac{\sqrt{a_{\ell+1}}}{\gamma_0} \mathbf{B}^\ell"
        ),
        claim=widths.d54_text,
        derived="responses of mlp(L, relative_widths)",
        verdict="agrees",
        why=(
            "A^l is how h^l follows r^l, which happens at the rate gamma0/sqrt(a_l) of that layer; B^l "
            "belongs to layer l+1. At weak feature learning the rescaled responses do not change with these "
            "widths."
        ),
        evidence=("widths:responses_and_widths",),
    ),
    Entry(
        source="selfconsistent2023",
        number="D.55",
        title="fields in rescaled responses",
        printed=(
            r"h_{\mu}^{\ell}(t) = u_{\mu}^{\ell}(t) + \frac{\gamma_{0}}{\sqrt{a_{\ell}}} \int_{0}^{\infty} "
            r"\sum_{\alpha=1}^{P} \left[\sigma_{\ell-1}^{2} \tilde{A}_{\mu\alpha}^{\ell-1}(t,s) + "
            r"\Theta(t-s) \Phi_{\mu\alpha}^{\ell-1}(t,s) \right] \dot{\phi} \left(h_{\alpha}^{\ell}(s) "
            r"\right) z_{\alpha}^{\ell}(s) \\ z_{\mu}^{\ell}(t) = r_{\mu}^{\ell}(t) + "
            r"\frac{\gamma_{0}}{\sqrt{a_{\ell}}} \int_{0}^{\infty} \sum_{\alpha=1}^{P} "
            r"\left[\sigma_{\ell}^{2} \tilde{B}_{\mu\alpha}^{\ell}(t,s) + \Theta(t-s) "
            r"G_{\mu\alpha}^{\ell+1}(t,s) \right] \phi \left(h_{\alpha}^{\ell}(s) \right)"
        ),
        claim=widths.d55,
        derived="single-site equations of mlp(L, relative_widths, init_variance)",
        verdict="misprint",
        why=(
            "Follows from (D.54), whose slip it shares: the error Delta_alpha(s) is missing in front of Phi "
            "and of G (and ds). All factors are right."
        ),
        evidence=("widths:error_in_the_memory",),
    ),
    Entry(
        source="selfconsistent2023",
        number="E.1",
        title="two layers as differential equations",
        printed=(
            r"\frac{\partial}{\partial t} h_{\mu}^{1}(t) = \gamma_{0} \sum_{\alpha=1}^{P} "
            r"\Delta_{\alpha}(t) K_{\mu\alpha}^{x} \dot{\phi} \left(h_{\alpha}^{1}(t) \right) z^{1}(t) , "
            r"\quad \frac{\partial}{\partial t} z^{1}(t) = \gamma_{0} \sum_{\alpha=1}^{P} "
            r"\Delta_{\alpha}(t) \phi \left(h_{\alpha}^{1}(t) \right) \\ \Phi_{\mu\alpha}^{1}(t) = "
            r"\left\langle \phi \left(h_{\mu}^{1}(t) \right) \phi \left(h_{\alpha}^{1}(t) \right) "
            r"\right\rangle , \quad G_{\mu\alpha}^{1}(t) = \left\langle z(t)^{2} \dot{\phi} "
            r"\left(h_{\mu}^{1}(t) \right) \dot{\phi} \left(h_{\alpha}^{1}(t) \right) \right\rangle \\ "
            r"\frac{\partial}{\partial t} \Delta_{\mu}(t) = -\sum_{\alpha=1}^{P} \left[G_{\mu\alpha}^{1}(t) "
            r"K_{\mu\alpha}^{x} + \Phi_{\mu\alpha}^{1}(t) \right] \Delta_{\alpha}(t)"
        ),
        claim=nonlinear.e1,
        derived="flow of mlp(1)",
        verdict="agrees",
        why=(
            "The time derivative of (D.21), for any activation; A and B are absent and the sources do not "
            "move. z(0) is one standard normal number for all samples."
        ),
        evidence=("nonlinear:two_layers",),
    ),
)
