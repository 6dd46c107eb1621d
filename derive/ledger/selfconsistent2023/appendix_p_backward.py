"""Appendix P.4, P.5: the gradient kernels (P.16)-(P.19)."""

from __future__ import annotations

from derive.ledger.entry import Entry
from derive.ledger.selfconsistent2023.claims import perturbation

ENTRIES = (
    Entry(
        source="selfconsistent2023",
        number="P.16",
        title="the first order of G^L",
        printed=(
            r"G^{L,1} = \left\langle \left[\dot{\phi} \left(\mathbf{u}^{L} \right) \mathbf{r}^{L} \right] "
            r"\left[\dot{\phi} \left(\mathbf{u}^{L} \right) \mathbf{z}^{L,1} + \ddot{\phi} "
            r"\left(\mathbf{u}^{L} \right) \mathbf{h}^{L,1} \mathbf{r}^{L} \right] \right\rangle \\ + "
            r"\left\langle \left[\dot{\phi} \left(\mathbf{u}^{L} \right) \mathbf{r}^{L} \right] "
            r"\left[\dot{\phi} \left(\mathbf{u}^{L} \right) \mathbf{z}^{L,1} + \ddot{\phi} "
            r"\left(\mathbf{u}^{L} \right) \mathbf{h}^{L,1} \mathbf{r}^{L} \right] \right\rangle = 0"
        ),
        claim=perturbation.p16,
        derived="G of the series solution, order 1, every layer",
        verdict="agrees",
        why=(
            "Right for smooth phi. The two averages should be each other's transposes and are printed "
            "alike; both are zero. u^L does depend on gamma0, through Phi^{L-1}, at order gamma0^2."
        ),
        evidence=("perturbation_kernels:odd_orders",),
    ),
    Entry(
        source="selfconsistent2023",
        number="P.16 text",
        title="no terms of order gamma0, whatever the activation",
        printed=(
            r"\mathcal{O}(\gamma_0) \text{ and } \mathcal{O}(\gamma_0^3) \text{ corrections to kernels "
            r"vanish}"
        ),
        claim=perturbation.p16_text,
        derived="relu network of one hidden layer, one unit for each direction of (u, r)",
        verdict="wrong",
        why=(
            "Stated in section 5.2 and here for any phi, while the figures use relu. With a kink, units "
            "with |u| of order gamma0 cross it, which no Taylor series of phi sees: for L = 1 and one "
            "sample G = 1/2 - |gamma0| K^{1/2} max(v(t), v(s))/pi + ..., and with it the tangent kernel, "
            "the outputs and the loss have terms linear in |gamma0|. Phi starts at gamma0^2, but its next "
            "order is |gamma0|^3."
        ),
        evidence=("perturbation_kinks:linear_term_of_relu",),
    ),
    Entry(
        source="selfconsistent2023",
        number="P.17",
        title="the third order of G^L",
        printed=(
            r"G^{L,3} = \langle g^{L,3}g^{L,0\top} \rangle + \langle g^{L,0}g^{L,3\top} \rangle + \langle "
            r"g^{L,2}g^{L,1\top} \rangle + \langle g^{L,1}g^{L,2\top} \rangle"
        ),
        claim=perturbation.p17,
        derived="G of the series solution, order 3, every layer",
        verdict="agrees",
        why=(
            "It vanishes, as stated. For given sources these are all terms; those in which u^L has moved, "
            "at gamma0^2, multiply the first order and vanish with it."
        ),
        evidence=("perturbation_kernels:odd_orders",),
    ),
    Entry(
        source="selfconsistent2023",
        number="P.18",
        title="g^L at second order",
        printed=(
            r"\boldsymbol{g}^{L,2} = \dot{\phi}(\boldsymbol{u}) \boldsymbol{z}^{L,2} + "
            r"\ddot{\phi}(\boldsymbol{u}) \left[\boldsymbol{h}^{L,2} \boldsymbol{r} + \boldsymbol{h}^{L,1} "
            r"\boldsymbol{z}^{L,1} \right] + \frac{1}{2} \ddot{\phi}(\boldsymbol{u}) "
            r"\left[\boldsymbol{h}^{L,1} \right]^{2}"
        ),
        claim=perturbation.p18,
        derived="(P.6) iterated as a power series in gamma0",
        verdict="misprint",
        why=(
            "The last term lacks the factor r (and its derivative is the third, two dots in our copy); the "
            "next sentence, that g2 is odd in r, needs it."
        ),
        evidence=("perturbation:expansion_of_g",),
    ),
    Entry(
        source="selfconsistent2023",
        number="P.19",
        title="g^L at third order",
        printed=(
            r"g^{L,3} = \dot{\phi}(\boldsymbol{u}) \boldsymbol{z}^{L,3} + \ddot{\phi}(\boldsymbol{u}) "
            r"\left[\boldsymbol{h}^{L,3} \boldsymbol{r} + \boldsymbol{h}^{L,2} \boldsymbol{z}^{L,1} + "
            r"\boldsymbol{h}^{L,1} \boldsymbol{z}^{L,2} \right] \\ + \frac{1}{2} \ddot{\phi}(\boldsymbol{u}) "
            r"\left[2 \boldsymbol{h}^{L,1} \boldsymbol{h}^{L,2} \boldsymbol{r} + \left[\boldsymbol{h}^{L,1} "
            r"\right]^{2} \boldsymbol{z}^{L,1} \right] + \frac{1}{6} \phi^{(4)}(\boldsymbol{u}) "
            r"\left[\boldsymbol{h}^{L,1} \right]^{3} \boldsymbol{r}"
        ),
        claim=perturbation.p19,
        derived="(P.6) iterated as a power series in gamma0",
        verdict="agrees",
        why=(
            "Exact, with a third derivative in the second line. Our copy has two dots there, as it has "
            "everywhere; beside phi^(4) it is taken for a loss of the copy."
        ),
        evidence=("perturbation:expansion_of_g",),
    ),
    Entry(
        source="selfconsistent2023",
        number="P.19 text",
        title="backward recursion for G^ell",
        printed=(
            r"\boldsymbol{G}^{\ell} = \left\langle \left[\dot{\phi}\left(\boldsymbol{u}_{0}\right) "
            r"\boldsymbol{r}_{0} \right] \left[\dot{\phi}\left(\boldsymbol{u}_{0}\right) \boldsymbol{r}_{0} "
            r"\right]^{\top} \right\rangle_{\boldsymbol{u}_{0}, \boldsymbol{r}_{0}} + "
            r"\frac{\gamma_{0}^{2}}{2} \left\langle \dot{\phi}\left(\boldsymbol{u}_{0}\right) "
            r"\dot{\phi}\left(\boldsymbol{u}_{0}\right) \right\rangle_{\boldsymbol{u}_{0}} \odot "
            r"\boldsymbol{G}^{\ell+1, 2} \\ + \frac{\gamma_{0}^{2}}{2} \frac{\partial^{2}}{\partial "
            r"\gamma_{0}^{2}} |_{\gamma_{0} = 0} \left\langle "
            r"\left[\dot{\phi}\left(\boldsymbol{h}\left(\boldsymbol{u}_{0}, \boldsymbol{r}_{0}, "
            r"\gamma_{0}\right)\right) \boldsymbol{r}_{0} \right] "
            r"\left[\dot{\phi}\left(\boldsymbol{h}\left(\boldsymbol{u}_{0}, \boldsymbol{r}_{0}, "
            r"\gamma_{0}\right)\right) \boldsymbol{r}_{0} \right]^{\top} \right\rangle_{\boldsymbol{u}_{0}, "
            r"\boldsymbol{r}_{0}} + \mathcal{O}\left(\gamma_{0}^{4}\right)"
        ),
        claim=perturbation.p19_text,
        derived="G of the series solution, every layer",
        verdict="wrong",
        why=(
            "Half the Hessian gives <phi' phi'> G^{ell+1,2} without 1/2; the last term must hold z, not "
            "r_0; and the covariance of u moves G too, by Phi^{ell-1,2}. (P.23) repairs the second of these "
            "only."
        ),
        evidence=("perturbation_kernels:backward_kernels",),
    ),
)
