"""Appendix P: the linear expansion (P.1)-(P.5)."""

from __future__ import annotations

from derive.ledger.entry import Entry
from derive.ledger.selfconsistent2023.claims import expansion

ENTRIES = (
    Entry(
        source="selfconsistent2023",
        number="P.1",
        title="power series of the fields",
        printed=(
            r"h_{\mu}^{\ell}(t) - u_{\mu}^{\ell}(t) = \sum_{n=1}^{\infty} \gamma_{0}^{n} "
            r"h_{\mu}^{\ell,(n)}(t) \\ z_{\mu}^{\ell}(t) - r_{\mu}^{\ell}(t) = \sum_{n=1}^{\infty} "
            r"\gamma_{0}^{n} z_{\mu}^{\ell,(n)}(t)"
        ),
        derived="derive.expansion: series of the fields",
        verdict="definition",
        why="Definition. The sources u and r depend on gamma0 too, through their covariances.",
    ),
    Entry(
        source="selfconsistent2023",
        number="P.2",
        title="kernels at order gamma0^2, operator form",
        printed=(
            r"\mathbf{H}^{\ell} \sim \mathbf{H}^{(0)} + \ell \gamma_0^2 (\{ \mathbf{C}^{(0)} "
            r"\mathbf{D}^{(0)}, \mathbf{H}^{(0)} \}_{sym} + \mathbf{C}^{(0)} \mathbf{1} "
            r"\mathbf{1}^{\top} \mathbf{C}^{(0)\top}) + \mathcal{O}(\gamma_0^4) \\ \mathbf{G}^{\ell} "
            r"\sim \mathbf{1} \mathbf{1}^{\top} + (L+1-\ell) \gamma_0^2 (\{ \mathbf{D}^{(0)} "
            r"\mathbf{C}^{(0)}, \mathbf{1} \mathbf{1}^{\top} \}_{sym} + \mathbf{D}^{(0)} "
            r"\mathbf{H}^{(0)} [\mathbf{D}^{(0)}]^{\top}) + \mathcal{O}(\gamma_0^4) \\ "
            r"\mathbf{K}^{\text{NTK}} \sim L \mathbf{H}^0 + \gamma_0^2 \frac{L(L+1)}{2} (\{ "
            r"\mathbf{C}^{(0)} \mathbf{D}^{(0)}, \mathbf{K}^x \}_{sym} + \mathbf{C}^{(0)} \mathbf{1} "
            r"\mathbf{1}^{\top} \mathbf{C}^{(0)\top}) \\ + \gamma_0^2 \frac{L(L+1)}{2} \mathbf{K}^x "
            r"\otimes (\{ \mathbf{D}^{(0)} \mathbf{C}^{(0)}, \mathbf{1} \mathbf{1}^{\top} \}_{sym} + "
            r"\mathbf{D}^{(0)} \mathbf{H}^{(0)} [\mathbf{D}^{(0)}]^{\top}) + \mathcal{O}(\gamma_0^4)"
        ),
        claim=expansion.p2,
        derived="derive.expansion: H, G and the tangent kernel at order gamma0^2 as operator words",
        verdict="wrong",
        why=(
            "By (F.4) A^ell = C^ell and B^{ell-1} = D^ell at order zero, so C^ell = ell c and D^ell = "
            "(L+1-ell) d: neither is independent of the layer. The step from ell-1 to ell adds "
            "ell(L+1-ell){cd,H} and ell^2 c 1 1^T c^T, so the factor ell of H becomes "
            "ell(ell+1)(3L+2-2ell)/6 on the first and ell(ell+1)(2ell+1)/6 on the second; G has the "
            "same with ell -> L+1-ell, and the tangent kernel L(L+1)^2(L+2)/12 throughout. In the last "
            "formula L H^0 must also be (L+1) H^0, and K^x in the symmetrizer H^0. As printed the "
            "formulas hold for A = B = 0."
        ),
        evidence=(
            "expansion:feature_kernel_depth_coefficients",
            "expansion:gradient_kernel_depth_coefficients",
            "expansion:tangent_kernel_depth_coefficient",
            "expansion:gradient_independence_coefficients",
            "networks:kernel_curvature",
        ),
    ),
    Entry(
        source="selfconsistent2023",
        number="P.3",
        title="kernels at order gamma0^2, time integrals",
        printed=(
            r"H_{\mu\nu}^{\ell}(t,s) = K_{\mu\nu}^{x} \\ + \ell \gamma_{0}^{2} \sum_{\alpha\beta} "
            r"K_{\mu\alpha}^{x} K_{\nu\beta}^{x} \int_{0}^{t} dt' \Delta_{\alpha}(t') \int_{0}^{t'} dt'' "
            r"\Delta_{\beta}(t'') + ((\mu,t) \leftrightarrow (\nu,s)) \\ + \ell \gamma_{0}^{2} "
            r"\sum_{\alpha\beta} K_{\mu\alpha}^{x} K_{\nu\beta}^{x} \left[\int_{0}^{t} dt' "
            r"\Delta_{\alpha}(t') \right] \left[\int_{0}^{s} ds' \Delta_{\beta}(s') \right] \\ "
            r"G^{\ell}(t,s) = 1 + \gamma_{0}^{2} (L+1-\ell) \sum_{\alpha\beta} K_{\alpha\beta}^{x} "
            r"\int_{0}^{t} dt' \Delta_{\alpha}(t') \int_{0}^{t'} dt'' \Delta_{\beta}(t'') + (t "
            r"\leftrightarrow s) \\ + \gamma_{0}^{2} (L+1-\ell) \sum_{\alpha\beta} K_{\mu\alpha}^{x} "
            r"\left[\int_{0}^{t} dt' \Delta_{\alpha}(t') \right] \left[\int_{0}^{s} ds' "
            r"\Delta_{\alpha}(s') \right]"
        ),
        claim=expansion.p3,
        derived="derive.expansion: H and G at order gamma0^2 as time integrals",
        verdict="wrong",
        why=(
            "By (F.4) A^ell = C^ell and B^{ell-1} = D^ell at order zero, so C^ell = ell c and D^ell = "
            "(L+1-ell) d: neither is independent of the layer. The factors ell and L+1-ell are wrong on "
            "the nested integrals of every layer once L >= 2, on the products from the second layer on "
            "(see P.2). Besides, the last line has K_{mu alpha} and Delta_alpha twice, with mu free on "
            "one side only; it must be K_{alpha beta} and Delta_beta(s')."
        ),
        evidence=(
            "expansion:feature_kernel_depth_coefficients",
            "expansion:gradient_kernel_depth_coefficients",
            "expansion:gradient_kernel_free_index",
            "networks:kernel_curvature",
        ),
    ),
    Entry(
        source="selfconsistent2023",
        number="P.4",
        title="kernels at order gamma0^2 in v",
        printed=(
            r"H_{\mu\nu}^{\ell}(t,s) = K_{\mu\nu}^{x} + \ell \gamma_{0}^{2} \sum_{\alpha\beta} "
            r"K_{\mu\alpha}^{x} K_{\nu\beta}^{x} \left[v_{\alpha\beta}(t) + v_{\beta\alpha}(s) \right] + "
            r"\ell \gamma_{0}^{2} \sum_{\alpha\beta} K_{\mu\alpha}^{x} K_{\nu\beta}^{x} v_{\alpha}(t) "
            r"v_{\beta}(s) \\ G^{\ell}(t,s) = 1 + \gamma_{0}^{2} (L + 1 - \ell) \sum_{\alpha\beta} "
            r"K_{\alpha\beta}^{x} \left[v_{\alpha\beta}(t) + v_{\beta\alpha}(s) + v_{\alpha}(t) "
            r"v_{\beta}(s) \right]"
        ),
        claim=expansion.p4,
        derived="derive.expansion: H and G at order gamma0^2 in v_alpha and v_{alpha beta}",
        verdict="wrong",
        why=(
            "By (F.4) A^ell = C^ell and B^{ell-1} = D^ell at order zero, so C^ell = ell c and D^ell = "
            "(L+1-ell) d: neither is independent of the layer. The nested integrals v_{alpha beta} and "
            "the products v_alpha v_beta take different factors, ell(ell+1)(3L+2-2ell)/6 and "
            "ell(ell+1)(2ell+1)/6 (2 and 1, then 4 and 5, for L = 2), where one common factor ell is "
            "printed. The indices of the last line of (P.3) are repaired here."
        ),
        evidence=(
            "expansion:feature_kernel_depth_coefficients",
            "expansion:gradient_kernel_depth_coefficients",
            "expansion:gradient_independence_coefficients",
            "networks:kernel_curvature",
        ),
    ),
    Entry(
        source="selfconsistent2023",
        number="P.5",
        title="tangent kernel at order gamma0^2 from the layers",
        printed=(
            r"K_{\mu\alpha}^{\text{NTK}}(t,s) = \sum_{\ell=0}^{L} G^{\ell+1}(t,s) "
            r"H_{\mu\alpha}^{\ell}(t,s) \\ \sim (L+1) K_{\mu\alpha}^{x} + \gamma_{0}^{2} "
            r"\sum_{\ell=1}^{L} H_{\mu\alpha}^{\ell,2}(t,s) + \gamma_{0}^{2} \sum_{\ell=1}^{L} "
            r"G^{\ell,2}(t,s) K_{\mu\alpha}^{x} + \mathcal{O}\left(\gamma_{0}^{4}\right)"
        ),
        claim=expansion.p5,
        derived="derive.expansion: tangent kernel at order gamma0^2",
        verdict="agrees",
        why=(
            "Product rule with H^0 and G^{L+1} fixed; it is the H and G put into it, and the sum of ell "
            "that follows, that are wrong."
        ),
        evidence=("expansion:tangent_kernel_sum",),
    ),
)
