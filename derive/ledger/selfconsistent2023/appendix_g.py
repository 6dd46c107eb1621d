"""Appendix G: convolutional networks, (G.1)-(G.6)."""

from __future__ import annotations

from derive.ledger.entry import Entry
from derive.ledger.selfconsistent2023.claims import convolution

ENTRIES = (
    Entry(
        source="selfconsistent2023",
        number="G.1",
        title="convolutional layer",
        printed=(
            r"h_{\mu,i,\mathfrak{a}}^{\ell+1} = \frac{1}{\sqrt{N}} \sum_{j=1}^{N} \sum_{\mathfrak{b} \in "
            r"\mathcal{S}^{\ell}} W_{ij,\mathfrak{b}}^{\ell} \phi "
            r"\left(h_{\mu,j,\mathfrak{a}+\mathfrak{b}}^{\ell} \right) , i \in \{1,\dots,N\}"
        ),
        claim=convolution.g1,
        derived="forward definitions of convolution(L)",
        verdict="definition",
        why=("The program convolution(L), on a ring of X positions."),
    ),
    Entry(
        source="selfconsistent2023",
        number="G.1 text",
        title="output of a convolutional network",
        printed=(
            r"f_{\mu} = \frac{1}{\gamma_0 N} \sum_{i=1}^{N} w_{i,\mathfrak{a}}^L "
            r"\phi(h_{\mu,i,\mathfrak{a}}^L)"
        ),
        claim=convolution.g1_text,
        derived="outputs of convolution(L)",
        verdict="misprint",
        why=(
            "The position a is free on the right: the sum over positions is missing. With one position only "
            "the gradient fields of the last layer vanish at all others, while (G.2), (G.4), (G.6) use them "
            "everywhere (the networks of C.2 pool over all positions)."
        ),
        evidence=("convolution:output_over_positions",),
    ),
    Entry(
        source="selfconsistent2023",
        number="G.2",
        title="backward recursion of a convolution",
        printed=(
            r"\boldsymbol{g}_{\mu,\mathfrak{a}}^{\ell} = \gamma_{0} N \sum_{\mathfrak{b}} \frac{\partial "
            r"f_{\mu}}{\partial \boldsymbol{h}_{\mu,\mathfrak{b}}^{\ell+1}} \cdot \frac{\partial "
            r"\boldsymbol{h}_{\mu,\mathfrak{b}}^{\ell+1}}{\partial "
            r"\boldsymbol{h}_{\mu,\mathfrak{a}}^{\ell}} = \dot{\phi} "
            r"\left(\boldsymbol{h}_{\mu,\mathfrak{a}}^{\ell} \right) \odot \left[\frac{1}{\sqrt{N}} "
            r"\sum_{j=1}^{N} \sum_{\mathfrak{b} \in \mathcal{S}^{\ell}} \boldsymbol{W}_{\mathfrak{b}}^{\ell "
            r"\top} \boldsymbol{g}_{\mu,\mathfrak{a}-\mathfrak{b}}^{\ell+1} \right]"
        ),
        claim=convolution.g2,
        derived="backward definitions of convolution(L)",
        verdict="misprint",
        why=(
            "The sum over j = 1..N is already the matrix product W_b^T g; with both, z is N times too large. "
            "The shift a - b of the transposed filter is right."
        ),
        evidence=("convolution:backward_recursion",),
    ),
    Entry(
        source="selfconsistent2023",
        number="G.3",
        title="update of the filters",
        printed=(
            r"\frac{d}{dt} \boldsymbol{W}_{\mathfrak{b}}^{\ell} = \frac{\gamma_0}{\sqrt{N}} "
            r"\sum_{\mu,\mathfrak{a}} \Delta_{\mu} \boldsymbol{g}_{\mu,\mathfrak{a}}^{\ell+1} \phi "
            r"\left(\boldsymbol{h}_{\mu,\mathfrak{a}+\mathfrak{b}}^{\ell} \right)^{\top}"
        ),
        claim=convolution.g3,
        derived="updates of convolution(L)",
        verdict="agrees",
        why=(
            "gamma0^2 N times the gradient, one factor 1/sqrt(N) from the layer; a filter collects its "
            "updates from all positions."
        ),
        evidence=("convolution:filter_velocity",),
    ),
    Entry(
        source="selfconsistent2023",
        number="G.4",
        title="fields of a convolution under training",
        printed=(
            r"\boldsymbol{h}_{\mu,\mathfrak{a}}^{\ell+1}(t) = "
            r"\boldsymbol{\chi}_{\mu,\mathfrak{a}}^{\ell+1}(t) + \gamma_0 \int_0^t \mathrm{d}s "
            r"\sum_{\alpha\mathfrak{b},\mathfrak{c}} \Delta_{\alpha}(s) \, "
            r"\Phi_{\mu\alpha,\mathfrak{a}+\mathfrak{b},\mathfrak{c}+\mathfrak{b}}^{\ell}(t,s) \, "
            r"\boldsymbol{g}_{\alpha,\mathfrak{c}}^{\ell+1}(s) \\ "
            r"\boldsymbol{z}_{\mu,\mathfrak{a}}^{\ell}(t) = \boldsymbol{\xi}_{\mu\mathfrak{a}}^{\ell}(t) + "
            r"\gamma_0 \int_0^t \mathrm{d}s \sum_{\alpha\mathfrak{b},\mathfrak{c}} \Delta_{\alpha}(s) \, "
            r"G_{\mu\alpha,\mathfrak{a}-\mathfrak{b},\mathfrak{c}-\mathfrak{b}}^{\ell+1}(t,s) \, "
            r"\phi\left(\boldsymbol{h}_{\alpha,\mathfrak{c}}^{\ell}\right)"
        ),
        claim=convolution.g4,
        derived="memory terms of convolution(L)",
        verdict="agrees",
        why=(
            "Same as derived, once the summation index c of the second line is moved by the offset "
            "(positions on a ring); its last phi(h) lacks the time s."
        ),
        evidence=("convolution:driven_fields", "convolution:sources_and_responses"),
    ),
    Entry(
        source="selfconsistent2023",
        number="G.4 text",
        title="field driven by the initial filters",
        printed=(
            r"\boldsymbol{\chi}_{\mu,\mathfrak{a}}^{\ell+1}(t) = \frac{1}{\sqrt{N}} "
            r"\boldsymbol{W}^{\ell}(0) \phi(\boldsymbol{h}_{\mu\mathfrak{a}}^{\ell}(t))"
        ),
        claim=convolution.g4_text,
        derived="products of the initial filters in convolution(L)",
        verdict="misprint",
        why=(
            "As in (G.1) it is the sum over offsets b of W_b(0) phi(h_{a+b}); with this chi, and not "
            "with the printed one, (G.4) holds in a network."
        ),
        evidence=("convolution:driven_fields",),
    ),
    Entry(
        source="selfconsistent2023",
        number="G.5",
        title="kernels of a convolutional network",
        printed=(
            r"\Phi_{\mu\alpha,\mathfrak{ab}}^{\ell}\left(t,s\right) = "
            r"\frac{1}{N}\phi\left(\boldsymbol{h}_{\mu\mathfrak{a}}^{\ell}\left(t\right)\right)"
            r"\cdot\phi\left(\boldsymbol{h}_{\alpha\mathfrak{b}}^{\ell}\left(s\right)\right)"
            r"\;,\;G_{\mu\alpha,\mathfrak{ab}}^{\ell}\left(t,s\right) = "
            r"\frac{1}{N}\boldsymbol{g}_{\mu\mathfrak{a}}^{\ell}\left(t\right)\cdot\boldsymbol{g}"
            r"_{\alpha\mathfrak{b}}^{\ell}\left(s\right)"
        ),
        derived="order parameters of convolution(L)",
        verdict="definition",
        why=("Definition; they give the tangent kernel, with sums over pairs of positions and over offsets."),
    ),
    Entry(
        source="selfconsistent2023",
        number="G.6",
        title="theory of a convolutional network",
        printed=(
            r"\left\{u_{\mu\mathfrak{a}}^{\ell}(t)\right\} \sim \mathcal{GP}\left(0, "
            r"\mathbf{\Phi}^{\ell-1}\right) \;,\; \left\{r_{\mu\mathfrak{a}}^{\ell}(t)\right\} \sim "
            r"\mathcal{GP}\left(0, \mathbf{G}^{\ell+1}\right) \\ h_{\mu\mathfrak{a}}^{\ell}(t) = "
            r"u_{\mu\mathfrak{a}}^{\ell}(t) + \gamma_{0} \int_{0}^{t} \mathrm{d}s "
            r"\sum_{\alpha,\mathfrak{b}} A_{\mu\alpha,\mathfrak{a}\mathfrak{b}}^{\ell-1}(t,s) "
            r"\,\dot{\phi}\left(h_{\alpha\mathfrak{b}}^{\ell}(s)\right) z_{\alpha\mathfrak{b}}^{\ell}(s) \\ "
            r"+ \gamma_{0} \int_{0}^{t} \mathrm{d}s \sum_{\alpha\mathfrak{b},\mathfrak{c}} "
            r"\Delta_{\alpha}(s) "
            r"\,\Phi_{\mu\alpha,\mathfrak{a}+\mathfrak{b},\mathfrak{c}+\mathfrak{b}}^{\ell-1} "
            r"\dot{\phi}\left(h_{\alpha\mathfrak{c}}^{\ell}(s)\right) z_{\alpha\mathfrak{c}}^{\ell}(s) \\ "
            r"z_{\mu\mathfrak{a}}^{\ell}(t) = r_{\mu\mathfrak{a}}^{\ell}(t) + \gamma_{0} \int_{0}^{\infty} "
            r"\mathrm{d}s \sum_{\alpha,\mathfrak{b}} B_{\mu\alpha,\mathfrak{a}\mathfrak{b}}^{\ell}(t,s) "
            r"\,\phi\left(h_{\alpha\mathfrak{b}}^{\ell}(s)\right) \\ + \gamma_{0} \int_{0}^{t} \mathrm{d}s "
            r"\sum_{\alpha\mathfrak{b},\mathfrak{c}} \Delta_{\alpha}(s) "
            r"\,G_{\mu\alpha,\mathfrak{a}-\mathfrak{b},\mathfrak{c}-\mathfrak{b}}^{\ell+1} "
            r"\phi\left(h_{\alpha\mathfrak{c}}^{\ell}(s)\right) \\ "
            r"\Phi_{\mu\alpha,\mathfrak{a}\mathfrak{b}}^{\ell}(t,s) = \left\langle "
            r"\phi\left(h_{\mu\mathfrak{a}}^{\ell}(t)\right)\phi(h_{\alpha\mathfrak{b}}^{\ell}(s))"
            r"\right\rangle \;,\; G_{\mu\alpha,\mathfrak{a}\mathfrak{b}}^{\ell}(t,s) = \left\langle "
            r"g_{\mu\mathfrak{a}}^{\ell}(t)g_{\alpha\mathfrak{b}}^{\ell}(s)\right\rangle \\ "
            r"A_{\mu\alpha,\mathfrak{a}\mathfrak{b}}^{\ell}(t,s) = \frac{1}{\gamma_{0}} \left\langle "
            r"\frac{\delta\phi(h_{\mu\mathfrak{a}}^{\ell}(t))}{\delta "
            r"r_{\alpha\mathfrak{b}}^{\ell}(s)}\right\rangle \;,\; "
            r"B_{\mu\alpha,\mathfrak{a}\mathfrak{b}}^{\ell}(t,s) = \frac{1}{\gamma_{0}} \left\langle "
            r"\frac{\delta g_{\mu\mathfrak{a}}^{\ell+1}(t)}{\delta "
            r"u_{\alpha\mathfrak{b}}^{\ell+1}(s)}\right\rangle"
        ),
        claim=convolution.g6,
        derived="single-site equations of convolution(L)",
        verdict="wrong",
        why=(
            "Phi and G in the memory are summed over offsets, the sources and responses are not, though they "
            "come from the same filters. Derived: <u_a u_b> = sum_k Phi_{a+k,b+k}, <r_a r_b> = sum_k "
            "G_{a-k,b-k}, and the responses act as sum_{b,k} A_{a+k,b} g_{b-k} in h and sum_{b,k} B_{a-k,b} "
            "phi(h_{b+k}) in z. Each of the four alone is rejected by networks. For ell = L (no offsets) r_a "
            "are independent. Agrees for filters of one offset."
        ),
        evidence=("convolution:sources_and_responses",),
    ),
    Entry(
        source="selfconsistent2023",
        number="G.6 text",
        title="size of the theory of a convolutional network",
        printed=(r"P \to P |\mathcal{S}| , \quad \mathcal{O}(P^3 |\mathcal{S}|^3 T^3)"),
        claim=convolution.g6_text,
        derived="order parameters of convolution(L)",
        verdict="misprint",
        why=(
            "S was introduced as the receptive field of a filter. The index that joins the samples is the "
            "position: P becomes P times the number of positions, whatever the size of the filter. Count the "
            "entries of the kernels."
        ),
        evidence=("convolution:entries_of_kernels",),
    ),
)
