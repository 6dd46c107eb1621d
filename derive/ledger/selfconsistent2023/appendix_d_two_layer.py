"""Appendix D.2: the path integral for two layers, (D.12)-(D.21)."""

from __future__ import annotations

from derive.ledger.entry import Entry
from derive.ledger.selfconsistent2023.claims import nonlinear

ENTRIES = (
    Entry(
        source="selfconsistent2023",
        number="D.12",
        title="generating function, two layers",
        printed=(
            r"Z\left[\left\{\boldsymbol{j}_{\mu}\right\}_{\mu\in[P]},\boldsymbol{v}\right] = "
            r"\left\langle \exp\left(\sum_{\mu}\boldsymbol{j}_{\mu}\cdot\boldsymbol{\chi}_{\mu} + "
            r"\boldsymbol{\xi}\cdot\boldsymbol{v}\right)\right\rangle_{\boldsymbol{\theta}_{0}}"
        ),
        derived="path-integral route, sources",
        verdict="definition",
        why="Definition, with real sources.",
    ),
    Entry(
        source="selfconsistent2023",
        number="D.13",
        title="definitions of chi and xi as delta functions",
        printed=(
            r"1 = \int d\boldsymbol{\chi}_{\mu} \delta\left(\boldsymbol{\chi}_{\mu} - \frac{1}{\sqrt{N}} "
            r"\boldsymbol{W}^{0}(0) \boldsymbol{x}_{\mu}\right) = \int \frac{d\boldsymbol{\chi}_{\mu} "
            r"d\hat{\boldsymbol{\chi}}_{\mu}}{(2\pi)^{N}} \exp\left(i \,\hat{\boldsymbol{\chi}}_{\mu} "
            r"\cdot \left(\boldsymbol{\chi}_{\mu} - \frac{1}{\sqrt{D}} \boldsymbol{W}^{0}(0) "
            r"\boldsymbol{x}_{\mu}\right)\right) \\ 1 = \int d\boldsymbol{\xi} \, "
            r"\delta\left(\boldsymbol{\xi} - \boldsymbol{w}^{1}(0)\right) = \int \frac{d\boldsymbol{\xi} "
            r"d\hat{\boldsymbol{\xi}}}{(2\pi)^{N}} \exp\left(i \,\hat{\boldsymbol{\xi}} \cdot "
            r"\left(\boldsymbol{\xi} - \boldsymbol{w}^{1}(0)\right)\right)"
        ),
        derived="path-integral route, field constraint",
        verdict="misprint",
        why=(
            "The delta function has 1/sqrt(N) where its own Fourier form and the definition above "
            "(D.11) have 1/sqrt(D). With D different from N the first gives chi the covariance (D/N) "
            "K^x instead of K^x."
        ),
        evidence=("path_integral:input_scale",),
    ),
    Entry(
        source="selfconsistent2023",
        number="D.14",
        title="initial weights averaged, two layers",
        printed=(
            r"Z = \int \prod_{\mu} \frac{\mathrm{d}\boldsymbol{\chi} "
            r"\mathrm{d}\hat{\boldsymbol{\chi}}}{(2\pi)^{N}} \frac{\mathrm{d}\boldsymbol{\xi} "
            r"\mathrm{d}\hat{\boldsymbol{\xi}}}{(2\pi)^{N}} \exp\left(-\frac{1}{2} \sum_{\mu\alpha} "
            r"\hat{\boldsymbol{\chi}}_{\mu} \cdot \hat{\boldsymbol{\chi}}_{\alpha} K_{\mu\alpha}^{x} + "
            r"\sum_{\mu} \boldsymbol{\chi}_{\mu} \cdot \left(i \,\hat{\boldsymbol{\chi}}_{\mu} + "
            r"\boldsymbol{j}_{\mu}\right) - \frac{1}{2} |\hat{\boldsymbol{\xi}}|^{2} + \boldsymbol{\xi} "
            r"\cdot \left(i \hat{\boldsymbol{\xi}} + \boldsymbol{v}\right)\right)"
        ),
        derived="path-integral route, disorder average",
        verdict="agrees",
        why=(
            "Gaussian average is right; the measure lacks the index mu on chi, and the xi measure "
            "stands outside the product over mu."
        ),
        evidence=("path_integral:gaussian_fourier_identity",),
    ),
    Entry(
        source="selfconsistent2023",
        number="D.15",
        title="kernel definitions as delta functions",
        printed=(
            r"1 = N \int d\Phi_{\mu\alpha}(t,s) \, \delta\left(N\Phi_{\mu\alpha}(t,s) - "
            r"\phi\left(\boldsymbol{h}_{\mu}(t)\right) \cdot "
            r"\phi\left(\boldsymbol{h}_{\alpha}(s)\right)\right) \\ = \int \frac{d\Phi_{\mu\alpha}(t,s) "
            r"\, d\hat{\Phi}_{\mu\alpha}(t,s)}{2\pi \, i \, N^{-1}} "
            r"\exp\left(N\hat{\Phi}_{\mu\alpha}(t,s) \left(N\Phi_{\mu\alpha}(t,s) - "
            r"\phi\left(\boldsymbol{h}_{\mu}(t)\right) \cdot "
            r"\phi\left(\boldsymbol{h}_{\alpha}(s)\right)\right)\right) \\ 1 = N \int "
            r"dG_{\mu\alpha}(t,s) \, \delta\left(NG_{\mu\alpha}(t,s) - \boldsymbol{g}_{\mu}(t) \cdot "
            r"\boldsymbol{g}_{\alpha}(s)\right) \\ = \int \frac{dG_{\mu\alpha}(t,s) \, "
            r"d\hat{G}_{\mu\alpha}(t,s)}{2\pi \, i \, N^{-1}} \exp\left(N\hat{G}_{\mu\alpha}(t,s) "
            r"\left(NG_{\mu\alpha}(t,s) - \boldsymbol{g}_{\mu}(t) \cdot "
            r"\boldsymbol{g}_{\alpha}(s)\right)\right)"
        ),
        derived="path-integral route, order-parameter constraint",
        verdict="misprint",
        why=(
            "The exponent has one N too many: with the measure dPhi dPhi_hat N/(2 pi i) the exponent "
            "must be Phi_hat (N Phi - phi.phi), as in (D.28). As printed each integral equals 1/N, not "
            "1, and the action would start with N^2 Phi Phi_hat in contradiction with (D.16) and "
            "(D.17)."
        ),
        evidence=("path_integral:order_parameter_constraint",),
    ),
    Entry(
        source="selfconsistent2023",
        number="D.16",
        title="generating function over order parameters, two layers",
        printed=(
            r"Z \propto \int \prod_{\mu \alpha t s} d\Phi_{\mu \alpha}(t, s) d\hat{\Phi}_{\mu \alpha}(t, "
            r"s) dG_{\mu \alpha}(t, s) d\hat{G}_{\mu \alpha}(t, s) \exp\left(NS\left[\Phi, \hat{\Phi}, "
            r"G, \hat{G}\right]\right)"
        ),
        derived="path-integral route",
        verdict="agrees",
        why="Up to normalisation, with the exponent of (D.28) in place of (D.15).",
        evidence=("saddle_point:action_is_stationary",),
    ),
    Entry(
        source="selfconsistent2023",
        number="D.17",
        title="action, two layers",
        printed=(
            r"S\left[\Phi, \hat{\Phi}, G, \hat{G}\right] = \sum_{\mu\alpha} \int dt ds "
            r"\left[\Phi_{\mu\alpha}(t, s) \hat{\Phi}_{\mu\alpha}(t, s) + G_{\mu\alpha}(t, s) "
            r"\hat{G}_{\mu\alpha}(t, s)\right] + \frac{1}{N} \sum_{i=1}^{N} \ln \mathcal{Z}\left[j_{i}, "
            r"v_{i}\right]"
        ),
        derived="path-integral route, action of mlp(1)",
        verdict="agrees",
        why=(
            "Right, including the average of ln Z over sites when the sources differ from site to site; "
            "it needs the exponent of (D.28)."
        ),
        evidence=("saddle_point:action_is_stationary",),
    ),
    Entry(
        source="selfconsistent2023",
        number="D.18",
        title="single-site weight, two layers",
        printed=(
            r"\mathcal{Z}[j,v] = \int \prod_{\mu} \frac{\mathrm{d}\chi_{\mu} "
            r"\mathrm{d}\hat{\chi}_{\mu}}{2\pi} \frac{\mathrm{d}\xi \,\mathrm{d}\hat{\xi}}{2\pi} "
            r"\exp\left(-\frac{1}{2} \sum_{\mu\alpha} \hat{\chi}_{\mu} \hat{\chi}_{\alpha} "
            r"K_{\mu\alpha}^{x} + \left(j_{\mu} + i\,\hat{\chi}_{\mu}\right) \chi_{\mu} - "
            r"\frac{1}{2}\hat{\xi}^{2} + \left(v + i\,\hat{\xi}\right)\xi\right) \\ \times "
            r"\exp\left(-\int_{0}^{\infty} \mathrm{d}t \int_{0}^{\infty} \mathrm{d}s \sum_{\mu\alpha} "
            r"\left[\hat{\Phi}_{\mu\alpha}(t,s)\,\phi(h_{\mu}(t))\,\phi(h_{\alpha}(s)) + "
            r"\hat{G}_{\mu\alpha}(t,s)\,g_{\mu}(t)\,g_{\alpha}(s)\right]\right)"
        ),
        derived="path-integral route, single-site weight of mlp(1)",
        verdict="misprint",
        why=(
            "The term (j_mu + i chi_hat_mu) chi_mu lacks its own sum over mu, which (D.14) shows. Read "
            "under the printed double sum it is counted P times, and chi gets the covariance K^x/P^2."
        ),
        evidence=("path_integral:single_site_weight",),
    ),
    Entry(
        source="selfconsistent2023",
        number="D.19",
        title="saddle point, two layers",
        printed=(
            r"\frac{\delta S}{\delta \Phi_{\mu\alpha}(t,s)} = \hat{\Phi}_{\mu\alpha}(t,s) = 0 , \quad "
            r"\frac{\delta S}{\delta \hat{\Phi}_{\mu\alpha}(t,s)} = \Phi_{\mu\alpha}(t,s) - \frac{1}{N} "
            r"\sum_{i=1}^{N} \langle \phi(h_{\mu}(t)) \phi(h_{\alpha}(s)) \rangle_{i} = 0 \\ "
            r"\frac{\delta S}{\delta G_{\mu\alpha}(t,s)} = \hat{G}_{\mu\alpha}(t,s) = 0 , \quad "
            r"\frac{\delta S}{\delta \hat{G}_{\mu\alpha}(t,s)} = G_{\mu\alpha}(t,s) - \frac{1}{N} "
            r"\sum_{i=1}^{N} \langle g_{\mu}(t) g_{\alpha}(s) \rangle_{i} = 0"
        ),
        derived="order parameters of mlp(1)",
        verdict="agrees",
        why=(
            "Right. The fields depend on the kernels through the error as well, but those terms are "
            "proportional to Phi_hat and G_hat and vanish with them."
        ),
        evidence=("saddle_point:action_is_stationary",),
    ),
    Entry(
        source="selfconsistent2023",
        number="D.20",
        title="average at one site",
        printed=(
            r"\left\langle O\left(\chi,\hat{\chi},\xi,\hat{\xi}\right)\right\rangle_{i} = "
            r"\frac{1}{\mathcal{Z}[j_{i},v_{i}]} \int \prod_{\mu} d\chi_{\mu} d\hat{\chi}_{\mu} d\xi "
            r"d\hat{\xi} "
            r"\exp\left(-\mathcal{H}\left[\left\{\chi_{\mu},\hat{\chi}_{\mu}\right\},\xi,\hat{"
            r"\xi},j_{i},v_{i}\right]\right) O\left(\chi,\hat{\chi},\xi,\hat{\xi}\right)"
        ),
        derived="averages of the theory",
        verdict="definition",
        why="Definition.",
    ),
    Entry(
        source="selfconsistent2023",
        number="D.21",
        title="complete theory of two layers",
        printed=(
            r"\{\chi_{\mu}\}_{\mu\in[P]} \sim \mathcal{N}(0, \mathbf{K}^{x}), \ \xi \sim \mathcal{N}(0, "
            r"1) \\ h_{\mu}(t) = \chi_{\mu} + \gamma_{0} \int_{0}^{t} \mathrm{d}s \sum_{\alpha} "
            r"\left[z(s) \dot{\phi}(h_{\alpha}(s)) \right] K_{\mu\alpha}^{x} \Delta_{\alpha}(s) \\ z(t) "
            r"= \xi + \gamma_{0} \int_{0}^{t} \mathrm{d}s \sum_{\alpha} \phi(h_{\alpha}(s)) "
            r"\Delta_{\alpha}(s) \\ \Phi_{\mu\alpha}(t, s) = \langle \phi(h_{\mu}(t)) "
            r"\phi(h_{\alpha}(s)) \rangle, \ G_{\mu\alpha}(t, s) = \left\langle z(t) z(s) "
            r"\dot{\phi}(h_{\mu}(t)) \dot{\phi}(h_{\alpha}(s)) \right\rangle \\ \frac{\partial "
            r"f_{\mu}}{\partial t} = \sum_{\alpha} \left[\Phi_{\mu\alpha}(t, t) + G_{\mu\alpha}(t, t) "
            r"K_{\mu\alpha}^{x} \right] \Delta_{\alpha}(t)"
        ),
        claim=nonlinear.d21,
        derived="theory of mlp(1)",
        verdict="agrees",
        why=(
            "Both routes give the same for L = 1 and any activation (z carries no sample index here, r "
            "being one number); for linear networks G does not depend on the samples."
        ),
        evidence=("two_layer:kernel_equations", "nonlinear:two_layers"),
    ),
)
