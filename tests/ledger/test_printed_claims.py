"""The LaTeX of an entry and its claim in SymPy have the same letters and numbers.

Letters that stand only for indices are left out.  What differs is listed with its reason.
"""

from __future__ import annotations

import pytest

from derive.ledger import Entry, entries, find
from tests.ledger.claims import build
from tests.ledger.latex_symbols import numbers_of_claim, numbers_of_print, of_claim, of_print

SC, LIN, DEPTH = "selfconsistent2023", "linear2025", "depth2023"
INDICES = frozenset("t s mu alpha beta nu ell k i x p c tau T P L M N".split())  # noqa: SIM905
PARAMETERS = frozenset("gamma eta sigma lambda kappa".split())  # noqa: SIM905

PRODUCT = "print has matrix products where the claim has sums over samples or times"
LIMITS = "the claim says how far a sum runs, print does not"
WIDTHS = "print has the width of a layer, the claim its ratio to N"
NAMED = "the claim has a name for what print writes out, or the other way round"
LETTER = "print and claim have different letters for the same: the claim's module says which"
TEXT = "the claim states what is said in words or in the sentence beside the display"
HATS = "the claim writes conjugates and products of vectors as functions of their names"

NOT_PRINTED: dict[tuple[str, str], tuple[str, str]] = {
    (SC, "4 text"): ("H", LETTER),
    (SC, "D.21"): ("r u", LETTER),
    (SC, "D.46"): ("a", WIDTHS),
    (SC, "D.47"): ("a", WIDTHS),
    (SC, "D.48"): ("a", WIDTHS),
    (SC, "F.5"): ("sum", PRODUCT),
    (SC, "F.6"): ("sum", PRODUCT),
    (SC, "F.7"): ("sum", PRODUCT),
    (SC, "F.7 text"): ("delta", "the unit matrix, entry by entry"),
    (SC, "F.10"): ("root", TEXT),
    (SC, "G.3"): ("X", LIMITS),
    (SC, "G.4"): ("S X", LIMITS),
    (SC, "G.6"): ("S X", LIMITS),
    (SC, "I.1"): ("C", LIMITS),
    (SC, "J.1"): ("Delta q sum", TEXT),
    (SC, "J.1 text"): ("f", TEXT),
    (SC, "K.3"): ("g", "print calls the derivative of g by h r"),
    (SC, "K.12"): ("int sum", PRODUCT),
    (SC, "K.15"): (
        "exp y",
        "print has the covariance C of the noise and the variable h', the claim both written out",
    ),
    (SC, "K.16"): (
        "exp y",
        "print has the covariance C of the noise and the variable h', the claim both written out",
    ),
    (SC, "K.22"): ("C", NAMED),
    (SC, "K.23"): ("C", NAMED),
    (SC, "M.7"): ("r", NAMED),
    (SC, "O.1 text"): ("Delta G K Phi sum", TEXT),
    (SC, "P.2"): ("d", "the claim writes operators by small letters, c and d for C^(0) and D^(0)"),
    (SC, "P.23"): ("h z", NAMED),
    (LIN, "12"): ("Delta v", "print stands for all responses, the claim lists them as (64) and (66) do"),
    (LIN, "17"): ("delta", TEXT),
    (LIN, "36"): ("<>", HATS),
    (LIN, "45"): ("<>", HATS),
    (LIN, "48"): ("<>", HATS),
    (LIN, "50"): ("D", HATS),
    (LIN, "51"): ("D", HATS),
    (LIN, "55"): ("xi", NAMED),
    (LIN, "76"): ("R", NAMED),
    (LIN, "77"): ("R", NAMED),
    (LIN, "78"): ("R", NAMED),
    (LIN, "79"): ("R", NAMED),
    (DEPTH, "11"): ("C", "the claim holds that of (11) text as well"),
    (DEPTH, "11 text"): ("C b chi gamma m sum", "the claim is that of (11), of which the text is a part"),
}
"""Letters and operators of claims that are not in print."""
NOT_CLAIMED: dict[tuple[str, str], tuple[str, str]] = {
    (SC, "D.49"): ("gamma", "in front of the gradients, before the kernels are put in"),
    (SC, "F.12 text"): ("gamma", "the claim is the radius in gamma0"),
    (SC, "G.2"): ("gamma", "in the definition that comes before the recursion"),
    (SC, "I.2"): ("gamma", "in the definition that comes before the recursion"),
    (SC, "J.1 text"): ("gamma", TEXT),
    (SC, "K.4"): ("gamma lambda", "the claim is the label of the field only"),
    (SC, "K.5"): ("lambda", "the claim is the label of the field only"),
    (SC, "K.9"): ("lambda", "index of the covariance C"),
    (SC, "K.10"): ("lambda", "index of the covariance C"),
    (SC, "K.11"): ("lambda", "index of the covariance C"),
    (SC, "K.13"): ("lambda", "index of the covariance C"),
    (SC, "L.2"): ("gamma", "the claim is the kernel of the two integrals only"),
    (SC, "N.2 text"): ("gamma", "the claim is the power of N"),
    (SC, "N.7"): ("gamma", "the claim is the power of N"),
    (SC, "N.9"): ("eta gamma", "the claim is the power of N"),
    (SC, "N.9 text"): ("eta", "the claim is the power of N"),
    (SC, "P.16 text"): ("gamma", TEXT),
    (SC, "P.20"): ("gamma", "the derivative in gamma0 has an order in the claim"),
    (LIN, "26"): ("sigma", "the claim is the factors of products with weights and data"),
    (LIN, "70"): ("eta gamma", "the claim is the power of nu"),
    (LIN, "70 text"): ("gamma", "the claim is the power of nu"),
    (LIN, "105"): ("eta", "the left-hand side"),
}
"""Parameters in print that are not in the claim."""
NUMBERS: dict[tuple[str, str], tuple[set[int], str]] = {
    (SC, "P.16"): ({2}, "print has the same average twice"),
    (SC, "G.6 text"): ({2}, "the size of the filter, 2 S + 1 in the claim"),
}
"""Numbers of claims that are not in print."""
CLAIMED = [e for e in entries() if e.claim]


def compared(entry: Entry) -> tuple[set[str], set[str], set[int]]:
    """Return letters of the claim that print lacks, parameters of print that it lacks, and its numbers."""
    claim = build(entry)
    said, shown = of_claim(claim), of_print(entry.printed)
    numbers = numbers_of_claim(claim) - numbers_of_print(entry.printed)
    return said - shown - INDICES, (shown & PARAMETERS) - said, numbers


@pytest.mark.slow
def test_print_and_claim_have_the_same_letters_and_numbers() -> None:
    lacking, unclaimed, numbers = {}, {}, {}
    for entry in CLAIMED:
        key = entry.source, entry.number
        one, other, digits = compared(entry)
        lacking |= {key: one} if one else {}
        unclaimed |= {key: other} if other else {}
        numbers |= {key: digits} if digits else {}
    assert lacking == {k: set(letters.split()) for k, (letters, _) in NOT_PRINTED.items()}
    assert unclaimed == {k: set(letters.split()) for k, (letters, _) in NOT_CLAIMED.items()}
    assert numbers == {k: digits for k, (digits, _) in NUMBERS.items()}
    assert all(reason for _, reason in (*NOT_PRINTED.values(), *NOT_CLAIMED.values(), *NUMBERS.values()))
    assert len(NOT_PRINTED) < 0.2 * len(CLAIMED)


@pytest.mark.parametrize(
    ("source", "number", "old", "new"),
    [
        (SC, "13", r"\Phi", r"\Psi"),
        (LIN, "65", r"\eta", ""),
        (LIN, "104", "6", "5"),
        (SC, "F.11", r"\gamma", ""),
    ],
)
def test_a_letter_or_number_that_is_printed_otherwise_is_seen(
    source: str, number: str, old: str, new: str
) -> None:
    entry = find(source, number)
    claim, changed = build(entry), entry.printed.replace(old, new)
    assert changed != entry.printed
    before, after = (
        (of_claim(claim) - of_print(x) - INDICES, numbers_of_claim(claim) - numbers_of_print(x))
        for x in (entry.printed, changed)
    )
    assert before == (set(), set())
    assert after != before
