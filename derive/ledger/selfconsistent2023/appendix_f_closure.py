"""Appendix F: the closed theory of deep linear networks, (F.1)-(F.4)."""

from __future__ import annotations

from derive.ledger.entry import Entry
from derive.ledger.selfconsistent2023.claims import closure

ENTRIES = (
    Entry(
        source="selfconsistent2023",
        number="F.1",
        title="field equations of the linear network",
        printed=(
            r"h_{\mu}^{\ell}(t) = u_{\mu}^{\ell}(t) + \gamma_{0} \int_{0}^{\infty} \sum_{\alpha=1}^{P} "
            r"\left[A_{\mu\alpha}^{\ell-1}(t,s) + \Theta(t-s) H_{\mu\alpha}^{\ell-1}(t,s) \right] "
            r"\Delta_{\alpha}(s) g^{\ell}(s) \\ g^{\ell}(t) = r^{\ell}(t) + \gamma_{0} \int_{0}^{\infty} "
            r"\sum_{\alpha=1}^{P} \left[B_{\alpha}^{\ell}(t,s) + \gamma_{0} \Theta(t-s) G^{\ell+1}(t,s) "
            r"\right] \Delta_{\alpha}(s) h_{\alpha}^{\ell}(s)"
        ),
        claim=closure.f1,
        derived="single-site equations of the theory, linear",
        verdict="wrong",
        why=(
            "The error multiplies the kernels only, as in (13) and (F.15), not A and B; the second line "
            "has a stray gamma0 before Theta (ds is missing in both). From two hidden layers on it "
            "changes kernels and loss already at order gamma0^2; finite networks extrapolated in 1/N "
            "reject it."
        ),
        evidence=("linear:response_without_error_factor",),
    ),
    Entry(
        source="selfconsistent2023",
        number="F.2",
        title="operators C and D",
        printed=(
            r"C_{\mu}^{\ell}(t,s) = \sum_{\alpha=1}^{P} \left[A_{\mu\alpha}^{\ell-1}(t,s) + \Theta(t-s) "
            r"H_{\mu\alpha}^{\ell-1}(t,s) \right] \Delta_{\alpha}(s) \\ D_{\mu}^{\ell}(t,s) = "
            r"\left[B_{\mu}^{\ell}(t,s) + \Theta(t-s) G^{\ell+1}(t,s) \right] \Delta_{\mu}(s)"
        ),
        claim=closure.f2,
        derived="reduction: linear closure, operators C and D",
        verdict="wrong",
        why=(
            "Repeats the slip of (F.1): A and B must enter without the error and without the sum over "
            "samples, C = A_mu + Theta sum H Delta, D = B_mu + Theta G Delta. This is the only "
            "definition of the C and D in (15) and (F.4), so it would be used. At L = 1, where A = B = "
            "0, it is harmless."
        ),
        evidence=("linear:response_without_error_factor",),
    ),
    Entry(
        source="selfconsistent2023",
        number="F.3",
        title="fields solved for the sources",
        printed=(
            r"h^{\ell} = \boldsymbol{u}^{\ell} + \gamma_0 \boldsymbol{C}^{\ell} \boldsymbol{r}^{\ell} + "
            r"\gamma_0^2 \boldsymbol{C}^{\ell} \boldsymbol{D}^{\ell} h^{\ell} \implies h^{\ell} = "
            r"\left(\mathbf{I} - \gamma_0^2 \boldsymbol{C}^{\ell} \boldsymbol{D}^{\ell} \right)^{-1} "
            r"\left[\boldsymbol{u}^{\ell} + \gamma_0 \boldsymbol{C}^{\ell} \boldsymbol{r}^{\ell} \right] "
            r"\\ \boldsymbol{g}^{\ell} = \boldsymbol{r}^{\ell} + \gamma_0 \boldsymbol{D}^{\ell} "
            r"\boldsymbol{u}^{\ell} + \gamma_0^2 \boldsymbol{D}^{\ell} \boldsymbol{C}^{\ell} "
            r"\boldsymbol{g}^{\ell} \implies \boldsymbol{g}^{\ell} = \left(\mathbf{I} - \gamma_0^2 "
            r"\boldsymbol{D}^{\ell} \boldsymbol{C}^{\ell} \right)^{-1} \left[\boldsymbol{r}^{\ell} + "
            r"\gamma_0 \boldsymbol{D}^{\ell} \boldsymbol{u}^{\ell} \right]"
        ),
        claim=closure.f3,
        derived="reduction: linear closure",
        verdict="agrees",
        why="Elimination of g and of h; the two inverses act on different spaces.",
        evidence=("linear:closure_against_networks",),
    ),
    Entry(
        source="selfconsistent2023",
        number="F.4",
        title="closed equations with the responses",
        printed=(
            r"\boldsymbol{H}^{\ell} = \left\langle \boldsymbol{h}^{\ell} \boldsymbol{h}^{\ell \top} "
            r"\right\rangle = \left(\mathbf{I} - \gamma_0^2 \boldsymbol{C}^{\ell} \boldsymbol{D}^{\ell} "
            r"\right)^{-1} \left[\boldsymbol{H}^{\ell-1} + \gamma_0^2 \boldsymbol{C}^{\ell} "
            r"\boldsymbol{G}^{\ell+1} \boldsymbol{C}^{\ell \top} \right] \left[\left(\mathbf{I} - "
            r"\gamma_0^2 \boldsymbol{C}^{\ell} \boldsymbol{D}^{\ell} \right)^{\top} \right]^{-1} \\ "
            r"\boldsymbol{G}^{\ell} = \left\langle \boldsymbol{g}^{\ell} \boldsymbol{g}^{\ell \top} "
            r"\right\rangle = \left(\mathbf{I} - \gamma_0^2 \boldsymbol{D}^{\ell} \boldsymbol{C}^{\ell} "
            r"\right)^{-1} \left[\boldsymbol{G}^{\ell+1} + \gamma_0^2 \boldsymbol{D}^{\ell} "
            r"\boldsymbol{H}^{\ell-1} \boldsymbol{D}^{\ell \top} \right] \left[\left(\mathbf{I} - "
            r"\gamma_0^2 \boldsymbol{D}^{\ell} \boldsymbol{C}^{\ell} \right)^{\top} \right]^{-1} \\ "
            r"\boldsymbol{A}^{\ell} = \left(\mathbf{I} - \gamma_0^2 \boldsymbol{C}^{\ell} "
            r"\boldsymbol{D}^{\ell} \right)^{-1} \boldsymbol{C}^{\ell} , \quad \boldsymbol{B}^{\ell-1} = "
            r"\left(\mathbf{I} - \gamma_0^2 \boldsymbol{D}^{\ell} \boldsymbol{C}^{\ell} \right)^{-1} "
            r"\boldsymbol{D}^{\ell}"
        ),
        claim=closure.f4,
        derived="reduction: linear closure",
        verdict="agrees",
        why=(
            "Right given the corrected C and D. It also fixes the lazy limit A^ell = C^ell, B^{ell-1} = "
            "D^ell that (P.2) forgets."
        ),
        evidence=("linear:closure_against_networks",),
    ),
    Entry(
        source="selfconsistent2023",
        number="F.4 text",
        title="number of iterations of the published scheme",
        printed=r"n_{\mathrm{iterations}} \approx 5 \ldots 10",
        derived="one causal sweep, no iteration",
        verdict="wrong",
        why=(
            "The change per iteration is still of order one tenth after ten sweeps at L = 5, gamma0 = "
            "1; reaching 1e-6 takes 5, 10, 15, 23 sweeps at L = 1, 2, 3, 5 (two samples, twenty Euler "
            "steps), and more with damping. Ten are enough for shallow networks or a loose tolerance "
            "only. The equations are causal, so that one sweep forward in time solves them."
        ),
        evidence=("linear:fixed_point_iterations",),
    ),
)
