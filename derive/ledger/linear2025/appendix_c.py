"""Section 3 and appendix C: residual networks of finite depth, (16), (71)-(82).

The display of the response recursions lost its tag; it stands here as 73, the one number that is missing.
"""

from __future__ import annotations

from derive.ledger.entry import Entry
from derive.ledger.linear2025.appendix_c_depth import ENTRIES as INFINITE_DEPTH
from derive.ledger.linear2025.claims import residual

SOURCE = "linear2025"
_EVIDENCE = "residual"


def _shown(*names: str) -> tuple[str, ...]:
    return tuple(f"{_EVIDENCE}:{n}" for n in names)


_FINITE_DEPTH = (
    Entry(
        source=SOURCE,
        number="16",
        title="residual network",
        printed=(
            r"f(\boldsymbol{x}) = \frac{\sqrt{D}}{N\gamma_0} \left(\boldsymbol{w}^L \right)^{\top} "
            r"\prod_{\ell=1}^{L-1} \left(\boldsymbol{I} + \frac{\beta}{\sqrt{N}} \boldsymbol{W}^{\ell} "
            r"\right) \left(\frac{1}{\sqrt{D}} \boldsymbol{W}^0 \right) \boldsymbol{x}"
        ),
        verdict="definition",
        why="The network; factors of the product are ordered with the last layer on the left.",
    ),
    Entry(
        source=SOURCE,
        number="71",
        title="fields of the residual network",
        printed=(
            r"\boldsymbol{h}^{0}(t) = \boldsymbol{w}^{\star} - \frac{\sqrt{D}}{\gamma_{0}N} "
            r"\boldsymbol{W}^{0}(t)^{\top} \boldsymbol{g}^{1}(t) \\ \boldsymbol{h}^{\ell+1}(t) = "
            r"\boldsymbol{h}^{\ell}(t) + \frac{\beta}{\sqrt{N}} \boldsymbol{W}^{\ell}(t) "
            r"\boldsymbol{h}^{\ell}(t) \\ \boldsymbol{g}^{L}(t) = \boldsymbol{g}^{L}(0) + \eta \gamma_{0} "
            r"\sum_{t' < t} \boldsymbol{h}^{L}(t') \\ \boldsymbol{g}^{\ell}(t) = \boldsymbol{g}^{\ell+1}(t) "
            r"+ \frac{\beta}{\sqrt{N}} \boldsymbol{W}^{\ell}(t)^{\top} \boldsymbol{g}^{\ell+1}(t)"
        ),
        verdict="definition",
        why="The population loss: Delta is averaged out, so that h^0 is the error vector v itself.",
    ),
    Entry(
        source=SOURCE,
        number="72",
        title="products with the initial weights",
        printed=(
            r"\chi^{\ell}(t) = u^{\ell}(t) + \sum_{t' < t} R_{hr}^{\ell-1}(t, t') g^{\ell}(t') \\ "
            r"\xi^{\ell}(t) = r^{\ell}(t) + \sum_{t' < t} R_{gu}^{\ell+1}(t, t') h^{\ell}(t')"
        ),
        claim=residual.eq72,
        derived="single-site equations of the theory, source and response",
        verdict="wrong",
        why=(
            "chi needs t' = t as well; xi is right, because g does not see u within the step. By hand at t = "
            "0: h^1 = u^1 - g^1/(nu gamma0), so C_h^1 has C_g^1/(nu gamma0)^2 more than printed."
        ),
        evidence=_shown("equal_time_responses"),
    ),
    Entry(
        source=SOURCE,
        number="73",
        title="recursions of the cross-layer responses (the display without a tag)",
        printed=(
            r"\frac{\partial h^1(t)}{\partial u^k(t')} = \delta_{k,1}\delta(t-t') + \sum_{t'' < t} "
            r"\left[\frac{1}{\nu \gamma_0} R_{hr}^0(t,t'') + \eta \gamma_0 C_h^0(t,t'') \right] "
            r"\frac{\partial g^1(t'')}{\partial u^1(t')} \\ \frac{\partial h^1(t)}{\partial r^k(t')} = "
            r"\sum_{t'' < t} \left[\frac{1}{\nu \gamma_0} R_{hr}^0(t,t'') + \eta \gamma_0 C_h^0(t,t'') "
            r"\right] \frac{\partial g^1(t'')}{\partial r^k(t')} \\ \frac{\partial h^{\ell+1}(t)}{\partial "
            r"u^k(t')} = \frac{\partial h^{\ell}(t)}{\partial u^k(t')} + \beta \sum_{t'' < t} "
            r"\left[R_{hr}^{\ell}(t,t'') + \eta \gamma_0 \beta C_h^{\ell}(t,t'') \right] \frac{\partial "
            r"g^{\ell+1}(t'')}{\partial u^k(t')} \\ \frac{\partial g^\ell(t)}{\partial u^k(t')} = "
            r"\frac{\partial g^{\ell+1}(t)}{\partial u^k(t')} + \beta \delta_{\ell,k}\delta(t-t') + \beta "
            r"\sum_{t'' < t} \left[R_{gu}^{\ell+1}(t,t'') + \eta \gamma_0 \beta C_g^{\ell+1}(t,t'') \right] "
            r"\frac{\partial h^\ell(t'')}{\partial u^k(t')}"
        ),
        claim=residual.eq73,
        derived="cross_layer: responses",
        verdict="wrong",
        why=(
            "Four slips. The sums with R_hr must include t'' = t. dh^{l+1}/du^k lacks its source beta "
            "delta_{k,l+1} delta(t-t'). dg^l/du^k has a beta delta_{l,k} delta(t-t') that belongs to "
            "dg^l/dr^k only: g does not contain u. In the first line dg^1/du^1 must be dg^1/du^k. l runs to "
            "L - 1. The dr-lines are right but for t'' = t."
        ),
        evidence=_shown("response_recursions"),
    ),
    Entry(
        source=SOURCE,
        number="74",
        title="single-site equations of the residual network",
        printed=(
            r"h^{0}(t) = w^{*} - r^{0}(t) - \sum_{t' < t} \left[\frac{1}{\gamma_{0}} R_{gu}^{1}(t, t') + "
            r"\eta C_{g}^{1}(t, t') \right] h^{0}(t'), \quad r^{0}(t) \sim \mathcal{GP}(0, \gamma_{0}^{-2} "
            r"\nu^{-1} C_{g}^{1}) \\ h^{1}(t) = u^{1}(t) + \sum_{t' < t} \left[\frac{1}{\nu \gamma_{0}} "
            r"R_{hr}^{0}(t, t') + \eta \gamma_{0} C_{h}^{0}(t, t') \right] g^{1}(t'), \quad u^{1}(t) \sim "
            r"\mathcal{GP}(0, C_{h}^{0}) \\ h^{\ell+1}(t) = h^{\ell}(t) + \beta u^{\ell+1}(t) + \beta "
            r"\sum_{t' < t} \left[R_{hr}^{\ell}(t, t') + \eta \gamma_{0} \beta C_{h}^{\ell}(t, t') \right] "
            r"g^{\ell+1}(t'), \quad u^{\ell+1}(t) \sim \mathcal{GP}(0, C_{h}^{\ell}) \\ g^{L}(t) = r^{L}(t) "
            r"+ \eta \gamma_{0} \sum_{t' < t} h^{L}(t'), \quad r^{L}(t) \sim \mathcal{GP}(0, 1) \\ "
            r"g^{\ell}(t) = g^{\ell+1}(t) + \beta r^{\ell}(t) + \beta \sum_{t' < t} \left[R_{gu}^{\ell+1}(t, "
            r"t') + \eta \gamma_{0} \beta C_{g}^{\ell+1}(t, t') \right] h^{\ell}(t'), \quad r^{\ell}(t) \sim "
            r"\mathcal{GP}(0, C_{g}^{\ell+1})"
        ),
        claim=residual.eq74,
        derived="single-site equations of the theory",
        verdict="wrong",
        why=(
            "The responses R_hr^0 and R_hr^l act at t' = t too; all else is right, also beta inside a "
            "bracket that beta multiplies: the update of W^l carries a beta of its own, so eta gamma0 comes "
            "with beta^2. R_hr^0 is the response to the r^0 of the first line, in whose units it is -1 at "
            "equal time."
        ),
        evidence=_shown("equal_time_responses"),
    ),
    Entry(
        source=SOURCE,
        number="75",
        title="the responses that enter",
        printed=(
            r"R_{hr}^{\ell}(t,t') = \left\langle \frac{\partial h^{\ell}(t)}{\partial r^{\ell}(t')} "
            r"\right\rangle , \ R_{gu}^{\ell}(t,t') = \left\langle \frac{\partial g^{\ell}(t)}{\partial "
            r"u^{\ell}(t')} \right\rangle"
        ),
        derived="cross_layer: diagonal",
        verdict="agrees",
        why="The diagonal of the cross-layer responses; of a linear theory no average is left to take.",
        evidence=_shown("response_recursions"),
    ),
    Entry(
        source=SOURCE,
        number="76",
        title="h as a sum over sources",
        printed=(
            r"h^{\ell}(t) = \sum_{kt'} \left[\frac{\partial h^{\ell}(t)}{\partial u^{k}(t')} u^{k}(t') + "
            r"\frac{\partial h^{\ell}(t)}{\partial r^{k}(t')} r^{k}(t') \right]"
        ),
        claim=residual.eq76,
        derived="cross_layer: fields",
        verdict="agrees",
        why="For l >= 1, with k from 1 to L and t' <= t in both sums; h^0 has w* and r^0 instead.",
        evidence=_shown("correlation_sums"),
    ),
    Entry(
        source=SOURCE,
        number="77",
        title="g as a sum over sources",
        printed=(
            r"g^{\ell}(t) = \sum_{k,t'} \left[\frac{\partial g^{\ell}(t)}{\partial u^{k}(t')} u^{k}(t') + "
            r"\frac{\partial g^{\ell}(t)}{\partial r^{k}(t')} r^{k}(t') \right]"
        ),
        claim=residual.eq77,
        derived="cross_layer: fields",
        verdict="agrees",
        why="As derived; the response to u is strictly causal, t' < t.",
        evidence=_shown("correlation_sums"),
    ),
    Entry(
        source=SOURCE,
        number="78",
        title="correlation of h",
        printed=(
            r"C_h^{\ell}(t,t') = \sum_{kk',ss'} \frac{\partial h^{\ell}(t)}{\partial u^k(s)} \frac{\partial "
            r"h^{\ell}(t')}{\partial u^k(s')} C_h^{k-1}(s,s') + \sum_{kk',ss'} \frac{\partial "
            r"h^{\ell}(t)}{\partial r^k(s)} \frac{\partial h^{\ell}(t')}{\partial r^k(s')} C_g^{k+1}(s,s')"
        ),
        claim=residual.eq78,
        derived="cross_layer: correlations",
        verdict="misprint",
        why=(
            "Sources of different layers are independent: one sum over k. Nothing depends on k', so summing "
            "over it multiplies by L. C_g^{L+1} = 1 is understood."
        ),
        evidence=_shown("correlation_sums"),
    ),
    Entry(
        source=SOURCE,
        number="79",
        title="correlation of g",
        printed=(
            r"C_g^{\ell}(t,t') = \sum_{kk'ss'} \frac{\partial g^{\ell}(t)}{\partial u^k(s)} \frac{\partial "
            r"g^{\ell}(t')}{\partial u^k(s')} C_h^{k-1}(s,s') + \sum_{kk'ss'} \frac{\partial "
            r"g^{\ell}(t)}{\partial r^k(s)} \frac{\partial g^{\ell}(t')}{\partial r^k(s')} C_g^{k+1}(s,s')"
        ),
        claim=residual.eq79,
        derived="cross_layer: correlations",
        verdict="misprint",
        why="One sum over k, as in (78). By hand at t = 0: C_g^{l} = (1 + beta^2) C_g^{l+1}.",
        evidence=_shown("correlation_sums"),
    ),
    Entry(
        source=SOURCE,
        number="80",
        title="correlation of the error vector",
        printed=(
            r"C_h^0(t,t') = \sum_{ss'} \mathcal{H}(t,s)\mathcal{H}(t',s') \left[1 + \frac{1}{\nu \gamma_0^2} "
            r"C_g^1(s,s') \right]"
        ),
        claim=residual.eq80,
        derived="transfer function of v; cross_layer: correlations",
        verdict="agrees",
        why="With the transfer function of the right sign, see (81).",
        evidence=_shown("transfer_function"),
    ),
    Entry(
        source=SOURCE,
        number="81",
        title="transfer function",
        printed=(
            r"\mathcal{H}(t,s) = \delta(t-s) + \sum_{t' < t} \left[\frac{1}{\gamma_0} R_{gu}^1(t,t') + \eta "
            r"C_g^1(t,t') \right] \mathcal{H}(t',s)"
        ),
        claim=residual.eq81,
        derived="transfer function of v",
        verdict="wrong",
        why=(
            "The sign of the bracket is minus, as in the first line of (74) and in (111): training reduces "
            "the error. By hand: H(1,0) = -R_gu^1(1,0)/gamma0 - eta C_g^1(1,0). With the printed plus the "
            "loss grows."
        ),
        evidence=_shown("transfer_function"),
    ),
    Entry(
        source=SOURCE,
        number="82",
        title="loss",
        printed=r"\mathcal{L}(t) = C_h^0(t, t)",
        claim=residual.eq82,
        derived="observable C_h0",
        verdict="agrees",
        why="Without label noise, which the population gradient does not see.",
        evidence=_shown("transfer_function"),
    ),
)

ENTRIES = _FINITE_DEPTH + INFINITE_DEPTH
