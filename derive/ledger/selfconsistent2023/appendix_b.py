"""Appendix B: the published algorithm."""

from __future__ import annotations

from derive.ledger.entry import Entry
from derive.ledger.selfconsistent2023.claims import nonlinear

ENTRIES = (
    Entry(
        source="selfconsistent2023",
        number="Algorithm 1",
        title="responses in the alternating Monte-Carlo solution",
        printed=(
            r"\tilde{\boldsymbol{A}}^{\ell} = \frac{1}{\mathcal{S}} \sum_{n \in [\mathcal{S}]} "
            r"\frac{\partial \phi(\boldsymbol{h}_n^{\ell})}{\partial \boldsymbol{r}_n^{\ell \top}} , \quad "
            r"\tilde{\boldsymbol{B}}^{\ell-1} = \frac{1}{\mathcal{S}} \sum_{n \in [\mathcal{S}]} "
            r"\frac{\partial \boldsymbol{g}_n^{\ell}}{\partial \boldsymbol{u}_n^{\ell \top}}"
        ),
        claim=nonlinear.algorithm_1,
        derived="responses of the theory",
        verdict="misprint",
        why=(
            "The estimates of the responses lack the factor 1/gamma0 of (14). The algorithm solves (13), "
            "which multiplies A and B by gamma0, so the factor is needed; without it both are right at "
            "gamma0 = 1 only. Put the printed responses into the theory of a tanh network with two hidden "
            "layers, at gamma0 = 2, and compare kernels and outputs with networks."
        ),
        evidence=("algorithm:responses_as_printed",),
    ),
)
