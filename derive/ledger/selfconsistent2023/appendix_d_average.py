"""Appendices D.3 and D.4: disorder average and action of a deep network, (D.22)-(D.32)."""

from __future__ import annotations

from derive.ledger.entry import Entry
from derive.ledger.selfconsistent2023.claims import nonlinear

ENTRIES = (
    Entry(
        source="selfconsistent2023",
        number="D.22",
        title="generating functional of a deep network",
        printed=(
            r"Z\left[\left\{\boldsymbol{j}^{\ell},\boldsymbol{v}^{\ell}\right\}\right] = \left\langle "
            r"\exp\left(\sum_{\ell,\mu} \int_{0}^{\infty} \mathrm{d}t "
            r"\left[\boldsymbol{j}_{\mu}^{\ell}(t) \cdot \boldsymbol{\chi}_{\mu}^{\ell}(t) + "
            r"\boldsymbol{v}_{\mu}^{\ell}(t) \cdot "
            r"\boldsymbol{\xi}_{\mu}^{\ell}(t)\right]\right)\right\rangle_{\boldsymbol{\theta}_{0} = "
            r"\mathrm{Vec}\left\{\boldsymbol{W}^{0}(0), \dots \boldsymbol{w}^{L}(0)\right\}}"
        ),
        derived="path-integral route, sources",
        verdict="definition",
        why="Definition, with real sources j and v; compare (D.42).",
    ),
    Entry(
        source="selfconsistent2023",
        number="D.23",
        title="moments from derivatives",
        printed=(
            r"\left\langle \chi_{\mu_{1}}^{\ell_{1}}(t_{1}) \dots \chi_{\mu_{n}}^{\ell_{n}}(t_{n}) "
            r"\xi_{\mu_{1}}^{\ell_{1}}(t_{1}) \dots \xi_{\mu_{m}}^{\ell_{m}}(t_{m}) \right\rangle \\ = "
            r"\frac{\delta}{\delta j_{\mu_{1}}^{\ell_{1}}(t_{1})} \dots \frac{\delta}{\delta "
            r"j_{\mu_{n}}^{\ell_{n}}(t_{n})} \frac{\delta}{\delta v_{\mu_{1}}^{\ell_{1}}(t_{1})} \qquad "
            r"\dots \frac{\delta}{\delta v_{\mu_{m}}^{\ell_{m}}(t_{m})} Z\left[\left\{ "
            r"\boldsymbol{j}^{\ell}, \boldsymbol{v}^{\ell} \right\} \right] "
            r"|_{\boldsymbol{j}=\boldsymbol{v}=0}"
        ),
        derived="path-integral route, sources",
        verdict="agrees",
        why="Right. The labels of the xi factors repeat those of chi; they are meant to be independent.",
        evidence=("path_integral:source_convention",),
    ),
    Entry(
        source="selfconsistent2023",
        number="D.24",
        title="definitions of all fields as delta functions",
        printed=(
            r"1 = \int_{\mathbb{R}^{N}} \int_{\mathbb{R}^{N}} \frac{d\boldsymbol{\chi}_{\mu}^{1}(t) "
            r"d\hat{\boldsymbol{\chi}}_{\mu}^{1}(t)}{(2\pi)^{N}} "
            r"\exp\left(i\hat{\boldsymbol{\chi}}_{\mu}^{1}(t) \cdot \left[\boldsymbol{\chi}_{\mu}^{1}(t) "
            r"- \frac{1}{\sqrt{D}} \boldsymbol{W}^{\ell}(0) \boldsymbol{x}_{\mu}\right]\right) \\ 1 = "
            r"\int_{\mathbb{R}^{N}} \int_{\mathbb{R}^{N}} \frac{d\boldsymbol{\chi}_{\mu}^{\ell+1}(t) "
            r"d\hat{\boldsymbol{\chi}}_{\mu}^{\ell+1}(t)}{(2\pi)^{N}} \\ \times "
            r"\exp\left(i\hat{\boldsymbol{\chi}}_{\mu}^{\ell+1}(t) \cdot "
            r"\left[\boldsymbol{\chi}_{\mu}^{\ell+1}(t) - \frac{1}{\sqrt{N}} \boldsymbol{W}^{\ell}(0) "
            r"\phi\left(\boldsymbol{h}_{\mu}^{\ell}(t)\right)\right]\right), \ \ell \in \{1, \dots, "
            r"L-1\} \\ 1 = \int_{\mathbb{R}^{N}} \int_{\mathbb{R}^{N}} "
            r"\frac{d\boldsymbol{\xi}_{\mu}^{L}(t) d\hat{\boldsymbol{\xi}}_{\mu}^{L}(t)}{(2\pi)^{N}} "
            r"\exp\left(i\hat{\boldsymbol{\xi}}_{\mu}^{L}(t) \cdot \left[\boldsymbol{\xi}_{\mu}^{L}(t) - "
            r"\boldsymbol{w}^{L}(0)\right]\right) \\ 1 = \int_{\mathbb{R}^{N}} \int_{\mathbb{R}^{N}} "
            r"\frac{d\boldsymbol{\xi}_{\mu}^{\ell}(t) "
            r"d\hat{\boldsymbol{\xi}}_{\mu}^{\ell}(t)}{(2\pi)^{N}} "
            r"\exp\left(i\hat{\boldsymbol{\xi}}_{\mu}^{\ell}(t) \cdot "
            r"\left[\boldsymbol{\xi}_{\mu}^{\ell}(t) - \frac{1}{\sqrt{N}} "
            r"\boldsymbol{W}^{\ell}(0)^{\top} \boldsymbol{g}_{\mu}^{\ell}(t)\right]\right), \ \ell \in "
            r"\{1, \dots, L-1\}"
        ),
        derived="path-integral route, field constraints",
        verdict="misprint",
        why=(
            "Two slips: the first line must have W^0, and the last g^{ell+1}, as in (6) and (D.25). At "
            "t = 0 the residual xi^ell - W^T g^{ell+1}/sqrt(N) of a finite network vanishes, that with "
            "g^ell does not."
        ),
        evidence=("network:initial_fields", "nonlinear_network:initial_fields"),
    ),
    Entry(
        source="selfconsistent2023",
        number="D.24 text",
        title="what the fields depend on, and when",
        printed=(
            r"\boldsymbol{h}^{\ell}(t) \text{ only depends on } \boldsymbol{\chi}^{\ell}(s) "
            r"\text{ for } s < t ; \quad "
            r"\boldsymbol{g}_{\mu}^{\ell}(t) \text{ does not causally depend on } \boldsymbol{\xi}^{\ell}(t)"
        ),
        claim=nonlinear.d24_text,
        derived="response B of the theory at equal times",
        verdict="wrong",
        why=(
            "h^l(t) contains chi^l(t) itself, and g^l(t) = phi'(h^l(t)) z^l(t) both chi^l(t) and xi^l(t). "
            "What the unit Jacobian needs is that phi(h^l(t)) does not depend on chi^{l+1}(t) (said above "
            "D.24), nor g^{l+1}(t) on xi^l(t); both hold. But g^{l+1}(t) depends on chi^{l+1}(t) of the "
            "same instant, hence a response B(t,t) = <phi''(h) z> in steps, a delta function in time under "
            "flow, unless phi is linear. Networks reject the theory with B for s < t only."
        ),
        evidence=("nonlinear:equal_time_response",),
    ),
    Entry(
        source="selfconsistent2023",
        number="D.25",
        title="generating functional before averaging",
        printed=(
            r"Z\left[\left\{\boldsymbol{j}^{\ell},\boldsymbol{v}^{\ell}\right\}\right] \\ = \int "
            r"\prod_{\ell \mu t} \frac{d\boldsymbol{\chi}_{\mu}^{\ell+1}(t) "
            r"d\hat{\boldsymbol{\chi}}_{\mu}^{\ell+1}(t)}{(2\pi)^{N}} \prod_{\ell \mu t} "
            r"\frac{d\boldsymbol{\xi}_{\mu}^{\ell}(t) "
            r"d\hat{\boldsymbol{\xi}}_{\mu}^{\ell}(t)}{(2\pi)^{N}} \exp\left(\sum_{\ell,\mu} "
            r"\int_{0}^{\infty} dt \left[\boldsymbol{j}_{\mu}^{\ell}(t) \cdot "
            r"\boldsymbol{\chi}_{\mu}^{\ell}(t) + \boldsymbol{v}_{\mu}^{\ell}(t) \cdot "
            r"\boldsymbol{\xi}_{\mu}^{\ell}(t)\right]\right) \\ \times \prod_{\ell=1}^{L-1} \left\langle "
            r"\exp\left(-\frac{i}{\sqrt{N}} \sum_{\mu} \int_{0}^{\infty} dt "
            r"\left[\hat{\boldsymbol{\chi}}_{\mu}^{\ell+1}(t)^{\top} \boldsymbol{W}^{\ell}(0) "
            r"\phi\left(\boldsymbol{h}_{\mu}^{\ell}(t)\right) + \boldsymbol{g}_{\mu}^{\ell+1}(t)^{\top} "
            r"\boldsymbol{W}^{\ell}(0) "
            r"\hat{\boldsymbol{\xi}}_{\mu}^{\ell}(t)\right]\right)\right\rangle_{\boldsymbol{W}^{"
            r"\ell}(0)} \\ \times \left\langle \exp\left(-i \sum_{\mu} \int_{0}^{\infty} "
            r"\hat{\boldsymbol{\xi}}_{\mu}^{L}(t) \cdot "
            r"\boldsymbol{w}^{L}(0)\right)\right\rangle_{\boldsymbol{w}^{L}(0)} \\ \times "
            r"\prod_{\ell=1}^{L} \exp\left(i \sum_{\mu} \int_{0}^{\infty} dt "
            r"\left[\hat{\boldsymbol{\chi}}_{\mu}^{\ell}(t) \cdot \boldsymbol{\chi}_{\mu}^{\ell}(t) + "
            r"\hat{\boldsymbol{\xi}}_{\mu}^{\ell}(t) \cdot "
            r"\boldsymbol{\xi}_{\mu}^{\ell}(t)\right]\right)"
        ),
        derived="path-integral route, disorder average",
        verdict="misprint",
        why=(
            "The factor with W^0(0) is missing (and one dt): without it chi_hat^1 meets only chi^1, its "
            "integral puts chi^1 = 0, and the first layer would have covariance 0 instead of K^x. "
            "(D.26) averages the missing factor."
        ),
        evidence=("path_integral:first_layer_average",),
    ),
    Entry(
        source="selfconsistent2023",
        number="D.26",
        title="initial weights averaged",
        printed=(
            r"\left\langle "
            r"\exp\left(-\frac{i}{\sqrt{D}}\sum_{\mu}\int_{0}^{\infty}dt\hat{\boldsymbol{\chi}}_{"
            r"\mu}^{1}(t)^{\top}\boldsymbol{W}^{0}(0)\boldsymbol{x}_{\mu}\right)\right\rangle_{"
            r"\boldsymbol{W}^{0}(0)} \\ "
            r"=\exp\left(-\frac{1}{2}\int_{0}^{\infty}\int_{0}^{\infty}dtds\sum_{\mu\alpha}\hat{"
            r"\boldsymbol{\chi}}_{\mu}^{1}(t)\cdot\hat{\boldsymbol{\chi}}_{\alpha}^{1}(s)K_{\mu"
            r"\alpha}^{x}\right) \\ \left\langle "
            r"\exp\left(-i\sum_{\mu}\int_{0}^{\infty}\hat{\boldsymbol{\xi}}_{\mu}^{L}(t)\cdot"
            r"\boldsymbol{w}^{L}(0)\right)\right\rangle_{\boldsymbol{w}^{L}(0)} \\ "
            r"=\exp\left(-\frac{1}{2}\sum_{\mu\alpha}\int_{0}^{\infty}\int_{0}^{\infty}dtds\,\hat{"
            r"\boldsymbol{\xi}}_{\mu}^{L}(t)\cdot\hat{\boldsymbol{\xi}}_{\alpha}^{L}(s)\right) \\ "
            r"\left\langle "
            r"\exp\left(-\frac{i}{\sqrt{N}}\sum_{\mu}\int_{0}^{\infty}dt[\hat{\boldsymbol{\chi}}_{"
            r"\mu}^{\ell+1}(t)^{\top}\boldsymbol{W}^{\ell}(0)\phi(\boldsymbol{h}_{\mu}^{\ell}(t))+"
            r"\boldsymbol{g}_{\mu}^{\ell+1}(t)^{\top}\boldsymbol{W}^{\ell}(0)\hat{\boldsymbol{\xi}}_{"
            r"\mu}^{\ell}(t)]\right)\right\rangle_{\boldsymbol{W}^{\ell}(0)} \\ "
            r"=\exp\left(-\frac{1}{2N}\sum_{\mu\alpha}\int_{0}^{\infty}\int_{0}^{\infty}dtds\,\hat{"
            r"\boldsymbol{\chi}}_{\mu}^{\ell+1}(t)\cdot\hat{\boldsymbol{\chi}}_{\mu}^{\ell+1}(t)\,"
            r"\phi(\boldsymbol{h}_{\mu}^{\ell}(t))\cdot\phi(\boldsymbol{h}_{\alpha}^{\ell}(s))\right) \\ "
            r"\times\exp\left(-\frac{1}{2N}\sum_{\mu\alpha}\int_{0}^{\infty}\int_{0}^{\infty}dtds\,"
            r"\hat{\boldsymbol{\xi}}_{\mu}^{\ell}(t)\cdot\hat{\boldsymbol{\xi}}_{\alpha}^{\ell}(s)\,"
            r"\boldsymbol{g}_{\mu}^{\ell+1}(t)\cdot\boldsymbol{g}_{\alpha}^{\ell+1}(s)\right) \\ "
            r"\times\exp\left(-\frac{1}{N}\sum_{\mu\alpha}\int_{0}^{\infty}\int_{0}^{\infty}dtds\,"
            r"\hat{\boldsymbol{\chi}}_{\mu}^{\ell+1}(t)\cdot\boldsymbol{g}_{\alpha}^{\ell+1}(s)\,"
            r"\phi(\boldsymbol{h}_{\mu}^{\ell}(t))\cdot\hat{\boldsymbol{\xi}}_{\alpha}^{\ell}(s)\right)"
        ),
        derived="path-integral route, disorder average",
        verdict="misprint",
        why=(
            "In the third average the first line must pair chi_hat_mu(t) with chi_hat_alpha(s); as "
            "printed both carry mu, t. The other lines, the sign of the cross term and its missing 1/2 "
            "are right. Average over Gaussian matrices for given small vectors to see it."
        ),
        evidence=("path_integral:matrix_average",),
    ),
    Entry(
        source="selfconsistent2023",
        number="D.27",
        title="order parameters of the inner layers",
        printed=(
            r"\Phi_{\mu,\alpha}^{\ell}(t,s) = \frac{1}{N} \phi \left(\boldsymbol{h}_{\mu}^{\ell}(t) "
            r"\right) \cdot \phi \left(\boldsymbol{h}_{\alpha}^{\ell}(s) \right) \; , \; "
            r"G_{\mu\alpha}^{\ell}(t,s) = \frac{1}{N} \boldsymbol{g}_{\mu}^{\ell}(t) \cdot "
            r"\boldsymbol{g}_{\alpha}^{\ell}(s) \\ A_{\mu\alpha}^{\ell}(t,s) = -\frac{i}{N} \phi "
            r"\left(\boldsymbol{h}_{\mu}^{\ell}(t) \right) \cdot "
            r"\hat{\boldsymbol{\xi}}_{\alpha}^{\ell}(s)"
        ),
        derived="order parameters and responses of the theory",
        verdict="definition",
        why=(
            "Definition. The factor -i makes A real at the saddle point, where it equals the average of "
            "d phi/d r before the rescaling by gamma0."
        ),
    ),
    Entry(
        source="selfconsistent2023",
        number="D.28",
        title="kernel definitions as delta functions",
        printed=(
            r"1 = \int \int \frac{d\Phi_{\mu\alpha}^{\ell}(t,s) "
            r"d\hat{\Phi}_{\mu\alpha}^{\ell}(t,s)}{2\pi i N^{-1}} "
            r"\exp\left(N\Phi_{\mu\alpha}^{\ell}(t,s) \hat{\Phi}_{\mu\alpha}^{\ell}(t,s) - "
            r"\hat{\Phi}_{\mu\alpha}^{\ell}(t,s) \phi\left(\boldsymbol{h}_{\mu}^{\ell}(t)\right) \cdot "
            r"\phi\left(\boldsymbol{h}_{\alpha}^{\ell}(s)\right)\right) \\ 1 = \int \int "
            r"\frac{dG_{\mu\alpha}(t,s) d\hat{G}_{\mu\alpha}(t,s)}{2\pi i N^{-1}} "
            r"\exp\left(NG_{\mu\alpha}^{\ell}(t,s) \hat{G}_{\mu\alpha}^{\ell}(t,s) - "
            r"\hat{G}_{\mu\alpha}^{\ell}(t,s) \boldsymbol{g}_{\mu}^{\ell}(t) \cdot "
            r"\boldsymbol{g}_{\alpha}^{\ell}(s)\right)"
        ),
        derived="path-integral route, order-parameter constraint",
        verdict="agrees",
        why=(
            "Right, with the conjugates along the imaginary axis (the layer index of G is left out in "
            "the measure)."
        ),
        evidence=("path_integral:order_parameter_constraint",),
    ),
    Entry(
        source="selfconsistent2023",
        number="D.29",
        title="response definition as a delta function",
        printed=(
            r"1 = \int \int "
            r"\frac{\mathrm{d}A^{\ell}_{\mu\alpha}(t,s)\mathrm{d}B^{\ell}_{\mu\alpha}(t,s)}{2\pi i "
            r"N^{-1}} \exp\left(-NA^{\ell}_{\mu\alpha}(t,s)B^{\ell}_{\mu\alpha}(t,s) - "
            r"iB^{\ell}_{\mu\alpha}(t,s)\phi(\boldsymbol{h}^{\ell}_{\mu}(t)) \cdot "
            r"\hat{\boldsymbol{\xi}}^{\ell}_{\alpha}(s)\right)"
        ),
        derived="path-integral route, response constraint",
        verdict="agrees",
        why=(
            "The exponent is -B (N A + i phi.xi_hat), which enforces A = -i phi.xi_hat/N as in (D.27): "
            "signs and factors i are right. One bracket too many is closed."
        ),
        evidence=("saddle_point:action_is_stationary",),
    ),
    Entry(
        source="selfconsistent2023",
        number="D.30",
        title="generating functional over order parameters",
        printed=(
            r"Z = \int \prod_{\ell,\mu\alpha,ts} \frac{\mathrm{d}\Phi^{\ell}_{\mu\alpha}(t,s) "
            r"\,\mathrm{d}\hat{\Phi}^{\ell}_{\mu\alpha}(t,s)}{2\pi i N^{-1}} "
            r"\frac{\mathrm{d}G_{\mu\alpha}(t,s) \,\mathrm{d}\hat{G}_{\mu\alpha}(t,s)}{2\pi i N^{-1}} "
            r"\frac{\mathrm{d}A^{\ell}_{\mu\alpha}(t,s) \,\mathrm{d}B^{\ell}_{\mu\alpha}(t,s)}{2\pi i "
            r"N^{-1}} \\ \times "
            r"\exp\left(NS\left[\left\{\Phi,\hat{\Phi},G,\hat{G},A,B\right\}\right]\right)"
        ),
        derived="path-integral route",
        verdict="agrees",
        why="Right; A and B for ell = 1..L-1.",
        evidence=("saddle_point:action_is_stationary",),
    ),
    Entry(
        source="selfconsistent2023",
        number="D.31",
        title="the action",
        printed=(
            r"S = \sum_{\ell\mu\alpha} \int_{0}^{\infty} \int_{0}^{\infty} \mathrm{d}t "
            r"\,\mathrm{d}s\left[\Phi^{\ell}_{\mu\alpha}(t,s) \,\hat{\Phi}^{\ell}_{\mu\alpha}(t,s) + "
            r"G^{\ell}_{\mu\alpha}(t,s) \,\hat{G}^{\ell}_{\mu\alpha}(t,s) - A^{\ell}_{\mu\alpha}(t,s) "
            r"B^{\ell}_{\mu\alpha}(t,s)\right] \\ + \ln "
            r"\mathcal{Z}\left[\left\{\Phi,\hat{\Phi},G,\hat{G},A,B,j,v\right\}\right]"
        ),
        derived="path-integral route, action",
        verdict="agrees",
        why="Same as (9).",
        evidence=("saddle_point:action_is_stationary",),
    ),
    Entry(
        source="selfconsistent2023",
        number="D.32",
        title="single-site weight",
        printed=(
            r"\mathcal{Z} = \int \prod_{\ell\mu t} \frac{\mathrm{d}\hat{\chi}_{\mu}^{\ell}(t) "
            r"\mathrm{d}\chi_{\mu}^{\ell}(t)}{2\pi} \frac{\mathrm{d}\hat{\xi}_{\mu}^{\ell}(t) "
            r"\mathrm{d}\xi_{\mu}^{\ell}(t)}{2\pi} \\ \times \exp\left(\sum_{\ell\mu} \int_{0}^{\infty} "
            r"\mathrm{d}t [(j_{\mu}^{\ell}(t) + i\hat{\chi}_{\mu}^{\ell}(t))\chi_{\mu}^{\ell}(t) + "
            r"(v_{\mu}^{\ell}(t) + i\hat{\xi}_{\mu}^{\ell}(t))\xi_{\mu}^{\ell}(t)]\right) \\ \times "
            r"\exp\left(-\frac{1}{2} \sum_{\mu\alpha} \int_{0}^{\infty} \mathrm{d}t \int_{0}^{\infty} "
            r"\mathrm{d}s\hat{\chi}_{\mu}^{1}(t)\hat{\chi}_{\alpha}^{1}(s)K_{\mu\alpha}^{x} - "
            r"\frac{1}{2} \sum_{\mu\alpha} \int_{0}^{\infty} \mathrm{d}t \int_{0}^{\infty} "
            r"\mathrm{d}s\hat{\xi}_{\mu}^{L}(t)\hat{\xi}_{\alpha}^{L}(s)\right) \\ \times "
            r"\exp\left(-\frac{1}{2} \sum_{\ell=1}^{L-1} \sum_{\mu\alpha} \int_{0}^{\infty} \mathrm{d}t "
            r"\int_{0}^{\infty} "
            r"\mathrm{d}s[\hat{\chi}_{\mu}^{\ell+1}(t)\hat{\chi}_{\alpha}^{\ell+1}(s)\Phi_{\mu"
            r"\alpha}^{\ell}(t,s) + "
            r"\hat{\xi}_{\mu}^{\ell}(t)\hat{\xi}_{\alpha}^{\ell}(s)G_{\mu\alpha}^{\ell+1}(t,s)]\right) "
            r"\\ \times \exp\left(-\sum_{\ell=1}^{L} \sum_{\mu\alpha} \int_{0}^{\infty} \mathrm{d}t "
            r"\int_{0}^{\infty} "
            r"\mathrm{d}s[\phi(h_{\mu}^{\ell}(t))\phi(h_{\alpha}^{\ell}(s))\hat{\Phi}_{\mu\alpha}^{"
            r"\ell}(t,s) + g_{\mu}^{\ell}(t)g_{\alpha}^{\ell}(s)\hat{G}_{\mu\alpha}^{\ell}(t,s)]\right) "
            r"\\ \times \exp\left(-i\sum_{\ell=1}^{L} \sum_{\mu\alpha} \int_{0}^{\infty} \mathrm{d}t "
            r"\int_{0}^{\infty} "
            r"\mathrm{d}s[\phi(h_{\mu}^{\ell}(t))\hat{\xi}_{\alpha}^{\ell}(s)B_{\mu\alpha}^{\ell}(t,s) + "
            r"\hat{\chi}_{\mu}^{\ell+1}(t)g_{\alpha}^{\ell+1}(s)A_{\mu\alpha}^{\ell}(t,s)]\right)"
        ),
        derived="path-integral route, single-site weight",
        verdict="agrees",
        why=(
            "The cross term of (D.26) with phi.xi_hat = i N A gives -i chi_hat A g, and (D.29) gives -i "
            "phi B xi_hat: both as printed. The last sum must be read up to L-1 (B^L = 0, no field "
            "chi^{L+1})."
        ),
        evidence=("saddle_point:action_is_stationary",),
    ),
)
