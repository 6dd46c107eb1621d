"""Appendices D.5 to D.7: saddle point, auxiliary fields and the complete theory, (D.33)-(D.44)."""

from __future__ import annotations

from derive.ledger.entry import Entry
from derive.ledger.selfconsistent2023.claims import nonlinear

ENTRIES = (
    Entry(
        source="selfconsistent2023",
        number="D.33",
        title="saddle point",
        printed=(
            r"\frac{\delta S}{\delta \hat{\Phi}^{\ell}_{\mu\alpha}(t,s)} = \Phi^{\ell}_{\mu\alpha}(t,s) "
            r"+ \frac{1}{\mathcal{Z}} \frac{\delta \mathcal{Z}}{\delta "
            r"\hat{\Phi}^{\ell}_{\mu\alpha}(t,s)} = \Phi^{\ell}_{\mu\alpha}(t,s) - \left\langle \phi "
            r"\left(h^{\ell}_{\mu}(t) \right) \phi \left(h^{\ell}_{\alpha}(s) \right) \right\rangle = 0 "
            r"\\ \frac{\delta S}{\delta \Phi^{\ell}_{\mu\alpha}(t,s)} = "
            r"\hat{\Phi}^{\ell}_{\mu\alpha}(t,s) + \frac{1}{\mathcal{Z}} \frac{\delta "
            r"\mathcal{Z}}{\delta \Phi^{\ell}_{\mu\alpha}(t,s)} = \hat{\Phi}^{\ell}_{\mu\alpha}(t,s) - "
            r"\frac{1}{2} \left\langle \hat{\chi}^{\ell+1}_{\mu}(t) \hat{\chi}^{\ell+1}_{\alpha}(s) "
            r"\right\rangle = 0 \\ \frac{\delta S}{\delta G^{\ell}_{\mu\alpha}(t,s)} = "
            r"G^{\ell}_{\mu\alpha}(t,s) + \frac{1}{\mathcal{Z}} \frac{\delta \mathcal{Z}}{\delta "
            r"G^{\ell}_{\mu\alpha}(t,s)} = G^{\ell}_{\mu\alpha}(t,s) - \left\langle g^{\ell}_{\mu}(t) "
            r"g^{\ell}_{\alpha}(s) \right\rangle = 0 \\ \frac{\delta S}{\delta "
            r"G^{\ell}_{\mu\alpha}(t,s)} = \hat{G}^{\ell}_{\mu\alpha}(t,s) + \frac{1}{\mathcal{Z}} "
            r"\frac{\delta \mathcal{Z}}{\delta G^{\ell}_{\mu\alpha}(t,s)} = "
            r"\hat{G}^{\ell}_{\mu\alpha}(t,s) - \frac{1}{2} \left\langle \hat{g}^{\ell}_{\mu}(t) "
            r"\hat{g}^{\ell}_{\alpha}(s) \right\rangle = 0 \\ \frac{\delta S}{\delta "
            r"A^{\ell}_{\mu\alpha}(t,s)} = -B^{\ell}_{\mu\alpha}(t,s) + \frac{1}{\mathcal{Z}} "
            r"\frac{\delta \mathcal{Z}}{\delta A^{\ell}_{\mu\alpha}(t,s)} = -B^{\ell}_{\mu\alpha}(t,s) - "
            r"i \left\langle \hat{\chi}^{\ell+1}_{\mu}(t) g^{\ell+1}_{\alpha}(s) \right\rangle = 0 \\ "
            r"\frac{\delta S}{\delta B^{\ell}_{\mu\alpha}(t,s)} = -A^{\ell}_{\mu\alpha}(t,s) + "
            r"\frac{1}{\mathcal{Z}} \frac{\delta \mathcal{Z}}{\delta B^{\ell}_{\mu\alpha}(t,s)} = "
            r"-A^{\ell}_{\mu\alpha}(t,s) - i \left\langle \phi(h^{\ell}_{\mu}(t)) "
            r"\hat{\xi}^{\ell}_{\alpha}(s) \right\rangle = 0"
        ),
        derived="order parameters, conjugates and responses of the theory",
        verdict="misprint",
        why=(
            "The third line (in the text at hand) varies G instead of G_hat, and the fourth must "
            "average xi_hat^{ell-1} xi_hat^{ell-1}, because G^ell multiplies xi_hat^{ell-1} in (D.32); "
            "there is no field g_hat. The four remaining lines are right, including the signs of A and "
            "B. With tilted conjugates, finite differences of the Gaussian action distinguish the "
            "readings."
        ),
        evidence=("saddle_point:conjugate_saddle_points",),
    ),
    Entry(
        source="selfconsistent2023",
        number="D.34",
        title="average over the self-consistent distribution",
        printed=(
            r"\left\langle O\left(\left[\chi,\xi,\hat{\chi},\hat{\xi}\right]\right)\right\rangle = "
            r"\frac{1}{\mathcal{Z}}\int d\chi d\xi d\hat{\chi} d\hat{\xi} "
            r"O\left(\left[\chi,\xi,\hat{\chi},\hat{\xi}\right]\right) "
            r"\exp\left(-\mathcal{H}\left[\chi,\xi,\hat{\chi},\hat{\xi}\right]\right)"
        ),
        derived="averages of the theory",
        verdict="definition",
        why="Definition.",
    ),
    Entry(
        source="selfconsistent2023",
        number="D.35",
        title="correlator of the conjugate forward fields",
        printed=(
            r"\left\langle \hat{\boldsymbol{\chi}}^{\ell+1} \hat{\boldsymbol{\chi}}^{\ell+1} "
            r"\right\rangle = -\frac{\partial^{2}}{\partial \boldsymbol{u} \partial "
            r"\boldsymbol{u}^{\top}} \left\langle \exp \left(i \boldsymbol{u} \cdot "
            r"\hat{\boldsymbol{\chi}}^{\ell+1} \right) \right\rangle |_{\boldsymbol{u}=\boldsymbol{0}} "
            r"\\ = -\frac{1}{\mathcal{Z}} \frac{\partial^{2}}{\partial \boldsymbol{u} \partial "
            r"\boldsymbol{u}^{\top}} \int d\boldsymbol{\chi}^{\ell+1} \dots \exp \left(-\frac{1}{2} "
            r"\left(\boldsymbol{\chi}^{\ell+1} + \boldsymbol{u} - \boldsymbol{A}^{\ell} "
            r"\boldsymbol{g}^{\ell+1} \right)^{\top} \left[\boldsymbol{\Phi}^{\ell} \right]^{-1} "
            r"\left(\boldsymbol{\chi}^{\ell+1} + \boldsymbol{u} - \boldsymbol{A}^{\ell} "
            r"\boldsymbol{g}^{\ell+1} \right) - \dots \right) \\ = \left[\boldsymbol{\Phi}^{\ell} "
            r"\right]^{-1} - \left[\boldsymbol{\Phi}^{\ell} \right]^{-1} \left\langle "
            r"\left(\boldsymbol{\chi}^{\ell+1} - \boldsymbol{A}^{\ell} \boldsymbol{g}^{\ell+1} \right) "
            r"\left(\boldsymbol{\chi}^{\ell+1} - \boldsymbol{A}^{\ell} \boldsymbol{g}^{\ell+1} "
            r"\right)^{\top} \right\rangle \left[\boldsymbol{\Phi}^{\ell} \right]^{-1}"
        ),
        derived="path-integral route, conjugate correlators",
        verdict="agrees",
        why=(
            "Shift by the dummy source and differentiate twice; signs are right (a transpose is missing "
            "on the left)."
        ),
        evidence=("saddle_point:conjugate_correlators",),
    ),
    Entry(
        source="selfconsistent2023",
        number="D.36",
        title="correlator of the conjugate backward fields",
        printed=(
            r"\left\langle \hat{\boldsymbol{\xi}}^{\ell} \hat{\boldsymbol{\xi}}^{\ell} \right\rangle = "
            r"-\frac{\partial^{2}}{\partial \boldsymbol{r} \partial \boldsymbol{r}^{\top}} \left\langle "
            r"\exp\left(i \, \hat{\boldsymbol{r}} \cdot \hat{\boldsymbol{\xi}}^{\ell}\right) "
            r"\right\rangle |_{\boldsymbol{r}=\boldsymbol{0}} \\ = \left[\boldsymbol{G}^{\ell+1} "
            r"\right]^{-1} - \left[\boldsymbol{G}^{\ell+1} \right]^{-1} \left\langle "
            r"\left(\boldsymbol{\xi}^{\ell} - \boldsymbol{B}^{\ell \top} \boldsymbol{\Phi}^{\ell} "
            r"\right) \left(\boldsymbol{\xi}^{\ell} - \boldsymbol{B}^{\ell \top} "
            r"\boldsymbol{\Phi}^{\ell} \right)^{\top} \right\rangle \left[\boldsymbol{G}^{\ell+1} "
            r"\right]^{-1}"
        ),
        derived="path-integral route, conjugate correlators",
        verdict="misprint",
        why=(
            "The field subtracted is B^T phi(h^ell), as in (D.40), not B^T Phi^ell, a matrix where a "
            "vector is needed; the source r wears a hat. With tilted conjugates the correlator found by "
            "differentiating ln Z in G matches the corrected form only."
        ),
        evidence=("saddle_point:conjugate_correlators",),
    ),
    Entry(
        source="selfconsistent2023",
        number="D.37",
        title="correlators that become the responses",
        printed=(
            r"-i\left\langle \hat{\boldsymbol{\chi}}^{\ell+1}\boldsymbol{g}^{\ell+1,\top}\right\rangle = "
            r"\frac{\partial}{\partial\boldsymbol{u}}\left\langle "
            r"\exp\left(-i\,\hat{\boldsymbol{u}}\cdot\hat{\boldsymbol{\chi}}^{\ell+1}\right)"
            r"\boldsymbol{g}^{\ell+1\top}\right\rangle = "
            r"\left[\boldsymbol{\Phi}^{\ell}\right]^{-1}\left\langle "
            r"\left(\boldsymbol{\chi}^{\ell+1}-\boldsymbol{A}^{\ell}\boldsymbol{g}^{\ell+1}\right)"
            r"\boldsymbol{g}^{\ell+1\top}\right\rangle \\ -i\left\langle "
            r"\phi\left(\boldsymbol{h}^{\ell}\right)\hat{\boldsymbol{\xi}}^{\ell\top}\right\rangle = "
            r"\frac{\partial}{\partial\boldsymbol{r}^{\top}}\left\langle "
            r"\phi\left(\boldsymbol{h}\right)\exp\left(-i\,\boldsymbol{r}\cdot\hat{\boldsymbol{"
            r"\xi}}^{\ell}\right)\right\rangle = \left\langle "
            r"\boldsymbol{\Phi}\left(\boldsymbol{h}^{\ell}\right)\left(\boldsymbol{\xi}^{\ell}-"
            r"\boldsymbol{B}^{\ell\top}\boldsymbol{\Phi}\left(\boldsymbol{h}^{\ell}\right)\right)"
            r"\right\rangle \left[\boldsymbol{G}^{\ell+1}\right]^{-1}"
        ),
        derived="path-integral route, conjugate correlators",
        verdict="misprint",
        why=(
            "Signs are right. The source u wears a hat, phi(h) appears as the matrix Phi(h), and the "
            "last bracket lacks its transpose. Differentiating ln Z in B gives <phi(h) (xi - B^T "
            "phi(h))^T> G^{-1}."
        ),
        evidence=("saddle_point:conjugate_correlators",),
    ),
    Entry(
        source="selfconsistent2023",
        number="D.38",
        title="Gaussian as a Fourier transform",
        printed=(
            r"\exp\left(-\frac{1}{2}\boldsymbol{x}^{\top}\boldsymbol{A}\boldsymbol{x}\right) = "
            r"\int_{\mathbb{R}^{d}} \frac{d\boldsymbol{u}}{(2\pi)^{d/2}\sqrt{\det \boldsymbol{A}}} "
            r"\exp\left(-\frac{1}{2}\boldsymbol{u}^{\top}\boldsymbol{A}^{-1}\boldsymbol{u} - "
            r"i\,\boldsymbol{u}\cdot\boldsymbol{x}\right) \\ = \langle "
            r"\exp(-i\,\boldsymbol{u}\cdot\boldsymbol{x})\rangle_{\boldsymbol{u}\sim\mathcal{N}(0,"
            r"\boldsymbol{A})}"
        ),
        derived="path-integral route, Hubbard-Stratonovich",
        verdict="agrees",
        why="Textbook identity for positive definite A; by continuity also for singular kernels.",
        evidence=("path_integral:gaussian_fourier_identity",),
    ),
    Entry(
        source="selfconsistent2023",
        number="D.39",
        title="fields u and r introduced",
        printed=(
            r"\exp\left(-\frac{1}{2}\sum_{\mu\alpha}\int_{0}^{\infty}\mathrm{d}t\int_{0}^{\infty}"
            r"\mathrm{d}s\ \hat{\chi}_{\mu}^{1}(t)\hat{\chi}_{\alpha}^{1}(s)K_{\mu\alpha}^{x}\right) \\ "
            r"=\left\langle\exp\left(-i\sum_{\mu}\int_{0}^{\infty}\mathrm{d}t\ "
            r"u_{\mu}^{1}(t)\hat{\chi}_{\mu}^{\ell+1}(t)\right)\right\rangle_{\{u^{1}\}\sim"
            r"\mathcal{GP}(0,K^{x}\otimes11^{\top})} \\ "
            r"\exp\left(-\frac{1}{2}\sum_{\mu\alpha}\int_{0}^{\infty}\mathrm{d}t\int_{0}^{\infty}"
            r"\mathrm{d}s\ "
            r"\hat{\chi}_{\mu}^{\ell+1}(t)\hat{\chi}_{\alpha}^{\ell+1}(s)\Phi_{\mu\alpha}^{\ell}(t,s)"
            r"\right) \\ =\left\langle\exp\left(-i\sum_{\mu}\int_{0}^{\infty}\mathrm{d}t\ "
            r"u_{\mu}^{\ell+1}(t)\hat{\chi}_{\mu}^{\ell+1}(t)\right)\right\rangle_{\{u^{\ell}\}\sim"
            r"\mathcal{GP}(0,\Phi^{\ell})} \\ "
            r"\exp\left(-\frac{1}{2}\sum_{\mu\alpha}\int_{0}^{\infty}\mathrm{d}t\int_{0}^{\infty}"
            r"\mathrm{d}s\ "
            r"\hat{\xi}_{\mu}^{\ell}(t)\hat{\xi}_{\alpha}^{\ell}(s)G_{\mu\alpha}^{\ell+1}(t,s)\right) \\ "
            r"=\left\langle\exp\left(-i\sum_{\mu}\int_{0}^{\infty}\mathrm{d}t\ "
            r"r_{\mu}^{\ell}(t)\hat{\xi}_{\mu}^{\ell}(t)\right)\right\rangle_{\{r^{\ell}\}\sim"
            r"\mathcal{GP}(0,G^{\ell+1})} \\ "
            r"\exp\left(-\frac{1}{2}\sum_{\mu\alpha}\int_{0}^{\infty}\mathrm{d}t\int_{0}^{\infty}"
            r"\mathrm{d}s\ \hat{\xi}_{\mu}^{L}(t)\hat{\xi}_{\alpha}^{\ell}(s)\right) \\ "
            r"=\left\langle\exp\left(-i\sum_{\mu}\int_{0}^{\infty}\mathrm{d}t\ "
            r"r_{\mu}^{\ell}(t)\hat{\xi}_{\mu}^{\ell}(t)\right)\right\rangle_{\{r^{\ell}\}\sim"
            r"\mathcal{GP}(0,\mathbf{1}\mathbf{1}^{\top})}"
        ),
        derived="path-integral route, Hubbard-Stratonovich",
        verdict="misprint",
        why=(
            "Layer labels slip in three of four lines: chi_hat^1 in the first, {u^{ell+1}} below the "
            "second average, and xi_hat^L, r^L in the last. Evaluate both sides for given conjugate "
            "fields: they agree with these labels and not with the printed ones. (The last covariance "
            "is garbled in the text at hand and taken as 1 1^T.)"
        ),
        evidence=("path_integral:hubbard_labels",),
    ),
    Entry(
        source="selfconsistent2023",
        number="D.40",
        title="integration over the conjugate fields",
        printed=(
            r"\int \prod_{\mu t} \frac{d\hat{\chi}_{\mu}^{\ell}(t)}{2\pi} "
            r"\exp\left(i\hat{\boldsymbol{\chi}}^{\ell} \cdot \left[\boldsymbol{\chi}^{\ell} - "
            r"\boldsymbol{u}^{\ell} - \boldsymbol{A}^{\ell-1}\boldsymbol{g}^{\ell}\right]\right) = "
            r"\delta\left(\boldsymbol{\chi}^{\ell} - \boldsymbol{u}^{\ell} - "
            r"\boldsymbol{A}^{\ell-1}\boldsymbol{g}^{\ell}\right) \\ \int \prod_{\mu t} "
            r"\frac{d\hat{\xi}_{\mu}^{\ell}(t)}{2\pi} \exp\left(i\hat{\boldsymbol{\xi}}^{\ell} \cdot "
            r"\left[\boldsymbol{\xi}^{\ell} - \boldsymbol{r}^{\ell} - "
            r"\boldsymbol{B}^{\ell\top}\phi\left(\boldsymbol{h}^{\ell}\right)\right]\right) = "
            r"\delta\left(\boldsymbol{\xi}^{\ell} - \boldsymbol{r}^{\ell} - "
            r"\boldsymbol{B}^{\ell\top}\phi\left(\boldsymbol{h}^{\ell}\right)\right)"
        ),
        derived="path-integral route, Hubbard-Stratonovich",
        verdict="agrees",
        why=(
            "Collecting i chi_hat chi - i u chi_hat - i chi_hat A g, and likewise for xi with B "
            "transposed, gives the printed delta functions; consistent with (D.32) and (D.33)."
        ),
        evidence=("saddle_point:action_is_stationary",),
    ),
    Entry(
        source="selfconsistent2023",
        number="D.41",
        title="conjugate kernels vanish",
        printed=(
            r"\hat{\boldsymbol{\Phi}}^{\ell} = -\frac{1}{2} \left\langle "
            r"\hat{\boldsymbol{\chi}}^{\ell+1} \hat{\boldsymbol{\chi}}^{\ell+1\top} \right\rangle = "
            r"\frac{1}{2} \left[\boldsymbol{\Phi}^{\ell} \right]^{-1} \left\langle "
            r"\left(\boldsymbol{\chi}^{\ell+1} - \boldsymbol{A}^{\ell} \boldsymbol{g}^{\ell+1} \right) "
            r"\left(\boldsymbol{\chi}^{\ell+1} - \boldsymbol{A}^{\ell} \boldsymbol{g}^{\ell+1} "
            r"\right)^{\top} \right\rangle \left[\boldsymbol{\Phi}^{\ell} \right]^{-1} - \frac{1}{2} "
            r"\left[\boldsymbol{\Phi}^{\ell} \right]^{-1} \\ = \frac{1}{2} "
            r"\left[\boldsymbol{\Phi}^{\ell} \right]^{-1} \left\langle \boldsymbol{u}^{\ell+1} "
            r"\boldsymbol{u}^{\ell+1\top} \right\rangle \left[\boldsymbol{\Phi}^{\ell} \right]^{-1} - "
            r"\frac{1}{2} \left[\boldsymbol{\Phi}^{\ell} \right]^{-1} = 0"
        ),
        derived="path-integral route, conjugates at the saddle point",
        verdict="misprint",
        why=(
            "By (D.33) Phi_hat is plus one half of the correlator; the printed chain has the opposite "
            "overall sign. Harmless, since it is zero at the saddle point, but off it finite "
            "differences of ln Z in Phi give the plus sign."
        ),
        evidence=("saddle_point:conjugate_saddle_points",),
    ),
    Entry(
        source="selfconsistent2023",
        number="D.42",
        title="single-site generating functional after simplification",
        printed=(
            r"\mathcal{Z}[\{\boldsymbol{j}^{\ell}, \boldsymbol{v}^{\ell}\}] \\ = \left\langle \int "
            r"\prod_{\ell} \mathrm{d}\boldsymbol{\chi}^{\ell} \mathrm{d}\boldsymbol{\xi}^{\ell} "
            r"\delta(\boldsymbol{\chi}^{\ell} - \boldsymbol{u}^{\ell} - \boldsymbol{A}^{\ell-1} "
            r"\boldsymbol{g}^{\ell}) \delta(\boldsymbol{\xi}^{\ell} - \boldsymbol{r}^{\ell} - "
            r"\boldsymbol{B}^{\ell} \phi(\boldsymbol{h}^{\ell})) \exp(i \, \boldsymbol{j}^{\ell} \cdot "
            r"\boldsymbol{\chi}^{\ell} + i \, \boldsymbol{v}^{\ell} \cdot \boldsymbol{\xi}^{\ell}) "
            r"\right\rangle_{\{\boldsymbol{u}^{\ell}, \boldsymbol{r}^{\ell}\}}"
        ),
        derived="path-integral route, sources",
        verdict="misprint",
        why=(
            "The sources enter as exp(j.chi + v.xi) in (D.22) and (D.32), without i. With the printed i "
            "the second derivative in j at zero is minus the covariance."
        ),
        evidence=("path_integral:source_convention",),
    ),
    Entry(
        source="selfconsistent2023",
        number="D.43",
        title="responses by integration by parts",
        printed=(
            r"\boldsymbol{A}^{\ell} = \left\langle \phi \left(\boldsymbol{h}^{\ell} \right) "
            r"\boldsymbol{r}^{\ell \top} \right\rangle \left[\boldsymbol{G}^{\ell+1} \right]^{-1} = "
            r"\left\langle \frac{\partial \phi \left(\boldsymbol{h}^{\ell} \right)}{\partial "
            r"\boldsymbol{r}^{\ell \top}} \right\rangle , \ \boldsymbol{B}^{\ell} = \left\langle "
            r"\boldsymbol{g}^{\ell+1} \boldsymbol{u}^{\ell+1} \right\rangle "
            r"\left[\boldsymbol{\Phi}^{\ell} \right]^{-1} = \left\langle \frac{\partial "
            r"\boldsymbol{g}^{\ell+1}}{\partial \boldsymbol{u}^{\ell+1 \top}} \right\rangle"
        ),
        derived="responses of the theory",
        verdict="agrees",
        why=(
            "Stein identity, right where the kernels can be inverted (a transpose is missing on u); the "
            "derivative form holds always."
        ),
        evidence=("saddle_point:stein_identity", "nonlinear:responses_by_parts"),
    ),
    Entry(
        source="selfconsistent2023",
        number="D.44",
        title="complete theory of a deep network",
        printed=(
            r"h_{\mu}^{\ell}(t) = \chi_{\mu}^{\ell}(t) + \gamma_{0} \int_{0}^{t} ds \sum_{\alpha} "
            r"\Delta_{\alpha}(s) \Phi_{\mu\alpha}^{\ell-1}(t,s) z_{\alpha}(s) "
            r"\dot{\phi}\left(h_{\alpha}^{\ell}(s)\right) \\ = u_{\mu}^{\ell}(t) + \gamma_{0} "
            r"\int_{0}^{t} ds \sum_{\alpha} \left[A_{\mu\alpha}^{\ell-1}(t,s) + \Delta_{\alpha}(s) "
            r"\Phi_{\mu\alpha}^{\ell-1}(t,s)\right] \dot{\phi}\left(h_{\alpha}^{\ell}(s)\right) "
            r"z_{\alpha}^{\ell}(s) \\ z_{\mu}^{\ell}(t) = \xi_{\mu}^{\ell}(t) + \gamma_{0} \int_{0}^{t} "
            r"ds \sum_{\alpha} \Delta_{\alpha}(s) G_{\mu\alpha}^{\ell+1}(t,s) "
            r"\phi\left(h_{\alpha}^{\ell}(s)\right) \\ = r_{\mu}^{\ell}(t) + \gamma_{0} \int_{0}^{t} "
            r"\sum_{\alpha} \left[B_{\mu\alpha}^{\ell}(t,s) + \Delta_{\alpha}(s) "
            r"G_{\mu\alpha}^{\ell+1}(t,s)\right] \phi(h_{\alpha}^{\ell}(s)) \\ "
            r"\Phi_{\mu\alpha}^{\ell}(t,s) = \left\langle \phi(h_{\mu}^{\ell}(t)) "
            r"\phi(h_{\alpha}^{\ell}(s)) \right\rangle , G_{\mu\alpha}^{\ell}(t,s) = \left\langle "
            r"g_{\mu}^{\ell}(t) g_{\alpha}^{\ell}(s) \right\rangle \\ A_{\mu\alpha}^{\ell}(t,s) = "
            r"\gamma_{0}^{-1} \left\langle \frac{\delta \phi(h_{\mu}^{\ell}(t))}{\delta "
            r"r_{\alpha}^{\ell}(s)} \right\rangle , B_{\mu\alpha}^{\ell}(t,s) = \gamma_{0}^{-1} "
            r"\left\langle \frac{\delta g_{\mu}^{\ell+1}(t)}{\delta u_{\alpha}^{\ell+1}(s)} "
            r"\right\rangle"
        ),
        claim=nonlinear.d44,
        derived="single-site equations, order parameters and responses of the theory",
        verdict="agrees",
        why=(
            "Agrees for any activation, with the part of B at equal times kept (see 14); in the first line z "
            "lacks its layer index and in the fourth the integral its ds."
        ),
        evidence=("linear:closure_against_networks", "nonlinear:closure_against_networks"),
    ),
)
