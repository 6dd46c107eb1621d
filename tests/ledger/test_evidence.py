"""The proofs behind the ledger: all hold, each contradiction has numbers, planted errors are seen."""

from __future__ import annotations

import dataclasses
import json
import math
import pickle
import re
from importlib import import_module

import pytest

from derive.ledger import Entry, entries, find, recorded
from tests.ledger import evidence as package
from tests.ledger.evidence import (
    base,
    check,
    engine,
    expansion,
    linear,
    network,
    networks,
    path_integral,
    published,
    saddle_point,
    two_layer,
)
from tests.ledger.evidence.__main__ import main
from tests.ledger.evidence.base import MUCH

NAMES = sorted({name for e in entries() for name in e.evidence})
LONG = {name for name in NAMES if name not in recorded() or recorded()[name].seconds > 5}
"""Pieces that took more than five seconds when they were recorded."""
GOOD = Entry(source="paper2020", number="1", title="x", printed="x", verdict="convention", why="x")


@pytest.fixture
def fresh():
    """Clear all caches before and after the test."""
    caches = (
        expansion.second_orders,
        saddle_point.action_of,
        published.derived_operators,
        published._compiled,
        two_layer.derived,
        two_layer.derived_whitened,
        engine.theory_at,
    )
    for stored in caches:
        stored.cache_clear()
    yield
    for stored in caches:
        stored.cache_clear()


@pytest.fixture(scope="session")
def held(tmp_path_factory, worker_id):
    """Return a function that runs each piece once for all tests, in any process."""
    base = tmp_path_factory.getbasetemp()
    shared = (base if worker_id == "master" else base.parent) / "evidence"
    shared.mkdir(exist_ok=True)

    def run(name):
        place = shared / name.replace(":", "-")
        if place.exists():
            return pickle.loads(place.read_bytes())
        found = package.run(name)
        partial = shared / f"{place.name}-{worker_id}"
        partial.write_bytes(pickle.dumps(found))
        partial.rename(place)
        return found

    return run


@pytest.mark.evidence
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in LONG else n for n in NAMES])
def test_evidence_holds(name, held):
    found = held(name)
    assert found.passed, f"{found.summary}\n{found.numbers}"
    assert found.name == name
    assert found.numbers
    assert all(math.isfinite(v) and math.isfinite(e) for _, v, e in found.numbers)


# -- check -------------------------------------------------------------------------------------------------


def test_check_runs_each_piece_once_and_survives_failures(monkeypatch):
    counts = {"good": 0}

    def good():
        counts["good"] += 1
        return base.conclude("network:good", "It is so.", base.agrees("x", 0.0, 1.0))

    def bad():
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(network, "good", good, raising=False)
    monkeypatch.setattr(network, "bad", bad, raising=False)
    monkeypatch.setattr(network, "none", lambda: None, raising=False)
    where = "network:"
    names = tuple(where + x for x in ("bad", "good", "none", "missing"))
    rows = [
        dataclasses.replace(GOOD, evidence=names),
        dataclasses.replace(GOOD, number="2", evidence=names[1:2]),
    ]
    seen = []
    results = check(rows, progress=lambda done, total: seen.append((done, total)))
    assert counts["good"] == 1
    assert [r.passed for r in results] == [False, True, False, False, True]
    assert "ZeroDivisionError: planted" in results[0].summary
    assert "AttributeError" in results[3].summary
    assert [r.number for r in results] == ["1", "1", "1", "1", "2"]
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_a_number_that_is_not_finite_fails_and_is_null_in_json():
    assert not base.agrees("x", float("nan"), 1.0).holds
    assert not base.contradicts("x", float("nan"), 1.0).holds
    assert not base.contradicts("x", 5.0, 1.0).holds
    assert not base.conclude("a:b", "Nothing.").passed
    found = base.conclude("a:b", "It is so.", base.agrees("x", float("inf"), 1.0))
    row = package._checked(GOOD, "a:b", found)
    assert json.loads(json.dumps(dataclasses.asdict(row), allow_nan=False))["numbers"] == [["x", None, 1.0]]


def test_the_command_reports_failures(monkeypatch, capsys):
    def broken(name):
        return base.Evidence(name, "matrix_average" not in name, "planted", ())

    monkeypatch.setattr(package, "run", broken)
    assert main(["--json"]) == 1
    rows = json.loads(capsys.readouterr().out)
    failed = [(e.source, e.number) for e in entries() if any("matrix_average" in x for x in e.evidence)]
    assert ("selfconsistent2023", "D.26") in failed
    assert list(dict.fromkeys((r["source"], r["number"]) for r in rows if not r["passed"])) == failed
    assert main([]) == 1
    out = capsys.readouterr().out
    assert out.count("FAILED selfconsistent2023 D.26") == 1
    assert "pieces of evidence hold" in out


# -- planted errors ----------------------------------------------------------------------------------------


@pytest.mark.evidence
def test_an_error_in_the_march_is_seen(monkeypatch, fresh):
    """One coupling forgotten: the response A is scaled by one half."""
    right = engine.solved

    def wrong(*args, **options):
        run = right(*args, **options)
        return dataclasses.replace(run, A=tuple(x / 2 for x in run.A))

    monkeypatch.setattr(linear, "solved", wrong)
    monkeypatch.setattr("tests.ledger.evidence.gaussian_action.solved", wrong)
    assert not linear.closure_against_networks().passed
    assert not saddle_point.action_is_stationary().passed
    assert not saddle_point.stein_identity().passed


@pytest.mark.evidence
def test_the_untied_theory_in_place_of_the_tied_one_is_seen(monkeypatch, fresh):
    """The printed expansion would then be right: the evidence must not support 'wrong'."""
    right = engine.marched
    monkeypatch.setattr(engine, "marched", lambda *a, **k: right(*a, **{**k, "tied": False}))
    original = engine.solved
    monkeypatch.setattr(engine, "solved", lambda *a, **k: original(*a, **{**k, "tied": False}))
    for function in (
        expansion.feature_kernel_depth_coefficients,
        expansion.gradient_kernel_depth_coefficients,
        expansion.tangent_kernel_depth_coefficient,
        networks.kernel_curvature,
    ):
        assert not function().passed


@pytest.mark.evidence
def test_a_corrected_claim_is_no_evidence_against_the_paper(monkeypatch, fresh):
    """If (F.2) printed the derived equation, the evidence that it is wrong must fail."""
    C, D = published.derived_operators()
    monkeypatch.setattr(linear, "_from_f2", lambda: published.Scheme(C, D))
    assert not linear.response_without_error_factor().passed


@pytest.mark.evidence
def test_a_tampered_claim_is_seen(monkeypatch, fresh):
    right = two_layer.claim

    def tampered(number):
        return (
            {k: 2 * v for k, v in right(number).items()}
            if number in ("F.7", "F.8", "F.11")
            else right(number)
        )

    monkeypatch.setattr(two_layer, "claim", tampered)
    for function in (
        two_layer.kernel_equations,
        two_layer.whitened_reduction,
        two_layer.one_dimensional_flow,
    ):
        assert not function().passed


@pytest.mark.slow
def test_a_wrong_average_over_the_matrices_is_seen(monkeypatch):
    """The engine's average without its cross term."""
    vectors = path_integral._Vectors
    right = vectors.engine
    monkeypatch.setattr(vectors, "engine", lambda self, tied: right(self, False))
    assert not path_integral.matrix_average().passed
    assert path_integral.independent_backward_average().passed


def test_verdicts_that_need_evidence_have_it():
    assert find("selfconsistent2023", "16").verdict == "wrong"
    assert "networks:kernel_curvature" in find("selfconsistent2023", "16").evidence


# -- recorded evidence ---------------------------------------------------------------------------------------


def test_every_piece_is_recorded_and_nothing_else():
    assert sorted(recorded()) == NAMES
    assert all(row.numbers and row.commit for row in recorded().values())


def heading(piece):
    """Return the head of the docstring of a piece of evidence, up to the first colon: its entries."""
    module, _, function = piece.partition(":")
    found = getattr(import_module(f"tests.ledger.evidence.{module}"), function).__doc__
    return " ".join(found.split()).split(":")[0]


def is_about(head, number):
    """Return whether a heading names a number, alone or in a range such as 80-82 or (M.3)-(M.5)."""
    core = number.removesuffix(" text").split()[-1]
    if re.search(rf"(?<![\w.]){re.escape(core)}(?!\w|\.\d)", head):
        return True
    section, _, last = core.rpartition(".")
    ranges = re.findall(r"(?<![\w.])((?:[A-Z\d]\.)?)(\d+)\)?-\(?((?:[A-Z\d]\.)?)(\d+)", head)
    own = f"{section}." if section else ""
    return any(a == b == own and last.isdigit() and int(x) <= int(last) <= int(y) for a, x, b, y in ranges)


def test_a_heading_names_single_numbers_and_ranges():
    assert is_about("(10), (68)", "68")
    assert is_about("80-82", "81")
    assert is_about("(M.3)-(M.5)", "M.4")
    assert is_about("N.9 text", "N.9 text")
    assert not is_about("80-82", "8")
    assert not is_about("(M.3)-(M.5)", "N.4")
    assert not is_about("(104)", "4")


def test_every_verdict_stands_against_an_alternative_that_is_rejected():
    """Require a rejected alternative for each verdict, in a piece of evidence about this entry.

    The deviation is at least ten times the allowed one, so that an entry that agrees could have disagreed.
    """
    for entry in entries():
        if entry.verdict in ("definition", "convention"):
            continue
        own = [name for name in entry.evidence if is_about(heading(name), entry.number)]
        assert own, (entry.source, entry.number, "no piece of evidence says that it is about this entry")
        numbers = [x for name in own for x in recorded()[name].numbers]
        off = [label for label, value, allowed in numbers if abs(value) >= max(MUCH * allowed, 1e-9)]
        assert off, (entry.source, entry.number)


@pytest.mark.evidence
def test_what_is_recorded_is_what_a_run_finds(held):
    assert held("first_step:growth").summary == recorded()["first_step:growth"].summary
