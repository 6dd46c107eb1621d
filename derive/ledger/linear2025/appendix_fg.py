"""Appendices F, G and H: widths, several outputs, cost, (117)-(125) and Table 1."""

from __future__ import annotations

from derive.ledger.entry import Entry
from derive.ledger.linear2025.claims import channels, network

ENTRIES: tuple[Entry, ...] = (
    Entry(
        source="linear2025",
        number="117",
        title="layers of different widths",
        printed=(
            r"f(\boldsymbol{x}) = \frac{\sqrt{D}}{N_L \gamma_0} \boldsymbol{w}^L \prod_{\ell=1}^{L-1} "
            r"\left(\frac{1}{\sqrt{N_\ell}} \boldsymbol{W}^\ell \right) \left(\frac{1}{\sqrt{D}} "
            r"\boldsymbol{W}^0 \right) \boldsymbol{x}"
        ),
        verdict="definition",
        why="Definition; w^L lacks its transpose.",
        evidence=("isotropic_families:unequal_widths",),
    ),
    Entry(
        source="linear2025",
        number="118",
        title="ratios of different widths",
        printed=r"\alpha = \frac{P}{D} , \ \nu_{\ell} = \frac{N_{\ell}}{D}",
        derived="isotropic theory with widths nu(l)",
        verdict="definition",
        why=(
            "Definition; the engine derives the limit by both routes, with nu(l+1)/nu(l) in the backward "
            "equations."
        ),
        evidence=("isotropic_families:unequal_widths",),
    ),
    Entry(
        source="linear2025",
        number="119",
        title="several outputs",
        printed=(
            r"f_c(\boldsymbol{x}) = \frac{1}{N\gamma_0} \boldsymbol{w}_c^L \prod_{\ell=1}^{L-1} "
            r"\left(\frac{1}{\sqrt{N}} \boldsymbol{W}^{\ell} \right) \left(\frac{1}{\sqrt{D}} "
            r"\boldsymbol{W}^0 \right) \boldsymbol{x}"
        ),
        derived="program isotropic with outputs",
        verdict="misprint",
        why=(
            "The factor sqrt(D) of (1) is missing. Without it the gradient's updates are smaller than "
            "(121) by sqrt(D), and the output vanishes in the limit."
        ),
        evidence=("isotropic_network:several_outputs",),
    ),
    Entry(
        source="linear2025",
        number="120",
        title="error vectors of several outputs",
        printed=(
            r"\boldsymbol{v}_{c}(t) = \boldsymbol{w}_{c}^{\star} - \frac{1}{N\gamma_{0}} "
            r"\boldsymbol{W}^{0}(t)^{\top} \boldsymbol{g}_{c}^{1}(t) \\ \boldsymbol{g}_{c}^{\ell}(t) = "
            r"\frac{1}{\sqrt{N}} \boldsymbol{W}^{\ell}(t)^{\top} \boldsymbol{g}_{c}^{\ell+1}(t) , \ "
            r"\boldsymbol{g}_{c}^{L}(t) = \boldsymbol{w}_{c}^{L}(t)"
        ),
        claim=network.f120,
        derived="program isotropic with outputs: definitions",
        verdict="misprint",
        why="As (119): sqrt(D)/(N gamma0), as in (9). The backward vectors are right.",
        evidence=("isotropic_network:several_outputs",),
    ),
    Entry(
        source="linear2025",
        number="121",
        title="updates, several outputs",
        printed=(
            r"\boldsymbol{W}^{0}(t+1) = \boldsymbol{W}^{0}(t) + \frac{\eta \gamma_{0}}{\sqrt{D}} "
            r"\sum_{c=1}^{N_{c}} \boldsymbol{g}_{c}^{1}(t) \boldsymbol{h}_{c}^{0}(t)^{\top} \\ "
            r"\boldsymbol{W}^{\ell}(t+1) = \boldsymbol{W}^{\ell}(t) - \frac{\eta \gamma_{0}}{\sqrt{N}} "
            r"\sum_{c=1}^{N_{c}} \boldsymbol{g}_{c}^{\ell+1}(t) \boldsymbol{h}_{c}^{\ell}(t)^{\top} \\ "
            r"\boldsymbol{w}_{c}^{L}(t+1) = \boldsymbol{w}_{c}^{L}(t) + \eta \gamma_{0} "
            r"\boldsymbol{h}_{c}(t)"
        ),
        claim=channels.f121,
        derived="program isotropic with outputs: updates",
        verdict="misprint",
        why="The second line has a plus sign, as the first; h_c in the third is h_c^L.",
        evidence=("isotropic_network:several_outputs",),
    ),
    Entry(
        source="linear2025",
        number="122",
        title="averaged vectors, several outputs",
        printed=(
            r"\boldsymbol{h}_{c}^{\ell+1}(t) = \frac{1}{\sqrt{N}} \boldsymbol{W}^{\ell}(t) "
            r"\boldsymbol{h}_{c}^{\ell}(t) , \ \boldsymbol{h}_{c}^{0}(t) = \frac{\sqrt{D}}{P} "
            r"\sum_{\mu=1}^{P} \Delta_{\mu,c}(t) \boldsymbol{x}_{\mu}"
        ),
        claim=network.f122,
        derived="program isotropic with outputs: definitions",
        verdict="misprint",
        why="As (5): for l = 0 the factor is 1/sqrt(D).",
        evidence=("isotropic_network:first_layer_scale",),
    ),
    Entry(
        source="linear2025",
        number="123",
        title="fields closed by memory terms, several outputs",
        printed=(
            r"h_{c}^{\ell}(t) = \chi_{c}^{\ell}(t) + \eta \gamma_{0} \sum_{t' < t} \sum_{c'} "
            r"C_{h,cc'}^{\ell-1}(t,t') g_{c'}^{\ell}(t') \\ g_{c}^{\ell}(t) = \xi_{c}^{\ell}(t) + \eta "
            r"\gamma_{0} \sum_{t' < t} \sum_{c'} C_{g,cc'}^{\ell+1}(t,t') h_{c'}^{\ell}(t')"
        ),
        claim=channels.f123,
        derived="memory terms of the theory with outputs",
        verdict="agrees",
        why="As derived, and with the sign that (121) should have.",
        evidence=("isotropic_families:outputs", "isotropic_network:several_outputs"),
    ),
    Entry(
        source="linear2025",
        number="124",
        title="correlations across outputs",
        printed=(
            r"C_{v,cc'}^{\ell}(t,t') = \langle v_c(t)v_{c'}(t')\rangle , C_{\Delta,cc'}^{\ell}(t,t') = "
            r"\langle \Delta_c(t)\Delta_{c'}(t')\rangle \\ C_{h,cc'}^{\ell}(t,t') = \langle "
            r"h_c^{\ell}(t)h_{c'}^{\ell}(t')\rangle , C_{g,cc'}^{\ell}(t,t') = \langle "
            r"g_c^{\ell}(t)g_{c'}^{\ell}(t')\rangle"
        ),
        verdict="definition",
        why=(
            "Definition; C_v and C_Delta have no layer. Across channels they vanish if targets are "
            "independent: turning the sign of a channel's target, readout and noise changes nothing."
        ),
        evidence=("isotropic_families:outputs",),
    ),
    Entry(
        source="linear2025",
        number="125",
        title="responses across outputs",
        printed=(
            r"R_{vu,cc'}(t,t') = \left\langle \frac{\delta v_c(t)}{\delta u_{c'}^0(t')} \right\rangle , "
            r"R_{\Delta,cc'}(t,t') = \left\langle \frac{\delta \Delta_c(t)}{\delta u_{\Delta,c'}(t')} "
            r"\right\rangle \\ R_{hr,cc'}^{\ell}(t,t') = \left\langle \frac{\delta h_c^{\ell}(t)}{\delta "
            r"r_{c'}^{\ell}(t')} \right\rangle , R_{gu,cc'}^{\ell}(t,t') = \left\langle \frac{\delta "
            r"g_c^{\ell}(t)}{\delta u_{c'}^{\ell}(t')} \right\rangle"
        ),
        claim=channels.f125,
        derived="order parameters of the theory with outputs",
        verdict="agrees",
        why=(
            "The theory's responses, and they close: networks with two outputs whose targets correlate agree "
            "and reject channels that do not talk."
        ),
        evidence=("isotropic_families:outputs",),
    ),
    Entry(
        source="linear2025",
        number="Table 1",
        title="memory and time of four methods",
        printed=(
            r"\begin{array}{lllll} & \text{Finite Network} & \text{Linear DMFT} & \text{Res. DMFT} & "
            r"\text{Non-Data Averaged Res. DMFT} \\ \text{Memory} & N^2L & LT^2 & L^2T^2 & L^2T^2P^2 \\ "
            r"\text{Compute} & N^2LPT & LT^3 & L^2T^3 & L^2T^3P^3 \end{array}"
        ),
        derived="program isotropic: one step",
        verdict="wrong",
        why=(
            "As requirements the first column is too large: a full-batch step of a linear network costs "
            "N^2 L + P D, because the sums can be exchanged as in (5), not N^2 L P. So the Discussion's "
            "condition for the residual theory to be cheaper, L T^2 << N^2 P, should be L T^2 << N^2 (for "
            "P of order N). The columns of the theories count T x T matrices for each layer or pair of "
            "layers and were not measured here."
        ),
        evidence=("isotropic_network:training_cost",),
    ),
)
