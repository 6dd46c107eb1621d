"""Appendix D.1: network, gradients and field recursions, (D.1)-(D.11)."""

from __future__ import annotations

from derive.ledger.entry import Entry

ENTRIES = (
    Entry(
        source="selfconsistent2023",
        number="D.1",
        title="network and its pre-output",
        printed=(
            r"f_{\mu} = \frac{1}{\gamma} h_{\mu}^{L+1} , h_{\mu}^{L+1} = \frac{1}{\sqrt{N}} "
            r"\boldsymbol{w}_{L} \cdot \phi \left(\boldsymbol{h}_{\mu}^{L} \right) \\ "
            r"\boldsymbol{h}_{\mu}^{\ell+1} = \frac{1}{\sqrt{N}} \boldsymbol{W}^{\ell} \phi "
            r"\left(\boldsymbol{h}_{\mu}^{\ell} \right) , \boldsymbol{h}_{\mu}^{1} = \frac{1}{\sqrt{D}} "
            r"\boldsymbol{W}^{0} \boldsymbol{x}_{\mu}"
        ),
        derived="the program mlp(L)",
        verdict="definition",
        why="Same network as (1), with h^{L+1} = gamma f.",
    ),
    Entry(
        source="selfconsistent2023",
        number="D.2",
        title="parameter flow and tangent kernel",
        printed=(
            r"\frac{\mathrm{d}\boldsymbol{\theta}}{\mathrm{d}t} = \frac{\eta}{\gamma} \sum_{\mu} "
            r"\Delta_{\mu} \frac{\partial h_{\mu}^{L+1}}{\partial \boldsymbol{\theta}} , \quad "
            r"\frac{\partial f_{\mu}}{\partial t} = \frac{\eta}{\gamma^{2}} \sum_{\alpha} "
            r"\Delta_{\alpha} K_{\mu\alpha}^{\mathrm{NTK}} , \quad K_{\mu\alpha}^{\mathrm{NTK}} = "
            r"\frac{\partial h_{\mu}^{L+1}}{\partial \boldsymbol{\theta}} \cdot \frac{\partial "
            r"h_{\alpha}^{L+1}}{\partial \boldsymbol{\theta}}"
        ),
        derived="gradient rule of the program",
        verdict="agrees",
        why=(
            "Right: f = h^{L+1}/gamma gives one factor 1/gamma in the flow and 1/gamma^2 in the "
            "velocity; K is built from h^{L+1}, not from f as above (4)."
        ),
        evidence=("network:tangent_kernel_normalisation", "nonlinear_network:tangent_kernel"),
    ),
    Entry(
        source="selfconsistent2023",
        number="D.3",
        title="flow at rate gamma^2",
        printed=(
            r"\frac{\mathrm{d}\boldsymbol{\theta}}{\mathrm{d}t} = \gamma \sum_{\mu} \Delta_{\mu} "
            r"\frac{\partial h_{\mu}^{L+1}}{\partial \boldsymbol{\theta}} , \quad \frac{\partial "
            r"f_{\mu}}{\partial t} = \sum_{\alpha} \Delta_{\alpha} K_{\mu\alpha}^{\mathrm{NTK}}"
        ),
        derived="flow rule of the program",
        verdict="agrees",
        why="(D.2) with eta = gamma^2.",
        evidence=("network:prediction_velocity", "nonlinear_network:tangent_kernel"),
    ),
    Entry(
        source="selfconsistent2023",
        number="D.4",
        title="backward recursion",
        printed=(
            r"\boldsymbol{g}_{\mu}^{\ell} = \sqrt{N} \frac{\partial h_{\mu}^{L+1}}{\partial "
            r"\boldsymbol{h}_{\mu}^{\ell}} = \left(\frac{\partial "
            r"\boldsymbol{h}_{\mu}^{\ell+1}}{\partial \boldsymbol{h}_{\mu}^{\ell}}\right)^{\top} "
            r"\left(\sqrt{N} \frac{\partial h_{\mu}^{L+1}}{\partial "
            r"\boldsymbol{h}_{\mu}^{\ell+1}}\right) = \dot{\phi}\left(\boldsymbol{h}_{\mu}^{\ell}\right) "
            r"\odot \boldsymbol{z}_{\mu}^{\ell} , \ \boldsymbol{z}_{\mu}^{\ell} = \frac{1}{\sqrt{N}} "
            r"\boldsymbol{W}^{\ell \top} \boldsymbol{g}_{\mu}^{\ell+1}. \\ \boldsymbol{g}_{\mu}^{L} = "
            r"\dot{\phi}\left(\boldsymbol{h}_{\mu}^{L}\right) \odot \boldsymbol{w}^{L}"
        ),
        derived="backward definitions of the program",
        verdict="agrees",
        why="Chain rule; sqrt(N) makes g of order one (g^L = w for linear networks).",
        evidence=("network:backward_fields", "nonlinear_network:backward_fields"),
    ),
    Entry(
        source="selfconsistent2023",
        number="D.5",
        title="gradient with respect to an inner matrix",
        printed=(
            r"\frac{\partial h_{\mu}^{L+1}}{\partial \boldsymbol{W}^{\ell}} = \sum_{i=1}^{N} "
            r"\frac{\partial h_{\mu}^{L+1}}{\partial h_{\mu,i}^{\ell+1}} \frac{\partial "
            r"h_{\mu,i}^{\ell+1}}{\partial \boldsymbol{W}^{\ell}} = \frac{1}{N} "
            r"\boldsymbol{g}_{\mu}^{\ell+1} \phi \left(\boldsymbol{h}_{\mu}^{\ell} \right)^{\top}"
        ),
        derived="gradient rule of the program",
        verdict="agrees",
        why=(
            "Two factors 1/sqrt(N), one from g and one from the layer. Holds for ell = 1..L-1; at the "
            "ends the factor is 1/sqrt(N D) and 1/sqrt(N)."
        ),
        evidence=("network:weight_gradient", "nonlinear_network:backward_fields"),
    ),
    Entry(
        source="selfconsistent2023",
        number="D.6",
        title="tangent kernel of a finite network",
        printed=(
            r"K_{\mu\alpha}^{\mathrm{NTK}} = \frac{1}{N} \phi\left(\boldsymbol{h}_{\mu}^{L}\right) \cdot "
            r"\phi\left(\boldsymbol{h}_{\alpha}^{L}\right) + \sum_{\ell=1}^{L-1} "
            r"\left(\frac{\boldsymbol{g}_{\mu}^{\ell+1} \cdot "
            r"\boldsymbol{g}_{\alpha}^{\ell+1}}{N}\right) "
            r"\left(\frac{\phi\left(\boldsymbol{h}_{\mu}^{\ell}\right) \cdot "
            r"\phi\left(\boldsymbol{h}_{\alpha}^{\ell}\right)}{N}\right) + "
            r"\frac{\boldsymbol{g}_{\mu}^{1} \cdot \boldsymbol{g}_{\alpha}^{1}}{N} K_{\mu\alpha}^{x}"
        ),
        derived="tangent kernel of the theory",
        verdict="agrees",
        why="Sum of squared gradients over the L+1 weights, with the right ends.",
        evidence=("network:tangent_kernel_normalisation", "nonlinear_network:tangent_kernel"),
    ),
    Entry(
        source="selfconsistent2023",
        number="D.7",
        title="kernels at finite width",
        printed=(
            r"\Phi_{\mu\nu}^{\ell} = \frac{1}{N} \phi \left(\boldsymbol{h}_{\mu}^{\ell} \right) \cdot "
            r"\phi \left(\boldsymbol{h}_{\nu}^{\ell} \right) , \ G_{\mu\nu}^{\ell} = \frac{1}{N} "
            r"\boldsymbol{g}_{\mu}^{\ell} \cdot \boldsymbol{g}_{\nu}^{\ell}"
        ),
        derived="order parameters of the theory",
        verdict="definition",
        why="Definition.",
    ),
    Entry(
        source="selfconsistent2023",
        number="D.8",
        title="trained weights as a memory of past updates",
        printed=(
            r"\boldsymbol{W}^{\ell}(t) = \boldsymbol{W}^{\ell}(0) + \frac{\gamma}{N} \int_{0}^{t} ds "
            r"\sum_{\mu} \Delta_{\alpha}(s) \boldsymbol{g}_{\mu}^{\ell+1}(s) \phi "
            r"\left(\boldsymbol{h}_{\mu}^{\ell}(s)\right)^{\top}"
        ),
        derived="memory of the flow rule in the program",
        verdict="misprint",
        why=(
            "The error carries the free index alpha while the sum runs over mu; it must be Delta_mu, as "
            "(D.9) has it. With two samples of different error the printed increment is wrong for "
            "either choice of alpha."
        ),
        evidence=("network:weight_history", "nonlinear_network:memory"),
    ),
    Entry(
        source="selfconsistent2023",
        number="D.9",
        title="forward and backward fields under training",
        printed=(
            r"\boldsymbol{h}_{\mu}^{\ell+1}(t) = \boldsymbol{\chi}_{\mu}^{\ell+1}(t) + "
            r"\frac{\gamma}{\sqrt{N}} \int_{0}^{t} ds \sum_{\nu} \Delta_{\nu}(s) "
            r"\boldsymbol{g}_{\nu}^{\ell+1}(t) \Phi_{\mu\nu}^{\ell}(s,t) \\ "
            r"\boldsymbol{z}_{\mu}^{\ell}(t) = \boldsymbol{\xi}_{\mu}^{\ell}(t) + "
            r"\frac{\gamma}{\sqrt{N}} \int_{0}^{t} ds \sum_{\nu} \Delta_{\nu}(s) \phi "
            r"\left(\boldsymbol{h}_{\nu}^{\ell}(s)\right) G_{\mu\nu}^{\ell+1}(s,t) , "
            r"\boldsymbol{g}_{\mu}^{\ell}(t) = \dot{\phi} \left(\boldsymbol{h}_{\mu}^{\ell}(t)\right) "
            r"\odot \boldsymbol{z}_{\mu}^{\ell}(t) \\ \frac{\partial f_{\mu}}{\partial t} = "
            r"\sum_{\alpha} \Delta_{\alpha}(t) \left[\Phi_{\mu\alpha}^{L}(t,t) + \sum_{\ell=1}^{L-1} "
            r"G_{\mu\alpha}^{\ell+1}(t,t) \Phi_{\mu\alpha}^{\ell}(t,t) + G_{\mu\alpha}^{1}(t,t) "
            r"K_{\mu\alpha}^{x} \right]"
        ),
        derived="single-site equations before averaging",
        verdict="misprint",
        why=(
            "The memory holds the field at the time of the update: g(s), not g(t), and the kernels "
            "enter as Phi(t,s) and G(t,s), with t the time of the left-hand side. (D.44) has it right. "
            "Rebuild h(t) - chi(t) from the stored fields of one network trained by exact steps: only "
            "the corrected form reproduces it to rounding error."
        ),
        evidence=("network:field_recursion", "nonlinear_network:memory"),
    ),
    Entry(
        source="selfconsistent2023",
        number="D.10",
        title="fields driven by the initial weights",
        printed=(
            r"\boldsymbol{\chi}_{\mu}^{\ell}(t) = \frac{1}{\sqrt{N}} \boldsymbol{W}^{\ell}(0) \phi "
            r"\left(\boldsymbol{h}_{\mu}^{\ell}(t) \right) , \ \boldsymbol{\xi}_{\mu}^{\ell}(t) = "
            r"\frac{1}{\sqrt{N}} \boldsymbol{W}^{\ell}(0)^{\top} \boldsymbol{g}_{\mu}^{\ell+1}(t)"
        ),
        derived="(6)",
        verdict="misprint",
        why=(
            "The matrix W^ell maps into layer ell+1, so the left-hand side is chi^{ell+1}, as in (6). "
            "At t = 0 the right-hand side equals h^{ell+1}, not h^ell."
        ),
        evidence=("network:initial_fields", "nonlinear_network:initial_fields"),
    ),
    Entry(
        source="selfconsistent2023",
        number="D.11",
        title="fields of a two-layer network",
        printed=(
            r"\boldsymbol{h}_{\mu}(t) = \boldsymbol{\chi}_{\mu} + \gamma_{0} \int_{0}^{t} ds "
            r"\sum_{\alpha} \left[\boldsymbol{z}(s) \odot \dot{\phi}(\boldsymbol{h}_{\alpha}(s)) \right] "
            r"K_{\mu\alpha}^{x} \Delta_{\alpha}(s) \\ \boldsymbol{z}(t) = \boldsymbol{\xi} + \gamma_{0} "
            r"\int_{0}^{t} ds \sum_{\alpha} \phi(\boldsymbol{h}_{\alpha}(s)) \Delta_{\alpha}(s)"
        ),
        derived="the program mlp(1)",
        verdict="agrees",
        why="Both ends of the chain at once: chi and xi do not move, and neither A nor B appears.",
        evidence=("network:two_layer_fields", "nonlinear_network:two_layer_fields"),
    ),
)
