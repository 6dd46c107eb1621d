"""Section 4 and appendix C: the linear network with frozen ends."""

from __future__ import annotations

from derive.ledger.depth2023.claims import linear
from derive.ledger.depth2023.names import SOURCE, shown_by
from derive.ledger.entry import Entry

_CORRECTION = "depth_correction:frozen_ends"
_GAMMA = (
    r"\Gamma_{t,r,0,b}\left(\frac{l}{L},q\right) = \Gamma_{t,r,0,b}\left(\frac{l-1}{L},q\right) + "
    r"\mathbb{I}_{[t=r, b=0, l=\lceil Lq \rceil]} + \frac{1}{L} \sum_{s<t} "
    r"\Gamma_{s,r,1,b}\left(\frac{l}{L},q\right) \left( \Gamma_{t,s,0,1}\left(\frac{l-1}{L}, "
    r"\frac{l}{L}\right) - C_{t,s,0}\left(\frac{l}{L}\right) \right) \\ "
    r"\Gamma_{t,r,1,b}\left(\frac{l-1}{L},q\right) = \Gamma_{t,r,1,b}\left(\frac{l}{L},q\right) + "
    r"\mathbb{I}_{[t=r, b=1, l=\lceil Lq \rceil]} + \frac{1}{L} \sum_{s<t} "
    r"\Gamma_{s,r,0,b}\left(\frac{l-1}{L},q\right) \left( \Gamma_{t,s,1,0}\left(\frac{l}{L}, "
    r"\frac{l}{L}\right) - C_{t,s,1}\left(\frac{l}{L}\right) \right) \\ C_{t,s,a}(p) = \sum_{t'=-1}^{t} "
    r"\sum_{s'=-1}^{s} \sum_b \int_0^1 \Gamma_{t,t',a,b}(l/L,q) C_{t',s',b}(q) \Gamma_{s,s',a,b}(l/L,q) dq, "
    r"\quad l = \lceil Lp \rceil - 1 \text{ if } a=0, \lceil Lp \rceil \text{ if } a=1"
)
_LIMIT = (
    r"\Gamma_{t,r,0,b}(p,q) = \mathbb{I}_{[t=r,b=0,p \geq q]} + \int_0^p \sum_{s<t} \Gamma_{s,r,1,b}(p',q) "
    r"(\Gamma_{t,s,0,1}(p',p') - C_{t,s,0}(p')) dp' \\ \Gamma_{t,r,1,b}(p,q) = \mathbb{I}_{[t=r,b=1,p \leq "
    r"q]} + \int_p^1 \sum_{s<t} \Gamma_{s,r,0,b}(p',q) (\Gamma_{t,s,1,0}(p',p') - C_{t,s,1}(p')) dp' \\ "
    r"C_{t,s,a}(p) = \sum_{t',s',b} \int_0^1 \Gamma_{t,t',a,b}(p,q) C_{t',s',b}(q) \Gamma_{s,s',a,b}(p,q) dq"
)

ENTRIES = (
    Entry(
        source=SOURCE,
        number="Program 1",
        title="the linear network as a tensor program",
        printed=(
            r"|x_t^0\rangle = \xi_t |U\rangle \\ |W_t^l x_t^{l-1}\rangle = |W_0^l x_t^{l-1}\rangle - "
            r"\frac{1}{\sqrt{L}} \sum_{s<t} |\delta \tilde{x}_s^l\rangle \langle x_s^{l-1}|x_t^{l-1}\rangle "
            r"\\ |x_t^l\rangle = |x_t^{l-1}\rangle + \frac{1}{\sqrt{L}} |W_t^l x_t^{l-1}\rangle \\ f_t = "
            r"\langle x_t^L|nV\rangle, \quad \chi_t = \ell_t'(f_t), \quad |\delta \tilde{x}_t^L\rangle = "
            r"\chi_t |nV\rangle \\ |W_t^{l\top} \delta \tilde{x}_t^l\rangle = |W_0^{l\top} \delta "
            r"\tilde{x}_t^l\rangle - \frac{1}{\sqrt{L}} \sum_{s<t} |x_s^{l-1}\rangle \langle \delta "
            r"\tilde{x}_s^l|\delta \tilde{x}_t^l\rangle \\ |\delta \tilde{x}_t^{l-1}\rangle = |\delta "
            r"\tilde{x}_t^l\rangle + \frac{1}{\sqrt{L}} |W_t^{l\top} \delta \tilde{x}_t^l\rangle"
        ),
        derived="single-site equations of depth_program",
        verdict="agrees",
        why="The updates in print are the memory terms that the engine derives from one training step.",
        evidence=shown_by("recursions"),
    ),
    Entry(
        source=SOURCE,
        number="Def. 4.1",
        title="what becomes of a product with initial weights",
        printed=(
            r"|W y\rangle = |W y\rangle^{\wedge} + |W y\rangle^{\bullet}, \quad \operatorname{Cov}(|W "
            r"y\rangle^{\wedge}, |W z\rangle^{\wedge}) = \langle y|z\rangle, \quad |W y\rangle^{\bullet} = "
            r"\sum_z |z\rangle \frac{\partial |y\rangle}{\partial |W^{\top} z\rangle^{\wedge}}"
        ),
        derived="the conditioning rule",
        verdict="agrees",
        why=(
            "The conditioning rule: hats are sources u and r, dots responses. Here the derivatives are "
            "numbers; for a nonlinear network they are to be averaged. Both routes of the engine give it."
        ),
        evidence=shown_by("recursions"),
    ),
    Entry(
        source=SOURCE,
        number="Prop. 4.2",
        title="orders of the coefficients",
        printed=(
            r"\text{coefficients of hats} = O(1/\sqrt{L}), \quad \text{of } |U\rangle, |nV\rangle = O(1), "
            r"\quad \text{covariances} = O(1)"
        ),
        derived="gamma_c_recursion: coefficients of order one or 1/L",
        verdict="agrees",
        why="In units of 1/sqrt(L) every recursion adds terms of order 1/L to a start of order one.",
        evidence=shown_by("infinite_depth"),
    ),
    Entry(
        source=SOURCE,
        number="Lemma 4.3",
        title="recursions of Gamma and C",
        printed=_GAMMA,
        claim=linear.lemma43,
        derived="gamma_c_recursion",
        verdict="agrees",
        why=(
            "Equal to the derived recursions line by line, layer indices included: C_{t,s,0} of label l is "
            "the covariance of W^l x^{l-1}, so its own recursion ends at layer l - 1. Terms with one of t', "
            "s' equal to -1 are zero. No equal-time part: chi is a number, so a gradient answers no source "
            "of its own step."
        ),
        evidence=shown_by("recursions"),
    ),
    Entry(
        source=SOURCE,
        number="Lemma C.1",
        title="recursions of Gamma and C, as proved",
        printed=_GAMMA,
        claim=linear.lemma43,
        derived="gamma_c_recursion",
        verdict="agrees",
        why="The same as Lemma 4.3.",
        evidence=shown_by("recursions"),
    ),
    Entry(
        source=SOURCE,
        number="Prop. 4.4",
        title="infinite depth",
        printed=_LIMIT,
        claim=linear.prop44,
        derived="layer_time of gamma_c_recursion: integrals and correlations",
        verdict="agrees",
        why=(
            "Equal to the derived limit; for s = -1 the starting values are Gamma_{t,-1,0,0}(0) = xi_t and "
            "Gamma_{t,-1,1,1}(1) = chi_t. Finite depth approaches it like 1/L, with the coefficient of the "
            "derived first correction."
        ),
        evidence=(*shown_by("infinite_depth"), _CORRECTION),
    ),
    Entry(
        source=SOURCE,
        number="Prop. C.2",
        title="infinite depth, as proved",
        printed=_LIMIT,
        claim=linear.prop44,
        derived="layer_time of gamma_c_recursion: integrals and correlations",
        verdict="agrees",
        why="The same as Prop. 4.4. The proof bounds the distance by a constant over L; it is derived.",
        evidence=(*shown_by("infinite_depth"), _CORRECTION),
    ),
    Entry(
        source=SOURCE,
        number="Thm. 4.1",
        title="the last layer is a Gaussian process",
        printed=r"|x_s^L\rangle \to \mathcal{GP}, \quad \langle x_s^L|x_t^L\rangle = C_{t,s,1}(1)",
        claim=linear.thm41,
        derived="layer_time of gamma_c_recursion: C_0 at layer time 1",
        verdict="misprint",
        why=(
            "The kernel is C_{t,s,0}(1): index 0 is the forward pass. C_{t,s,1}(1) is chi_t chi_s. By hand "
            "at the first step: C_{0,0,0}(1) = e xi_0^2."
        ),
        evidence=shown_by("output_kernel"),
    ),
)
