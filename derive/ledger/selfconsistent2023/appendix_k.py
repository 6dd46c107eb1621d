"""Appendix K: Langevin dynamics (K.1)-(K.16)."""

from __future__ import annotations

from derive.ledger.entry import Entry
from derive.ledger.selfconsistent2023.claims import langevin

ENTRIES = (
    Entry(
        source="selfconsistent2023",
        number="K.1",
        title="Langevin dynamics",
        printed=(
            r"d\boldsymbol{\theta}(t) = -\gamma^{2} \nabla L(\boldsymbol{\theta}(t)) dt - \lambda "
            r"\beta^{-1} \boldsymbol{\theta}(t) dt + \sqrt{2\beta^{-1}} d\boldsymbol{\epsilon}(t)"
        ),
        derived="",
        verdict="convention",
        why=(
            "The training rule: GradientFlow with decay lambda/beta and diffusion 2/beta, for all weights "
            "alike. Its Gibbs density is that of (K.17)."
        ),
    ),
    Entry(
        source="selfconsistent2023",
        number="K.2",
        title="weights with an integrating factor",
        printed=(
            r"d\left[\boldsymbol{W}^{\ell}(t)e^{\frac{\lambda t}{\beta}}\right] = "
            r"e^{\frac{\lambda}{\beta}t} \left[\frac{\gamma_{0}}{\sqrt{N}} \sum_{\mu} \Delta_{\mu}(t) "
            r"\boldsymbol{g}_{\mu}^{\ell+1}(t) \phi "
            r"\left(\boldsymbol{h}_{\mu}^{\ell}(t)\right)^{\top}\right] dt + \sqrt{2\beta^{-1}} "
            r"e^{\frac{\lambda t}{\beta}} d\boldsymbol{\epsilon}^{\ell}(t)"
        ),
        claim=langevin.k2,
        derived="memory of GradientFlow(decay, diffusion)",
        verdict="agrees",
        why=("Product rule on (K.1); the memory exp(-lambda(t - s)/beta) of the rule is its solution."),
        evidence=("langevin:layer_labels",),
    ),
    Entry(
        source="selfconsistent2023",
        number="K.3",
        title="evolution of the output by Ito's rule",
        printed=(
            r"\frac{\partial f_{\mu}(t)}{\partial t} = \sum_{\alpha} \Delta_{\alpha}(t) K_{\mu\alpha}(t,t) "
            r"- \lambda \beta^{-1} \sum_{\ell} \left\langle z_{\mu}^{\ell}(t) \phi \left(h_{\mu}^{\ell}(t) "
            r"\right) \right\rangle \\ + \beta^{-1} \sum_{\ell} \left\langle r_{\mu}^{\ell+1}(t) "
            r"\right\rangle \left\langle \phi \left(h_{\mu}^{\ell}(t)\right)^{2} \right\rangle"
        ),
        claim=langevin.k3,
        derived="reduction: output rate with decay and noise, any depth",
        verdict="wrong",
        why=(
            "The second and third term both lack 1/gamma0, as does the Hessian N^{-2} r phi^2 above them: "
            "f is h^{L+1}/gamma. The sums run over l = 0..L with <g^1 h^1> for l = 0, and over l = 0..L-1 "
            "with K^x for <phi^2> at l = 0 (the output is linear in the readout). Differences of a "
            "network's output, weight by weight, show both factors."
        ),
        evidence=("langevin:output_by_ito",),
    ),
    Entry(
        source="selfconsistent2023",
        number="K.4",
        title="fields with decay and noise",
        printed=(
            r"\boldsymbol{h}_{\mu}^{\ell+1}(t) = e^{-\frac{\lambda}{\beta}t} "
            r"\boldsymbol{\chi}_{\mu}^{\ell+1}(t) \\ + \int_{0}^{t} e^{-\frac{\lambda}{\beta}(t-s)} "
            r"\left[\mathrm{d}s \frac{\gamma_{0}}{N} \sum_{\alpha} \Delta_{\alpha}(s) "
            r"\boldsymbol{g}_{\alpha}^{\ell+1}(s) \phi \left(\boldsymbol{h}_{\alpha}^{\ell}(s) "
            r"\right)^{\top} + \sqrt{\frac{2}{\beta N}} \mathrm{d}\boldsymbol{\epsilon}^{\ell}(s) \right] "
            r"\phi \left(\boldsymbol{h}_{\mu}^{\ell}(t) \right) \\ \boldsymbol{z}_{\mu}^{\ell+1}(t) = "
            r"e^{-\frac{\lambda}{\beta}t} \boldsymbol{\xi}_{\mu}^{\ell+1}(t) \\ + \int_{0}^{t} "
            r"e^{-\frac{\lambda}{\beta}(t-s)} \left[\mathrm{d}s \frac{\gamma_{0}}{N} \sum_{\alpha} "
            r"\Delta_{\alpha}(s) \boldsymbol{g}_{\alpha}^{\ell+1}(s) \phi "
            r"\left(\boldsymbol{h}_{\alpha}^{\ell}(s) \right)^{\top} + \sqrt{\frac{2}{\beta N}} "
            r"\mathrm{d}\boldsymbol{\epsilon}^{\ell}(s) \right]^{\top} \boldsymbol{g}_{\mu}^{\ell+1}(t)"
        ),
        claim=langevin.k4,
        derived="theory of mlp(rule='flow', weight_decay, temperature)",
        verdict="misprint",
        why=(
            "The left-hand sides of the second equation must be z^l and xi^l, as its right-hand side, "
            "(K.5) and (K.14) have it: W^l transposed leads from layer l + 1 to layer l."
        ),
        evidence=("langevin:layer_labels",),
    ),
    Entry(
        source="selfconsistent2023",
        number="K.5",
        title="fields from the Brownian motion",
        printed=(
            r"\boldsymbol{\chi}_{\mu}^{\epsilon,\ell}(t) = \sqrt{\frac{2}{\beta N}} \int_{0}^{\infty} ds \ "
            r"e^{-\frac{\lambda}{\beta}(t-s)} \Theta(t-s) d\boldsymbol{\epsilon}^{\ell}(s) \, "
            r"\phi\left(\boldsymbol{h}_{\mu}^{\ell}(t)\right) \\ \boldsymbol{\xi}_{\mu}^{\epsilon,\ell}(t) "
            r"= \sqrt{\frac{2}{\beta N}} \int_{0}^{\infty} ds \ e^{-\frac{\lambda}{\beta}(t-s)} "
            r"\Theta(t-s) d\boldsymbol{\epsilon}^{\ell}(s)^{\top} \boldsymbol{g}_{\mu}^{\ell+1}(t)"
        ),
        claim=langevin.k5,
        derived="sources of the noise: two_sources of the theory",
        verdict="misprint",
        why=(
            "The first field belongs to layer l + 1, as in (K.7), (K.10) and (K.12): the noise of W^l on "
            "phi(h^l) enters h^{l+1}. (ds stands beside d epsilon, which is already an increment.)"
        ),
        evidence=("langevin:layer_labels",),
    ),
    Entry(
        source="selfconsistent2023",
        number="K.6",
        title="generating function with noise",
        printed=(
            r"Z = \left\langle \exp\left(\sum_{\ell\mu} \int_0^\infty \left[\boldsymbol{j}_{\mu}^{\ell}(t) "
            r"\cdot \boldsymbol{\chi}_{\mu}^{\ell}(t) + \boldsymbol{v}_{\mu}^{\ell}(t) \cdot "
            r"\boldsymbol{\xi}_{\mu}^{\ell}(t) + \boldsymbol{j}_{\mu}^{\epsilon,\ell}(t) \cdot "
            r"\boldsymbol{\chi}_{\mu}^{\epsilon,\ell}(t) + \boldsymbol{v}_{\mu}^{\epsilon,\ell}(t) \cdot "
            r"\boldsymbol{\xi}_{\mu}^{\epsilon\ell}(t) \right] \right) "
            r"\right\rangle_{\boldsymbol{\theta}_0, \boldsymbol{\epsilon}(t)}"
        ),
        derived="",
        verdict="definition",
        why=("Definition; the measure dt is missing."),
    ),
    Entry(
        source="selfconsistent2023",
        number="K.7",
        title="average over the Brownian motion",
        printed=(
            r"\ln \left\langle \exp \left(i \sqrt{\frac{2}{\beta N}} \sum_{\mu} \int_{0}^{\infty} "
            r"\mathrm{d}t \ \mathrm{Tr} \left[\hat{\boldsymbol{\chi}}_{\mu}^{\epsilon,\ell+1}(t) \phi "
            r"\left(\boldsymbol{h}_{\mu}^{\ell}(t) \right)^{\top} + \boldsymbol{g}_{\mu}^{\ell+1}(t) "
            r"\hat{\boldsymbol{\xi}}_{\mu}^{\epsilon,\ell}(t)^{\top} \right] \int "
            r"e^{-\frac{\lambda}{\beta}(t-s)} \Theta \left(t-s \right) \mathrm{d}\boldsymbol{\epsilon} "
            r"\left(s \right) \right) \right\rangle_{\boldsymbol{\epsilon}(t)} \\ = -\frac{1}{\beta N} "
            r"\int_{0}^{\infty} \mathrm{d}s \left| \int \mathrm{d}t \ \Theta \left(t-s \right) "
            r"e^{-\frac{\lambda}{\beta}(t-s)} \sum_{\mu} "
            r"\left[\hat{\boldsymbol{\chi}}_{\mu}^{\epsilon,\ell+1}(t) \phi "
            r"\left(\boldsymbol{h}_{\mu}^{\ell}(t) \right)^{\top} + \boldsymbol{g}_{\mu}^{\ell+1}(t) "
            r"\hat{\boldsymbol{\xi}}_{\mu}^{\epsilon,\ell}(t)^{\top} \right] \right|^{2} \\ = "
            r"-\frac{1}{\beta} \int_{0}^{\infty} \mathrm{d}s \int_{0}^{\infty} \mathrm{d}t "
            r"\int_{0}^{\infty} \mathrm{d}t' \Theta \left(t-s \right) \Theta \left(t'-s \right) "
            r"e^{-\frac{\lambda}{\beta}(t-s+t'-s)} \\ \times \sum_{\mu\alpha} "
            r"\left[\hat{\boldsymbol{\chi}}_{\mu}^{\epsilon,\ell+1}(t) \cdot "
            r"\hat{\boldsymbol{\chi}}_{\alpha}^{\epsilon,\ell+1}(t') \Phi_{\mu\alpha}^{\ell}(t,t') + "
            r"\hat{\boldsymbol{\xi}}_{\mu}^{\epsilon,\ell}(t) \cdot "
            r"\hat{\boldsymbol{\xi}}_{\alpha}^{\epsilon,\ell}(t') G_{\mu\alpha}^{\ell+1}(t,t') + 2i "
            r"\hat{\boldsymbol{\chi}}_{\mu}^{\epsilon,\ell+1}(t) \cdot "
            r"\boldsymbol{g}_{\alpha}^{\ell+1}(t') A_{\mu\alpha}^{\epsilon,\ell}(t,t') \right] \\ = "
            r"-\frac{1}{2\lambda} \int_{0}^{\infty} \mathrm{d}t \int_{0}^{\infty} \mathrm{d}t' \exp "
            r"\left(-\frac{\lambda}{\beta}(t+t') \right) \left[e^{2\frac{\lambda}{\beta} \min \left\{ t,t' "
            r"\right\}} - 1 \right] \\ \times \sum_{\mu\alpha} "
            r"\left[\hat{\boldsymbol{\chi}}_{\mu}^{\epsilon,\ell+1}(t) \cdot "
            r"\hat{\boldsymbol{\chi}}_{\alpha}^{\epsilon,\ell+1}(t') \Phi_{\mu\alpha}^{\ell}(t,t') + "
            r"\hat{\boldsymbol{\xi}}_{\mu}^{\epsilon,\ell}(t) \cdot "
            r"\hat{\boldsymbol{\xi}}_{\alpha}^{\epsilon,\ell}(t') G_{\mu\alpha}^{\ell+1}(t,t') + 2i "
            r"\hat{\boldsymbol{\chi}}_{\mu}^{\epsilon,\ell+1}(t) \cdot "
            r"\boldsymbol{g}_{\alpha}^{\ell+1}(t') A_{\mu\alpha}^{\epsilon,\ell}(t,t') \right]"
        ),
        claim=langevin.k7,
        derived="noise of GradientFlow(decay, diffusion); path integral, average",
        verdict="agrees",
        why=(
            "Gaussian average of a white noise; the prefactor is the covariance that the engine finds "
            "from the rule's recursion, (1/lambda) exp(-lambda |t - t'|/beta) at long times. In the first "
            "line the bracket must be transposed under the trace; below the display the order parameter "
            "has s for t'."
        ),
        evidence=("langevin:responses_to_noise",),
    ),
    Entry(
        source="selfconsistent2023",
        number="K.8",
        title="partition function with noise",
        printed=(
            r"Z \propto \int d\Phi^{\ell}_{\mu\alpha}(t,s) d\hat{\Phi}^{\ell}_{\mu\alpha}(t,s) "
            r"dG^{\ell}_{\mu\alpha}(t,s) dG^{\ell}_{\mu\alpha}(t,s) dA^{\ell}_{\mu\alpha}(t,s) "
            r"dA^{\ell}_{\mu\alpha} \dots"
        ),
        derived="",
        verdict="definition",
        why=(
            "The text at hand breaks off within the measure (which names G and A twice, for G_hat and B "
            "or A^eps); the saddle point (K.9) that follows is judged there."
        ),
    ),
    Entry(
        source="selfconsistent2023",
        number="K.9",
        title="saddle point in the responses to the noise",
        printed=(
            r"\frac{\delta S}{\delta A_{\mu\alpha}^{\epsilon,\ell}(t,s)} = "
            r"-B_{\mu\alpha}^{\epsilon,\ell}(t,s) - iC_{\lambda,\beta}(t,s) \left\langle "
            r"\hat{\chi}_{\mu}^{\epsilon,\ell+1}(t) g_{\alpha}^{\ell+1}(s) \right\rangle = 0 \\ "
            r"\frac{\delta S}{\delta B_{\mu\alpha}^{\epsilon,\ell}(t,s)} = "
            r"-A_{\mu\alpha}^{\epsilon,\ell}(t,s) - iC_{\lambda,\beta}(t,s) \left\langle \phi "
            r"\left(h_{\mu}^{\ell}(t) \right) \hat{\xi}_{\alpha}^{\epsilon,\ell}(s) \right\rangle = 0"
        ),
        claim=langevin.k9,
        derived="path integral: saddle point of the responses",
        verdict="misprint",
        why=(
            "C belongs into one of the two: A^eps as defined below (K.7) is -i <phi xi_hat> without C, "
            "and the cross term of (K.7) brings C when it meets g. With C in the second line as well it "
            "would count twice in h. (K.12) and (K.13), where A^eps contains C and meets g without it, "
            "are right. Networks reject C twice."
        ),
        evidence=("langevin:responses_to_noise",),
    ),
    Entry(
        source="selfconsistent2023",
        number="K.10",
        title="Brownian field of the forward pass",
        printed=(
            r"\exp\left(-\frac{1}{2}\int_{0}^{\infty} dt \int_{0}^{\infty} ds \ C_{\lambda,\beta}(t,s) "
            r"\sum_{\mu\alpha} \hat{\chi}_{\mu}^{\epsilon,\ell+1}(t) "
            r"\hat{\chi}_{\alpha}^{\epsilon,\ell+1}(s) \Phi_{\mu\alpha}^{\ell}(t,s)\right) \\ = "
            r"\left\langle \exp\left(-i \sum_{\mu} \int_{0}^{\infty} dt \ u_{\mu}^{\epsilon,\ell+1}(t) "
            r"\hat{\chi}_{\mu}^{\epsilon,\ell+1}(t)\right) \right\rangle_{u_{\mu}^{\epsilon,\ell+1}(t) "
            r"\sim \mathcal{GP}(0,C \odot \Phi^{\ell})}"
        ),
        claim=langevin.k10,
        derived="two_sources: covariance of u_eps",
        verdict="agrees",
        why=("The covariance of the engine's source for the noise."),
        evidence=("langevin:responses_to_noise",),
    ),
    Entry(
        source="selfconsistent2023",
        number="K.11",
        title="Brownian field of the backward pass",
        printed=(
            r"\exp\left(-\frac{1}{2}\int_{0}^{\infty} dt \int_{0}^{\infty} ds \ C_{\lambda,\beta}(t,s) "
            r"\sum_{\mu\alpha} \hat{\xi}_{\mu}^{\epsilon,\ell}(t) \hat{\xi}_{\alpha}^{\epsilon,\ell}(s) "
            r"G_{\mu\alpha}^{\ell+1}(t,s)\right) \\ = \left\langle \exp\left(-i \sum_{\mu} "
            r"\int_{0}^{\infty} dt \ r_{\mu}^{\epsilon,\ell}(t) \hat{\xi}_{\mu}^{\epsilon,\ell}(t)\right) "
            r"\right\rangle_{r_{\mu}^{\epsilon,\ell}(t) \sim \mathcal{GP}(0,C \odot G^{\ell+1})}"
        ),
        claim=langevin.k11,
        derived="two_sources: covariance of r_eps",
        verdict="agrees",
        why=("As (K.10), backwards."),
        evidence=("langevin:responses_to_noise",),
    ),
    Entry(
        source="selfconsistent2023",
        number="K.12",
        title="Brownian fields and their responses",
        printed=(
            r"\boldsymbol{\chi}^{\epsilon,\ell+1} = \boldsymbol{u}^{\epsilon,\ell+1} + "
            r"\boldsymbol{A}^{\epsilon,\ell+1} \boldsymbol{g}^{\ell+1} , \ "
            r"\boldsymbol{\xi}^{\epsilon,\ell} = \boldsymbol{r}^{\epsilon,\ell} + "
            r"\boldsymbol{B}^{\epsilon,\ell\top} \phi \left(\boldsymbol{h}^{\ell} \right)"
        ),
        claim=langevin.k12,
        derived="two_sources of the theory",
        verdict="agrees",
        why=("As derived. A^{eps,l+1} here and in (K.13) is A^{eps,l} of (K.9) and (K.14)."),
        evidence=("langevin:responses_to_noise",),
    ),
    Entry(
        source="selfconsistent2023",
        number="K.13",
        title="responses to the noise",
        printed=(
            r"\boldsymbol{A}^{\epsilon,\ell+1} = \boldsymbol{C}_{\lambda,\beta} \odot \left\langle "
            r"\frac{\partial \phi \left(\boldsymbol{h}^{\ell} \right)}{\partial "
            r"\boldsymbol{r}^{\epsilon,\ell}} \right\rangle , \ \boldsymbol{B}^{\epsilon\ell} = "
            r"\boldsymbol{C}_{\lambda,\beta} \odot \left\langle \frac{\partial "
            r"\boldsymbol{g}^{\ell+1}}{\partial \boldsymbol{u}^{\ell+1}} \right\rangle^{\top}"
        ),
        claim=langevin.k13,
        derived="two_sources: definitions of A_eps and B_eps",
        verdict="misprint",
        why=(
            "The second response is to u^eps, like the first to r^eps: h contains exp(-lambda t/beta) u + "
            "u^eps, so that a response to u is smaller by exp(-lambda s/beta). Networks tell the two "
            "apart."
        ),
        evidence=("langevin:responses_to_noise",),
    ),
    Entry(
        source="selfconsistent2023",
        number="K.14",
        title="complete theory of Langevin dynamics",
        printed=(
            r"\left\{u_{\mu}^{\ell}(t)\right\} \sim \mathcal{GP}\left(0,\Phi^{\ell-1}\right) \;,\; "
            r"\left\{r_{\mu}^{\ell}(t)\right\} \sim \mathcal{GP}\left(0,G^{\ell+1}\right) \\ "
            r"\left\{u_{\mu}^{\epsilon,\ell}(t)\right\} \sim "
            r"\mathcal{GP}\left(0,C_{\lambda,\beta}\odot\Phi^{\ell-1}\right) \;,\; "
            r"\left\{r_{\mu}^{\epsilon,\ell}(t)\right\} \sim \mathcal{GP}\left(0,C_{\lambda,\beta}\odot "
            r"G^{\ell+1}\right) \\ h_{\mu}^{\ell}(t) = e^{-\frac{\lambda}{\beta}t} \left[u_{\mu}^{\ell}(t) "
            r"+ \gamma_{0} \int_{0}^{t} \mathrm{d}s \sum_{\alpha} A_{\mu\alpha}^{\ell-1}(t,s) \, "
            r"g_{\alpha}^{\ell}(s)\right] \\ + u_{\mu}^{\epsilon,\ell}(t) + \gamma_{0} \int_{0}^{t} "
            r"\mathrm{d}s \; \sum_{\alpha} \left[A_{\mu\alpha}^{\epsilon,\ell-1}(t,s) + "
            r"e^{-\frac{\lambda}{\beta}(t-s)} \Delta_{\alpha}(s) \, \Phi_{\mu\alpha}^{\ell-1}(t,s)\right] "
            r"g_{\alpha}^{\ell}(s) \\ z_{\mu}^{\ell}(t) = e^{-\frac{\lambda}{\beta}t} "
            r"\left[r_{\mu}^{\ell}(t) + \gamma_{0} \int_{0}^{t} \mathrm{d}s \; \sum_{\alpha} "
            r"B_{\mu\alpha}^{\ell}(t,s) \, g_{\alpha}^{\ell}(s)\right] \\ + r_{\mu}^{\epsilon,\ell}(t) + "
            r"\gamma_{0} \int_{0}^{t} \mathrm{d}s \; \sum_{\alpha} "
            r"\left[B_{\mu\alpha}^{\epsilon,\ell}(t,s) + e^{-\frac{\lambda}{\beta}(t-s)} "
            r"\Delta_{\alpha}(s) G_{\mu\alpha}^{\ell+1}(t,s)\right] \phi(h_{\alpha}^{\ell}(s))"
        ),
        claim=langevin.k14,
        derived="two_sources of mlp(rule='flow', weight_decay, temperature)",
        verdict="misprint",
        why=(
            "In the first bracket of z the response B must multiply phi(h), as in (J.2), (K.12) and the "
            "line below. The rest is the derived theory with start and noise as two sources; with one "
            "source of covariance (exp(-lambda(t + s)/beta) + C) Phi the engine says the same."
        ),
        evidence=("langevin:responses_to_noise",),
    ),
    Entry(
        source="selfconsistent2023",
        number="K.15",
        title="stationary kernels, forward",
        printed=(
            r"H_{\mu\alpha}^{1}(\tau) = C_{\lambda,\beta}(\tau) K_{\mu\alpha}^{x} , \quad "
            r"\Phi_{\mu\alpha}^{1}(\tau) = \left\langle \phi(h) \phi(h') \right\rangle_{h,h' \sim "
            r"\mathcal{N}(0,\mathbf{H}^{1})} , \quad \mathbf{H}^{1} = \begin{bmatrix} H_{\mu\mu}^{1}(0) & "
            r"H_{\mu\alpha}^{1}(\tau) \\ H_{\mu\alpha}^{1}(\tau) & H_{\alpha\alpha}^{1}(0) \end{bmatrix} "
            r"\\ H_{\mu\alpha}^{\ell+1}(\tau) = C_{\lambda,\beta}(\tau) \Phi_{\mu\alpha}^{\ell}(\tau) , "
            r"\quad \Phi_{\mu\alpha}^{\ell+1}(t,s) = \left\langle \phi(h) \phi(h') \right\rangle_{h,h' "
            r"\sim \mathcal{N}(0,\mathbf{H}^{\ell+1})} \\ \mathbf{H}^{\ell+1} = \begin{bmatrix} "
            r"H_{\mu\mu}^{\ell+1}(0) & H_{\mu\alpha}^{\ell+1}(\tau) \\ H_{\mu\alpha}^{\ell+1}(\tau) & "
            r"H_{\alpha\alpha}^{\ell+1}(0) \end{bmatrix}"
        ),
        claim=langevin.k15,
        derived="reduction: stationary kernels at weak feature learning",
        verdict="agrees",
        why=(
            "The derived recursion: memory carries gamma0, and the responses vanish on the sources by "
            "their own chain rule and symmetry. Closed for linear, rectified and error-function units. "
            "(In the text at hand H^1 has an entry too many; Phi^{l+1}(t,s) is Phi^{l+1}(tau).)"
        ),
        evidence=("stationary:stationary_kernels", "rest:long_times"),
    ),
    Entry(
        source="selfconsistent2023",
        number="K.16",
        title="stationary kernels, backward",
        printed=(
            r"Z^L_{\mu\alpha}(\tau) = C_{\lambda,\beta}(\tau) \;\;,\;\; G^L_{\mu\alpha}(\tau) = "
            r"\dot{\Phi}^L_{\mu\alpha}(\tau) \;Z^L_{\mu\alpha}(\tau) \;\;,\;\; "
            r"\dot{\Phi}^L_{\mu\alpha}(\tau) = \left\langle \dot{\phi}(h) \,\dot{\phi}\left(h'\right) "
            r"\right\rangle_{h,h' \sim \mathcal{N}\left(0,\mathbf{H}^L\right)} \\ Z^\ell_{\mu\alpha}(\tau) "
            r"= C_{\lambda,\beta}(\tau) \,G^{\ell+1}_{\mu\alpha}(\tau) \;\;,\;\; G^\ell_{\mu\alpha}(\tau) "
            r"= \dot{\Phi}^\ell_{\mu\alpha}(\tau) \,Z^\ell_{\mu\alpha}(\tau) \;\;,\;\; "
            r"\dot{\Phi}^\ell_{\mu\alpha}(\tau) = \left\langle \dot{\phi}(h) \,\dot{\phi}\left(h'\right) "
            r"\right\rangle_{h,h' \sim \mathcal{N}\left(0,\mathbf{H}^\ell\right)}"
        ),
        claim=langevin.k16,
        derived="reduction: stationary kernels at weak feature learning",
        verdict="agrees",
        why=("The derived recursion, from the last layer down."),
        evidence=("stationary:stationary_kernels", "rest:long_times"),
    ),
)
