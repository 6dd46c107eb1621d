"""Appendix P.2: nonlinear networks, the fields and the first layer's kernel (P.6)-(P.10)."""

from __future__ import annotations

from derive.ledger.entry import Entry
from derive.ledger.selfconsistent2023.claims import perturbation

ENTRIES = (
    Entry(
        source="selfconsistent2023",
        number="P.6",
        title="fields of a nonlinear network in operator form",
        printed=(
            r"\boldsymbol{h}^{\ell} = \boldsymbol{u}^{\ell} + \gamma_0 \boldsymbol{C}^{\ell} "
            r"\left[\dot{\phi} \left(\boldsymbol{h}^{\ell} \right) \odot \boldsymbol{z}^{\ell} \right], \ "
            r"\boldsymbol{z}^{\ell} = \boldsymbol{r}^{\ell} + \gamma_0 \boldsymbol{D}^{\ell} \phi "
            r"\left(\boldsymbol{h}^{\ell} \right)"
        ),
        claim=perturbation.p6,
        derived="single-site equations of h and z; C and D read off as what multiplies g and phi(h)",
        verdict="agrees",
        why=(
            "It is (13) with C = A + Delta Phi, D = B + Delta G. The derived fields solve it order by "
            "order. D acts at s = t too: B has an equal-time part, <phi''(h) z>/gamma0, of order one."
        ),
        evidence=("perturbation:single_site_equations",),
    ),
    Entry(
        source="selfconsistent2023",
        number="P.7",
        title="power series of fields, kernels and operators",
        printed=(
            r"h^{\ell} - u^{\ell} = \gamma_0 h^{\ell,1} + \gamma_0^2 h^{\ell,2} + \dots \\ z^{\ell} - "
            r"r^{\ell} = \gamma_0 z^{\ell,1} + \gamma_0^2 z^{\ell,2} + \dots \\ \Phi^{\ell} - \Phi^{\ell,0} "
            r"= \gamma_0 \Phi^{\ell,1} + \gamma_0^2 \Phi^{\ell,2} + \dots \\ G^{\ell} - G^{\ell,0} = "
            r"\gamma_0 G^{\ell,1} + \gamma_0^2 G^{\ell,2} + \dots \\ C^{\ell} - C^{\ell,0} = \gamma_0 "
            r"C^{\ell,1} + \gamma_0^2 C^{\ell,2} + \dots \\ D^{\ell} - D^{\ell,0} = \gamma_0 D^{\ell,1} + "
            r"\gamma_0^2 D^{\ell,2} + \dots"
        ),
        derived="numerics.solve.direct.series; derive.expansion.nonlinear",
        verdict="definition",
        why=(
            "Definition. Such a series need not exist: with a kink in phi, G moves at order |gamma0| (P.16 "
            "text)."
        ),
    ),
    Entry(
        source="selfconsistent2023",
        number="P.7 text",
        title="time enters through v_alpha and v_{alpha beta}",
        printed=(
            r"C^{\ell,0}, D^{\ell,1} \text{ only depend on time through the functions } \{v_{\alpha}(t)\} "
            r"\text{ and } \{v_{\alpha\beta}(t)\}"
        ),
        claim=perturbation.p7_text,
        derived="series solution of two layers at 25 pairs of times",
        verdict="misprint",
        why=(
            "D^{ell,1} must be D^{ell,0}; the former is zero. The statement, also made of all kernels at "
            "order gamma0^2 in section 5.2, is right: they are combinations of v(t) v(s), v_{11}(t), "
            "v_{11}(s). As v_{alpha beta} + v_{beta alpha} = v_alpha v_beta, P(P+1)/2 of the P(P+1) "
            "functions determine the rest."
        ),
        evidence=("perturbation_depth:time_dependence",),
    ),
    Entry(
        source="selfconsistent2023",
        number="P.8",
        title="expansion of z to order gamma0^3",
        printed=(
            r"\gamma_{0}\boldsymbol{z}^{\ell,1} + \gamma_{0}^{2}\boldsymbol{z}^{\ell,2} + \dots = \gamma_{0}"
            r"\boldsymbol{D}^{\ell,0}\phi\left(\boldsymbol{u}^{\ell}\right) \\ + \gamma_{0}^{2}\left["
            r"\boldsymbol{D}^{\ell,0}\dot{\phi}\left(\boldsymbol{u}\right)\odot\boldsymbol{h}^{\ell,1} + "
            r"\boldsymbol{D}^{\ell,1}\phi\left(\boldsymbol{u}\right)\right] \\ + \gamma_{0}^{3}\left["
            r"\boldsymbol{D}^{\ell,0}\dot{\phi}\left(\boldsymbol{u}\right)\odot\boldsymbol{h}^{\ell,2} + "
            r"\boldsymbol{D}^{\ell,0}\ddot{\phi}\left(\boldsymbol{u}\right)\odot\left[\boldsymbol{h}^{"
            r"\ell,1}\right]^{2} + \boldsymbol{D}^{\ell,1}\dot{\phi}\left(\boldsymbol{u}\right)\odot"
            r"\boldsymbol{h}^{\ell,1} + \boldsymbol{D}^{\ell,2}\phi\left(\boldsymbol{u}\right)\right] + "
            r"\mathcal{O}\left(\gamma_{0}^{4}\right)"
        ),
        claim=perturbation.p8,
        derived="(P.6) iterated as a power series in gamma0",
        verdict="misprint",
        why="D^{ell,0} phi''(u) [h^{ell,1}]^2 lacks a factor one half, which (P.9) has.",
        evidence=("perturbation:expansion_of_z",),
    ),
    Entry(
        source="selfconsistent2023",
        number="P.9",
        title="the first three orders of z and h",
        printed=(
            r"\boldsymbol{z}^{\ell,1} = \boldsymbol{D}^{\ell,0} \phi(\boldsymbol{u}) \\ "
            r"\boldsymbol{z}^{\ell,2} = \boldsymbol{D}^{\ell,0} \dot{\phi}(\boldsymbol{u}) \odot "
            r"\boldsymbol{h}^{\ell,1} + \boldsymbol{D}^{\ell,1} \phi(\boldsymbol{u}) \\ "
            r"\boldsymbol{z}^{\ell,3} = \boldsymbol{D}^{\ell,0} \left[\frac{1}{2} "
            r"\ddot{\phi}(\boldsymbol{u}) \odot \left[\boldsymbol{h}^{\ell,1} \right]^2 + "
            r"\dot{\phi}(\boldsymbol{u}) \odot \boldsymbol{h}^{\ell,2} \right] + \boldsymbol{D}^{\ell,1} "
            r"\left[\dot{\phi}(\boldsymbol{u}) \odot \boldsymbol{h}^{\ell,1} \right] + "
            r"\boldsymbol{D}^{\ell,2} \phi(\boldsymbol{u}) \\ \boldsymbol{h}^{\ell,1} = "
            r"\boldsymbol{C}^{\ell,0} \boldsymbol{g}^{\ell,0} = \boldsymbol{C}^{\ell,0} "
            r"\left[\dot{\phi}(\boldsymbol{u}) \odot \boldsymbol{r} \right] \\ \boldsymbol{h}^{\ell,2} = "
            r"\boldsymbol{C}^{\ell,1} \boldsymbol{g}^{\ell,1} + \boldsymbol{C}^{\ell,0} "
            r"\boldsymbol{g}^{\ell,2} \\ = \boldsymbol{C}^{\ell,0} \left[\dot{\phi}(\boldsymbol{u}) "
            r"\boldsymbol{z}^{\ell,1} + \ddot{\phi}(\boldsymbol{u}) \boldsymbol{h}^{\ell,1} \boldsymbol{r} "
            r"\right] \\ + \boldsymbol{C}^{\ell,1} \left[\dot{\phi}(\boldsymbol{u}) \boldsymbol{z}^{\ell,2} "
            r"+ \ddot{\phi}(\boldsymbol{u}) \boldsymbol{h}^{\ell,1} \boldsymbol{z}^{\ell,1} + \frac{1}{2} "
            r"\ddot{\phi}(\boldsymbol{u}) \left[\boldsymbol{h}^{\ell,1} \right]^2 \boldsymbol{r} + "
            r"\ddot{\phi}(\boldsymbol{u}) \boldsymbol{h}^{\ell,2} \boldsymbol{r} \right] \\ "
            r"\boldsymbol{h}^{\ell,3} = \boldsymbol{C}^{\ell,0} \boldsymbol{g}^{\ell,2} + "
            r"\boldsymbol{C}^{\ell,1} \boldsymbol{g}^{\ell,1} + \boldsymbol{C}^{\ell,2} "
            r"\boldsymbol{g}^{\ell,0} \\ = \boldsymbol{C}^{\ell,0} \left[\dot{\phi}(\boldsymbol{u}) "
            r"\boldsymbol{z}^{\ell,2} + \ddot{\phi}(\boldsymbol{u}) \boldsymbol{h}^{\ell,1} "
            r"\boldsymbol{z}^{\ell,1} + \ddot{\phi}(\boldsymbol{u}) \boldsymbol{h}^{\ell,2} \boldsymbol{r} "
            r"+ \frac{1}{2} \ddot{\phi}(\boldsymbol{u}) \left[\boldsymbol{h}^{\ell,1} \right]^2 "
            r"\boldsymbol{r} \right] \\ + \boldsymbol{C}^{\ell,1} \left[\dot{\phi}(\boldsymbol{u}) "
            r"\boldsymbol{z}^{\ell,2} + \ddot{\phi}(\boldsymbol{u}) \boldsymbol{h}^{\ell,1} "
            r"\boldsymbol{z}^{\ell,1} + \ddot{\phi}(\boldsymbol{u}) \boldsymbol{h}^{\ell,2} \boldsymbol{r} "
            r"+ \frac{1}{2} \ddot{\phi}(\boldsymbol{u}) \left[\boldsymbol{h}^{\ell,1} \right]^2 "
            r"\boldsymbol{r} \right]"
        ),
        claim=perturbation.p9,
        derived="(P.6) iterated as a power series in gamma0",
        verdict="misprint",
        why=(
            "h2 is C1 g0 + C0 g1; printed is C1 g1 + C0 g2. Its second form is right only because C1 = 0: "
            "C1 acts on g2 there. The second form of h3 has C1 on g2 where g1 belongs, and forgets C2 g0, "
            "which does not vanish. z1, z2, z3, h1 and the first form of h3 are right (third derivatives "
            "read as two dots in our copy)."
        ),
        evidence=("perturbation:expansion_of_fields",),
    ),
    Entry(
        source="selfconsistent2023",
        number="P.10",
        title="Phi^1 to order gamma0^3",
        printed=(
            r"\Phi^{1} = \left\langle \phi\left(\boldsymbol{h}^{1}\right)\phi\left(\boldsymbol{h}^{1}"
            r"\right)^{\top}\right\rangle = \left\langle \phi\left(\boldsymbol{u}^{1}\right)\phi\left("
            r"\boldsymbol{u}^{1}\right)^{\top}\right\rangle \\ + \gamma_{0}\left\langle \left[\dot{\phi}"
            r"\left(\boldsymbol{u}^{1}\right)\boldsymbol{h}^{1,1}\right]\phi\left(\boldsymbol{u}^{1}"
            r"\right)^{\top}\right\rangle + \gamma_{0}\left\langle \phi\left(\boldsymbol{u}^{1}\right)\left["
            r"\dot{\phi}\left(\boldsymbol{u}^{1}\right)\boldsymbol{h}^{1,1}\right]^{\top}\right\rangle \\ + "
            r"\gamma_{0}^{2}\left\langle \left[\dot{\phi}\left(\boldsymbol{u}^{1}\right)\boldsymbol{h}^{1,1}"
            r"\right]\left[\dot{\phi}\left(\boldsymbol{u}^{1}\right)\boldsymbol{h}^{1,1}\right]^{\top}\right"
            r"\rangle \\ + \frac{\gamma_{0}^{2}}{2}\left\langle \left[\ddot{\phi}\left(\boldsymbol{u}^{1}"
            r"\right)\boldsymbol{h}^{1,2}\right]\phi\left(\boldsymbol{u}^{1}\right)\right\rangle + \frac{"
            r"\gamma_{0}^{2}}{2}\left\langle \left[\ddot{\phi}\left(\boldsymbol{u}^{1}\right)"
            r"\boldsymbol{h}^{1,2}\right]\phi\left(\boldsymbol{u}^{1}\right)\right\rangle \\ + "
            r"\gamma_{0}^{3}\left\langle \left[\dot{\phi}\left(\boldsymbol{u}^{1}\right)"
            r"\boldsymbol{h}^{1,3} + \ddot{\phi}\left(\boldsymbol{u}\right)\boldsymbol{h}^{1,1}"
            r"\boldsymbol{h}^{1,2} + \frac{1}{6}\ddot{\phi}\left(\boldsymbol{u}\right)\left("
            r"\boldsymbol{h}^{1,1}\right)^{3}\right]\phi\left(\boldsymbol{u}\right)^{\top}\right\rangle \\ "
            r"+ \gamma_{0}^{3}\left\langle \left[\dot{\phi}\left(\boldsymbol{u}\right)\boldsymbol{h}^{1,3} "
            r"+ \ddot{\phi}\left(\boldsymbol{u}\right)\boldsymbol{h}^{1,1}\boldsymbol{h}^{1,2} + \frac{1}{6}"
            r"\ddot{\phi}\left(\boldsymbol{u}\right)\left(\boldsymbol{h}^{1,1}\right)^{3}\right]^{\top}"
            r"\right\rangle \\ + \gamma_{0}^{3}\left\langle \left[\dot{\phi}\left(\boldsymbol{u}\right)"
            r"\boldsymbol{h}^{1,2} + \frac{1}{2}\ddot{\phi}\left(\boldsymbol{u}\right)\left("
            r"\boldsymbol{h}^{1,1}\right)^{2}\right]\left[\dot{\phi}\left(\boldsymbol{u}\right)"
            r"\boldsymbol{h}^{1,1}\right]^{\top}\right\rangle \\ + \gamma_{0}^{3}\left\langle \left[\dot{"
            r"\phi}\left(\boldsymbol{u}\right)\boldsymbol{h}^{1,2} + \frac{1}{2}\ddot{\phi}\left("
            r"\boldsymbol{u}\right)\left(\boldsymbol{h}^{1,1}\right)^{2}\right]^{\top}\right\rangle \\ + "
            r"\gamma_{0}^{3}\left\langle \left[\dot{\phi}\left(\boldsymbol{u}\right)\boldsymbol{h}^{1,1}"
            r"\right]\left[\dot{\phi}\left(\boldsymbol{u}\right)\boldsymbol{h}^{1,2} + \frac{1}{2}\ddot{"
            r"\phi}\left(\boldsymbol{u}\right)\left(\boldsymbol{h}^{1,1}\right)^{2}\right]^{\top}\right"
            r"\rangle \\ + \mathcal{O}(\gamma_{0}^{4})"
        ),
        claim=perturbation.p10,
        derived="Phi^1 of the series solution, orders 0 to 3",
        verdict="misprint",
        why=(
            "At order gamma0^2, phi''(u) h2/2 must be phi'(u) h2 + phi''(u) h1^2/2, as in (P.22); besides, "
            "its second term is not transposed. At gamma0^3 one average lacks phi(u) and another, without a "
            "partner, is one too many. That the orders gamma0 and gamma0^3 vanish is right, for smooth phi."
        ),
        evidence=("perturbation_kernels:first_layer_kernel", "perturbation_kernels:odd_orders"),
    ),
)
