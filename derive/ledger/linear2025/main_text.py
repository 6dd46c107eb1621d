"""Main text, (1)-(15), (18)-(21)."""

from __future__ import annotations

from derive.ledger.entry import Entry
from derive.ledger.linear2025.claims import full_batch, network, scaling, structured

ENTRIES: tuple[Entry, ...] = (
    Entry(
        source="linear2025",
        number="1",
        title="deep linear network",
        printed=(
            r"f(\boldsymbol{x}) = \frac{\sqrt{D}}{N\gamma_0} \left(\boldsymbol{w}^L \right)^{\top} "
            r"\prod_{\ell=1}^{L-1} \left(\frac{1}{\sqrt{N}} \boldsymbol{W}^{\ell} \right) "
            r"\left(\frac{1}{\sqrt{D}} \boldsymbol{W}^0 \right) \boldsymbol{x}"
        ),
        verdict="definition",
        why="Definition of the network, L hidden layers.",
    ),
    Entry(
        source="linear2025",
        number="2",
        title="random data and weights",
        printed=(
            r"\boldsymbol{x}_{\mu} \sim \mathcal{N}(0, \boldsymbol{I}) , \ w_{i}^{L}, W_{ij}^{\ell}, "
            r"W_{ij}^{0} \sim \mathcal{N}(0, 1)"
        ),
        verdict="definition",
        why="Definition.",
    ),
    Entry(
        source="linear2025",
        number="3",
        title="noisy linear target",
        printed=(
            r"y(\mathbf{x}) = \frac{1}{\sqrt{D}} \mathbf{w}_{\star} \cdot \mathbf{x} + \sigma "
            r"\epsilon(\mathbf{x})"
        ),
        verdict="definition",
        why="Definition; (13) and (65) further need entries of w_star with mean square one.",
    ),
    Entry(
        source="linear2025",
        number="4",
        title="update of a layer",
        printed=(
            r"\boldsymbol{W}^{\ell}(t+1) = \boldsymbol{W}^{\ell}(t) + \frac{\eta \gamma_0}{\sqrt{N}} "
            r"\boldsymbol{g}^{\ell+1}(t) \boldsymbol{h}^{\ell}(t)^{\top}"
        ),
        claim=network.f4,
        derived="program isotropic: updates of W0 and W",
        verdict="misprint",
        why=(
            "Right for l >= 1. For l = 0 the factor is 1/sqrt(D), as (25) has it: gradients of a network "
            "with N != D decide."
        ),
        evidence=("isotropic_network:first_layer_scale",),
    ),
    Entry(
        source="linear2025",
        number="5",
        title="averaged forward and backward vectors",
        printed=(
            r"\boldsymbol{h}^{\ell+1}(t) = \frac{1}{\sqrt{N}} \boldsymbol{W}^{\ell}(t) "
            r"\boldsymbol{h}^{\ell}(t) \; , \; \boldsymbol{h}^{0}(t) = \frac{\sqrt{D}}{P} \sum_{\mu=1}^{P} "
            r"\Delta_{\mu}(t) \boldsymbol{x}_{\mu} \\ \boldsymbol{g}^{\ell}(t) = \frac{1}{\sqrt{N}} "
            r"\boldsymbol{W}^{\ell}(t)^{\top} \boldsymbol{g}^{\ell+1}(t) , \ \boldsymbol{g}^{L}(t) = "
            r"\boldsymbol{w}^{L}(t)"
        ),
        claim=network.f5,
        derived="program isotropic: definitions of h0, h, g",
        verdict="misprint",
        why=(
            "h^1 = W^0 h^0/sqrt(D), as in (1) and (28); the printed 1/sqrt(N) holds for l >= 1 only. The "
            "rest is right: with 1/sqrt(D) these vectors give the gradient's updates."
        ),
        evidence=("isotropic_network:first_layer_scale",),
    ),
    Entry(
        source="linear2025",
        number="6",
        title="full-batch proportional limit",
        printed=r"P/D \equiv \alpha , \ N/D \equiv \nu",
        verdict="definition",
        why="Definition of the limit.",
    ),
    Entry(
        source="linear2025",
        number="7",
        title="online proportional limit",
        printed=r"B/D \equiv \alpha_B , \ N/D \equiv \nu",
        verdict="definition",
        why="Definition of the limit.",
    ),
    Entry(
        source="linear2025",
        number="7 text",
        title="many samples give the population's loss",
        printed=(
            r"\text{both converge to the dynamics of gradient descent on the population loss as } \alpha "
            r"\to \infty \text{ or } \alpha_B \to \infty"
        ),
        derived="isotropic theories of the three kinds of data",
        verdict="agrees",
        why=(
            "Both theories tend to that of descent on the population's loss, with corrections of order "
            "1/alpha."
        ),
        evidence=("isotropic:population_limit",),
    ),
    Entry(
        source="linear2025",
        number="8",
        title="correlation functions",
        printed=(
            r"C_h^{\ell}(t,t') = \frac{1}{N} \boldsymbol{h}^{\ell}(t) \cdot \boldsymbol{h}^{\ell}(t') , "
            r"C_g^{\ell}(t,t') = \frac{1}{N} \boldsymbol{g}^{\ell}(t) \cdot \boldsymbol{g}^{\ell}(t') \\ "
            r"C_{\Delta}(t,t') = \frac{1}{P} \boldsymbol{\Delta}(t) \cdot \boldsymbol{\Delta}(t') , "
            r"C_v(t,t') = \frac{1}{D} \boldsymbol{v}(t) \cdot \boldsymbol{v}(t')"
        ),
        verdict="definition",
        why="Definition; C_h^0 is divided by D, not N, as (44) says.",
    ),
    Entry(
        source="linear2025",
        number="9",
        title="error vector",
        printed=(
            r"\boldsymbol{v}(t) = \boldsymbol{w}^* - \frac{\sqrt{D}}{N\gamma_0} \boldsymbol{W}^0(t)^\top "
            r"\boldsymbol{g}^1(t)"
        ),
        verdict="definition",
        why="Definition.",
    ),
    Entry(
        source="linear2025",
        number="10",
        title="test and training loss",
        printed=r"\mathcal{L}(t) = C_v(t,t) + \sigma^2 , \ \hat{\mathcal{L}}(t) = C_{\Delta}(t,t)",
        claim=full_batch.losses,
        derived="correlations of v and Delta at equal times",
        verdict="agrees",
        why=(
            "Fresh samples decide: |v|^2/D + sigma^2. No factor 1/2, as in (23); the training loss "
            "contains the fitted noise."
        ),
        evidence=("isotropic_network:losses",),
    ),
    Entry(
        source="linear2025",
        number="11",
        title="single-site equations of inner layers",
        printed=(
            r"h^{\ell}(t) = u^{\ell}(t) + \sum_{t' < t} \left[R_{hr}^{\ell-1}(t, t') + \eta \gamma_0 "
            r"C_h^{\ell-1}(t, t') \right] g^{\ell}(t') \\ g^{\ell}(t) = r^{\ell}(t) + \sum_{t' < t} "
            r"\left[R_{gu}^{\ell+1}(t, t') + \eta \gamma_0 C_g^{\ell+1}(t, t') \right] h^{\ell}(t')"
        ),
        claim=full_batch.f11,
        derived="isotropic theory, equations of h and g",
        verdict="wrong",
        why=(
            "The sum over R_hr must include t' = t: h^{l-1}(t) answers to r^{l-1}(t) of the same step, "
            "R_hr^l(t,t) = -1/(nu gamma0) for every l >= 1. R_gu and the memory of updates are strictly "
            "causal, so the equation of g is right. Networks reject the printed sum by tens of standard "
            "errors. (G^{l+1} is C_g^{l+1}.)"
        ),
        evidence=("isotropic:equal_time_responses",),
    ),
    Entry(
        source="linear2025",
        number="12",
        title="responses of inner layers",
        printed=(
            r"R_{hr}^{\ell}(t,t') = \left\langle \frac{\delta h(t)}{\delta r^{\ell}(t')} \right\rangle , \ "
            r"R_{gu}^{\ell}(t,t') = \left\langle \frac{\delta g^{\ell}(t)}{\delta u^{\ell}(t')} "
            r"\right\rangle"
        ),
        claim=full_batch.f66,
        derived="order parameters R_hr, R_gu",
        verdict="agrees",
        why="R_gu and R_hr of the theory (h lacks its layer).",
        evidence=("isotropic_responses:full_batch",),
    ),
    Entry(
        source="linear2025",
        number="12 text",
        title="responses contribute for t' < t only",
        printed=r"\text{due to causality, these only contribute for } t' < t",
        derived="causal order of the responses",
        verdict="wrong",
        why=(
            "True of R_gu and R_vu. R_Delta and all R_hr have an equal-time part, R_Delta(t,t) = 1 and "
            "R^0_hr(t,t) = -1: the forward vectors of a step are computed from backward vectors of the "
            "same step."
        ),
        evidence=("isotropic:equal_time_responses", "isotropic_responses:full_batch"),
    ),
    Entry(
        source="linear2025",
        number="13",
        title="test loss in three parts",
        printed=(
            r"\mathcal{L}(t) = \underbrace{\sum_{s < t} \sum_{s' < t} R_{vr}^{0}(t, s) R_{vr}^{0}(t, "
            r"s')}_{\text{Bias}} + \underbrace{\frac{1}{\nu \gamma_{0}^{2}} \sum_{s < t} \sum_{s' < t} "
            r"R_{vr}^{0}(t, s) R_{vr}^{0}(t, s') C_{g}^{1}(s, s')}_{\text{Limited Width Variance}} + "
            r"\underbrace{\frac{1}{\alpha} \sum_{s < t} \sum_{s' < t} R_{vu}^{0}(t, s) R_{vu}^{0}(t, s') "
            r"C_{\Delta}(s, s')}_{\text{United Noise}}"
        ),
        claim=full_batch.f13,
        derived="loss_decomposition of the isotropic theory",
        verdict="misprint",
        why=(
            "The sums must run to s = t, as those of (80) do: R_vr(t,t) = -1, and as printed the loss is 0 "
            "at t = 0. The label noise sigma^2 of (10) is missing; noise fitted by the network sits in "
            "C_Delta. With both repaired the three parts add up to the derived loss."
        ),
        evidence=("isotropic:loss_parts",),
    ),
    Entry(
        source="linear2025",
        number="14",
        title="single-site equation of the first layer",
        printed=(
            r"h^{1}(t) = \underbrace{u^{1}(t)}_{\text{Gaussian Process}} + "
            r"\underbrace{\frac{1}{\nu\gamma_{0}} \sum_{t' < t} R_{hr}^{0}(t, t') g^{1}(t')}_{\text{Limited "
            r"Width Effects}} + \eta\gamma_{0} \sum_{t' < t} C_{h}^{0}(t, t') g^{1}(t')"
        ),
        claim=full_batch.f14,
        derived="isotropic theory, equation of h(1)",
        verdict="wrong",
        why=(
            "The response's sum must include t' = t, R^0_hr(t,t) = -1. Without it already C_h at t = 0 is "
            "wrong in networks, where h^1 = u^1 - g^1/(nu gamma0)."
        ),
        evidence=("isotropic:equal_time_responses",),
    ),
    Entry(
        source="linear2025",
        number="14 text",
        title="features' updates in two parametrisations",
        printed=(
            r"\text{mean field: feature learning updates scale as } \sim \eta \gamma_0 , \ \text{NTK } "
            r"\left(\gamma_0 \sim \Theta\left(\nu^{-1/2}\right)\right) \text{: } \sim \eta "
            r"\gamma/\sqrt{\nu}"
        ),
        claim=scaling.f14_text,
        derived="isotropic theory in NTK parametrisation, equation of h(1)",
        verdict="agrees",
        why=(
            "The derived theory with gamma0/sqrt(nu) in place of gamma0 (appendix B). NTK networks agree "
            "with it; as nu grows their features stand still, the growth of C_g^1 falling as 1/nu."
        ),
        evidence=("isotropic_families:parametrisations",),
    ),
    Entry(
        source="linear2025",
        number="15",
        title="response of the errors",
        printed=(
            r"R_{\Delta}(t,t') = \delta(t-t') + \underbrace{\frac{1}{\alpha} \sum_{t'' < t} "
            r"R_{vu}^{0}(t,t'') R_{\Delta}(t'',t')}_{\text{Limited Data Bias}}"
        ),
        claim=full_batch.f15,
        derived="transfer function of Delta",
        verdict="agrees",
        why=(
            "The derivative of the error's equation by its source; R_vu is strictly causal, so t'' < t "
            "loses nothing."
        ),
        evidence=("isotropic_responses:full_batch",),
    ),
    Entry(
        source="linear2025",
        number="18",
        title="structured inputs",
        printed=(
            r"\langle x_k x_\ell \rangle = \lambda_k \delta_{k\ell} , \ y(\boldsymbol{x}) = \sum_k "
            r"w_k^{\star} x_k"
        ),
        verdict="definition",
        why="Definition, without label noise.",
    ),
    Entry(
        source="linear2025",
        number="19",
        title="error along an eigendirection",
        printed=(
            r"v_k(t) = \sum_{t' < t} \mathcal{H}_k(t, t') \left[w_k^* - r_k^0(t') - \tilde{u}_k^0(t') "
            r"\right]"
        ),
        claim=structured.f19,
        derived="transfer function of v in the structured theory",
        verdict="misprint",
        why=(
            "The sum must include t' = t: H_k contains delta(t - t') (111). As printed v_k(0) = 0. With "
            "centring, as in (106), r^0_k(t') comes with -r^0_k(0)."
        ),
        evidence=("structured:transfer_functions",),
    ),
    Entry(
        source="linear2025",
        number="20",
        title="source and capacity conditions",
        printed=r"\lambda_k \sim k^{-\alpha} , (w_k^{\star})^2 \lambda_k \sim k^{-\alpha\beta - 1}",
        verdict="definition",
        why="Definition.",
    ),
    Entry(
        source="linear2025",
        number="21",
        title="decay of the loss on power-law features",
        printed=(
            r"\lim_{N \to \infty} \mathcal{L}(t, N) \sim \begin{cases} t^{-\frac{2\beta}{1+\beta}} & \beta "
            r"< 1 & \text{(Hard Tasks)} \\ t^{-\beta} & \beta \ge 1 & \text{(Easy Tasks)} \end{cases}"
        ),
        claim=scaling.f21,
        derived="rich regime of the structured theory: kernels of rank one in time",
        verdict="wrong",
        why=(
            "Right on easy tasks. On hard ones the derived exponent is (L+1) beta/(1 + L beta), of which the "
            "print is L = 1: it grows with depth, where the text says that it does not. With two hidden "
            "layers it is 1/2 at beta = 1/4 and 3/4 at beta = 1/2, printed 0.40 and 0.67. The solved theory "
            "and networks follow the derived one."
        ),
        evidence=(
            "isotropic_rates:scaling_laws",
            "scaling_exponents:exponents",
            "rich_regime:two_layers",
            "rich_regime:slopes",
            "rich_regime:easy_tasks",
            "rich_regime:crossover",
            "scaling_networks:two_layers",
        ),
    ),
)
