"""Appendix C.1: residual networks in the limit of infinite depth, (17), (83)-(95)."""

from __future__ import annotations

from derive.ledger.entry import Entry
from derive.ledger.linear2025.claims import residual

SOURCE = "linear2025"
_NETWORKS = "residual:equal_time_responses"


def _shown(*names: str) -> tuple[str, ...]:
    return tuple(f"residual_limit:{n}" for n in names)


ENTRIES = (
    Entry(
        source=SOURCE,
        number="17",
        title="residual stream in layer time",
        printed=(
            r"dh(\tau, t) = \beta_0 du(\tau, t) + d\tau \beta_0^2 \sum_{t' < t} \left[R_{hr}(\tau, t, t') + "
            r"\eta \gamma_0 C_h(\tau, t, t') \right] g(\tau, t')"
        ),
        claim=residual.eq17,
        derived="layer_time: single-site equation of h",
        verdict="wrong",
        why=(
            "The response includes t' = t, where R_hr(tau,t,t) is not zero: h answers r within the step, "
            "through h^0 = w* - r^0, and g is computed before h. The rest is as derived, with R_hr in the "
            "units of (88). Dropping the equal time is off by many standard errors in networks."
        ),
        evidence=(_NETWORKS, *_shown("infinite_depth")),
    ),
    Entry(
        source=SOURCE,
        number="17 text",
        title="convergence to infinite depth",
        printed=r"\beta = \beta_0/\sqrt{L}: \quad \mathcal{L}_L(t) \to \mathcal{L}_\infty(t), \ L \to \infty",
        derived="infinite_depth",
        verdict="agrees",
        why=(
            "The loss is that of the limit plus a coefficient over L, which is derived and solved. The paper "
            "says that there is a limit, not how fast it is reached."
        ),
        evidence=("depth_correction:residual",),
    ),
    Entry(
        source=SOURCE,
        number="83",
        title="order of the responses to u",
        printed=(
            r"\frac{\partial h^{\ell}(t)}{\partial u^{k}(t')} = "
            r"\Theta\left(\frac{\beta_{0}}{\sqrt{L}}\right) , \quad \frac{\partial g^{\ell}(t)}{\partial "
            r"u^{k}(t')} = \Theta\left(\frac{\beta_{0}}{\sqrt{L}}\right)"
        ),
        claim=residual.eq83,
        derived="rescale: the recursions divided by beta keep coefficients of order one or 1/L",
        verdict="agrees",
        why="For k > 1, as the text says; the responses to u^1 are of order one and must be kept apart.",
        evidence=_shown("response_orders"),
    ),
    Entry(
        source=SOURCE,
        number="84",
        title="order of the responses to r",
        printed=(
            r"\frac{\partial h^{\ell}(t)}{\partial r^{k}(t')} = "
            r"\Theta\left(\frac{\beta_{0}}{\sqrt{L}}\right), \quad \frac{\partial g^{\ell}(t)}{\partial "
            r"r^{k}(t')} = \Theta\left(\frac{\beta_{0}}{\sqrt{L}}\right)"
        ),
        claim=residual.eq84,
        derived="rescale",
        verdict="agrees",
        why="For k < L; the responses to r^L are of order one.",
        evidence=_shown("response_orders"),
    ),
    Entry(
        source=SOURCE,
        number="85",
        title="layer time",
        printed=r"\tau = \frac{\ell}{L} \in [0, 1]",
        verdict="definition",
        why="A name.",
    ),
    Entry(
        source=SOURCE,
        number="86",
        title="fields in layer time",
        printed=(
            r"h(\tau, t) = \lim_{L \to \infty} h^{\ell}(t)|_{\ell = L\tau} , \ g(\tau, t) = \lim_{L \to "
            r"\infty} g^{\ell}(t)|_{\ell = L\tau}"
        ),
        verdict="definition",
        why="Of the stream, l >= 1: at tau = 0 this is h^1, not h^0, which stays apart.",
        evidence=_shown("infinite_depth"),
    ),
    Entry(
        source=SOURCE,
        number="87",
        title="correlations in layer time",
        printed=(
            r"C_h^{\ell}(\tau, t, t') \equiv \lim_{L \to \infty} C_h^{\ell}(t, t')|_{\ell = L\tau} , \ "
            r"C_g^{\ell}(\tau, t, t') \equiv \lim_{L \to \infty} C_g^{\ell}(t, t')|_{\ell = L\tau}"
        ),
        verdict="definition",
        why="The left sides carry an l too many.",
    ),
    Entry(
        source=SOURCE,
        number="88",
        title="responses in units of the branch",
        printed=(
            r"R_{hr}(\tau, t, t') \equiv \lim_{L \to \infty} \frac{\sqrt{L}}{\beta_0} R_{hr}^{\ell}(t, "
            r"t')|_{\ell = L\tau} , \ R_{gu}(\tau, t, t') \equiv \lim_{L \to \infty} "
            r"\frac{\sqrt{L}}{\beta_0} R_{gu}^{\ell}(t, t')|_{\ell = L\tau}"
        ),
        derived="rescale by beta",
        verdict="definition",
        why="The limits exist: both responses are continuous where the two layer times meet.",
        evidence=_shown("response_orders"),
    ),
    Entry(
        source=SOURCE,
        number="89",
        title="stochastic differential equations in layer time",
        printed=(
            r"dh(\tau,t) = \beta_0 du(\tau,t) + \beta_0^2 d\tau \sum_{t' < t} [R_{hr}(\tau,t,t') + \eta "
            r"\gamma_0 C_h(\tau,t,t')] g(\tau,t') \\ dg(\tau,t) = -\beta_0 dr(\tau,t) - \beta_0^2 d\tau "
            r"\sum_{t' < t} [R_{gu}(\tau,t,t') + \eta \gamma_0 C_g(\tau,t,t')] h(\tau,t')"
        ),
        claim=residual.eq89,
        derived="layer_time: single-site equations",
        verdict="wrong",
        why=(
            "The response in the first line includes t' = t, as in (17). The second line is right: g "
            "decreases with tau, so both of its terms change sign when dg is g(tau + dtau) - g(tau)."
        ),
        evidence=(_NETWORKS, *_shown("infinite_depth")),
    ),
    Entry(
        source=SOURCE,
        number="90",
        title="noise in layer time",
        printed=(
            r"\langle du(\tau,t)du(\tau',t')\rangle = \delta(\tau-\tau')C_h(\tau,t,t')d\tau d\tau', \ "
            r"\langle dr(\tau,t)dr(\tau',t')\rangle = \delta(\tau-\tau')C_g(\tau,t,t')d\tau d\tau'"
        ),
        claim=residual.eq90,
        derived="layer_time: noise",
        verdict="agrees",
        why="One index q in print is g.",
        evidence=_shown("infinite_depth"),
    ),
    Entry(
        source=SOURCE,
        number="91",
        title="responses and correlations of the stream",
        printed=(
            r"R_{hr}(\tau, t, t') = \left\langle \frac{\partial h(\tau, t)}{\partial du(\tau, t')} "
            r"\right\rangle , R_{gu}(\tau, t, t') = \left\langle \frac{\partial g(\tau, t)}{\partial "
            r"dr(\tau, t')} \right\rangle \\ R_{hu}(\tau, t, t') = \left\langle \frac{\partial g(\tau, "
            r"t)}{\partial du(\tau, t')} \right\rangle , R_{gr}(\tau, t, t') = \left\langle \frac{\partial "
            r"g(\tau, t)}{\partial dr(\tau, t')} \right\rangle \\ C_{h}(\tau, t, t') = \left\langle h(\tau, "
            r"t)h(\tau, t') \right\rangle , C_{g}(\tau, t, t') = \left\langle g(\tau, t)g(\tau, t') "
            r"\right\rangle"
        ),
        derived="layer_time: responses",
        verdict="misprint",
        why=(
            "Names are swapped: R_hr = dh/dr, R_gu = dg/du, R_hu = dh/du. To agree with (88) each is also to "
            "be divided by beta0, since the noise enters as beta0 du."
        ),
        evidence=_shown("limit_responses", "response_orders"),
    ),
    Entry(
        source=SOURCE,
        number="92",
        title="responses at two layer times",
        printed=(
            r"R_{hr}(\tau, \tau', t, t') = \left\langle \frac{\partial h(\tau, t)}{\partial du(\tau', t')} "
            r"\right\rangle , R_{gu}(\tau, \tau', t, t') = \left\langle \frac{\partial g(\tau, t)}{\partial "
            r"dr(\tau', t')} \right\rangle"
        ),
        derived="layer_time: responses",
        verdict="misprint",
        why="The same names swapped as in (91).",
        evidence=_shown("limit_responses"),
    ),
    Entry(
        source=SOURCE,
        number="93",
        title="responses as differential equations",
        printed=(
            r"\partial_{\tau} R_{hu}(\tau, t, t') = \delta(t - t') + \beta_0 \sum_{t'' < t} "
            r"\left[R_{hr}(\tau, t, t') + \eta \gamma_0 C_h(\tau, t, t') \right] R_{gu}(\tau, t'', t') \\ "
            r"\partial_{\tau} R_{hr}(\tau, t, t') = \beta_0 \sum_{t'' < t} \left[R_{hr}(\tau, t, t') + \eta "
            r"\gamma_0 C_h(\tau, t, t') \right] R_{gr}(\tau, t'', t') \\ \partial_{\tau} R_{gu}(\tau, t, t') "
            r"= -\beta_0 \sum_{t'' < t} \left[R_{hr}(\tau, t, t') + \eta \gamma_0 C_h(\tau, t, t') \right] "
            r"R_{hu}(\tau, t'', t') \\ \partial_{\tau} R_{gr}(\tau, t, t') = -\delta(t - t') - \beta_0 "
            r"\sum_{t'' < t} \left[R_{hr}(\tau, t, t') + \eta \gamma_0 C_h(\tau, t, t') \right] R_{hr}(\tau, "
            r"t'', t')"
        ),
        claim=residual.eq93,
        derived="layer_time: responses and starts",
        verdict="wrong",
        why=(
            "In units (88) the factor is beta0^2; the equations of R_gu and R_gr have R_gu and C_g in the "
            "bracket; its times are t, t'', with t'' = t in those of h; the sources are delta(tau-tau') "
            "delta(t-t'), for two layer times are needed throughout. Values at the ends are missing: R_gu, "
            "R_gr at tau = 1 are eta gamma0 times past R_hu, R_hr; R_hu, R_hr at tau = 0 come from h^1."
        ),
        evidence=_shown("limit_responses", "infinite_depth"),
    ),
    Entry(
        source=SOURCE,
        number="94",
        title="correlations in layer time",
        printed=(
            r"C_{h}(\tau, t, t') = \sum_{ss'} \int_{0}^{1} d\tau' \left[R_{hu}(\tau, \tau', t, s) "
            r"R_{hu}(\tau, \tau', t', s') C_{h}(\tau', s, s') + R_{hr}(\tau, \tau', t, s) R_{hr}(\tau, "
            r"\tau', t', s') C_{g}(\tau', s, s') \right] \\ C_{g}(\tau, t, t') = \sum_{ss'} \int_{0}^{1} "
            r"d\tau' \left[R_{gu}(\tau, \tau', t, s) R_{gu}(\tau, \tau', t', s') C_{h}(\tau', s, s') + "
            r"R_{gr}(\tau, \tau', t, s) R_{gr}(\tau, \tau', t', s') C_{g}(\tau', s, s') \right]"
        ),
        claim=residual.eq94,
        derived="layer_time: correlations",
        verdict="wrong",
        why=(
            "What u^1 and r^L cause is missing: without these terms, which are of order one and not under "
            "the integral, the only solution is zero. In units (88) the integrals have a factor beta0^2. By "
            "hand at t = 0: C_g(tau) = 1 + beta0^2 int_tau^1 C_g = exp(beta0^2 (1 - tau))."
        ),
        evidence=_shown("limit_correlations"),
    ),
    Entry(
        source=SOURCE,
        number="95",
        title="loss of the infinitely deep network",
        printed=r"\mathcal{L}(t) = C_h(0, t, t)",
        claim=residual.eq95,
        derived="layer_time: correlation C_h0",
        verdict="misprint",
        why=(
            "The loss is C_h^0, of the error vector; C_h(tau) at tau = 0 is that of h^1, which differs by "
            "the finite width: C_g(0,0,0)/(nu gamma0)^2 at t = 0."
        ),
        evidence=_shown("limit_loss"),
    ),
)
