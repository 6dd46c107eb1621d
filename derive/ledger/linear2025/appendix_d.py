"""Appendix D: online descent, (96)-(105) and the caption of figure 9."""

from __future__ import annotations

from derive.ledger.entry import Entry
from derive.ledger.linear2025.claims import full_batch, online

ENTRIES: tuple[Entry, ...] = (
    Entry(
        source="linear2025",
        number="96",
        title="online fields",
        printed=(
            r"\boldsymbol{h}^{0}(t) = \frac{\sqrt{D}}{B} \boldsymbol{X}(t)^{\top} \boldsymbol{\Delta}(t) , "
            r"\ \boldsymbol{\Delta}(t) = \frac{1}{\sqrt{D}} \boldsymbol{X}(t) \boldsymbol{v}(t) + \sigma "
            r"\boldsymbol{\epsilon}(t)"
        ),
        verdict="definition",
        why="Definition.",
    ),
    Entry(
        source="linear2025",
        number="97",
        title="averaged input, online",
        printed=(
            r"h^{0}(t) = u^{0}(t) + v(t), \ u^{0}(t) \sim \mathcal{N}\left(0, "
            r"\frac{1}{\alpha_{B}}C_{\Delta}(t, t') \delta(t - t')\right)"
        ),
        claim=online.f97,
        derived="online theory, equation of h0",
        verdict="agrees",
        why="R_Delta(t,s) = delta(t - s): v(t) itself, at equal time, and local noise.",
        evidence=("isotropic:fresh_batches",),
    ),
    Entry(
        source="linear2025",
        number="98",
        title="error on a sample, online",
        printed=r"\Delta(t) = u_{\Delta}(t) + \sigma \epsilon(t) , u_{\Delta}(t) \sim \mathcal{N}(0, C_v)",
        claim=online.f98,
        derived="online theory, covariance of u_Delta",
        verdict="misprint",
        why=(
            "Batches are independent: u_Delta has covariance C_v(t,t) delta(t - t'), as u^0 in (97). Only "
            "its equal-time part enters the other equations, but C_Delta(t,t') would not vanish."
        ),
        evidence=("isotropic:fresh_batches",),
    ),
    Entry(
        source="linear2025",
        number="98 text",
        title="noise of fresh batches adds to the input's variance",
        printed=r"\langle h^0(t)^2 \rangle = C_v(t,t) + \frac{1}{\alpha_B} C_{\Delta}(t,t)",
        claim=online.f98_text,
        derived="online theory, C_h0 at equal times",
        verdict="agrees",
        why="<h^0(t)^2> = C_v + C_Delta/alpha_B, and there is no response R_Delta beyond equal time.",
        evidence=("isotropic:fresh_batches",),
    ),
    Entry(
        source="linear2025",
        number="99",
        title="online limit",
        printed=r"D, N, B \to \infty , \ B = \alpha D , \ N = \nu D",
        verdict="definition",
        why="Definition; the ratio is called alpha_B elsewhere.",
    ),
    Entry(
        source="linear2025",
        number="100",
        title="single-site equations, online",
        printed=(
            r"v(t) = w^{\star} - r^{0}(t) - \sum_{t' < t} \left[\frac{1}{\gamma_{0}} R_{gu}^{1}(t, t') + "
            r"\eta \gamma_{0} C_{g}^{1}(t, t') \right] h^{0}(t') , r^{0}(t) \sim \mathcal{GP} \left(0, "
            r"\frac{1}{\nu \gamma_{0}^{2}} G^{1}(t, t') \right) \\ \Delta(t) = u_{\Delta}(t) + \sigma "
            r"\epsilon(t) , u_{\Delta}(t) \sim \mathcal{GP} \left(0, C_{v}(t, t') \right) , \epsilon(t) "
            r"\sim \mathcal{N}(0, \delta(t - t')) \\ h^{0}(t) = u^{0}(t) + v(t) , u^{0}(t) \sim "
            r"\mathcal{GP} \left(0, \frac{1}{\alpha_{B}} C_{\Delta}(t, t') \delta(t - t') \right) \\ "
            r"h^{1}(t) = u^{1}(t) + \sum_{t' < t} \left[\frac{1}{\nu \gamma_{0}} R_{hr}^{0}(t, t') + \eta "
            r"\gamma_{0} C_{h}^{0}(t, t') \right] g^{1}(t') , u^{1}(t) \sim \mathcal{GP}(0, C_{h}^{0}(t, "
            r"t')) \\ h^{\ell}(t) = u^{\ell}(t) + \sum_{t' < t} \left[R_{hr}^{\ell-1}(t, t') + \eta "
            r"\gamma_{0} C_{h}^{\ell-1}(t, t') \right] g^{\ell}(t') , u^{\ell}(t) \sim \mathcal{GP}(0, "
            r"C_{h}^{\ell-1}(t, t')) \\ g^{\ell}(t) = r^{\ell}(t) + \sum_{t' < t} \left[R_{gu}^{\ell+1}(t, "
            r"t') + \eta \gamma_{0} C_{g}^{\ell+1}(t, t') \right] h^{\ell}(t') , r^{\ell}(t) \sim "
            r"\mathcal{GP}(0, C_{g}^{\ell+1}(t, t'))"
        ),
        claim=online.f100,
        derived="online theory",
        verdict="wrong",
        why=(
            "As (65): sums of R_hr must run over t' <= t and v gets eta C_g^1; as in (98), u_Delta needs "
            "delta(t - t'). The equation of h^0, with v(t) at equal time, is right."
        ),
        evidence=("isotropic:fresh_batches",),
    ),
    Entry(
        source="linear2025",
        number="101",
        title="responses, online",
        printed=(
            r"R_{vu}^{0}(t,t') = \left\langle \frac{\partial v(t)}{\partial u^{0}(t')} \right\rangle , "
            r"R_{hr}^{0}(t,t') = \left\langle \frac{\partial h^{0}(t)}{\partial r^{0}(t')} \right\rangle \\ "
            r"R_{hr}^{\ell}(t,t') = \left\langle \frac{\partial h^{\ell}(t)}{\partial r^{\ell}(t')} "
            r"\right\rangle , R_{gu}^{\ell}(t,t') = \left\langle \frac{\partial g^{\ell}(t)}{\partial "
            r"u^{\ell}(t')} \right\rangle"
        ),
        claim=online.f101,
        derived="order parameters of the online theory",
        verdict="agrees",
        why="The theory's responses; R_vu does not enter.",
        evidence=("isotropic_responses:online",),
    ),
    Entry(
        source="linear2025",
        number="102",
        title="correlations, online",
        printed=(
            r"C_{v}(t,t') = \langle v(t)v(t') \rangle , C_{\Delta}(t,t') = \langle \Delta(t)\Delta(t') "
            r"\rangle \\ C_{h}^{\ell}(t,t') = \langle h^{\ell}(t)h^{\ell}(t') \rangle , C_{g}^{\ell}(t,t') "
            r"= \langle g^{\ell}(t)g^{\ell}(t') \rangle"
        ),
        claim=full_batch.f67,
        derived="order parameters of the online theory",
        verdict="agrees",
        why="The theory's correlations.",
        evidence=("isotropic:fresh_batches",),
    ),
    Entry(
        source="linear2025",
        number="103",
        title="early responses and gradient correlations, online",
        printed=(
            r"R_{gu}^{1}(t,t') \approx \eta \gamma_{0} L\Theta(t-t') \\ G^{1}(t+1,t+1) - G^{1}(t,t) \approx "
            r"[G^{2}(t+1,t+1) - G^{2}(t,t)] + 4\eta^{2} L^{2} \gamma_{0}^{2} C_{h}^{0}(t,t) \\ \approx "
            r"\eta^{2} C_{h}^{0}(t,t) \sum_{k=1}^{L} k^{2} = \frac{\eta^{2} \gamma_{0}^{2} "
            r"L(L+1)(2L+1)}{6} C_{h}^{0}(t,t)"
        ),
        claim=online.f103,
        derived="first step of the online theory, centred: R_gu(1), C_g",
        verdict="misprint",
        why=(
            "The response and the last form are what the first step gives. The second line has no factor 4, "
            "as its own sum of squares shows, and the third has gamma0^2 in front of the sum."
        ),
        evidence=("first_step:gradients",),
    ),
    Entry(
        source="linear2025",
        number="104",
        title="growth of the loss in an early step, online",
        printed=(
            r"C_v(t+1) \approx \left[(1 - L\eta)^2 + \frac{\eta^2 L^2}{\alpha_B} + \frac{\eta^2 "
            r"L(L+1)(2L+1)}{6\nu} + \frac{\eta^2 L(L+1)(2L+1)}{6\nu \alpha_B} \right] C_v(t)"
        ),
        claim=online.f104,
        derived="first step of the online theory, centred: C_v(1)/C_v(0)",
        verdict="wrong",
        why=(
            "In the first two terms L should be L + 1: there are L + 1 layers of weights, and the update of "
            "W^0, the term eta C_g^1 of (69), is left out. The terms with nu are right, for the centred "
            "function without label noise."
        ),
        evidence=("first_step:growth",),
    ),
    Entry(
        source="linear2025",
        number="104 text",
        title="the recursion predicts the first few steps",
        printed=(
            r"\text{We verify that this does accurately predict the first few steps of the loss dynamics} \\ "
            r"\text{(and captures the early blowup)}"
        ),
        derived="memory-free recursion and the terms that it drops in the second step",
        verdict="wrong",
        why=(
            "It is a first step taken again and again. In the second step the neglected memory, and the "
            "correlation of weights and error, are 2 L (L + 1) (2 L + 1) eta^2/(3 nu) at small rates, four "
            "times the term with 1/nu that (104) keeps. The recursion is right for every step only if "
            "layers are wide and gamma0 -> 0; without noise of batches it is then a lower bound."
        ),
        evidence=("early_steps:memory",),
    ),
    Entry(
        source="linear2025",
        number="105",
        title="rate above which the loss first rises, online",
        printed=(
            r"\eta L > \frac{2}{1 + \frac{1}{\alpha_B} + \frac{(L+1)(2L+1)}{6L\nu} + "
            r"\frac{(L+1)(2L+1)}{6L\alpha_B\nu}}"
        ),
        claim=online.f105,
        derived="first step of the online theory, centred: critical learning rate",
        verdict="wrong",
        why=(
            "It follows from (104) as printed. Derived: eta > 12 alpha_B nu/((alpha_B + 1) (2 L^2 + L + "
            "6 (L + 1) nu)). The printed rate is too large for nu > (2 L + 1)/6 and too small below."
        ),
        evidence=("first_step:critical_rate", "early_steps:separation"),
    ),
    Entry(
        source="linear2025",
        number="105 text",
        title="growth of the loss in the caption of figure 9",
        printed=(
            r"\mathcal{L}(t) \approx \left[(1 - \eta L)^2 + \eta^2 L^2 \left(\alpha_B^{-1} + \nu^{-1} + "
            r"2\alpha_B^{-1} \nu^{-1} \right) \right]^t"
        ),
        claim=online.f105_text,
        derived="first step of the online theory, centred: C_v(1)/C_v(0)",
        verdict="wrong",
        why=(
            "It contradicts (104) at every L, and both are wrong. Besides L for L + 1, its terms with nu "
            "should be those of (104): L (L + 1) (2 L + 1)/6 in place of L^2, and no 2. One factor for every "
            "step is right for wide lazy layers only, and without centring it depends on gamma0, too."
        ),
        evidence=("first_step:growth", "early_steps:not_centred"),
    ),
    Entry(
        source="linear2025",
        number="Figure 9",
        title="a loss that rises can recover if features are learnt",
        printed=(
            r"\text{Early dynamics of the online SGD can exhibit an initial blowup followed by recovery if } "
            r"\gamma_0 > 0"
        ),
        derived="lazy steps: rate of first rise and largest rate; largest rates of the solved theory",
        verdict="agrees",
        why=(
            "It can, but gamma0 > 0 is not needed: in small batches a loss recovers at gamma0 -> 0, too, at "
            "rates from the critical one up to where <eta k/(2 - eta k)> = alpha_B over the kernel's "
            "eigenvalues k, which is at most 2 alpha_B/((L + 1)(alpha_B + 1)). Without noise of batches it "
            "cannot at gamma0 -> 0: C_v(t + 1)/C_v(t) never falls there."
        ),
        evidence=("early_steps:recovers",),
    ),
)
