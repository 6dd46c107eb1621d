"""Mutation test of the ledger: a claim with one term changed fails the evidence of its entry.

Derived sides and corrections of misprints are changed likewise. Surviving mutants are listed with a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache

import pytest
from sympy import Basic, Function, Integral, S, Sum, Symbol

from derive.ledger import FINDINGS, Entry, entries, find
from tests.ledger import mutations
from tests.ledger.claims import build, corrected, correction
from tests.ledger.claims.selfconsistent2023 import two_layer as two_layer_claims
from tests.ledger.evidence import (
    identities_depth,
    identities_isotropic,
    identities_nonlinear,
    identities_rules,
    identities_series,
    identity,
    two_layer,
)
from tests.ledger.evidence.identity import Pair
from tests.ledger.mutations import (
    fails_if_corrected,
    judge,
    judge_correction,
    mutants,
    mutants_of,
    planted,
    reading,
)

SC, LIN, DEPTH = "selfconsistent2023", "linear2025", "depth2023"
SURVIVORS: dict[tuple[str, str], dict[tuple[str, str], str]] = {
    (LIN, "69 text"): {
        ("v", "time later in w_star(t)"): "an equivalent form: the target does not depend on time",
    },
}
"""Mutants that no evidence notices, by entry, with the reason."""
JUDGED = [e for e in entries() if e.verdict == "agrees" and e.claim and e.evidence]
CLAIMED = [e for e in entries() if e.claim and (e.verdict in FINDINGS or e.correct)]
"""Entries whose claim is false as printed, in one reading at least, and that say what is true instead."""


def is_corrected(entry: Entry) -> bool:
    """Return whether the correct form of a claim is also an expression."""
    try:
        correction(entry)
    except LookupError:
        return False
    return True


CORRECTED, READ = ([e for e in CLAIMED if is_corrected(e) == yes] for yes in (True, False))
PAIRS: dict[str, Callable[[], Iterable[Pair]]] = {
    "deep networks": identities_nonlinear.deep_pairs,
    "two layers": identities_nonlinear.two_layer_pairs,
    "unequal widths": identities_nonlinear.width_pairs,
    "other networks": identities_nonlinear.other_network_pairs,
    "decay and momentum": identities_rules.decay_pairs,
    "noise": identities_rules.noise_pairs,
    "equilibrium": identities_rules.equilibrium_pairs,
    "steps": identities_rules.step_pairs,
    "series": identities_series.series_pairs,
    "tangent kernel": identities_series.tangent_pairs,
    "full batch": identities_isotropic.full_batch_pairs,
    "averages": identities_isotropic.average_pairs,
    "online": identities_isotropic.online_pairs,
    "modes": identities_isotropic.mode_pairs,
    "channels": identities_isotropic.channel_pairs,
    "residual": identities_depth.residual_pairs,
    "Lemma 4.3": lambda: identities_depth.recursion_pairs("Lemma 4.3"),
    "D.3": lambda: identities_depth.recursion_pairs("D.3"),
    "Prop. 4.4": lambda: identities_depth.limit_pairs("Prop. 4.4"),
}


@cache
def counts() -> dict[tuple[str, str], int]:
    """Return the number of mutants of each entry."""
    return {(e.source, e.number): len(mutants_of(e)) for e in JUDGED}


@pytest.mark.slow
def test_at_least_95_percent_of_the_mutants_fail() -> None:
    total, listed = sum(counts().values()), sum(map(len, SURVIVORS.values()))
    assert total > 1000
    assert listed <= 0.05 * total
    for (source, number), known in SURVIVORS.items():
        shown = {(m.name, m.change) for m in mutants_of(find(source, number))}
        assert known.keys() <= shown
        assert all(known.values())


@pytest.mark.slow
@pytest.mark.parametrize("entry", JUDGED, ids=lambda e: f"{e.source}-{e.number}")
def test_a_changed_term_fails_the_evidence(entry: Entry) -> None:
    judged = judge(entry)
    known = SURVIVORS.get((entry.source, entry.number), {})
    assert {(m.name, m.change) for m in judged.survivors} == known.keys(), str(judged)


@pytest.mark.slow
@pytest.mark.parametrize("entry", CORRECTED, ids=lambda e: f"{e.source}-{e.number}")
def test_a_changed_correction_fails_the_evidence(entry: Entry) -> None:
    judged = judge_correction(entry)
    assert judged.total
    assert judged.survivors == (), str(judged)


@pytest.mark.slow
@pytest.mark.parametrize("entry", CORRECTED, ids=lambda e: f"{e.source}-{e.number}")
def test_a_paper_that_prints_the_correction_is_not_contradicted(entry: Entry) -> None:
    assert fails_if_corrected(entry)


@pytest.mark.slow
@pytest.mark.parametrize("entry", READ, ids=lambda e: f"{e.source}-{e.number}")
def test_evidence_against_a_claim_reads_it(entry: Entry) -> None:
    assert any(reading(entry, piece).reads for piece in entry.evidence)


def test_corrections_differ_from_print_and_have_its_names() -> None:
    for entry in CORRECTED:
        printed, true = build(entry), corrected(entry.source, entry.number)
        assert true
        assert all(printed.get(name) != side for name, side in true.items()), entry.number


@pytest.mark.slow
@pytest.mark.parametrize("name", PAIRS)
def test_a_changed_term_of_a_derived_side_is_noticed(name: str) -> None:
    """Derived equations are held against print term by term, not only in total."""
    unseen = []
    for pair in PAIRS[name]():
        for m in mutants({pair.name: pair.derived}):
            try:
                holds = pair.holds(derived=m.expression)
            except (KeyError, ValueError):  # an index for which there is nothing
                holds = False
            if holds:
                unseen.append((pair.number, pair.name, m.change))
    assert unseen == []


# -- the tool itself -----------------------------------------------------------------------------------------

x, y, z = (Symbol(n) for n in "xyz")
ell, t, mu = (Symbol(n) for n in ("ell", "t", "mu"))
h = Function("h")


def changed(e: Basic) -> list[Basic]:
    return [m.expression for m in mutants({"side": e})]


def test_every_term_is_doubled_and_terms_in_sums_and_brackets_too() -> None:
    assert set(changed(x + y * (x + z))) == {
        2 * x + y * (x + z),
        x + 2 * y * (x + z),
        x + y * (2 * x + z),
        x + y * (x + 2 * z),
    }
    summed = Sum(x + y, (x, 1, 3))
    assert set(changed(summed)) == {2 * summed, Sum(2 * x + y, (x, 1, 3)), Sum(x + 2 * y, (x, 1, 3))}
    integral = Integral(x, (x, 0, t))
    assert changed(integral) == [2 * integral]
    assert changed(S.Zero) == [1]


def test_layers_samples_and_times_are_shifted() -> None:
    assert set(changed(h(ell, mu, t))) == {
        2 * h(ell, mu, t),
        h(ell + 1, mu, t),
        h(ell, mu + 1, t),
        h(ell, mu, t + 1),
    }


def test_an_order_of_magnitude_is_changed_by_its_symbols() -> None:
    entry = find(SC, "16 text")
    assert {m.change for m in mutants_of(entry)} == {"times gamma0", "times L"}
    assert not any(m.change.startswith("2*") for m in mutants_of(entry))


def test_a_planted_claim_is_read_everywhere_and_taken_away_again() -> None:
    original = two_layer_claims.f5
    with planted(original, dict):
        assert two_layer.claim("F.5") == {}
    assert two_layer_claims.f5 is original
    assert set(two_layer.claim("F.5")) == {"dh", "dg"}


@pytest.mark.slow
def test_evidence_that_does_not_read_a_claim_is_told_apart() -> None:
    entry = find(SC, "D.46")
    assert not reading(entry, "widths:gradients").reads
    read = reading(entry, "identities_nonlinear:unequal_widths")
    assert read.reads
    assert read.passed


@pytest.mark.slow
def test_a_limit_on_time_skips_pieces_and_says_so() -> None:
    judged = judge(find(LIN, "70 text"), seconds=0.0)
    assert judged.survivors
    assert not judged.readers
    assert "not run: " in str(judged)
    assert mutations.main(["selfconsistent2023", "P.17"]) == 0


# -- pairs ---------------------------------------------------------------------------------------------------


def test_pairs_that_differ_and_pairs_that_cannot_differ_are_no_evidence() -> None:
    right, wrong = Pair("1", "x", x, x, identity.difference), Pair("1", "y", x, y, identity.difference)
    blind = Pair("1", "z", x, y, lambda *_: True)
    assert identity.compared("a:b", "Equal.", [right]).passed
    assert "(1): right-hand sides of 2 that are not the derived ones, y" in (
        identity.compared("a:b", "Equal.", [right, wrong]).summary
    )
    assert "differ once they are doubled" in identity.compared("a:b", "Equal.", [right, blind]).summary
    assert not identity.compared("a:b", "Equal.", []).passed
