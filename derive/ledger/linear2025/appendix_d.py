"""Appendix D: online descent, (96)-(102)."""

from __future__ import annotations

from derive.ledger.entry import Entry
from derive.ledger.linear2025.claims import full_batch, online
from derive.ledger.selfconsistent2023.names import shown_by

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
        evidence=shown_by("isotropic:fresh_batches"),
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
        evidence=shown_by("isotropic:fresh_batches"),
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
        evidence=shown_by("isotropic:fresh_batches"),
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
        evidence=shown_by("isotropic:fresh_batches"),
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
        evidence=shown_by("isotropic_responses:online"),
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
        evidence=shown_by("isotropic:fresh_batches"),
    ),
)
