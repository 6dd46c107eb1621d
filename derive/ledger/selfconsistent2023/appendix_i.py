"""Appendix I: several outputs, (I.1)-(I.5)."""

from __future__ import annotations

from derive.ledger.entry import Entry
from derive.ledger.selfconsistent2023.claims import channels

ENTRIES = (
    Entry(
        source="selfconsistent2023",
        number="I.1",
        title="velocity of several outputs",
        printed=(
            r"\frac{d}{dt} \boldsymbol{f}_{\mu} = \sum_{\alpha=1}^{P} "
            r"\boldsymbol{K}_{\mu\alpha}^{\text{NTK}} \boldsymbol{\Delta}_{\alpha}"
        ),
        claim=channels.i1,
        derived="tangent kernel of mlp(L, outputs=C)",
        verdict="agrees",
        why=(
            "Right under flow with the kernel of (I.3), second line: gamma^2 times the products of gradients."
        ),
        evidence=("channels:tangent_normalisation",),
    ),
    Entry(
        source="selfconsistent2023",
        number="I.2",
        title="backward fields of several outputs",
        printed=(
            r"\boldsymbol{g}^{\ell} = \gamma \sqrt{N} \frac{\partial \boldsymbol{f}^{\top}}{\partial "
            r"\boldsymbol{h}^{\ell}} = \gamma \sqrt{N} \left(\frac{\partial "
            r"\boldsymbol{h}^{\ell+1}}{\partial \boldsymbol{h}^{\ell}} \right)^{\top} \frac{\partial "
            r"\boldsymbol{f}^{\top}}{\partial \boldsymbol{h}^{\ell+1}} = \left[\dot{\phi} "
            r"\left(\boldsymbol{h}^{\ell} \right) \mathbf{1}^{\top} \right] \odot \left[\frac{1}{\sqrt{N}} "
            r"\boldsymbol{W}^{\ell \top} \boldsymbol{g}^{\ell+1} \right]"
        ),
        claim=channels.i2,
        derived="backward definitions of mlp(L, outputs=C)",
        verdict="agrees",
        why=("Chain rule, one column for each output."),
        evidence=("channels:tangent_normalisation",),
    ),
    Entry(
        source="selfconsistent2023",
        number="I.3",
        title="tangent kernel of several outputs",
        printed=(
            r"\boldsymbol{K}_{\mu\alpha}^{\text{NTK}} = \sum_{\ell} \frac{\partial "
            r"\boldsymbol{f}(\boldsymbol{x}_{\mu})}{\partial \boldsymbol{W}^{\ell}} \cdot \frac{\partial "
            r"\boldsymbol{f}(\boldsymbol{x}_{\alpha})}{\partial \boldsymbol{W}^{\ell}} \\ = "
            r"\Phi_{\mu\alpha}^{L} \mathbf{I} + \sum_{\ell=1}^{L-1} \boldsymbol{G}_{\mu\alpha}^{\ell+1} "
            r"\Phi_{\mu\alpha}^{\ell} + \boldsymbol{G}_{\mu\alpha}^{1} K_{\mu\alpha}^{x}"
        ),
        claim=channels.i3,
        derived="tangent kernel of mlp(L, outputs=C)",
        verdict="misprint",
        why=(
            "The first line lacks gamma^2 = gamma0^2 N (compare D.49), and so does the text above (I.1). The "
            "second line is right: only the readouts, one for each output, give a diagonal term; the inner "
            "layers couple the outputs through G."
        ),
        evidence=("channels:tangent_normalisation",),
    ),
    Entry(
        source="selfconsistent2023",
        number="I.4",
        title="fields with several outputs",
        printed=(
            r"h_{\mu}^{\ell}(t) = \chi_{\mu}^{\ell}(t) + \gamma_{0} \int_{0}^{\infty} ds "
            r"\sum_{\alpha=1}^{P} \left[\boldsymbol{A}_{\mu\alpha}^{\ell-1}(t,s) + \Theta(t-s) "
            r"\boldsymbol{\Delta}_{\alpha}(s) \Phi_{\mu\alpha}^{\ell-1}(t,s) \right] \cdot "
            r"\boldsymbol{g}_{\alpha}^{\ell}(s) \in \mathbb{R} \\ \boldsymbol{z}_{\mu}^{\ell}(t) = "
            r"\boldsymbol{\xi}_{\mu}^{\ell}(t) + \gamma_{0} \int_{0}^{\infty} ds \sum_{\alpha=1}^{P} "
            r"\left[\boldsymbol{B}_{\mu\alpha}^{\ell}(t,s) + \Theta(t-s) "
            r"\boldsymbol{G}_{\mu\alpha}^{\ell+1} \boldsymbol{\Delta}_{\alpha}(s) \right] \phi "
            r"\left(h_{\mu}^{\ell}(t) \right) \in \mathbb{R}^{C} \\ \boldsymbol{g}_{\mu}^{\ell}(t) = "
            r"\dot{\phi} \left(h_{\mu}^{\ell}(t) \right) \boldsymbol{z}_{\mu}^{\ell}(t) \in \mathbb{R}^{C}"
        ),
        claim=channels.i4,
        derived="single-site equations of mlp(L, outputs=C)",
        verdict="misprint",
        why=(
            "chi and xi must be the Gaussian u and r: chi contains the term with A already, xi that "
            "with B, and as printed both count twice. In the second line the last factor must be "
            "phi(h_alpha(s)), the field of the past; h_mu(t) makes the sum over alpha and s act on a "
            "factor. Networks reject each of the three."
        ),
        evidence=("channels:sources_not_products",),
    ),
    Entry(
        source="selfconsistent2023",
        number="I.5",
        title="kernels and responses with several outputs",
        printed=(
            r"\Phi_{\mu\alpha}^{\ell}(t,s) = \left\langle \phi\left(h_{\mu}^{\ell}(t)\right) "
            r"\phi\left(h_{\alpha}^{\ell}(s)\right) \right\rangle \in \mathbb{R} , \quad "
            r"\boldsymbol{G}_{\mu\alpha}^{\ell}(t,s) = \left\langle \boldsymbol{g}_{\mu}^{\ell}(t) "
            r"\boldsymbol{g}_{\alpha}^{\ell}(s)^{\top} \right\rangle \in \mathbb{R}^{C \times C} \\ "
            r"\boldsymbol{A}_{\mu\alpha}^{\ell}(t,s) = \frac{1}{\gamma_{0}} \left\langle "
            r"\frac{\delta\phi\left(h_{\mu}^{\ell}(t)\right)}{\delta\boldsymbol{r}_{\alpha}^{\ell}(s)} "
            r"\right\rangle \in \mathbb{R}^{C} , \quad \boldsymbol{B}_{\mu\alpha}^{\ell}(t,s) = "
            r"\frac{1}{\gamma_{0}} \left\langle "
            r"\frac{\delta\boldsymbol{g}_{\mu}^{\ell}(t)}{\delta\boldsymbol{u}_{\alpha}^{\ell}(s)} "
            r"\right\rangle \in \mathbb{R}^{C}"
        ),
        claim=channels.i5,
        derived="order parameters of mlp(L, outputs=C)",
        verdict="misprint",
        why=(
            "B^l must be the response of g^{l+1} to u^{l+1}, as in (14). That of g^l to u^l, in linear "
            "networks, is B^l itself plus what the updates add, so that no B^l is equal to it; in nonlinear "
            "ones g^l(t) would also need B^l(t,t), which needs g^l(t). A belongs to layer l; u is one "
            "number, r a vector."
        ),
        evidence=("channels:response_layer",),
    ),
)
