"""Table 1: what the theories are said to cost."""

from __future__ import annotations

from derive.ledger.entry import Entry
from derive.ledger.selfconsistent2023.claims import cost

ENTRIES = (
    Entry(
        source="selfconsistent2023",
        number="Table 1",
        title="memory and time of four theories",
        printed=(
            r"\begin{array}{lllll} \text{Requirements} & \text{Width-}N\text{ NN} & \text{Static NTK} & "
            r"\text{Perturbative} & \text{Full DMFT} \\ \text{Memory for kernels} & \mathcal{O}(N^2) & "
            r"\mathcal{O}(P^2) & \mathcal{O}(P^4T) & \mathcal{O}(P^2T^2) \\ \text{Time for kernels} & "
            r"\mathcal{O}(PN^2T) & \mathcal{O}(P^2) & \mathcal{O}(P^4T) & \mathcal{O}(P^3T^3) \\ "
            r"\text{Time for final outputs} & \mathcal{O}(PN^2T) & \mathcal{O}(P^3) & \mathcal{O}(P^4) & "
            r"\mathcal{O}(P^3T^3) \end{array}"
        ),
        claim=cost.table_1,
        derived="error-projected closure of the theory",
        verdict="wrong",
        why=(
            "As requirements of the theory the last column is too large for linear networks: with D = "
            "d(t,s) Delta_mu(s) at every layer, memory L P T^2 and time L P T^3 suffice (the published "
            "iteration with dense PT x PT matrices does need P^3 T^3). The perturbative column is too "
            "large as well: v_alpha and v_{alpha beta} need P^2 T numbers and equal-time kernels P^3 T "
            "operations. So DMFT beats a wide network as soon as N exceeds T sqrt(P), not only for N >> "
            "P T. The caption's first 'depth N' means width N. Count operations and stored numbers "
            "while P and T grow."
        ),
        evidence=("cost:march_against_table", "cost:expansion_against_table"),
    ),
)
