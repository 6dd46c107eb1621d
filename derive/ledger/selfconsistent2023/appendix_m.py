"""Appendix M: exact discrete time, (M.1)-(M.8)."""

from __future__ import annotations

from derive.ledger.entry import Entry
from derive.ledger.selfconsistent2023.claims import discrete

ENTRIES = (
    Entry(
        source="selfconsistent2023",
        number="M.1",
        title="output in discrete time",
        printed=(
            r"f_{\mu}(t) = \frac{1}{N\gamma_{0}} \boldsymbol{w}^{L}(t) \cdot "
            r"\phi\left(\boldsymbol{h}_{\mu}^{L}(t)\right) = \frac{1}{N\gamma_{0}} "
            r"\left[\boldsymbol{w}^{L}(0) + \gamma_{0} \sum_{s=0}^{t-1} \sum_{\alpha} \Delta_{\alpha}(s) "
            r"\phi\left(\boldsymbol{h}_{\alpha}^{L}(s)\right)\right] \cdot "
            r"\phi\left(\boldsymbol{h}_{\mu}^{L}(t)\right) \\ = \frac{1}{N\gamma_{0}} "
            r"\boldsymbol{w}^{L}(0) \cdot \phi\left(\boldsymbol{h}_{\mu}^{L}(t)\right) + \sum_{\alpha} "
            r"\sum_{s < t} \Delta_{\alpha}(s) \Phi_{\mu\alpha}^{L}(t, s)"
        ),
        claim=discrete.m1,
        derived="program mlp(rule='gd'), eta = 1",
        verdict="agrees",
        why=("The program's output with the readout's memory, at unit learning rate (as all of appendix M)."),
        evidence=("discrete:response_definitions",),
    ),
    Entry(
        source="selfconsistent2023",
        number="M.2",
        title="definition of the output as a delta function",
        printed=(
            r"1 = \int \frac{\mathrm{d}\hat{f}_{\mu}(t)\,df_{\mu}(t)}{2\pi\,N^{-1}} "
            r"\exp\left(i\,\hat{f}_{\mu}(t)\left[Nf_{\mu}(t) - "
            r"\frac{1}{\gamma_{0}}\boldsymbol{w}^{L}(0)\cdot\phi\left(\boldsymbol{h}^{L}(t)\right) - "
            r"N\sum_{\alpha}\sum_{s< t}\Delta_{\alpha}(s)\,\Phi_{\mu\alpha}^{L}(t,s)\right]\right)"
        ),
        derived="",
        verdict="definition",
        why=("Definition; h^L lacks its sample index."),
    ),
    Entry(
        source="selfconsistent2023",
        number="M.3",
        title="readout averaged",
        printed=(
            r"\left\langle \exp\left(i\sum_{\mu t} \left[\hat{\boldsymbol{\xi}}_{\mu}^{L}(t) + "
            r"\gamma_{0}^{-1}\hat{f}_{\mu}(t)\phi\left(\boldsymbol{h}_{\mu}^{L}(t)\right)\right] \cdot "
            r"\boldsymbol{w}^{L}(0)\right)\right\rangle_{\boldsymbol{w}^{L}(0)} \\ = "
            r"\exp\left(-\frac{1}{2}\sum_{\mu t \alpha s}\hat{\boldsymbol{\xi}}_{\mu}^{L}(t) \cdot "
            r"\hat{\boldsymbol{\xi}}_{\alpha}^{L}(s) - \frac{N}{2\gamma_{0}^{2}}\sum_{\mu \alpha t "
            r"s}\hat{f}_{\mu}(t)\hat{f}_{\alpha}(s)\Phi_{\mu \alpha}^{L}(t,s)\right) \\ \times "
            r"\exp\left(-\frac{1}{\gamma_{0}}\sum_{\mu \alpha t "
            r"s}\hat{f}_{\mu}(t)\phi\left(\boldsymbol{h}_{\mu}^{L}(t)\right) \cdot "
            r"\hat{\boldsymbol{\xi}}_{\alpha}^{L}(s)\right)"
        ),
        claim=discrete.m3,
        derived="claims of M.3 expanded",
        verdict="agrees",
        why=(
            "Gaussian average, square completed. (The deltas of (D.24) and (M.2) have -i on both; the "
            "overall sign drops out.)"
        ),
        evidence=("discrete:readout_average",),
    ),
    Entry(
        source="selfconsistent2023",
        number="M.4",
        title="action in discrete time",
        printed=(
            r"Z \propto \int \mathrm{d}f_{\mu}(t) \, \mathrm{d}\hat{f}_{\mu}(t) \, \mathrm{d}\Phi^{\ell} "
            r"\dots \mathrm{d}B^{\ell} \exp\left(NS\left[\left\{f, \hat{f}, \Phi^{\ell}, "
            r"\hat{\Phi}^{\ell}, \dots, A^{\ell}, B^{\ell}\right\}\right]\right) \\ S = i \sum_{\mu t} "
            r"\hat{f}_{\mu}(t) \, f_{\mu}(t) - \frac{1}{2\gamma_{0}^{2}} \sum_{\mu \alpha ts} "
            r"\hat{f}_{\mu}(t) \, \hat{f}_{\alpha}(s) \, \Phi^{L}_{\mu \alpha}(t, s) \\ - i \sum_{\mu "
            r"\alpha ts} \hat{f}_{\mu}(t) \, A^{L}_{\mu \alpha}(t, s) - i \sum_{\mu t \alpha s} "
            r"\hat{f}_{\mu}(t) \left[\Theta(t - s) \, \Delta_{\alpha}(s) \, \Phi^{L}_{\mu \alpha}(t, "
            r"s)\right] \\ + \sum_{\ell \mu \alpha ts} \left[\Phi^{\ell}_{\mu \alpha} "
            r"\hat{\Phi}^{\ell}_{\mu \alpha}(t, s) + G^{\ell}_{\mu \alpha}(t, s) \, \hat{G}_{\mu "
            r"\alpha}(t, s) - A^{\ell}_{\mu \alpha}(t, s) \, B^{\ell}_{\mu \alpha}(t, s)\right] \\ + \ln "
            r"\mathcal{Z}\left[\left\{\Phi^{\ell}, \hat{\Phi}^{\ell}, \dots, A^{\ell}, "
            r"B^{\ell}\right\}\right]"
        ),
        claim=discrete.m4,
        derived="path integral of mlp(rule='gd')",
        verdict="agrees",
        why=(
            "(M.3) per N, with i A^L = phi.xi_hat/(N gamma0) (the hat is missing above) and Theta(0) = 0; "
            "in the third line Phi lacks its times and G_hat its layer. The engine takes the output as "
            "the average <phi z>/gamma0 instead; both give the same f."
        ),
        evidence=("discrete:readout_average",),
    ),
    Entry(
        source="selfconsistent2023",
        number="M.5",
        title="saddle point in the output",
        printed=(
            r"\frac{\partial S}{\partial f_{\mu}(t)} = i\,\hat{f}_{\mu}(t) = 0 \\ \frac{\partial "
            r"S}{\partial i\hat{f}_{\mu}(t)} = f_{\mu}(t) + \frac{1}{\gamma_{0}^{2}} \sum_{\alpha s} "
            r"\Phi_{\mu\alpha}^{L}(t,s) \left(i\hat{f}_{\alpha}(s) \right) - \sum_{\alpha s} "
            r"A_{\mu\alpha}^{L}(t,s) - \sum_{\alpha s} \Theta\left(t - s \right) \Delta_{\alpha}(s) "
            r"\Phi_{\mu\alpha}^{L}(t,s)"
        ),
        claim=discrete.m5,
        derived="claims of M.4 differentiated",
        verdict="agrees",
        why=(
            "Right. The errors depend on f too, but those terms carry f_hat or the other conjugates and "
            "vanish with them."
        ),
        evidence=("discrete:readout_average",),
    ),
    Entry(
        source="selfconsistent2023",
        number="M.6",
        title="conjugate of the readout's response",
        printed=(
            r"\frac{\partial S}{\partial A_{\mu\alpha}^L(t,s)} = -B_{\mu\alpha}^L(t,s) - i\hat{f}_{\mu}(t) "
            r"= 0"
        ),
        claim=discrete.m6,
        derived="base case B^L = 0",
        verdict="agrees",
        why=("Right, so that B^L vanishes with f_hat, the base case of the engine."),
        evidence=("discrete:readout_average",),
    ),
    Entry(
        source="selfconsistent2023",
        number="M.7",
        title="response of the features to the readout",
        printed=(
            r"\frac{\partial S}{\partial B_{\mu\alpha}^L(t,s)} = -A_{\mu\alpha}^L(t,s) + i\gamma_{0}^{-1} "
            r"\left\langle \phi\left(h_{\mu}^{L}(t)\right)\hat{\xi}_{\alpha}^{L}(s) \right\rangle = 0"
        ),
        claim=discrete.m7,
        derived="response of phi(h^L) to r^L",
        verdict="misprint",
        why=(
            "The sign of the average must be minus, as in (D.33) and as i A^L = phi.xi_hat/(N gamma0) "
            "says; the result drawn from it, A^L = <d phi/d r>/gamma0, is right (its numerator lacks the "
            "d). With the printed sign the output would have the other sign at the start: networks reject "
            "it."
        ),
        evidence=("discrete:response_definitions", "discrete:readout_average"),
    ),
    Entry(
        source="selfconsistent2023",
        number="M.8",
        title="complete theory in discrete time",
        printed=(
            r"f_{\mu}(t) = \sum_{s < t} \sum_{\alpha} \Phi_{\mu\alpha}^{L}(t,s) \Delta_{\alpha}(s) + "
            r"\sum_{\alpha s} A_{\mu\alpha}^{L}(t,s) \\ \mathbf{u}^{\ell} \sim \mathcal{N}\left(0, "
            r"\mathbf{\Phi}^{\ell-1}\right) , \mathbf{r}^{\ell} \sim \mathcal{N}\left(0, "
            r"\mathbf{G}^{\ell+1}\right) \\ h_{\mu}^{\ell}(t) = u_{\mu}^{\ell}(t) + \gamma_{0} "
            r"\sum_{\alpha s} \left[A_{\mu\alpha}^{\ell-1}(t,s) + \Theta\left(t-s\right) "
            r"\Delta_{\alpha}(s) \Phi_{\mu\alpha}^{\ell-1}(t,s)\right] g_{\alpha}^{\ell}(s) \\ "
            r"z_{\mu}^{\ell}(t) = r_{\mu}^{\ell}(t) + \gamma_{0} \sum_{\alpha s} "
            r"\left[B_{\mu\alpha}^{\ell}(t,s) + \Theta\left(t-s\right) \Delta_{\alpha}(s) "
            r"G_{\mu\alpha}^{\ell+1}(t,s)\right] \phi\left(h_{\alpha}^{\ell}(s)\right) \\ "
            r"\Phi_{\mu\alpha}^{\ell}(t,s) = \left\langle \phi\left(h_{\mu}^{\ell}(t)\right) "
            r"\phi(h_{\alpha}^{\ell}(s))\right\rangle , G_{\mu\alpha}^{\ell}(t,s) = \left\langle "
            r"g_{\mu}^{\ell}(t) g_{\alpha}^{\ell}(s)\right\rangle \\ A_{\mu\alpha}^{\ell}(t,s) = "
            r"\gamma_{0}^{-1} \left\langle \frac{\partial \phi(h_{\mu}^{\ell}(t))}{\partial "
            r"u_{\alpha}^{\ell}(s)}\right\rangle , B_{\mu\alpha}^{\ell}(t,s) = \gamma_{0}^{-1} "
            r"\left\langle \frac{\partial g_{\mu}^{\ell+1}(t)}{\partial "
            r"r_{\alpha}^{\ell+1}(s)}\right\rangle"
        ),
        claim=discrete.m8,
        derived="theory of mlp(rule='gd')",
        verdict="misprint",
        why=(
            "The sources in the last line are exchanged: A is the response to r, as below (M.7), and B "
            "that to u. The sum over s in z includes s = t for B (g depends on u within a step), not for "
            "A. The rest is the derived theory at unit learning rate. Networks reject the printed "
            "responses."
        ),
        evidence=("discrete:response_definitions",),
    ),
    Entry(
        source="selfconsistent2023",
        number="M.8 text",
        title="continuous limit of discrete time",
        printed=(
            r"\frac{d}{dt} f_{\mu} = \sum_{\alpha} \Delta_{\alpha} K_{\mu\alpha}^{\mathrm{NTK}} \text{ in "
            r"a continuous time limit of the above}"
        ),
        derived="theory of mlp(rule='gd'), eta to 0",
        verdict="agrees",
        why=(
            "Left open by the paper. The derived theory for steps eta turns into that for flow term by "
            "term (sums of eta times a memory into integrals), and the change of its output per step, "
            "over eta, tends to the tangent kernel times the errors, to first order in eta."
        ),
        evidence=("discrete:tangent_kernel_at_small_steps",),
    ),
)
