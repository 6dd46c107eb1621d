"""Appendix F.2: deep linear networks on whitened data, (F.15) and (F.16)."""

from __future__ import annotations

from derive.ledger.entry import Entry
from derive.ledger.selfconsistent2023.claims import whitened

ENTRIES = (
    Entry(
        source="selfconsistent2023",
        number="F.15",
        title="deep network on whitened data",
        printed=(
            r"h_{y}^{\ell}(t) = u_{y}^{\ell}(t) + \gamma_{0} \int_{0}^{\infty} ds \ C^{\ell}(t,s) "
            r"g^{\ell}(s) \ , \ C^{\ell}(t,s) = A_{y}^{\ell-1}(t,s) + \Theta(t-s) H_{y}^{\ell-1}(t,s) "
            r"\Delta(s) \\ g^{\ell}(t) = r^{\ell}(t) + \gamma_{0} \int_{0}^{\infty} ds \ D^{\ell}(t,s) "
            r"h_{y}^{\ell}(s) \ , \ D^{\ell}(t,s) = B_{y}^{\ell-1}(t,s) + \Theta(t-s) G^{\ell+1}(t,s) "
            r"\Delta(s)"
        ),
        claim=whitened.f15,
        derived="reduction: deep whitened data",
        verdict="misprint",
        why=(
            "D^ell contains B^ell, as in (13), (F.2) and the definition of B below (14), not B^{ell-1}. "
            "Here A and B rightly stand without the error. With B from (F.4) the printed index has no "
            "solution that is regular at small gamma0: at order zero it reads D = D + d, and every "
            "sweep adds another d."
        ),
        evidence=("linear:whitened_backward_operator",),
    ),
    Entry(
        source="selfconsistent2023",
        number="F.16",
        title="error on whitened data",
        printed=(
            r"\frac{\partial \Delta\left(t\right)}{\partial t} = -\sum_{\ell=0}^{L} "
            r"G^{\ell+1}\left(t,t\right) H_{y}^{\ell}\left(t,t\right) \Delta\left(t\right) \implies "
            r"\Delta\left(t\right) = \exp\left(-\int_{0}^{t} \mathrm{d}s \sum_{\ell=0}^{L} "
            r"G^{\ell+1}\left(s,s\right) H_{y}^{\ell}\left(s,s\right)\right) y"
        ),
        claim=whitened.f16,
        derived="reduction: deep whitened data",
        verdict="agrees",
        why="(4) projected on y, with H_y^0 = G^{L+1} = 1.",
        evidence=("linear:whitened_error",),
    ),
    Entry(
        source="selfconsistent2023",
        number="F.16 text",
        title="responses on whitened data",
        printed=(
            r"\boldsymbol{A}^{\ell} = \left(\mathbf{I} - \gamma_0^2 \boldsymbol{C}^{\ell} "
            r"\boldsymbol{D}^{\ell}\right)^{-1} \boldsymbol{C}^{\ell}, \quad \boldsymbol{B}^{\ell} = "
            r"\left(\mathbf{I} - \gamma_0^2 \boldsymbol{D}^{\ell} \boldsymbol{C}^{\ell}\right)^{-1} "
            r"\boldsymbol{D}^{\ell}"
        ),
        claim=whitened.f16_text,
        derived="reduction: deep whitened data",
        verdict="misprint",
        why=(
            "The derivative of g^ell by u^ell is B^{ell-1}, as (F.4) says; the printed B^ell shifts the "
            "index. Together with (F.15) as printed the response then runs upwards, D^ell = ell d in "
            "the lazy limit instead of (L+1-ell) d, and all kernels change from L = 2 on."
        ),
        evidence=("linear:whitened_responses",),
    ),
)
