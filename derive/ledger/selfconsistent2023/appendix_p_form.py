"""Appendix P.6: the form of the leading corrections (P.20)-(P.26)."""

from __future__ import annotations

from derive.ledger.entry import Entry
from derive.ledger.selfconsistent2023.claims import perturbation

_BACKWARD = ("perturbation_kernels:backward_kernels", "perturbation_networks:kernels_of_networks")

ENTRIES = (
    Entry(
        source="selfconsistent2023",
        number="P.20",
        title="second order of Phi^ell",
        printed=(
            r"\Phi^{\ell,2} = \frac{1}{2} \frac{\partial^{2}}{\partial \gamma_{0}^{2}} |_{\gamma_{0}=0} "
            r"\left\langle \phi \left(\mathbf{h}^{\ell} \left(\mathbf{u}_{0}, \mathbf{r}_{0}, \gamma_{0} "
            r"\right) \right) \phi \left(\mathbf{h}^{\ell} \left(\mathbf{u}_{0}, \mathbf{r}_{0}, \gamma_{0} "
            r"\right) \right)^{\top} \right\rangle_{\mathbf{u}_{0}, \mathbf{r}_{0}} \\ + \frac{1}{2} "
            r"\operatorname{Tr} \left[\Phi^{\ell-1,2} \left\langle \frac{\partial^{2}}{\partial "
            r"\mathbf{u}_{0} \partial \mathbf{u}_{0}^{\top}} \left[\phi \left(\mathbf{u}_{0} \right) \phi "
            r"\left(\mathbf{u}_{0} \right)^{\top} \right] \right\rangle_{\mathbf{u}_{0}} \right]"
        ),
        claim=perturbation.p20,
        derived="Phi of the series solution, order 2, every layer",
        verdict="agrees",
        why="Exact in every layer.",
        evidence=("perturbation_kernels:forward_kernels",),
    ),
    Entry(
        source="selfconsistent2023",
        number="P.21",
        title="orders of phi(h) and g; the operators at order zero",
        printed=(
            r"\phi\left(\boldsymbol{u}+\gamma_{0}\boldsymbol{C}^{\ell}\boldsymbol{g}^{\ell}\right)\sim\phi"
            r"\left(\boldsymbol{u}\right)+\gamma_{0}\dot{\phi}\left(\boldsymbol{u}\right)\odot\left["
            r"\boldsymbol{C}^{\ell}\boldsymbol{g}^{\ell}\right]+\frac{\gamma_{0}^{2}}{2}\ddot{\phi}\left("
            r"\boldsymbol{u}\right)\odot\left[\boldsymbol{C}^{\ell}\boldsymbol{g}^{\ell}\right]^{2} \\ \sim"
            r"\phi\left(\boldsymbol{u}\right)+\gamma_{0}\dot{\phi}\left(\boldsymbol{u}\right)\odot\left["
            r"\boldsymbol{C}^{\ell,0}\boldsymbol{g}^{\ell,0}\right]+\gamma_{0}^{2}\dot{\phi}\left("
            r"\boldsymbol{u}\right)\odot\left[\boldsymbol{C}^{\ell,0}\boldsymbol{g}^{\ell,1}\right]+\frac{"
            r"\gamma_{0}^{2}}{2}\ddot{\phi}\left(\boldsymbol{u}\right)\odot\left[\boldsymbol{C}^{\ell,0}"
            r"\boldsymbol{g}^{\ell,0}\right]^{2} \\ \dot{\phi}\left(\boldsymbol{h}^{\ell}\right)\odot"
            r"\boldsymbol{z}^{\ell}\sim\dot{\phi}\left(\boldsymbol{u}\right)\odot\boldsymbol{r}+\gamma_{0}"
            r"\ddot{\phi}\left(\boldsymbol{u}\right)\odot\left[\boldsymbol{C}^{\ell,0}\boldsymbol{g}^{"
            r"\ell,0}\right]\odot\boldsymbol{r}+\gamma_{0}\dot{\phi}\left(\boldsymbol{u}\right)\odot\left["
            r"\boldsymbol{D}^{\ell,0}\boldsymbol{\phi}\left(\boldsymbol{u}\right)\right]+\mathcal{O}\left("
            r"\gamma_{0}^{2}\right) \\ C_{\mu\alpha}^{\ell,0}\left(t,s\right)=A_{\mu\alpha}^{\ell-1,1}"
            r"\left(t,s\right)+\Theta\left(t-s\right)\Delta_{\alpha}^{0}\left(s\right)\Phi_{\mu\alpha}^{"
            r"\ell-1,0}\left(t,s\right) \\ D_{\mu\alpha}^{\ell,0}\left(t,s\right)=B_{\mu\alpha}^{\ell,1}"
            r"\left(t,s\right)+\Theta\left(t-s\right)\Delta_{\alpha}^{0}\left(s\right)\Phi_{\mu\alpha}^{"
            r"\ell-1,0}\left(t,s\right)"
        ),
        claim=perturbation.p21,
        derived="operators read off the derived equations, order 0, every layer",
        verdict="misprint",
        why=(
            "D holds G^{ell+1,0}, not Phi^{ell-1,0}: see (13). A and B of (14) are divided by gamma0 "
            "already, so their order zero enters; their first order is zero. (Where A and B are not "
            "divided, as in algorithm 1, the superscript 1 is right.) The expansions of phi(h) and g are "
            "exact."
        ),
        evidence=("perturbation:first_orders",),
    ),
    Entry(
        source="selfconsistent2023",
        number="P.22",
        title="Phi^ell to order gamma0^2, term by term",
        printed=(
            r"\Phi^{\ell} = \Phi^{\ell,0} + \gamma_0^2 \left\langle \left[\dot{\phi}(\boldsymbol{u}) \odot "
            r"\left(\boldsymbol{C}^{\ell,0} \boldsymbol{g}^{\ell,0} \right) \right] "
            r"\left[\dot{\phi}(\boldsymbol{u}) \odot \left(\boldsymbol{C}^{\ell,0} \boldsymbol{g}^{\ell,0} "
            r"\right) \right]^{\top} \right\rangle \\ + \gamma_0^2 \left\langle "
            r"\left[\dot{\phi}(\boldsymbol{u}) \odot \left(\boldsymbol{C}^{\ell,0} "
            r"\left[\ddot{\phi}(\boldsymbol{u}) \odot \left[\boldsymbol{C}^{\ell,0} \boldsymbol{g}^{\ell,0} "
            r"\right] \odot \boldsymbol{r} \right] \right) \right] \phi(\boldsymbol{u})^{\top} "
            r"\right\rangle + \text{transpose} \\ + \gamma_0^2 \left\langle "
            r"\left[\dot{\phi}(\boldsymbol{u}) \odot \left(\boldsymbol{C}^{\ell,0} "
            r"\left[\dot{\phi}(\boldsymbol{u}) \odot \left[\boldsymbol{D}^{\ell,0} \phi(\boldsymbol{u}) "
            r"\right] \right] \right) \right] \phi(\boldsymbol{u})^{\top} \right\rangle + \text{transpose} "
            r"\\ + \frac{\gamma_0^2}{2} \left\langle \left[\ddot{\phi}(\boldsymbol{u}) \odot "
            r"\left[\boldsymbol{C}^{\ell,0} \boldsymbol{g}^{\ell,0} \right]^2 \right] "
            r"\phi(\boldsymbol{u})^{\top} \right\rangle + \text{transpose} \\ + \frac{\gamma_0^2}{2} "
            r"\text{Tr} \left[\Phi^{\ell-1,2} \left\langle \frac{\partial^2}{\partial \boldsymbol{u} "
            r"\partial \boldsymbol{u}^{\top}} \left[\phi(\boldsymbol{u}) \phi(\boldsymbol{u})^{\top} "
            r"\right] \right\rangle_{\boldsymbol{u} \sim \mathcal{GP}(0, \Phi^{\ell-1,0})} \right] + "
            r"\mathcal{O}\left(\gamma_0^4\right)"
        ),
        claim=perturbation.p22,
        derived="Phi of the series solution, order 2, every layer",
        verdict="agrees",
        why="Exact in every layer, all terms; networks of finite width agree.",
        evidence=("perturbation_kernels:forward_kernels", "perturbation_networks:kernels_of_networks"),
    ),
    Entry(
        source="selfconsistent2023",
        number="P.22 text",
        title="growth of Phi^{ell,2} with the layer",
        printed=r"\Phi^{\ell,2} \sim \mathcal{O}(\ell)",
        claim=perturbation.p22_text,
        derived="series solution of six layers; derive.expansion for linear networks",
        verdict="wrong",
        why=(
            "The last term of (P.22) multiplies Phi^{ell-1,2} by the slope of the kernel map, which is 1 "
            "for linear networks only; and the other terms depend on the layer through A and B. For given v "
            "linear networks have ell(ell+1)(2ell+1)/6 and ell(ell+1)(3L+2-2ell)/6 in place of ell (P.4), "
            "others grow geometrically."
        ),
        evidence=("perturbation_depth:growth_with_layers",),
    ),
    Entry(
        source="selfconsistent2023",
        number="P.23",
        title="G^ell with the kernel above moved",
        printed=(
            r"G^{\ell} = \left\langle \boldsymbol{g}^{\ell} \left(\boldsymbol{u}, \boldsymbol{r} \right) "
            r"\boldsymbol{g}^{\ell} \left(\boldsymbol{u}, \boldsymbol{r} \right)^{\top} "
            r"\right\rangle_{\boldsymbol{u} \sim \mathcal{GP}\left(0, \Phi^{\ell-1,0}\right) \boldsymbol{r} "
            r"\sim \mathcal{GP}\left(0, G^{\ell+1,0}\right)} \\ + \frac{\gamma_{0}^{2}}{2} "
            r"\operatorname{Tr} \left[\boldsymbol{G}^{\ell+1,2} \left\langle \frac{\partial^{2}}{\partial "
            r"\boldsymbol{r} \partial \boldsymbol{r}^{\top}} \left[\left(\dot{\boldsymbol{\phi}} "
            r"\left(\boldsymbol{u} \right) \odot \boldsymbol{r} \right) \left(\dot{\boldsymbol{\phi}} "
            r"\left(\boldsymbol{u} \right) \odot \boldsymbol{r} \right)^{\top} \right] "
            r"\right\rangle_{\boldsymbol{u} \sim \mathcal{GP}\left(0, \Phi^{\ell-1,0}\right) \boldsymbol{r} "
            r"\sim \mathcal{GP}\left(0, G^{\ell+1,0}\right)} \right] + "
            r"\mathcal{O}\left(\gamma_{0}^{4}\right) \\ = \left\langle \boldsymbol{g}^{\ell} "
            r"\left(\boldsymbol{u}, \boldsymbol{r} \right) \boldsymbol{g}^{\ell} \left(\boldsymbol{u}, "
            r"\boldsymbol{r} \right)^{\top} \right\rangle_{\boldsymbol{u} \sim \mathcal{GP}\left(0, "
            r"\Phi^{\ell-1,0}\right) \boldsymbol{r} \sim \mathcal{GP}\left(0, G^{\ell+1,0}\right)} \\ + "
            r"\frac{\gamma_{0}^{2}}{2} \boldsymbol{G}^{\ell+1,2} \odot \left\langle \dot{\boldsymbol{\phi}} "
            r"\left(\boldsymbol{u} \right) \dot{\boldsymbol{\phi}} \left(\boldsymbol{u} \right) "
            r"\right\rangle_{\boldsymbol{u} \sim \mathcal{GP}\left(0, \Phi^{\ell-1,0}\right)} + "
            r"\mathcal{O}\left(\gamma_{0}^{4}\right)"
        ),
        claim=perturbation.p23,
        derived="G of the series solution, order 2, every layer",
        verdict="wrong",
        why=(
            "The Hessian of r r^T is twice G^{ell+1,2}: the second form has 1/2 too much. Both forms forget "
            "that the covariance of u moves as well: half the trace of Phi^{ell-1,2} with the Hessian of "
            "(phi' r)(phi' r)^T in u, which (P.22) has for Phi. With that the first form is exact."
        ),
        evidence=("perturbation_kernels:backward_kernels",),
    ),
    Entry(
        source="selfconsistent2023",
        number="P.23 text",
        title="growth of G^{ell,2} from the last layer down",
        printed=r"G^{\ell,2} \sim \mathcal{O}(L+1-\ell)",
        claim=perturbation.p23_text,
        derived="series solution of six layers; derive.expansion for linear networks",
        verdict="wrong",
        why=(
            "As for Phi (P.22 text). It does not follow from (P.23) either: with its factor 1/2 a linear "
            "network would keep half of each layer's correction, and G^{ell,2} would not grow at all."
        ),
        evidence=("perturbation_depth:growth_with_layers",),
    ),
    Entry(
        source="selfconsistent2023",
        number="P.24",
        title="g^ell to second order",
        printed=(
            r"g^{\ell} \sim \dot{\phi}(\boldsymbol{u}) \odot \boldsymbol{r} + \gamma_0 "
            r"\dot{\phi}(\boldsymbol{u}) \odot \left[\boldsymbol{D}^{\ell,0} \phi(\boldsymbol{u}) + "
            r"\gamma_0 \boldsymbol{D}^{\ell,0} \dot{\phi}(\boldsymbol{u}) \boldsymbol{C}^{\ell,0} "
            r"\boldsymbol{g}^{\ell,0} \right] \\ + \gamma_0 \ddot{\phi}(\boldsymbol{u}) "
            r"\left[\boldsymbol{C}^{\ell,0} \boldsymbol{g}^{\ell,0} + \gamma_0 \boldsymbol{C}^{\ell,0} "
            r"\boldsymbol{g}^{\ell,1} \right] \odot \boldsymbol{r}"
        ),
        claim=perturbation.p24,
        derived="(P.6) iterated as a power series in gamma0",
        verdict="wrong",
        why=(
            "At second order phi'' h1 z1 and phi''' h1^2 r/2 are missing, which (P.18) has (h1 = C g0, z1 = "
            "D phi)."
        ),
        evidence=("perturbation:expansion_of_g",),
    ),
    Entry(
        source="selfconsistent2023",
        number="P.25",
        title="G^ell to order gamma0^2, term by term",
        printed=(
            r"G^{\ell} = G^{\ell,0} + \gamma_0^2 \left\langle \left[\dot{\phi}(\boldsymbol{u}) \odot "
            r"\left(\boldsymbol{D}^{\ell,0} \phi(\boldsymbol{u}) \right) \right] "
            r"\left[\dot{\phi}(\boldsymbol{u}) \odot \left(\boldsymbol{D}^{\ell,0} \phi(\boldsymbol{u}) "
            r"\right) \right]^{\top} \right\rangle \\ + \gamma_0^2 \left\langle "
            r"\left[\ddot{\phi}(\boldsymbol{u}) \left(\boldsymbol{C}^{\ell,0} \boldsymbol{g}^{\ell,0} "
            r"\right) \right] \left[\ddot{\phi}(\boldsymbol{u}) \left(\boldsymbol{C}^{\ell,0} "
            r"\boldsymbol{g}^{\ell,0} \right) \right]^{\top} \right\rangle \\ + \gamma_0^2 \left\langle "
            r"\left[\dot{\phi}(\boldsymbol{u}) \odot \left(\boldsymbol{D}^{\ell,0} "
            r"\dot{\phi}(\boldsymbol{u}) \boldsymbol{C}^{\ell,0} \boldsymbol{g}^{\ell,0} \right) \right] "
            r"\boldsymbol{g}^{\ell,0} \right\rangle + \text{transpose} \\ + \gamma_0^2 \left\langle "
            r"\left[\ddot{\phi}(\boldsymbol{u}) \odot \boldsymbol{C}^{\ell,0} "
            r"\left(\ddot{\phi}(\boldsymbol{u}) \odot \boldsymbol{C}^{\ell,0} \boldsymbol{g}^{\ell,0} "
            r"\right) \right] \boldsymbol{g}^{\ell,0} \right\rangle + \text{transpose} \\ + "
            r"\frac{\gamma_0^2}{2} \boldsymbol{G}^{\ell+1,2} \odot \left\langle \dot{\phi}(\boldsymbol{u}) "
            r"\dot{\phi}(\boldsymbol{u}) \right\rangle_{\boldsymbol{u} \sim "
            r"\mathcal{GP}(0,\Phi^{\ell-1,0})} + \mathcal{O}\left(\gamma_0^4\right)"
        ),
        claim=perturbation.p25,
        derived="G of the series solution, order 2, every layer",
        verdict="wrong",
        why=(
            "Besides the slips of (P.23) and (P.24): phi'' C g0 lacks its r in the second average and twice "
            "in the fourth; the cross average of phi' D phi with phi'' (C g0) r is missing, and so is "
            "C(phi' D phi), the other half of C g1, in the fourth. With all of these it is exact. For "
            "linear networks 1/2 in front of G^{ell+1,2} remains as the error. Finite networks decide."
        ),
        evidence=_BACKWARD,
    ),
    Entry(
        source="selfconsistent2023",
        number="P.26",
        title="second order of the tangent kernel",
        printed=(
            r"\mathbf{K}^{\text{NTK},2} = \mathbf{\Phi}^{L,2} + \sum_{\ell=1}^{L-1} \mathbf{G}^{\ell,0} "
            r"\mathbf{\Phi}^{\ell,2} + \sum_{\ell=1}^{L-1} \mathbf{G}^{\ell,2} \mathbf{\Phi}^{\ell,0} + "
            r"\mathbf{G}^{1,2} \odot (\mathbf{K}^x \otimes \mathbf{1}\mathbf{1}^\top)"
        ),
        claim=perturbation.p26,
        derived="tangent kernel of the series solution, order 2",
        verdict="misprint",
        why="G^ell must be G^{ell+1} in both sums, as in (4) and (P.5); then it is exact.",
        evidence=("perturbation_kernels:tangent_kernel",),
    ),
    Entry(
        source="selfconsistent2023",
        number="P.26 text",
        title="relative change of the tangent kernel grows as L",
        printed=r"\frac{|K^2|}{|K^0|} = \mathcal{O}(\gamma_0^2 L)",
        claim=perturbation.p26_text,
        derived="series solution of three and six layers; derive.expansion for linear networks",
        verdict="wrong",
        why=(
            "The argument takes v as given; then the ratio goes as L(L+1)(L+2) for linear networks, and "
            "otherwise depends on the activation, as K^0 does (it need not be of order L). After training "
            "to the same targets v is smaller by K^0, and linear networks are back at L, see (16 text)."
        ),
        evidence=("perturbation_depth:relative_change", "expansion:relative_change_with_depth"),
    ),
)
