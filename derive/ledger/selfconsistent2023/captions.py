"""What captions of figures state: finite width by layer (figure 1), weight decay (figure 3), approximations
(figure 4)."""

from __future__ import annotations

from derive.ledger.entry import Entry

ENTRIES = (
    Entry(
        source="selfconsistent2023",
        number="Figure 1",
        title="layers in which finite width matters (caption)",
        printed=(
            r"\text{finite width effects for } \Phi^{\ell} \text{ are larger at later layers } \ell "
            r"\text{ since variance} \\ \text{accumulates on the forward pass, fluctuations in } G^{\ell} "
            r"\text{ are large in early layers}"
        ),
        derived="kernels Phi and G of the theory",
        verdict="agrees",
        why=(
            "So at the start, and at the end if little was learned. With features (gamma0 = 1) the order "
            "of Phi is reversed at the end: later kernels turn towards y y^T more than early ones do, in "
            "every network alike, and what scatters is small beside that. G is as stated in all these runs. "
            "No contradiction: the caption does not say at which gamma0 its panel was made. Measured by one "
            "minus the alignment of networks with the theory, as there."
        ),
        evidence=("captions:finite_width_by_layer",),
    ),
    Entry(
        source="selfconsistent2023",
        number="Figure 3",
        title="fixed point of relu networks with weight decay (caption)",
        printed=(
            r"\text{ReLU networks trained with L2 regularization have nontrivial fixed point} \\ "
            r"\text{in DMFT limit } (\gamma_0 > 0)"
        ),
        derived="the theory of mlp(1, relu) with weight decay, at late times",
        verdict="wrong",
        why=(
            "So above a threshold only. While the output is zero, a unit with |w| = 1 and a balanced "
            "outgoing weight grows at the rate gamma0 |sum_mu y_mu phi(w.x_mu/sqrt(D))| - lambda at best, so "
            "that below gamma_c = lambda / max_w |sum_mu y_mu phi(w.x_mu/sqrt(D))| none grows, and output "
            "and kernel decay to zero as for gamma0 to 0. Section 4.2 says only that a larger gamma0 can "
            "prevent this, which is right. Train one sample and two, at half the threshold and at twice."
        ),
        evidence=("captions:weight_decay_threshold",),
    ),
    Entry(
        source="selfconsistent2023",
        number="Figure 4",
        title="where approximations coincide and where they fail (caption)",
        printed=(
            r"\text{The predictions of all of these theories coincide in the } \gamma_0=0 \text{ limit but "
            r"begin to deviate} \\ \text{in the feature learning regime. Only the nonperturbative DMFT is "
            r"accurate over a wide range of } \gamma_0"
        ),
        derived="full theory, expansion to order gamma0^8, the ansatz A = B = 0, and (P.4) as printed; L = 5",
        verdict="agrees",
        why=(
            "Right of the curves as printed. The perturbative one suffers from the wrong factors of (16) "
            "and (P.4) besides: at small gamma0 its error is of order gamma0^2, as if there were no "
            "correction, that of the right leading order gamma0^4; order gamma0^8, resummed or not, reaches "
            "further still."
        ),
        evidence=("figure_4:approximations",),
    ),
    Entry(
        source="selfconsistent2023",
        number="Figure 4 text",
        title="the ansatz A = B = 0 near gamma0 = 0",
        printed=(
            r"\text{This ansatz works very well near } \gamma_0 \approx 0 \text{ since } "
            r"\frac{\mathrm{d}h}{\mathrm{d}r}, \frac{\mathrm{d}z}{\mathrm{d}u} \sim \mathcal{O}(\gamma_0)"
        ),
        derived="factors at order gamma0^2 with and without A and B",
        verdict="wrong",
        why=(
            "Section 5.1. The responses are of order gamma0, and so are the terms with Delta Phi beside "
            "them: A = B = 0 is right only where nothing is learned but the output. The change of kernels, "
            "at order gamma0^2, comes out too small by (L+1)(L+2)/6 for the same error, 7 at L = 5, however "
            "small gamma0 is."
        ),
        evidence=("perturbation_depth:gradient_independence_near_zero",),
    ),
)
