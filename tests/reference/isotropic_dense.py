"""The exact theory of deep linear networks on isotropic data, with whole T x T matrices.

Derived by hand from one rule and solved with NumPy only. For a matrix M (rows R, columns C, entries of
variance s2/D, sizes r D and c D) that acts forwards on fields a(t) of C and backwards on fields b(t) of R,
entry by entry,

    M a(t)   = u(t) + s2 c sum_s <da(t)/dr(s)> b(s),    <u(t) u(s)> = s2 c <a(t) a(s)>,
    M^T b(t) = r(t) + s2 r sum_s <db(t)/du(s)> a(s),    <r(t) r(s)> = s2 r <b(t) b(s)>.

Within a step g^L, ..., g^1, v, Delta, h^0, h^1, ..., h^L are computed in this order. The sums over s hold
whatever this order allows: da(t)/dr(s) includes s = t where a(t) is computed after M^T b(t), and only there.

The network (linear2025 eq. 1-5, widths N_l = nu_l D, P = alpha D samples) reads, with Y^l = W^l(0)/sqrt(N_l),
Y^0 = W^0(0)/sqrt(D), X/sqrt(D) = Z, and what descent has added to the weights (eq. 25) written out,

    g^L(t)     = w^L + eta gamma0 sum_{s<t} h^L(s)
    g^l(t)     = Y^l^T g^{l+1}(t) + eta gamma0 (nu_{l+1}/nu_l) sum_{s<t} C_g^{l+1}(t,s) h^l(s)
    xi(t)      = [Y^0^T g^1(t) + eta gamma0 nu_1 sum_{s<t} C_g^1(t,s) h^0(s)] / (nu_L gamma0)
    v(t)       = w_star - xi(t), and + xi(0) if centred (eq. 69)
    Delta(t)   = Z v(t) + sigma eps,    h^0(t) = Z^T Delta(t) / alpha
    h^1(t)     = Y^0 h^0(t) + eta gamma0 sum_{s<t} C_h^0(t,s) g^1(s)
    h^{l+1}(t) = Y^l h^l(t) + eta gamma0 sum_{s<t} C_h^l(t,s) g^{l+1}(s).

The rule, for each matrix:

    Z (s2 = 1, c = 1, r = alpha):
        Z v       = u_Delta + sum_{s<t} R_vu(t,s) Delta(s),         R_vu = <dv/du^0>,
        Z^T Delta = u^0 + alpha sum_{s<=t} R_Delta(t,s) v(s),       R_Delta = <dDelta/du_Delta>,
        <u_Delta u_Delta> = C_v,  <u^0 u^0> = alpha C_Delta;
    Y^0 (s2 = 1, c = 1, r = nu_1):
        Y^0 h^0   = u^1 + sum_{s<=t} R_h0r0(t,s) g^1(s),            R_h0r0 = <dh^0/dr^0>,
        Y^0^T g^1 = r^0 + nu_1 sum_{s<t} R_gu^1(t,s) h^0(s),        R_gu^l = <dg^l/du^l>,
        <u^1 u^1> = C_h^0,  <r^0 r^0> = nu_1 C_g^1;
    Y^l (s2 = 1/nu_l, c = nu_l, r = nu_{l+1}; q = nu_{l+1}/nu_l):
        Y^l h^l       = u^{l+1} + sum_{s<=t} R_hr^l(t,s) g^{l+1}(s),  R_hr^l = <dh^l/dr^l>,
        Y^l^T g^{l+1} = r^l + q sum_{s<t} R_gu^{l+1}(t,s) h^l(s),
        <u^{l+1} u^{l+1}> = C_h^l,  <r^l r^l> = q C_g^{l+1};
    w^L = r^L, the same at all times, of variance 1.

Online (eq. 96-102) Z and eps are new at each step, so their sources are independent from step to step and Z
remembers nothing: Delta = u_Delta + sigma eps, R_Delta(t,s) = delta_ts. For the population's loss (eq. 71)
h^0 = v. Infinitely wide layers of equal width: r^0/nu_L -> 0 and R_h0r0 ~ 1/nu -> 0.

The printed eq. 65 and 100 have s < t in all sums; those of R_Delta, R_h0r0 and R_hr need s = t too, or the
gradient of the step itself is lost. Eq. 65 has a gamma0 in front of C_g^1 that eq. 27 and 52 do not have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Isotropic:
    """Order parameters for steps 0..T-1: (T, T), or (L, T, T) with layer l at index l - 1.

    Normalised as the sources above; ``R_hr[L-1]`` is the response to the initial readout, which no equation
    reads. ``C_Delta``, ``R_Delta``, ``R_vu`` are those of the samples: online ``C_Delta`` holds the
    equal-time values on its diagonal, of the population's loss there are none (zeros).
    """

    C_v: Array
    C_Delta: Array
    C_h0: Array
    C_h: Array
    C_g: Array
    R_vu: Array
    R_Delta: Array
    R_h0r0: Array
    R_hr: Array
    R_gu: Array

    def until(self, window: int) -> Isotropic:
        """Return zeros at all times but the first ``window``."""
        kept = {f.name: np.zeros_like(getattr(self, f.name)) for f in fields(self)}
        for name, new in kept.items():
            new[..., :window, :window] = getattr(self, name)[..., :window, :window]
        return Isotropic(**kept)

    def same(self, other: Isotropic) -> bool:
        """Return whether both are equal to the last bit."""
        return all(np.array_equal(getattr(self, f.name), getattr(other, f.name)) for f in fields(self))


def isotropic_dense(  # noqa: PLR0913 (the parameters of the paper)
    steps: int,
    *,
    depth: int,
    eta: float,
    gamma0: float = 1.0,
    nu: float | Sequence[float] = np.inf,
    alpha: float | None = None,
    alpha_B: float | None = None,
    noise: float = 0.0,
    center: bool = False,
) -> Isotropic:
    """Solve for times 0..steps-1: full batch (``alpha``), online (``alpha_B``), or the population (neither).

    ``nu`` is one width ratio, one for each hidden layer, or infinity. The window of times grows by one;
    within it the whole set of equations is applied until no bit changes, which causality makes finite. The
    code therefore needs no order in which quantities of a step are computed.

    >>> two = isotropic_dense(2, depth=1, eta=0.1, nu=np.inf)
    >>> round(float(two.C_v[1, 1]), 12)  # (1 - 2 eta)^2: the tangent kernel of two matrices is 2
    0.64
    """
    widths = [float(nu)] * depth if np.ndim(nu) == 0 else [float(x) for x in nu]
    if len(widths) != depth or (alpha is not None and alpha_B is not None):
        raise ValueError("one width for each hidden layer; alpha or alpha_B or neither")
    shape = {name: (depth, steps, steps) for name in ("C_h", "C_g", "R_hr", "R_gu")}
    found = Isotropic(**{f.name: np.zeros(shape.get(f.name, (steps, steps))) for f in fields(Isotropic)})
    for window in range(1, steps + 1):
        for _ in range(2 * depth + 6):  # a field may wait for one more at each turn; there are 2 L + 4
            before = found
            swept = _sweep(before, widths, eta, gamma0, alpha, alpha_B, noise, center)
            found = swept.until(window)
            if found.same(before):
                break
        else:
            raise ArithmeticError(f"not settled at time {window - 1}")
    return found


def _sweep(  # noqa: PLR0913 (the parameters of the paper)
    known: Isotropic,
    widths: list[float],
    eta: float,
    gamma0: float,
    alpha: float | None,
    alpha_B: float | None,
    noise: float,
    center: bool,
) -> Isotropic:
    """Return every order parameter from its definition, with the known ones in the equations of fields."""
    L, T = len(widths), known.C_v.shape[0]
    one, ones, nothing = np.eye(T), np.ones((T, T)), np.zeros((T, T))
    past = np.tril(ones, -1)  # 1 for s < t
    update = eta * gamma0 * past

    # features: v = w_star - E (learnt h0 + r0/(nu_L gamma0)), h0 = seen v + u0/share
    wide = np.isinf(widths[-1])
    ratio = 1.0 if wide else widths[0] / widths[-1]
    learnt = ratio / gamma0 * (past * known.R_gu[0] + update * known.C_g[0])
    E = one - ones * (np.arange(T) == 0) if center else one  # takes off the value at time 0
    share = alpha or alpha_B
    seen = one if alpha is None else np.tril(known.R_Delta)
    back = E @ learnt
    cov_r0 = nothing if wide else widths[0] * known.C_g[0]
    cov_u0 = nothing if share is None else share * _fresh(known.C_Delta, alpha_B)
    per_r0 = 0.0 if wide else 1.0 / (widths[-1] * gamma0)
    solve = back @ seen  # (1 + back seen) v = w_star - E r0/(nu_L gamma0) - back u0/share
    v_w, v_r, v_u = np.hsplit(_solve(solve, np.hstack([one, -per_r0 * E, -back / (share or np.inf)])), 3)
    h_w, h_r = seen @ v_w, seen @ v_r
    h_u = seen @ v_u + one / (share or np.inf)
    parts = ((ones, v_w, h_w), (cov_r0, v_r, h_r), (cov_u0, v_u, h_u))
    C_v = _symmetric(sum(v @ c @ v.T for c, v, _ in parts))
    C_h0 = _symmetric(sum(h @ c @ h.T for c, _, h in parts))

    # samples: Delta = u_Delta + sigma eps + R_vu Delta, with memory only if they stay
    if share is None:
        R_Delta = C_Delta = nothing
    else:
        R_Delta = one if alpha is None else _solve(-past * v_u, one)
        C_Delta = _symmetric(R_Delta @ _fresh(C_v + noise**2 * ones, alpha_B) @ R_Delta.T)

    # layers, up: h = u + forth g, g = r + down h
    C_h, C_g, R_hr, R_gu = (np.zeros((L, T, T)) for _ in range(4))
    for k in range(L):
        cov_u = C_h0 if k == 0 else C_h[k - 1]
        answered = h_r if k == 0 else R_hr[k - 1]
        forth = np.tril(answered) + update * cov_u
        if k == L - 1:
            cov_r, down = ones, update
        else:
            step = 1.0 if wide else widths[k + 1] / widths[k]
            cov_r = step * known.C_g[k + 1]
            down = step * (past * known.R_gu[k + 1] + update * known.C_g[k + 1])
        h_of_u, h_of_r = np.hsplit(_solve(-forth @ down, np.hstack([one, forth])), 2)
        g_of_r, g_of_u = np.hsplit(_solve(-down @ forth, np.hstack([one, down])), 2)
        C_h[k] = _symmetric(h_of_u @ cov_u @ h_of_u.T + h_of_r @ cov_r @ h_of_r.T)
        C_g[k] = _symmetric(g_of_u @ cov_u @ g_of_u.T + g_of_r @ cov_r @ g_of_r.T)
        R_hr[k], R_gu[k] = h_of_r, g_of_u
    return Isotropic(C_v, C_Delta, C_h0, C_h, C_g, v_u, R_Delta, h_r, R_hr, R_gu)


def _fresh(covariance: Array, alpha_B: float | None) -> Array:
    """Return the covariance of samples: with new samples at each step its diagonal in time only."""
    return covariance if alpha_B is None else np.diag(np.diag(covariance))


def _solve(below: Array, right: Array) -> Array:
    """Return X with (1 + below) X = right, for strictly lower triangular ``below``."""
    x = np.zeros_like(right)
    for t in range(len(right)):
        x[t] = right[t] - below[t, :t] @ x[:t]
    return x


def _symmetric(a: Array) -> Array:
    return (a + a.T) / 2
