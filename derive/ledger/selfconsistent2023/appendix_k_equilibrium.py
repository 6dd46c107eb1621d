"""Appendix K.3: equilibrium, (K.17)-(K.23)."""

from __future__ import annotations

from derive.ledger.entry import Entry
from derive.ledger.selfconsistent2023.claims import langevin

ENTRIES = (
    Entry(
        source="selfconsistent2023",
        number="K.17",
        title="posterior of the outputs",
        printed=(
            r"p\left(\boldsymbol{f}|\mathcal{D}\right) \\ \propto "
            r"\exp\left(-N\gamma_0^2\beta\sum_{\mu}\ell\left(f_{\mu},y_{\mu}\right)\right) \\ \times \int "
            r"\mathrm{d}\boldsymbol{h}_{\mu}^{\ell}\left\langle\prod_{\mu}\delta\left(f_{\mu}-\frac{1}{N"
            r"\gamma_0}\boldsymbol{w}^L\cdot\phi\left(\boldsymbol{h}_{\mu}^L\right)\right)\prod_{\mu\ell}"
            r"\delta\left(\boldsymbol{h}_{\mu}^{\ell+1}-\frac{1}{\sqrt{N}}\boldsymbol{W}^{\ell}\phi\left("
            r"\boldsymbol{h}_{\mu}^{\ell}\right)\right)\right\rangle_{\boldsymbol{\theta}\sim\mathcal{N}(0,"
            r"\lambda^{-1}\mathbf{I})} "
            r"\\ \propto \int "
            r"\prod_{\mu}\mathrm{d}\hat{f}_{\mu}\prod_{\ell\mu\alpha}\mathrm{d}\Phi_{\mu\alpha}^{\ell}"
            r"\mathrm{d}\hat{\Phi}_{\mu\alpha}^{\ell}\exp\left(-N\gamma_0^2\beta\sum_{\mu}\ell\left(f_{"
            r"\mu},y_{\mu}\right)-N\gamma_0\sum_{\mu}\hat{f}_{\mu}f_{\mu}+\frac{N}{2\lambda}\sum_{\mu\alpha}"
            r"\hat{f}_{\mu}\Phi_{\mu\alpha}^L\hat{f}_{\alpha}\right) "
            r"\\ \times "
            r"\exp\left(\frac{N}{2}\sum_{\ell\mu\alpha}\Phi_{\mu\alpha}^{\ell}\hat{\Phi}_{\mu\alpha}^{"
            r"\ell}+N\sum_{\ell}\ln\mathcal{Z}_{\ell}\left[\Phi^{\ell-1},\hat{\Phi}^{\ell}\right]\right) "
            r"\\ \mathcal{Z}_{\ell} = \int \prod_{\mu} \frac{\mathrm{d}h_{\mu} "
            r"\mathrm{d}\hat{h}_{\mu}}{2\pi} \exp\left(-\frac{1}{2\lambda} \sum_{\mu\alpha} \hat{h}_{\mu} "
            r"\Phi_{\mu\alpha}^{\ell-1} \hat{h}_{\alpha} - \frac{1}{2} \sum_{\mu\alpha} \phi(h_{\mu}) "
            r"\hat{\Phi}_{\mu\alpha}^{\ell} \phi(h_{\alpha}) + i \sum_{\mu} \hat{h}_{\mu} h_{\mu}\right)"
        ),
        claim=langevin.k17,
        derived="reduction: equilibrium, action",
        verdict="agrees",
        why=(
            "The engine's action: the prior's variance 1/lambda and the inverse temperature beta come "
            "from the rule, and each layer's weights as a second cumulant. Exact posterior means of "
            "linear networks agree with its saddle point."
        ),
        evidence=("equilibrium:saddle_point",),
    ),
    Entry(
        source="selfconsistent2023",
        number="K.18",
        title="action at equilibrium",
        printed=(
            r"S = -\gamma_0^2 \beta \sum_{\mu} \ell \left(f_{\mu}, y_{\mu} \right) - \gamma_0 \sum_{\mu} "
            r"\hat{f}_{\mu} f_{\mu} + \frac{1}{2\lambda} \sum_{\mu\alpha} \hat{f}_{\mu} \Phi_{\mu\alpha}^L "
            r"\hat{f}_{\alpha} + \frac{1}{2} \sum_{\ell\mu\alpha} \Phi_{\mu\alpha}^{\ell} "
            r"\hat{\Phi}_{\mu\alpha}^{\ell} + \sum_{\ell} \ln \mathcal{Z} \left[\Phi^{\ell-1}, "
            r"\hat{\Phi}^{\ell} \right]"
        ),
        claim=langevin.k18,
        derived="reduction: equilibrium, action",
        verdict="agrees",
        why=("As derived."),
        evidence=("equilibrium:saddle_point",),
    ),
    Entry(
        source="selfconsistent2023",
        number="K.19",
        title="saddle point at equilibrium",
        printed=(
            r"\frac{\partial S}{\partial f_{\mu}} = \gamma_{0} \hat{f}_{\mu} - \gamma_{0}^{2} \beta "
            r"\Delta_{\mu} = 0 \; , \; \frac{\partial S}{\partial \hat{f}_{\mu}} = -\gamma_{0} f_{\mu} + "
            r"\frac{1}{\lambda} \sum_{\alpha} \Phi_{\mu\alpha}^{L} \hat{f}_{\alpha} = 0 \\ \frac{\partial "
            r"S}{\partial \Phi_{\mu\alpha}^{L}} = \frac{1}{2\lambda} \hat{f}_{\mu} \hat{f}_{\alpha} + "
            r"\frac{1}{2} \hat{\Phi}_{\mu\alpha}^{L} = 0 \; , \; \frac{\partial S}{\partial "
            r"\hat{\Phi}_{\mu\alpha}^{L}} = \frac{1}{2} \Phi_{\mu\alpha}^{\ell} - \frac{1}{2} \left\langle "
            r"\phi \left(h_{\mu}^{L} \right) \phi \left(h_{\alpha}^{L} \right) \right\rangle = 0 \\ "
            r"\frac{\partial S}{\partial \Phi_{\mu\alpha}^{\ell}} = -\frac{1}{2} \left\langle "
            r"\hat{h}_{\mu}^{\ell+1} \hat{h}_{\alpha}^{\ell+1} \right\rangle + \frac{1}{2} "
            r"\hat{\Phi}_{\mu\alpha}^{\ell} = 0 \; , \; \frac{\partial S}{\partial "
            r"\hat{\Phi}_{\mu\alpha}^{\ell}} = \frac{1}{2} \Phi_{\mu\alpha}^{\ell} - \frac{1}{2} "
            r"\left\langle \phi \left(h_{\mu}^{\ell} \right) \phi \left(h_{\alpha}^{\ell} \right) "
            r"\right\rangle = 0"
        ),
        claim=langevin.k19,
        derived="reduction: equilibrium, conditions",
        verdict="wrong",
        why=(
            "The average in the last line comes with 1/(2 lambda), as the quadratic term of (K.17) does; "
            "the slip is carried on into (K.22) and (K.23). The first derivative has the other sign, with "
            "the same zero, and Phi^l in the second line is Phi^L. Exact posteriors of networks with two "
            "hidden layers reject it."
        ),
        evidence=("equilibrium:saddle_point",),
    ),
    Entry(
        source="selfconsistent2023",
        number="K.20",
        title="outputs at equilibrium",
        printed=(
            r"f_{\mu} = \frac{\beta}{\lambda} \sum_{\alpha} \Phi^{L}_{\mu\alpha} \Delta_{\alpha} , \ "
            r"\Delta_{\alpha} = -\frac{\partial \ell (f_{\alpha}, y_{\alpha})}{\partial f_{\alpha}}"
        ),
        claim=langevin.k20,
        derived="reduction: equilibrium, conditions solved",
        verdict="agrees",
        why=("As derived; long Langevin dynamics of linear networks, exact in steps, end there."),
        evidence=("equilibrium:saddle_point", "rest:dynamics_end_there"),
    ),
    Entry(
        source="selfconsistent2023",
        number="K.20 text",
        title="conjugate kernel of the last layer",
        printed=(
            r"\hat{\Phi}_{\mu\alpha}^L = -\frac{\gamma_0^2 \beta^2}{2\lambda} \Delta_{\mu} \Delta_{\alpha}"
        ),
        claim=langevin.k20_text,
        derived="reduction: equilibrium, conditions solved",
        verdict="misprint",
        why=(
            "The factor 1/2 does not belong here: (K.19) gives -f_hat f_hat/lambda with f_hat = gamma0 "
            "beta Delta, and the exponent of (K.21) is right only without it. Exact posterior means of "
            "networks with one hidden layer reject it."
        ),
        evidence=("equilibrium:saddle_point",),
    ),
    Entry(
        source="selfconsistent2023",
        number="K.21",
        title="last layer at equilibrium",
        printed=(
            r"\mathcal{Z}\left[\Phi^{L-1}, \hat{\Phi}^{L}\right] = \int \prod_{\mu} "
            r"\frac{\mathrm{d}h_{\mu} \mathrm{d}\hat{h}_{\mu}}{2\pi} \exp\left(-\frac{1}{2\lambda} "
            r"\sum_{\mu\alpha} \hat{h}_{\mu} \hat{h}_{\alpha} \Phi_{\mu\alpha}^{L-1} + "
            r"\frac{\gamma_{0}^{2} \beta^{2}}{2\lambda} \left[\sum_{\mu} \Delta_{\mu} "
            r"\phi\left(h_{\mu}\right)\right]^{2} + i \sum_{\mu} \hat{h}_{\mu} h_{\mu}\right)"
        ),
        claim=langevin.k21,
        derived="reduction: equilibrium, density of a layer",
        verdict="agrees",
        why=(
            "As derived. For one hidden layer it is also the stationary density of the Langevin process "
            "of a unit, so that there the two orders of limits agree."
        ),
        evidence=("equilibrium:saddle_point",),
    ),
    Entry(
        source="selfconsistent2023",
        number="K.22",
        title="conjugate kernel of the layer below",
        printed=(
            r"\hat{\boldsymbol{\Phi}}^{L-1} = \lambda \left[\boldsymbol{\Phi}^{L-1} \right]^{-1} - "
            r"\lambda^2 \left[\boldsymbol{\Phi}^{L-1} \right]^{-1} \left\langle \boldsymbol{h}^L "
            r"\boldsymbol{h}^{L\top} \right\rangle \left[\boldsymbol{\Phi}^{L-1} \right]^{-1}"
        ),
        claim=langevin.k22,
        derived="reduction: equilibrium, conjugate_kernel",
        verdict="wrong",
        why=(
            "This is <h_hat h_hat^T>, which (K.19) as printed makes the conjugate kernel; the right "
            "condition divides it by lambda: Phi^{-1} - lambda Phi^{-1} <h h^T> Phi^{-1}. For lambda = 1 "
            "there is no difference."
        ),
        evidence=("equilibrium:saddle_point",),
    ),
    Entry(
        source="selfconsistent2023",
        number="K.23",
        title="recursion of the conjugate kernels",
        printed=(
            r"\mathbf{\Phi}^{\ell} = \left\langle \phi \left(\mathbf{h}^{\ell} \right) \phi "
            r"\left(\mathbf{h}^{\ell} \right)^{\top} \right\rangle , \ \hat{\mathbf{\Phi}}^{\ell-1} = "
            r"\lambda \left[\mathbf{\Phi}^{\ell-1} \right]^{-1} - \lambda^{2} \left[\mathbf{\Phi}^{\ell-1} "
            r"\right]^{-1} \left\langle \mathbf{h}^{\ell} \mathbf{h}^{\ell \top} \right\rangle "
            r"\left[\mathbf{\Phi}^{\ell-1} \right]^{-1}"
        ),
        claim=langevin.k23,
        derived="reduction: equilibrium, conjugate_kernel",
        verdict="wrong",
        why=(
            "As (K.22): too large by the factor lambda in every layer. With it the output of a linear "
            "network with two hidden layers is off at lambda = 0.8; without, it is the exact one."
        ),
        evidence=("equilibrium:saddle_point",),
    ),
)
