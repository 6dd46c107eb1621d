"""Appendices D and E: other scalings of the linear network, and the nonlinear limit."""

from __future__ import annotations

from derive.ledger.depth2023.claims import linear
from derive.ledger.depth2023.names import SOURCE, shown_by
from derive.ledger.entry import Entry

ENTRIES = (
    Entry(
        source=SOURCE,
        number="11",
        title="the stream after the first step",
        printed=(
            r"|x_1^l\rangle = |x_1^0\rangle + \sum_{m \leq l} L^{-\alpha}|W_0^m x_1^{m-1}\rangle^{\wedge} + "
            r"\sum_{m \leq l} L^{-\alpha-\gamma}(b^m+c^m)|\delta \tilde{x}_0^L\rangle + \sum_{m=2}^L "
            r"\sum_{l'=1}^{\min(m-1,l)} L^{-\alpha-\gamma}(b^{l'}+c^{l'}) L^{-\alpha}|W_0^{m\top} \delta "
            r"\tilde{x}_0^m\rangle^{\wedge} \\ c^l = c^{l-1}(1+L^{-2\alpha}), \quad b^{l+1} = L^{-2\alpha} "
            r"\sum_{m \leq l}(b^m+c^m), \quad f_1 = \sum_m L^{-\alpha-\gamma}(b^m+c^m) \chi_0"
        ),
        claim=linear.eq11,
        derived="cross_layer of depth_program at t = 1",
        verdict="agrees",
        why=(
            "b^l = L^gamma d x_1^{l-1}/d(hat of W^{l T} dx_0^l) and c^l = -<x_0^{l-1}|x_1^{l-1}> are the two "
            "parts of the derived bracket; c obeys the recursion of <x_0 x_0> because no learnt term "
            "correlates with x_0."
        ),
        evidence=shown_by("first_step"),
    ),
    Entry(
        source=SOURCE,
        number="11 text",
        title="size of the stream at initialisation",
        printed=r"\langle x_0^l|x_0^l\rangle = (1 + L^{-2\alpha})^l \langle x_0^0|x_0^0\rangle",
        claim=linear.eq11,
        derived="gamma_c_recursion: C_0 at t = s = 0",
        verdict="agrees",
        why="Each layer adds L^(-2 alpha) times what it gets.",
        evidence=shown_by("first_step"),
    ),
    Entry(
        source=SOURCE,
        number="D.3",
        title="recursions for any scaling",
        printed=(
            r"\Gamma_{t,r,0,b}\left(\frac{l}{L},q\right) = \Gamma_{t,r,0,b}\left(\frac{l-1}{L},q\right) + "
            r"L^{1/2-\alpha} \mathbb{I}_{[t=r, b=0, l=\lceil Lq \rceil]} + L^{-\alpha-\gamma} \sum_{s<t} "
            r"\Gamma_{s,r,1,b}\left(\frac{l}{L},q\right) \left( L^{\gamma-1/2} "
            r"\Gamma_{t,s,0,1}\left(\frac{l-1}{L}, \frac{l}{L}\right) - C_{t,s,0}\left(\frac{l}{L}\right) "
            r"\right) \\ \Gamma_{t,r,1,b}\left(\frac{l-1}{L},q\right) = "
            r"\Gamma_{t,r,1,b}\left(\frac{l}{L},q\right) + L^{1/2-\alpha} \mathbb{I}_{[t=r, b=1, l=\lceil Lq "
            r"\rceil]} + L^{-\alpha-\gamma} \sum_{s<t} \Gamma_{s,r,0,b}\left(\frac{l-1}{L},q\right) \left( "
            r"L^{\gamma-1/2} \Gamma_{t,s,1,0}\left(\frac{l}{L}, \frac{l}{L}\right) - "
            r"C_{t,s,1}\left(\frac{l}{L}\right) \right)"
        ),
        claim=linear.d3,
        derived="gamma_c_recursion of depth_program with symbolic exponents",
        verdict="agrees",
        why=(
            "Equal for all exponents. For alpha > 1/2 on the line alpha + gamma = 1 all Gamma between layers "
            "vanish and those of U and V obey an ODE, as said; corrections are of order L^(1 - 2 alpha), "
            "with derived coefficients, to which at alpha = 1 the 1/L of layers being steps comes."
        ),
        evidence=(
            *shown_by("other_scalings"),
            "depth_correction:between_the_ends",
            "depth_correction:diversity",
        ),
    ),
    Entry(
        source=SOURCE,
        number="Def. E.1",
        title="the nonlinear limit",
        printed=(
            r"\Gamma_{t,r,0,b}(p,q) = \mathbb{I}_{[t=r,b=0,p \geq q]} + \int_0^p \sum_{s<t} "
            r"V_{\phi'}[C]_{t,s,0}(p') \Gamma_{s,r,1,b}(p',q) (\Gamma_{t,s,0,1}(p',p') - C_{t,s,0}(p')) dp' "
            r"\\ \Gamma_{t,r,1,b}(p,q) = \mathbb{I}_{[t=r,b=1,p \leq q]} + \int_p^1 \sum_{s<t} "
            r"\Gamma_{s,r,0,b}(p',q) (V_{\phi_c|\phi'}[C] \Gamma_{t,s,1,0}(p',p') - V_{\phi'}[C] "
            r"C_{t,s,1}(p')) dp' \\ V_{\phi_c} = E\, \mathrm{MS}(\phi(z)) \mathrm{MS}(\phi(y)), \quad "
            r"V_{\phi'} = E \phi'(z) \phi'(y), \quad V_{\phi_c|\phi'} = E\, \mathrm{MS}(\phi'(z)) \phi'(y)"
        ),
        claim=linear.def_e1,
        derived="effective(mean_field(nonlinear_program())), then layer_time",
        verdict="wrong",
        why=(
            "Forward and covariance of the forward noise as derived. Backward, the Gamma goes with <phi' "
            "phi'>, as phi(z) = z shows: MS(phi') would be 0. A gradient phi'(h) dx also answers through "
            "phi'': V_phi'' C_1 (Gamma_01 - C_0) beside it, and at equal time x_t times the sum over s of "
            "<phi''_t phi_c,s> Gamma_10 + <phi'''_t phi'_s> C_1 (Gamma_01 - C_0). Through x_t of the layers "
            "above dx answers its own step, so both sums with Gamma_10 include s = t. The backward noise has "
            "V_phi' C_1. Networks that get deeper agree with this, not with print."
        ),
        evidence=shown_by("nonlinear"),
    ),
)
