"""Appendix P.3: induction over layers, forward (P.11)-(P.15).  The paper has no (P.13)."""

from __future__ import annotations

from derive.ledger.entry import Entry
from derive.ledger.selfconsistent2023.claims import perturbation

ENTRIES = (
    Entry(
        source="selfconsistent2023",
        number="P.11",
        title="Phi has no odd orders",
        printed=(
            r"\mathbf{\Phi}^{\ell} = \mathbf{\Phi}^{\ell,0} + \gamma_0^2 \mathbf{\Phi}^{\ell,2} + \mathcal{O}"
            r"\left(\gamma_0^4\right)"
        ),
        claim=perturbation.p11,
        derived="Phi of the series solution, orders 0 to 3, every layer",
        verdict="agrees",
        why=(
            "Right for smooth phi: the theory does not change under gamma0 -> -gamma0, r -> -r. For relu "
            "and L = 1 the next order is |gamma0|^3, not gamma0^4; see (P.16 text)."
        ),
        evidence=("perturbation_kernels:odd_orders",),
    ),
    Entry(
        source="selfconsistent2023",
        number="P.12",
        title="Phi^{ell+1} for given sources",
        printed=(
            r"\boldsymbol{\Phi}^{\ell+1} = \left\langle \phi \left(\boldsymbol{h}^{\ell+1} \right) \phi "
            r"\left(\boldsymbol{h}^{\ell+1} \right)^{\top} \right\rangle \\ = \left\langle \phi "
            r"\left(\boldsymbol{u}^{\ell+1} \right) \phi \left(\boldsymbol{u}^{\ell+1} \right) "
            r"\right\rangle + \gamma_0^2 \left\langle \left[\dot{\phi} \left(\boldsymbol{u}^{\ell+1} "
            r"\right) \boldsymbol{h}^{\ell+1,1} \right] \left[\dot{\phi} \left(\boldsymbol{u}^{\ell+1} "
            r"\right) \boldsymbol{h}^{\ell+1,1} \right]^{\top} \right\rangle \\ + \frac{\gamma_0^2}{2} "
            r"\left\langle \left[\ddot{\phi} \left(\boldsymbol{u}^{\ell+1} \right) "
            r"\boldsymbol{h}^{\ell+1,2} \right] \phi \left(\boldsymbol{u}^{\ell+1} \right)^{\top} "
            r"\right\rangle + \frac{\gamma_0^2}{2} \left\langle \phi \left(\boldsymbol{u}^{\ell+1} \right) "
            r"\left[\ddot{\phi} \left(\boldsymbol{u}^{\ell+1} \right) \boldsymbol{h}^{\ell+1,2} "
            r"\right]^{\top} \right\rangle + \mathcal{O} \left(\gamma_0^4 \right)"
        ),
        claim=perturbation.p12,
        derived="Phi of the series solution, covariances of the sources moved",
        verdict="misprint",
        why="As in (P.10): phi''(u) h2/2 must be phi'(u) h2 + phi''(u) h1^2/2, as in (P.22).",
        evidence=("perturbation_kernels:first_layer_kernel",),
    ),
    Entry(
        source="selfconsistent2023",
        number="P.14",
        title="averages over sources whose covariances move",
        printed=(
            r"\langle F(\boldsymbol{u}, \boldsymbol{r}) \rangle_{\boldsymbol{u}, \boldsymbol{r}} = \int "
            r"d\boldsymbol{k} d\boldsymbol{u} d\boldsymbol{v} d\boldsymbol{r} F(\boldsymbol{u}, "
            r"\boldsymbol{r}) \exp\left(-\frac{1}{2} \boldsymbol{k}^{\top} \left[\boldsymbol{\Phi}^{\ell, "
            r"0} + \gamma_0^2 \boldsymbol{\Phi}^{\ell, 2} + \ldots\right] \boldsymbol{k} + i \boldsymbol{k} "
            r"\cdot \boldsymbol{u}\right) \\ \times \exp\left(-\frac{1}{2} \boldsymbol{v}^{\top} "
            r"\left[\boldsymbol{G}^{\ell+2, 0} + \gamma_0^2 \boldsymbol{G}^{\ell+2, 2} + \ldots\right] "
            r"\boldsymbol{v} + i \boldsymbol{v} \cdot \boldsymbol{r}\right) \\ \sim \langle "
            r"F(\boldsymbol{u}, \boldsymbol{r}) \rangle_{\boldsymbol{u}_0 \boldsymbol{r}_0} + "
            r"\frac{\gamma_0^2}{2} \operatorname{Tr} \left[\boldsymbol{\Phi}^{\ell-1, 2} \left\langle "
            r"\frac{\partial^2}{\partial \boldsymbol{u} \partial \boldsymbol{u}^{\top}} f(\boldsymbol{u}, "
            r"\boldsymbol{r}) \right\rangle_{\boldsymbol{u}_0 \boldsymbol{r}_0}\right] \\ + "
            r"\frac{\gamma_0^2}{2} \operatorname{Tr} \left[\boldsymbol{G}^{\ell+1, 2} \left\langle "
            r"\frac{\partial^2}{\partial \boldsymbol{r} \partial \boldsymbol{r}^{\top}} f(\boldsymbol{u}, "
            r"\boldsymbol{r}) \right\rangle_{\boldsymbol{u}_0 \boldsymbol{r}_0}\right] + "
            r"\mathcal{O}\left(\gamma_0^3\right)"
        ),
        claim=perturbation.p14,
        derived="averages of the series solution over sources with their full covariances",
        verdict="misprint",
        why=(
            "Price's theorem, with the layers of another sentence: the covariances stated are Phi^ell and "
            "G^{ell+2}, so the traces must hold Phi^{ell,2} and G^{ell+2,2}, as (P.15) has it. f stands for "
            "F, and powers of 2 pi are left out of the measure."
        ),
        evidence=("perturbation_kernels:moved_sources",),
    ),
    Entry(
        source="selfconsistent2023",
        number="P.15",
        title="Phi^{ell+1} from unperturbed sources",
        printed=(
            r"\Phi^{\ell+1} = \left\langle \phi(\boldsymbol{u}_0) \phi(\boldsymbol{u}_0)^{\top} "
            r"\right\rangle_{\boldsymbol{u}_0} + \frac{\gamma_0^2}{2} \operatorname{Tr} \left[\Phi^{\ell,2} "
            r"\left\langle \frac{\partial^2}{\partial \boldsymbol{u}_0 \partial \boldsymbol{u}_0^{\top}} "
            r"\phi(\boldsymbol{u}_0) \phi(\boldsymbol{u}_0)^{\top} \right\rangle_{\boldsymbol{u}_0} \right] "
            r"\\ + \frac{\gamma_0^2}{2} \frac{\partial^2}{\partial \gamma_0^2} |_{\gamma_0=0} \left\langle "
            r"\phi(\boldsymbol{h}(\boldsymbol{u}_0, \boldsymbol{r}_0, \gamma_0)) "
            r"\phi(\boldsymbol{h}(\boldsymbol{u}_0, \boldsymbol{r}_0, \gamma_0)) "
            r"\right\rangle_{\boldsymbol{u}_0, \boldsymbol{r}_0} + \mathcal{O}\left(\gamma_0^4\right)"
        ),
        claim=perturbation.p15,
        derived="Phi of the series solution, every layer",
        verdict="agrees",
        why="Exact in every layer; the last factor needs a transpose.",
        evidence=("perturbation_kernels:forward_kernels",),
    ),
)
