"""Equations (1)-(16) of the main text."""

from __future__ import annotations

from derive.ledger.entry import Entry
from derive.ledger.selfconsistent2023.claims import closure, expansion, nonlinear

ENTRIES = (
    Entry(
        source="selfconsistent2023",
        number="1",
        title="network and scaling of the output",
        printed=(
            r"f_{\mu} = \frac{1}{\gamma \sqrt{N}} \boldsymbol{w}^{L} \cdot \phi "
            r"\left(\boldsymbol{h}_{\mu}^{L} \right) , \quad \boldsymbol{h}_{\mu}^{\ell+1} = "
            r"\frac{1}{\sqrt{N}} \boldsymbol{W}^{\ell} \phi \left(\boldsymbol{h}_{\mu}^{\ell} \right) , "
            r"\quad \boldsymbol{h}_{\mu}^{1} = \frac{1}{\sqrt{D}} \boldsymbol{W}^{0} "
            r"\boldsymbol{x}_{\mu}"
        ),
        derived="the program mlp(L)",
        verdict="definition",
        why=(
            "Nothing to derive. With gamma = gamma0 sqrt(N) the output is w.h^L/(gamma0 N), the "
            "convention of this project."
        ),
    ),
    Entry(
        source="selfconsistent2023",
        number="2",
        title="back-propagated fields",
        printed=(
            r"\boldsymbol{g}_{\mu}^{\ell} = \gamma \sqrt{N} \frac{\partial f_{\mu}}{\partial "
            r"\boldsymbol{h}_{\mu}^{\ell}} = \dot{\phi} \left(\boldsymbol{h}_{\mu}^{\ell} \right) \odot "
            r"\boldsymbol{z}_{\mu}^{\ell} , \quad \boldsymbol{z}_{\mu}^{\ell} = \frac{1}{\sqrt{N}} "
            r"\boldsymbol{W}^{\ell \top} \boldsymbol{g}_{\mu}^{\ell+1}"
        ),
        derived="backward definitions of the program mlp(L)",
        verdict="agrees",
        why="The chain rule gives it; at the top, z^L = w^L takes the place of the recursion.",
        evidence=("network:backward_fields", "nonlinear_network:backward_fields"),
    ),
    Entry(
        source="selfconsistent2023",
        number="3",
        title="feature and gradient kernels",
        printed=(
            r"\Phi_{\mu\alpha}^{\ell}(t,s) = \frac{1}{N} \phi\left(\boldsymbol{h}_{\mu}^{\ell}(t)\right) "
            r"\cdot \phi\left(\boldsymbol{h}_{\alpha}^{\ell}(s)\right) , \quad G_{\mu\alpha}^{\ell}(t,s) "
            r"= \frac{1}{N} \boldsymbol{g}_{\mu}^{\ell}(t) \cdot \boldsymbol{g}_{\alpha}^{\ell}(s)"
        ),
        derived="order parameters Phi and G of the theory",
        verdict="definition",
        why="Nothing to derive. For linear networks Phi = H and G carries no sample index.",
    ),
    Entry(
        source="selfconsistent2023",
        number="4",
        title="velocity of the predictions",
        printed=(
            r"\frac{d}{dt}f_{\mu}(t) = \sum_{\alpha=1}^{P} K_{\mu\alpha}^{\text{NTK}}(t,t) "
            r"\Delta_{\alpha}(t) , \quad \Delta_{\mu}(t) = -\frac{\partial}{\partial f_{\mu}} "
            r"\mathcal{L}|_{f_{\mu}(t)}"
        ),
        claim=closure.eq4,
        derived="d f/dt of the theory under flow",
        verdict="agrees",
        why=(
            "Right under flow with K the sum over layers of G^{l+1} Phi^l. It does not survive discrete "
            "steps, where f = <w phi(h^L)>/gamma0 is needed."
        ),
        evidence=("network:prediction_velocity", "nonlinear_network:tangent_kernel"),
    ),
    Entry(
        source="selfconsistent2023",
        number="4 text",
        title="tangent kernel as a product of gradients of f",
        printed=(
            r"K_{\mu\alpha}^{NTK}(t,s) = \nabla_{\theta} f_{\mu}(t) \cdot \nabla_{\theta} f_{\alpha}(s) "
            r"= \sum_{\ell=0}^{L} G_{\mu\alpha}^{\ell+1}(t,s) \Phi_{\mu\alpha}^{\ell}(t,s)"
        ),
        claim=closure.eq4_text,
        derived="(D.2): gradients of h^{L+1} = gamma f",
        verdict="misprint",
        why=(
            "The product of gradients of f is the printed sum divided by gamma^2 = gamma0^2 N, since f "
            "= h^{L+1}/gamma. (D.2) and (D.49) carry the factor; without it the velocity in (4) would "
            "be too small by gamma^2. Compare the two on one finite network at several gamma."
        ),
        evidence=("network:tangent_kernel_normalisation", "nonlinear_network:tangent_kernel"),
    ),
    Entry(
        source="selfconsistent2023",
        number="5",
        title="mean-field scaling",
        printed=r"N, \gamma \to \infty , \quad \gamma_0 = \frac{\gamma}{\sqrt{N}} = \mathcal{O}_N(1)",
        derived="gamma0 of the program",
        verdict="convention",
        why="A choice of scaling; nothing to derive.",
    ),
    Entry(
        source="selfconsistent2023",
        number="6",
        title="fields driven by the initial weights",
        printed=(
            r"\boldsymbol{\chi}_{\mu}^{\ell+1}(t) = \frac{1}{\sqrt{N}} \boldsymbol{W}^{\ell}(0) \phi "
            r"\left(\boldsymbol{h}_{\mu}^{\ell}(t) \right) , \quad \boldsymbol{\xi}_{\mu}^{\ell}(t) = "
            r"\frac{1}{\sqrt{N}} \boldsymbol{W}^{\ell}(0)^{\top} \boldsymbol{g}_{\mu}^{\ell+1}(t)"
        ),
        derived="products of the initial matrices in the program",
        verdict="definition",
        why=(
            "Definition for the inner matrices; chi^1 = W^0(0) x/sqrt(D) and xi^L = w(0) are the ends "
            "of the chain."
        ),
    ),
    Entry(
        source="selfconsistent2023",
        number="7",
        title="definition of chi enforced by a delta function",
        printed=(
            r"1 = \int_{\mathbb{R}^N} \int_{\mathbb{R}^N} \frac{d\boldsymbol{\chi}_{\mu}^{\ell+1}(t) "
            r"d\hat{\boldsymbol{\chi}}_{\mu}^{\ell+1}(t)}{(2\pi)^N} "
            r"\exp\left(i\,\hat{\boldsymbol{\chi}}_{\mu}^{\ell+1}(t) \cdot "
            r"\left[\boldsymbol{\chi}_{\mu}^{\ell+1}(t) - "
            r"\frac{1}{\sqrt{N}}\boldsymbol{W}^{\ell}(0)\,\phi\left(\boldsymbol{h}_{\mu}^{\ell}(t)"
            r"\right)\right]\right)"
        ),
        derived="path-integral route, field constraint",
        verdict="agrees",
        why=(
            "Fourier form of a vector delta function; the normalisation (2 pi)^N is right, and "
            "causality makes the Jacobian one."
        ),
        evidence=("path_integral:gaussian_fourier_identity",),
    ),
    Entry(
        source="selfconsistent2023",
        number="8",
        title="generating functional as an integral over order parameters",
        printed=(
            r"Z\left[\left\{\boldsymbol{j}^{\ell},\boldsymbol{v}^{\ell}\right\}\right] \propto \int "
            r"\prod_{\ell\mu\alpha ts} d\Phi_{\mu\alpha}^{\ell}(t,s) d\hat{\Phi}_{\mu\alpha}^{\ell}(t,s) "
            r"dG_{\mu\alpha}^{\ell}(t,s) d\hat{G}_{\mu\alpha}^{\ell}(t,s) dA_{\mu\alpha}^{\ell}(t,s) "
            r"dB_{\mu\alpha}^{\ell}(t,s) \\ \times "
            r"\exp\left(NS\left[\left\{\Phi,\hat{\Phi},G,\hat{G},A,B,j,v\right\}\right]\right)"
        ),
        derived="path-integral route, order parameters and conjugates",
        verdict="agrees",
        why=(
            "Right up to normalisation when every site carries the same sources; with site-dependent "
            "ones ln Z becomes a site average, as in (D.17). A and B exist for the L-1 inner matrices "
            "only."
        ),
        evidence=("saddle_point:action_is_stationary",),
    ),
    Entry(
        source="selfconsistent2023",
        number="9",
        title="the action",
        printed=(
            r"S = \sum_{\ell\mu\alpha} \int_{0}^{\infty} dt \int_{0}^{\infty} ds "
            r"\left[\Phi_{\mu\alpha}^{\ell}(t,s) \hat{\Phi}_{\mu\alpha}^{\ell}(t,s) + "
            r"G_{\mu\alpha}^{\ell}(t,s) \hat{G}_{\mu\alpha}^{\ell}(t,s) - A_{\mu\alpha}^{\ell}(t,s) "
            r"B_{\mu\alpha}^{\ell}(t,s)\right] \\ "
            r"+\ln\mathcal{Z}\left[\left\{\Phi,\hat{\Phi},G,\hat{G},A,B,j,v\right\}\right]"
        ),
        derived="path-integral route, action",
        verdict="agrees",
        why=(
            "The sign of the A B term fits A = -i phi.xi_hat/N and the constraint (D.29): both give B "
            "(N A + i phi.xi_hat) with the same overall sign. Varying this action in every order "
            "parameter returns the single-site theory."
        ),
        evidence=("saddle_point:action_is_stationary",),
    ),
    Entry(
        source="selfconsistent2023",
        number="10",
        title="single-site generating functional of one layer",
        printed=(
            r"\mathcal{Z}_{\ell} = \int \prod_{\mu t} d\chi_{\mu}^{\ell}(t) d\xi_{\mu}^{\ell}(t) "
            r"d\hat{\chi}_{\mu}^{\ell}(t) d\hat{\xi}_{\mu}^{\ell}(t) "
            r"\exp\left(-\mathcal{H}_{\ell}\left[\left\{\chi_{\mu}^{\ell}(t), \xi_{\mu}^{\ell}(t), "
            r"\hat{\chi}_{\mu}^{\ell}(t), \hat{\xi}_{\mu}^{\ell}(t)\right\}\right]\right)"
        ),
        derived="path-integral route, single-site weight",
        verdict="definition",
        why=(
            "Defines the Hamiltonian; the factors 2 pi of (D.32) are absorbed. The layers do factorise: "
            "each term of (D.32) contains the fields of one layer only."
        ),
    ),
    Entry(
        source="selfconsistent2023",
        number="11",
        title="single-site average",
        printed=(
            r"\left\langle O\left(\left\{\chi^{\ell}, \xi^{\ell}, \hat{\chi}^{\ell}, "
            r"\hat{\xi}^{\ell}\right\}\right)\right\rangle \\ \equiv \frac{1}{\mathcal{Z}_{\ell}} \int "
            r"d\chi^{\ell} d\xi^{\ell} d\hat{\chi}^{\ell} d\hat{\xi}^{\ell} O\left(\left\{\chi^{\ell}, "
            r"\xi^{\ell}, \hat{\chi}^{\ell}, \hat{\xi}^{\ell}\right\}\right) "
            r"\exp\left(-\mathcal{H}_{\ell}\left[\left\{\chi^{\ell}, \xi^{\ell}, \hat{\chi}^{\ell}, "
            r"\hat{\xi}^{\ell}\right\}\right]\right)"
        ),
        derived="averages of the theory",
        verdict="definition",
        why="Definition.",
    ),
    Entry(
        source="selfconsistent2023",
        number="12",
        title="saddle point for the kernels",
        printed=(
            r"\frac{\delta S}{\delta \hat{\Phi}^{\ell}_{\mu\alpha}(t,s)} = \Phi^{\ell}_{\mu\alpha}(t,s) "
            r"+ \frac{1}{\mathcal{Z}} \frac{\delta \mathcal{Z}}{\delta "
            r"\hat{\Phi}^{\ell}_{\mu\alpha}(t,s)} = \Phi^{\ell}_{\mu\alpha}(t,s) - \left\langle \phi "
            r"\left(h^{\ell}_{\mu}(t) \right) \phi \left(h^{\ell}_{\alpha}(s) \right) \right\rangle = 0, "
            r"\\ \frac{\delta S}{\delta \hat{G}^{\ell}_{\mu\alpha}(t,s)} = G^{\ell}_{\mu\alpha}(t,s) + "
            r"\frac{1}{\mathcal{Z}} \frac{\delta \mathcal{Z}}{\delta \hat{G}^{\ell}_{\mu\alpha}(t,s)} = "
            r"G^{\ell}_{\mu\alpha}(t,s) - \left\langle g^{\ell}_{\mu}(t) g^{\ell}_{\alpha}(s) "
            r"\right\rangle = 0"
        ),
        claim=nonlinear.eq12,
        derived="order parameters of the theory",
        verdict="agrees",
        why=(
            "Follows from (9) and (D.32), for any activation. The second line varies G_hat, as it must; "
            "compare (D.33)."
        ),
        evidence=("saddle_point:action_is_stationary", "nonlinear:closure_against_networks"),
    ),
    Entry(
        source="selfconsistent2023",
        number="13",
        title="single-site fields",
        printed=(
            r"\left\{ u_{\mu}^{\ell}(t) \right\}_{\mu \in [P], t \in \mathbb{R}_{+}} \sim \mathcal{GP} "
            r"\left(0, \mathbf{\Phi}^{\ell-1} \right) , \left\{ r_{\mu}^{\ell}(t) \right\}_{\mu \in [P], "
            r"t \in \mathbb{R}_{+}} \sim \mathcal{GP} \left(0, \mathbf{G}^{\ell+1} \right) , \\ "
            r"h_{\mu}^{\ell}(t) = u_{\mu}^{\ell}(t) + \gamma_{0} \int_{0}^{t} ds \sum_{\alpha=1}^{P} "
            r"\left[A_{\mu\alpha}^{\ell-1}(t, s) + \Delta_{\alpha}(s) \Phi_{\mu\alpha}^{\ell-1}(t, s) "
            r"\right] z_{\alpha}^{\ell}(s) \dot{\phi} \left(h_{\alpha}^{\ell}(s) \right) , \\ "
            r"z_{\mu}^{\ell}(t) = r_{\mu}^{\ell}(t) + \gamma_{0} \int_{0}^{t} ds \sum_{\alpha=1}^{P} "
            r"\left[B_{\mu\alpha}^{\ell}(t, s) + \Delta_{\alpha}(s) G_{\mu\alpha}^{\ell+1}(t, s) \right] "
            r"\phi \left(h_{\alpha}^{\ell}(s) \right)"
        ),
        claim=nonlinear.eq13,
        derived="single-site equations of the theory",
        verdict="agrees",
        why=(
            "Both routes give the same for any activation: the error multiplies the kernels only, never A or "
            "B. Ends A^0 = B^L = 0. If phi is not linear, B has a part at equal times (14), so the integral "
            "over B goes up to s = t and includes it: in steps B acts for s <= t, A for s < t. Kernels and "
            "outputs agree with linear and with tanh networks."
        ),
        evidence=("linear:closure_against_networks", "nonlinear:closure_against_networks"),
    ),
    Entry(
        source="selfconsistent2023",
        number="14",
        title="response functions",
        printed=(
            r"A_{\mu\alpha}^{\ell}(t,s) = \gamma_0^{-1} \left\langle "
            r"\frac{\delta\phi\left(h_{\mu}^{\ell}(t)\right)}{\delta r_{\alpha}^{\ell}(s)} \right\rangle "
            r", \ B_{\mu\alpha}^{\ell}(t,s) = \gamma_0^{-1} \left\langle \frac{\delta "
            r"g_{\mu}^{\ell+1}(t)}{\delta u_{\alpha}^{\ell+1}(s)} \right\rangle"
        ),
        claim=nonlinear.eq14,
        derived="responses of the theory",
        verdict="agrees",
        why=(
            "Right as functional derivatives, for any activation. B is then no ordinary function: g "
            "depends on u at the same time through phi'(h), so that gamma0 B contains <phi''(h) z> "
            "delta(t - s) for equal samples, of order gamma0, which must be kept in (13) in full; the "
            "text below (D.24) denies it. For linear networks it is absent, g and r carry no sample "
            "index, and the response to r already contains the sum over alpha."
        ),
        evidence=(
            "saddle_point:stein_identity",
            "linear:closure_against_networks",
            "nonlinear:equal_time_response",
            "nonlinear:responses_by_parts",
        ),
    ),
    Entry(
        source="selfconsistent2023",
        number="15",
        title="closed equations of the linear network",
        printed=(
            r"\boldsymbol{H}^{\ell} = \left\langle \boldsymbol{h}^{\ell} \boldsymbol{h}^{\ell \top} "
            r"\right\rangle = \left(\mathbf{I} - \gamma_0^2 \boldsymbol{C}^{\ell} \boldsymbol{D}^{\ell} "
            r"\right)^{-1} \left[\boldsymbol{H}^{\ell-1} + \gamma_0^2 \boldsymbol{C}^{\ell} "
            r"\boldsymbol{G}^{\ell+1} \boldsymbol{C}^{\ell \top} \right] \left[\left(\mathbf{I} - "
            r"\gamma_0^2 \boldsymbol{C}^{\ell} \boldsymbol{D}^{\ell} \right)^{-1} \right]^{\top} \\ "
            r"\boldsymbol{G}^{\ell} = \left\langle \boldsymbol{g}^{\ell} \boldsymbol{g}^{\ell \top} "
            r"\right\rangle = \left(\mathbf{I} - \gamma_0^2 \boldsymbol{D}^{\ell} \boldsymbol{C}^{\ell} "
            r"\right)^{-1} \left[\boldsymbol{G}^{\ell+1} + \gamma_0^2 \boldsymbol{D}^{\ell} "
            r"\boldsymbol{H}^{\ell-1} \boldsymbol{D}^{\ell \top} \right] \left[\left(\mathbf{I} - "
            r"\gamma_0^2 \boldsymbol{D}^{\ell} \boldsymbol{C}^{\ell} \right)^{-1} \right]^{\top}"
        ),
        claim=closure.eq15,
        derived="reduction: linear closure",
        verdict="agrees",
        why=(
            "Right once C and D hold A and B without the error (see F.2). C maps times to samples and "
            "times, D back, so the two inverses differ in size."
        ),
        evidence=("linear:closure_against_networks",),
    ),
    Entry(
        source="selfconsistent2023",
        number="16",
        title="tangent kernel at order gamma0^2",
        printed=(
            r"K_{\mu\nu}^{\text{NTK}}(t,s) = (L+1)K_{\mu\nu}^{x} + \gamma_{0}^{2} \frac{L(L+1)}{2} "
            r"K_{\mu\nu}^{x} \sum_{\alpha\beta} K_{\alpha\beta}^{x} \left[v_{\alpha\beta}(t) + "
            r"v_{\beta\alpha}(s) + v_{\alpha}(t) v_{\beta}(s) \right] \\ + \gamma_{0}^{2} "
            r"\frac{L(L+1)}{2} \left[\sum_{\alpha\beta} K_{\mu\alpha}^{x} K_{\nu\beta}^{x} "
            r"\left[v_{\alpha\beta}(t) + v_{\beta\alpha}(s) \right] + \sum_{\alpha\beta} "
            r"K_{\mu\alpha}^{x} K_{\nu\beta}^{x} v_{\alpha}(t) v_{\beta}(s) \right] \\ + "
            r"\mathcal{O}\left(\gamma_{0}^{4}\right)"
        ),
        claim=expansion.eq16,
        derived="derive.expansion: tangent kernel at order gamma0^2, ell and L symbolic",
        verdict="wrong",
        why=(
            "The factor L(L+1)/2 must be L(L+1)^2(L+2)/12 in all four terms; they agree only at L = 1, "
            "and are 3 and 6 at L = 2, 15 and 105 at L = 5. The printed formula drops A and B, which "
            "are of the same order as the kernel terms: it is exactly the expansion with A = B = 0 "
            "(gradient independence, appendix O). The fitted second derivative in gamma0 "
            "decides, and so do finite networks."
        ),
        evidence=(
            "expansion:tangent_kernel_depth_coefficient",
            "expansion:gradient_independence_coefficients",
            "networks:kernel_curvature",
        ),
    ),
    Entry(
        source="selfconsistent2023",
        number="16 text",
        title="growth of the relative kernel change with depth",
        printed=(
            r"|\boldsymbol{K}^{NTK} - \boldsymbol{K}^{NTK}(0)| / |\boldsymbol{K}^{NTK}(0)| \sim "
            r"\mathcal{O}(\gamma_0^2 L) = \mathcal{O}(\gamma^2 L/N)"
        ),
        claim=expansion.eq16_text,
        derived="derive.expansion: ratio of the orders gamma0^2 and 1 of the tangent kernel",
        verdict="agrees",
        why=(
            "True at the end of training, but not for the reason given. For given v the ratio is "
            "L(L+1)(L+2)/12, cubic in L; the v themselves shrink, v(infinity) = K^{-1} y/(L+1), so the "
            "ratio after training is L(L+2)/(12(L+1)) times a depth-independent number, linear in L. "
            "With the printed (16) it would fall as 1/L."
        ),
        evidence=("expansion:relative_change_with_depth",),
    ),
)
