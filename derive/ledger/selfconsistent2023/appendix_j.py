"""Appendix J: weight decay, (J.1) and (J.2)."""

from __future__ import annotations

from derive.ledger.entry import Entry
from derive.ledger.selfconsistent2023.claims import decay

ENTRIES = (
    Entry(
        source="selfconsistent2023",
        number="J.1",
        title="representer theorem with weight decay",
        printed=(
            r"f(\boldsymbol{x}) = \boldsymbol{k}(\boldsymbol{x})^{\top} [\boldsymbol{K} + \lambda \kappa "
            r"\boldsymbol{I}]^{-1} \boldsymbol{y}"
        ),
        claim=decay.j1,
        derived="reduction: representer theorem, degree of the network found from its program",
        verdict="agrees",
        why=(
            "Euler's identity holds weight by weight in the derived theory, with kappa = L + 1 for "
            "rectifiers and (q^{L+1} - 1)/(q - 1) for their q-th powers; the output at rest solves a "
            "linear system. It needs the square loss, and weights that come to rest. Rectifiers held on "
            "their kinks do so on average only: K is then that of gradients averaged in time, and the mean "
            "of K does not do. Powers above one have no rest point in the limit of many units."
        ),
        evidence=("decay:ridge_regression", "decay:euler_identity", "rest:ridge_in_the_theory", "rest:kinks"),
    ),
    Entry(
        source="selfconsistent2023",
        number="J.1 text",
        title="a nontrivial fixed point for every gamma0",
        printed=(
            r"\gamma_0 > 0 \implies \text{the network converges to a nontrivial fixed point as } t \to "
            r"\infty"
        ),
        claim=decay.j1_text,
        derived="reduction: rest points of mlp(1) with decay",
        verdict="wrong",
        why=(
            "Only if decay is weak enough. For one hidden linear layer and one sample the derived "
            "equations have the rest points f = 0 and f = y - lambda/(gamma0 sqrt(K)), the latter only "
            "for lambda < gamma0 y sqrt(K); beyond, features and output decay to zero as in the lazy "
            "limit. Networks do so."
        ),
        evidence=("decay:collapse",),
    ),
    Entry(
        source="selfconsistent2023",
        number="J.2",
        title="fields with weight decay",
        printed=(
            r"h_{\mu}^{\ell}(t) = e^{-\lambda t} \chi_{\mu}^{\ell}(t) + \gamma_0 \int_0^t ds \ "
            r"e^{-\lambda(t-s)} \sum_{\alpha=1}^P \Delta_{\alpha}(s) g_{\alpha}^{\ell}(s) "
            r"\Phi_{\mu\alpha}^{\ell-1}(t,s) \\ z_{\mu}^{\ell}(t) = e^{-\lambda t} \xi_{\mu}^{\ell}(t) + "
            r"\gamma_0 \int_0^t ds \ e^{-\lambda(t-s)} \sum_{\alpha=1}^P \Delta_{\alpha}(s) "
            r"\phi(h_{\alpha}^{\ell}(s)) G_{\mu\alpha}^{\ell+1}(t,s)"
        ),
        claim=decay.j2,
        derived="theory of mlp(rule='flow', weight_decay=lambda)",
        verdict="agrees",
        why=(
            "The derived theory, with chi = u + gamma0 int A g and responses to the unscaled sources u "
            "and r. The engine's own form puts the factors exp(-lambda(t + s)) into the covariances and "
            "the responses; the two are the same."
        ),
        evidence=("decay:fields_with_decay",),
    ),
)
