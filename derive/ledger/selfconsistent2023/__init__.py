"""Bordelon & Pehlevan, J. Stat. Mech. (2023) 114009: main text and appendices.

``printed`` follows the text of the paper with its slips.  Three marks of the text extraction are repaired:
displays over several lines are joined by ``\\\\`` without alignment marks, (D.29) ends without an unmatched
bracket, and the covariance in the last line of (D.39) reads 1 1^T.
A slip that leaves one sensible reading only (a missing measure, transpose or bold face) is named in ``why``
and does not change the verdict.  Numbers that end in "text" are statements printed between the equations,
those called "Figure" statements of a caption.  The text has no three dots on phi where a third derivative
belongs: claims take those as three, `printed` leaves two.  There is no (P.13) in the text.
"""

from __future__ import annotations

from derive.ledger.entry import Entry
from derive.ledger.selfconsistent2023 import (
    appendix_b,
    appendix_d_average,
    appendix_d_saddle,
    appendix_d_setup,
    appendix_d_two_layer,
    appendix_d_widths,
    appendix_e2,
    appendix_f_closure,
    appendix_f_two_layer,
    appendix_f_whitened,
    appendix_g,
    appendix_h,
    appendix_i,
    appendix_j,
    appendix_k,
    appendix_k_equilibrium,
    appendix_l,
    appendix_m,
    appendix_n,
    appendix_o,
    appendix_op,
    appendix_p_backward,
    appendix_p_fields,
    appendix_p_form,
    appendix_p_forward,
    captions,
    main_text,
    table_1,
)

ENTRIES: tuple[Entry, ...] = (
    main_text.ENTRIES
    + table_1.ENTRIES
    + captions.ENTRIES
    + appendix_b.ENTRIES
    + appendix_d_setup.ENTRIES
    + appendix_d_two_layer.ENTRIES
    + appendix_d_average.ENTRIES
    + appendix_d_saddle.ENTRIES
    + appendix_d_widths.ENTRIES
    + appendix_e2.ENTRIES
    + appendix_f_closure.ENTRIES
    + appendix_f_two_layer.ENTRIES
    + appendix_f_whitened.ENTRIES
    + appendix_g.ENTRIES
    + appendix_h.ENTRIES
    + appendix_i.ENTRIES
    + appendix_j.ENTRIES
    + appendix_k.ENTRIES
    + appendix_k_equilibrium.ENTRIES
    + appendix_l.ENTRIES
    + appendix_m.ENTRIES
    + appendix_n.ENTRIES
    + appendix_o.ENTRIES
    + appendix_op.ENTRIES
    + appendix_p_fields.ENTRIES
    + appendix_p_forward.ENTRIES
    + appendix_p_backward.ENTRIES
    + appendix_p_form.ENTRIES
)

__all__ = ["ENTRIES"]
