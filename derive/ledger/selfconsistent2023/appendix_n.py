"""Appendix N: parametrisations (N.1)-(N.9), Tensor Programs (N.10), table N1."""

from __future__ import annotations

from derive.ledger.entry import Entry
from derive.ledger.selfconsistent2023.claims import nonlinear, parametrisation

ENTRIES = (
    Entry(
        source="selfconsistent2023",
        number="N.1",
        title="width parametrisation",
        printed=(
            r"f = \frac{1}{\gamma} h^{L+1} , h^{L+1} = N^{-a_L} \boldsymbol{w}^L \cdot \phi "
            r"\left(\boldsymbol{h}^L \right) , w_i^L \sim \mathcal{N} \left(0, N^{-b_L} \right) \\ "
            r"\boldsymbol{h}^{\ell+1} = N^{-a_\ell} \boldsymbol{W}^\ell \phi \left(\boldsymbol{h}^\ell "
            r"\right) , W_{ij}^\ell \sim \mathcal{N} \left(0, N^{-b_\ell} \right) \\ \boldsymbol{h}^1 = "
            r"N^{-a_0} D^{-1/2} \boldsymbol{W}^0 \boldsymbol{x} , W_{ij}^0 \sim \mathcal{N} \left(0, "
            r"N^{-b_0} \right)"
        ),
        verdict="definition",
        why=("Definition; ours is a = 1/2, b = 0 for all weights but W^0, which has a = 0."),
    ),
    Entry(
        source="selfconsistent2023",
        number="N.2",
        title="gradient flow of a parametrised network",
        printed=(
            r"\frac{d}{dt}\mathbf{W}^{\ell} = \eta \sum_{\mu=1}^{P} \Delta_{\mu}(t) \frac{\partial "
            r"f_{\mu}}{\partial \mathbf{W}^{\ell}}"
        ),
        verdict="definition",
        why=("Definition, with eta = eta_0 gamma^2 N^{-c} and gamma = gamma_0 N^d."),
    ),
    Entry(
        source="selfconsistent2023",
        number="N.2 text",
        title="the output scale that allows feature learning",
        printed=r"\gamma = \gamma_0 N^d , \ d = \frac{1}{2}",
        claim=parametrisation.n2_text,
        derived="classification by powers of N over several steps",
        verdict="agrees",
        why=(
            "With 2 a + b = 1 for the readout too, and if z must stay of order one. Outputs and h are "
            "bounded and features learn at d > 1/2 too, where the readout starts smaller than its updates "
            "(a_0 = 1/2, a_L = 1/2, c = 0, d = 1); that is d = 1/2 with 2 a_L + b_L > 1. Without the "
            "convention d is free, see N.9 text."
        ),
        evidence=("width_constraints:only_half", "width_powers:conventions", "width_powers:several_steps"),
    ),
    Entry(
        source="selfconsistent2023",
        number="N.3",
        title="size of the first fields",
        printed=(
            r"\langle h_i^1 h_j^1 \rangle = N^{-2a_0} D^{-1} \sum_{kk'} \langle W_{ik}(0) W_{jk'}(0) "
            r"\rangle x_k x_{k'} = \delta_{ij} N^{-2a_0 - b_0} K^x"
        ),
        claim=parametrisation.n3,
        derived="second moments of the definitions (N.1)",
        verdict="agrees",
        why=("Two scales N^{-a_0}, the variance N^{-b_0}, and a sum over the D inputs; so 2 a_0 + b_0 = 0."),
        evidence=("parametrisation:moments", "width_constraints:conditions"),
    ),
    Entry(
        source="selfconsistent2023",
        number="N.4",
        title="size of the fields",
        printed=(
            r"\langle h_i^{\ell+1} h_j^{\ell+1} \rangle = N^{-2a_\ell} \sum_{k,k'} \langle W_{ik}^{\ell}(0) "
            r"W_{jk'}^{\ell}(0) \rangle \phi \left(h_k^{\ell} \right) \phi \left(h_{k'}^{\ell} \right) \\ "
            r"\delta_{ij} N^{1-2a_\ell - b_\ell} \Phi^{\ell} \stackrel{\sim}{\sim} \mathcal{O}_N (1)"
        ),
        claim=parametrisation.n4,
        derived="second moments of the definitions (N.1)",
        verdict="agrees",
        why=(
            "The sum over N units gives the 1; so 2 a + b = 1. An equals sign is missing before the second "
            "line."
        ),
        evidence=("parametrisation:moments", "width_constraints:conditions"),
    ),
    Entry(
        source="selfconsistent2023",
        number="N.4 text",
        title="backward field of the last layer",
        printed=(
            r"g_i^L = N^{a_L + b_L/2} \frac{\partial h^{L+1}}{\partial h_i^L} = N^{b_L/2} \ w_i^L \odot "
            r"\dot{\phi} \left(h_i^L \right) \ \sim \ \mathcal{O}_N \left(1 \right)"
        ),
        claim=parametrisation.n4_text,
        derived="chain rule on (N.1)",
        verdict="agrees",
        why=("dh^{L+1}/dh^L is N^{-a_L} w phi', and w is of order N^{-b_L/2}."),
        evidence=("parametrisation:gradients",),
    ),
    Entry(
        source="selfconsistent2023",
        number="N.5",
        title="backward recursion of a parametrised network",
        printed=(
            r"\boldsymbol{g}^{\ell} = \left(\frac{\partial \boldsymbol{h}^{\ell+1}}{\partial "
            r"\boldsymbol{h}^{\ell}}\right)^{\top} \boldsymbol{g}^{\ell+1} = \dot{\boldsymbol{\phi}} "
            r"\left(\boldsymbol{h}^{\ell}\right) \odot \left[N^{-a_{\ell}} \boldsymbol{W}^{\ell} "
            r"\left(0\right)^{\top} \boldsymbol{g}^{\ell}\right]"
        ),
        claim=parametrisation.n5,
        derived="chain rule on (N.1)",
        verdict="misprint",
        why=(
            "The matrix acts on g^{l+1}, as in the expression before it and in the text below. Checked by "
            "differentiating one network."
        ),
        evidence=("parametrisation:gradients",),
    ),
    Entry(
        source="selfconsistent2023",
        number="N.6",
        title="size of the pre-gradients",
        printed=(
            r"\langle z_i^{\ell} z_i^{\ell} \rangle = \delta_{ij} N^{-2a_{\ell} - b_{\ell}} "
            r"\boldsymbol{g}^{\ell+1} \cdot \boldsymbol{g}^{\ell+1} = \delta_{ij} N^{-2a_{\ell} - b_{\ell} "
            r"+ 1} G^{\ell+1}"
        ),
        claim=parametrisation.n6,
        derived="second moments of the definitions (N.1)",
        verdict="agrees",
        why=("As (N.4), with the transpose; the second index on the left must be j."),
        evidence=("parametrisation:moments", "width_constraints:conditions"),
    ),
    Entry(
        source="selfconsistent2023",
        number="N.7",
        title="size of the tangent kernel",
        printed=(
            r"K_{\mu\alpha}^{\text{NTK}} = \gamma^{2} N^{-c} \sum_{\ell} \frac{\partial f_{\mu}}{\partial "
            r"\mathbf{W}^{\ell}} \cdot \frac{\partial f_{\alpha}}{\partial \mathbf{W}^{\ell}} = N^{-c} "
            r"\sum_{\ell} \frac{\partial h_{\mu}^{L+1}}{\partial \mathbf{W}^{\ell}} \frac{\partial "
            r"h_{\alpha}^{L+1}}{\partial \mathbf{W}^{\ell}} \\ = N^{-c} \left[\frac{\phi "
            r"\left(\mathbf{h}_{\mu}^{L} \right) \cdot \phi \left(\mathbf{h}_{\alpha}^{L} "
            r"\right)}{N^{2a_{L}}} + \sum_{\ell} \frac{\partial h_{\mu}^{L+1}}{\partial "
            r"\mathbf{h}_{\mu}^{\ell+1}} \cdot \frac{\partial h_{\alpha}^{L+1}}{\partial "
            r"\mathbf{h}_{\alpha}^{\ell+1}} \frac{\phi \left(\mathbf{h}_{\mu}^{\ell} \right) \cdot \phi "
            r"\left(\mathbf{h}_{\alpha}^{\ell} \right)}{N^{2a_{\ell}}} + \frac{\partial "
            r"h_{\mu}^{L+1}}{\partial \mathbf{h}_{\mu}^{1}} \cdot \frac{\partial h_{\alpha}^{L+1}}{\partial "
            r"\mathbf{h}_{\alpha}^{1}} \frac{\mathbf{x}_{\mu} \cdot \mathbf{x}_{\alpha}}{N^{2a_{0}} D} "
            r"\right] \\ = N^{-c} \left[N^{1-2a_{L}} \Phi_{\mu\alpha}^{L} + \sum_{\ell} N^{1-2a_{\ell}} "
            r"G_{\mu\alpha}^{\ell+1} \Phi_{\mu\alpha}^{\ell} + N^{-2a_{0}} G_{\mu\alpha}^{1} "
            r"K_{\mu\alpha}^{x} \right]"
        ),
        claim=parametrisation.n7,
        derived="chain rule on (N.1)",
        verdict="agrees",
        why=(
            "With g = N^{a_L + b_L/2} dh^{L+1}/dh the products of gradients are N^{1 - 2 a_L - b_L} G, "
            "so the last line holds under 2 a_L + b_L = 1, which the section before it imposes. ell "
            "runs over 1..L-1."
        ),
        evidence=("parametrisation:gradients",),
    ),
    Entry(
        source="selfconsistent2023",
        number="N.8",
        title="outputs that move in time of order one",
        printed=(r"2a_{\ell} + c = 1 , \ \ell \in \{1, \dots, L\} \\ 2a_0 + c = 0"),
        claim=parametrisation.n8,
        derived="exponents of (N.7)",
        verdict="agrees",
        why=("The exponents of the three terms of (N.7), each set to zero."),
        evidence=("width_constraints:conditions", "parametrisation:gradients", "width_powers:rates"),
    ),
    Entry(
        source="selfconsistent2023",
        number="N.8 text",
        title="the first layer's scale",
        printed=r"c = 0 , \ a_0 = 0 , \ a_\ell = \frac{1}{2} ; \quad c \neq 0 \implies a_0 \neq 0",
        claim=parametrisation.n8_text,
        derived="width_constraints(program).solution(...)",
        verdict="agrees",
        why=(
            "a_0 = -c/2. With a_0 = a instead, as in a network whose layers are all alike, the first layer "
            "moves by a power of N less than the others (by 1/N with muP's other exponents), as networks do."
        ),
        evidence=("width_constraints:conditions", "width_powers:rates"),
    ),
    Entry(
        source="selfconsistent2023",
        number="N.9",
        title="size of the change of the fields",
        printed=(
            r"\boldsymbol{h}_{\mu}^{\ell+1}(t) = \boldsymbol{\chi}_{\mu}^{\ell+1}(t) + \eta_0 \gamma_0 "
            r"N^{d-c-2a_{\ell}+\frac{1}{2}} \sum_{\alpha} \int_0^t \mathrm{d}s \Delta_{\alpha}(s) "
            r"\boldsymbol{g}_{\alpha}^{\ell+1}(s) \Phi_{\mu\alpha}^{\ell}(t,s)"
        ),
        claim=parametrisation.n9,
        derived="one update of (N.1), (N.2)",
        verdict="agrees",
        why=(
            "The scale N^{-a} of the layer, that of the update (d - c - a - 1/2, right in the display before "
            "it) and N from the kernel. With (N.8) it is d - 1/2, also for ell = 0, where the exponent reads "
            "d - c - 2 a_0 - 1/2."
        ),
        evidence=("width_constraints:conditions", "parametrisation:updates", "width_powers:rates"),
    ),
    Entry(
        source="selfconsistent2023",
        number="N.9 text",
        title="parametrisations that learn features",
        printed=(
            r"d = \frac{1}{2} , \ (a, b, c) \in \{(a, 1-2a, 1-2a) : a \in \mathbb{R}\} , \ (a_0 = a - "
            r"\frac{1}{2}, b_0 = 1-2a) , \ f_{\mu} \sim \mathcal{O}(N^{-1/2}) ; \\ \eta = \mathcal{O}_N(1) "
            r"\implies c = 2d = 1 , \ a_{\ell} = 0 , \ b_{\ell} = 1 , \ a_0 = -\frac{1}{2} , \ b_0 = 1"
        ),
        claim=parametrisation.n9_text,
        derived="width_constraints(program).family()",
        verdict="agrees",
        why=(
            "The solution of the conditions that are counted on the program, at every depth tried; the rate "
            "picks its member muP. Its members are one network at every step, by an exact symmetry. A second "
            "one shifts d, a_L and c: d = 1/2 follows only with the convention 2 a_L + b_L = 1, that h^{L+1} "
            "starts at order one. The network itself fixes a_L + d and 2 d - c."
        ),
        evidence=(
            "width_constraints:family",
            "parametrisation:family",
            "width_powers:symmetry",
            "width_powers:conventions",
            "width_powers:rates",
            "width_powers:several_steps",
        ),
    ),
    Entry(
        source="selfconsistent2023",
        number="Table N1",
        title="names in Tensor Programs and here",
        printed=(
            r"\begin{array}{lllllllll} \text{DMFT} & h(t) & \chi(t) & g(t) & \xi(t) & \Phi^\ell(t,s) & "
            r"G^\ell(t,s) & A^\ell(t,s), B^\ell(t,s) & \Delta(t) \\ \text{TP} & Z^{h_t} & Z^{Wx_t} & "
            r"Z^{\mathrm{d}x_t} & Z^{W^\top \mathrm{d} h_t} & \mathbb{E}[Z^{x_t}Z^{x_s}] & "
            r"\mathbb{E}[Z^{\mathrm{d}h_t}Z^{\mathrm{d}h_s}] & \theta_{ts} & -\chi_t \end{array}"
        ),
        claim=nonlinear.table_n1,
        derived="theory in the notation of Tensor Programs",
        verdict="misprint",
        why=(
            "g is Z^{dh}, the gradient at the pre-activation: the same table has G = E[Z^{dh} Z^{dh}]. "
            "Z^{dx}, the gradient at x = phi(h), is the pre-gradient z, as in (N.10). theta is the response "
            "before the division by gamma0, so gamma0 A."
        ),
        evidence=("nonlinear:dictionary",),
    ),
    Entry(
        source="selfconsistent2023",
        number="N.10",
        title="the process of Tensor Programs",
        printed=(
            r"Z^{h_t} = \hat{Z}^{Wx_t} + \dot{Z}^{Wx_t} - \sum_{s=0}^{t-1} \chi_s Z^{dh_s} \mathbb{E} "
            r"[Z^{x_s} Z^{x_t}] \\ Z^{dx_t} = \hat{Z}^{W^{\top} dh_t} + \dot{Z}^{W^{\top} dh_t} - "
            r"\sum_{s=0}^{t-1} \chi_s Z^{x_s} \mathbb{E} [Z^{dh_t} Z^{dh_s}]"
        ),
        claim=nonlinear.n10,
        derived="theory in the notation of Tensor Programs",
        verdict="agrees",
        why=(
            "At gamma0 = 1 and unit rate the derived theory, printed in this notation, is the same, one "
            "sample a step; its dotted parts are sums of E[dZ/dhat Z], over s < t forwards and s <= t "
            "backwards. Networks that see each sample once agree with it."
        ),
        evidence=("tensor_programs:one_pass_networks",),
    ),
    Entry(
        source="selfconsistent2023",
        number="N.10 text",
        title="what the dotted part is",
        printed=(r"\dot{Z}^{Wx} \to \sum_s \Delta(s) A(t,s)"),
        claim=nonlinear.n10_text,
        derived="response terms of the theory",
        verdict="misprint",
        why=(
            "The dotted part is gamma0 sum_s A(t,s) g(s): a random variable, with the gradient field at "
            "s and without the error, which multiplies kernels only (13). With an error networks reject "
            "it."
        ),
        evidence=("nonlinear:dotted_part",),
    ),
)
