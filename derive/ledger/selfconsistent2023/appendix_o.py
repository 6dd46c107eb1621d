"""Appendix O: gradient independence (O.1)."""

from __future__ import annotations

from derive.ledger.entry import Entry
from derive.ledger.selfconsistent2023.claims import independence

ENTRIES = (
    Entry(
        source="selfconsistent2023",
        number="O.1",
        title="average with an independent backward matrix",
        printed=(
            r"\left\langle \exp\left(\frac{i}{\sqrt{N}} \int_{0}^{\infty} dt \left[\sum_{\mu} "
            r"\hat{\boldsymbol{\chi}}^{\ell+1}(t) \boldsymbol{W}^{\ell}(0) "
            r"\phi\left(\boldsymbol{h}_{\mu}^{\ell}(t)\right) + \boldsymbol{g}_{\mu}^{\ell+1}(t)^{\top} "
            r"\tilde{\boldsymbol{W}}^{\ell}(0) \boldsymbol{\xi}_{\mu}^{\ell}(t) \right] \right) "
            r"\right\rangle \\ = \exp\left(-\frac{1}{2} \sum_{\mu\alpha} \int_{0}^{\infty} dt' "
            r"\int_{0}^{\infty} ds' \left[\hat{\boldsymbol{\chi}}_{\mu}^{\ell+1}(t) \cdot "
            r"\hat{\boldsymbol{\chi}}_{\alpha}^{\ell+1}(s) \boldsymbol{\Phi}_{\mu\alpha}^{\ell}(t,s) + "
            r"\hat{\boldsymbol{\xi}}_{\mu}^{\ell}(t) \cdot \hat{\boldsymbol{\xi}}_{\alpha}^{\ell}(s) "
            r"G_{\mu\alpha}^{\ell+1}(t,s) \right] \right)"
        ),
        claim=independence.o1,
        derived="gradient independence: mlp(L, tied=False)",
        verdict="misprint",
        why=(
            "The content is right for any activation: no cross term, hence A = B = 0, and one half in "
            "front of both double integrals. On the left xi must be xi_hat and chi_hat lacks its sample "
            "index and transpose, on the right the integration variables t', s' do not occur in the "
            "integrand; above, Phi(h) stands for phi(h). Averaging over two matrices for given small "
            "vectors shows that only xi_hat fits."
        ),
        evidence=("path_integral:independent_backward_average",),
    ),
    Entry(
        source="selfconsistent2023",
        number="O.1 text",
        title="independent backward matrices and the ansatz A = B = 0",
        printed=(
            r"\boldsymbol{A}^{\ell} = \boldsymbol{B}^{\ell} = 0 \iff \boldsymbol{W}^{\ell}(0), "
            r"\boldsymbol{W}^{\ell}(0)^{\top} \text{ in the forward and backward pass independent}"
        ),
        claim=independence.o1_text,
        derived="mlp(L, tied=False): fields with A = B = 0, output f = <g h> / gamma0",
        verdict="wrong",
        why=(
            "Section 5.1 and appendix O call the two equivalent. For the fields, given the error, they "
            "are, for any activation, and so is f = <z phi(h)>/gamma0. The output by (4) is not: it "
            "takes every update for a gradient, and with independent backward matrices only those of "
            "the readout and of the last hidden matrix are. At the start f then moves at Phi^L + G^L "
            "Phi^{L-1} (2 K^x for linear networks) instead of the sum over all layers ((L + 1) K^x), "
            "which the paper's curves use. Networks with independent backward matrices, linear and "
            "tanh, decide it for two and three hidden layers."
        ),
        evidence=("independence:output_with_independent_backward", "nonlinear:independent_backward"),
    ),
)
