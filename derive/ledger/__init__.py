"""Every numbered equation of the papers: printed form, our form, verdict, evidence.

Printed formulas are claims.  They are written down here and in tests; nothing else in ``derive`` reads them.
"""

from derive.ledger.catalogue import entries, find
from derive.ledger.entry import VERDICTS, Claim, Entry
from derive.ledger.rendering import render

__all__ = ["VERDICTS", "Claim", "Entry", "entries", "find", "render"]
