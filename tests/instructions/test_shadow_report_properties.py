"""Properties of every report on turns in shadow mode, and the thresholds at which it passes."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import StoreError
from holdfast.instructions.models import AuditRecord, LoadedUnit, Manifest, ManifestEntry, Provenance
from holdfast.instructions.usage.shadow import make_shadow_report, token_share_max

NAMES = ("a", "b", "c", "d")


def manifest(version: str = "v1") -> Manifest:
    body = tuple(ManifestEntry(name, f"About {name}.") for name in NAMES)
    return Manifest("m", "main", version, "instruction:local/main/manifest/v1", 1, body, 0, "stigmem", Provenance("x"))


def turn(
    loaded: tuple[str, ...] = ("a",),
    used: tuple[str, ...] | None = ("a",),
    missed: tuple[str, ...] = (),
    *,
    run: str = "",
    number: int = 0,
    eager: int = 4_000,
    standing: int = 100,
    version: str = "v1",
) -> AuditRecord:
    return AuditRecord(
        id=f"audevent_{number}",
        agent_id="main",
        heartbeat_id=run or f"run_{number}",
        session_start=0,
        intent=f"intent {number}",
        loaded_chunks=tuple(LoadedUnit(name, "v1", "stigmem", 1, 0.5, 100) for name in loaded),
        used_chunks=used or (),
        missed_chunks=missed,
        audit_token=f"audi_{number}",
        audit_closed=None if used is None else 1,
        created_at=number,
        event_type="shadow",
        detail={"manifest_version": version, "eager_tokens": eager, "standing_tokens": standing},
    )


def turns(count: int, *others: AuditRecord) -> list[AuditRecord]:
    return [turn(number=number) for number in range(count)] + list(others)


some = st.lists(st.sampled_from(NAMES), unique=True).map(tuple)
records = st.lists(
    st.builds(turn, some, st.none() | some, some, run=st.sampled_from(("", "r", "s")), number=st.integers(0, 99))
)


@given(records)
def test_shares_and_counts_agree_for_any_records(audit_records: list[AuditRecord]) -> None:
    report = make_shadow_report(audit_records, manifest())
    assert report.turns == len(audit_records)
    assert report.reported_turns == sum(record.audit_closed is not None for record in audit_records)
    assert report.coverage is None or 0.0 <= report.coverage <= 1.0
    assert (report.coverage == 1.0) == (not report.missed_units and report.coverage is not None)
    assert len(report.regressions) <= report.reported_turns
    assert all(record.missing_units for record in report.regressions)
    assert report.passed == (
        report.reported_turns >= 10
        and report.coverage is not None
        and report.coverage >= 0.95
        and not report.regressions
        and (report.share is None or report.share < report.share_max)
    )


@given(st.floats(0, 10_000), st.floats(0, 10_000))
def test_the_larger_the_manifest_the_smaller_the_share_that_may_be_loaded(first: float, second: float) -> None:
    less, more = sorted((first, second))
    assert 0.25 <= token_share_max(more) <= token_share_max(less) <= 0.5


@pytest.mark.parametrize(("tokens", "share"), [(0, 0.5), (1_500, 0.5), (2_250, 0.375), (3_000, 0.25), (9_000, 0.25)])
def test_the_share_is_as_specified_at_both_ends_and_between(tokens: int, share: float) -> None:
    assert token_share_max(tokens) == pytest.approx(share)


def test_ten_complete_turns_with_few_tokens_pass() -> None:
    report = make_shadow_report(turns(10), manifest())
    assert (report.coverage, report.share, report.eager_tokens, report.lazy_tokens) == (1.0, 0.05, 4_000, 200)
    assert report.passed


def test_nine_turns_are_too_few_and_turns_without_usage_do_not_count() -> None:
    report = make_shadow_report(turns(9, turn(used=None, number=9)), manifest())
    assert (report.turns, report.reported_turns) == (10, 9)
    assert report.shortfalls == ("9 turns report what they used, at least 10 are needed",)


def test_one_unit_in_twenty_may_be_missing_if_another_was_loaded() -> None:
    partly = turn(("a",), ("a", "b"), number=50)
    assert make_shadow_report(turns(18, partly), manifest()).coverage == pytest.approx(0.95)
    assert make_shadow_report(turns(18, partly), manifest()).passed
    report = make_shadow_report(turns(17, partly), manifest())
    assert report.missed_units == {"b": 1}
    assert report.regressions == ()
    assert [line[:5] for line in report.shortfalls] == ["94.7%"]


def test_a_turn_without_any_needed_unit_is_a_regression() -> None:
    report = make_shadow_report(turns(40, turn(("a",), ("b", "c"), number=50)), manifest())
    assert [(regression.intent, regression.missing_units) for regression in report.regressions] == [
        ("intent 50", ("b", "c"))
    ]
    assert report.shortfalls == ("turns that would have regressed: 1",)


def test_a_unit_reported_missing_is_a_regression_unless_it_was_loaded() -> None:
    incomplete = turn(("a",), ("a",), ("b",), number=50)
    assert [
        regression.missing_units for regression in make_shadow_report(turns(40, incomplete), manifest()).regressions
    ] == [("b",)]
    complete = turn(("a", "b"), ("a",), ("b",), number=50)
    assert make_shadow_report(turns(40, complete), manifest()).regressions == ()


def test_units_loaded_in_a_run_remain_available_and_billed_in_its_later_turns() -> None:
    first, later = turn(("a",), ("a",), run="r"), turn(("b",), ("a",), run="r", number=1)
    report = make_shadow_report([first, later], manifest())
    assert report.coverage == 1.0
    assert report.lazy_tokens == (200 + 300) / 2
    elsewhere = turn(("b",), ("a",), run="s", number=1)
    assert make_shadow_report([first, elsewhere], manifest()).coverage == 0.5


def test_units_preloaded_by_the_trigger_of_a_run_are_available_and_billed() -> None:
    preload = msgspec.structs.replace(turn(("b",), run="r"), event_type="preload", detail={})
    report = make_shadow_report([preload, turn(("a",), ("b",), run="r", number=1)], manifest())
    assert (report.turns, report.coverage, report.lazy_tokens) == (1, 1.0, 300)


def test_too_many_tokens_fail() -> None:
    assert make_shadow_report([turn(number=n, standing=899) for n in range(10)], manifest()).passed
    report = make_shadow_report([turn(number=n, standing=900) for n in range(10)], manifest())
    assert report.shortfalls == ("25.0% of the tokens would still be spent, less than 25% is required",)


def test_nothing_is_learned_without_used_units() -> None:
    report = make_shadow_report([turn(used=("unknown",), number=n) for n in range(10)], manifest())
    assert report.coverage is None
    assert report.shortfalls == ("no turn used a unit",)


def test_recalls_and_turns_of_another_manifest_are_excluded() -> None:
    assert make_shadow_report(turns(10), manifest("v2")).turns == 0
    recall = msgspec.structs.replace(turn(), event_type="recall")
    assert make_shadow_report([recall, turn(number=1)], manifest()).turns == 1


def test_a_report_without_turns_is_empty() -> None:
    report = make_shadow_report([], manifest())
    assert (report.share, report.eager_tokens, report.lazy_tokens, report.share_max) == (None, 0, 0, 0.5)
    assert not report.passed


def test_a_damaged_record_is_reported() -> None:
    damaged = msgspec.structs.replace(turn(), detail={"manifest_version": "v1", "eager_tokens": "many"})
    with pytest.raises(StoreError, match="damaged"):
        make_shadow_report([damaged], manifest())
