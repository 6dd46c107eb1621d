"""What captions of figures state: finite width by layer (figure 1), weight decay (figure 3)."""

from __future__ import annotations

from derive.ledger.entry import Entry
from derive.ledger.selfconsistent2023.names import shown_by

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
        evidence=shown_by("captions:finite_width_by_layer"),
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
        evidence=shown_by("captions:weight_decay_threshold"),
    ),
)
