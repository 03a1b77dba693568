"""Comparing the coverage of any two manifest versions lists every unit once and is symmetric."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.instructions.coverage.compare import (
    CoverageChange,
    CoverageDiff,
    MeasuredUnit,
    UnitChange,
    compare_coverage,
)
from holdfast.instructions.models import FailedProbe, UnitCoverage

QUERIES = tuple(f"query {number}" for number in range(6))
NAMES = ("a", "b", "c", "d")
BACK: dict[CoverageChange, CoverageChange] = {
    "worse": "better",
    "better": "worse",
    "new": "gone",
    "gone": "new",
    "same": "same",
    "unknown": "unknown",
}


def unit(
    name: str, asked: tuple[str, ...], failed: tuple[str, ...], found_instead: str | None = "other"
) -> MeasuredUnit:
    share = 1 - len(failed) / len(asked) if asked else None
    failures = tuple(FailedProbe(query, found_instead) for query in failed)
    return MeasuredUnit(UnitCoverage(unit=name, coverage_pct=share, passed=True, failures=failures), asked)


@st.composite
def manifests(draw: st.DrawFn) -> tuple[MeasuredUnit, ...]:
    names = draw(st.lists(st.sampled_from(NAMES), unique=True))
    units = []
    for name in names:
        asked = tuple(draw(st.lists(st.sampled_from(QUERIES), unique=True)))
        units.append(unit(name, asked, tuple(query for query in asked if draw(st.booleans()))))
    return tuple(units)


@given(manifests(), manifests())
def test_every_unit_of_both_versions_is_listed_once(
    earlier: tuple[MeasuredUnit, ...], later: tuple[MeasuredUnit, ...]
) -> None:
    before, after = ([row.coverage.unit for row in some] for some in (earlier, later))
    gone = [name for name in before if name not in after]
    assert [change.unit for change in compare_coverage(earlier, later)] == after + gone


@given(manifests(), manifests())
def test_comparison_is_symmetric(earlier: tuple[MeasuredUnit, ...], later: tuple[MeasuredUnit, ...]) -> None:
    back = {change.unit: change for change in compare_coverage(later, earlier)}
    for there in compare_coverage(earlier, later):
        other = back[there.unit]
        assert other.verdict == BACK[there.verdict]
        assert (other.before, other.after) == (there.after, there.before)
        assert set(other.newly_found) == {missed.query for missed in there.newly_missed}
        assert {missed.query for missed in other.newly_missed} == set(there.newly_found)


@given(manifests())
def test_comparing_a_version_with_itself_finds_no_change(units: tuple[MeasuredUnit, ...]) -> None:
    for one in compare_coverage(units, units):
        assert (one.verdict, one.newly_found, one.newly_missed, one.failing) == ("same", (), (), ())


@given(manifests(), manifests())
def test_every_later_failure_existed_before_or_is_reported(
    earlier: tuple[MeasuredUnit, ...], later: tuple[MeasuredUnit, ...]
) -> None:
    failed_before = {one.coverage.unit: set(one.failures) for one in earlier}
    failures = {one.coverage.unit: set(one.failures) for one in later}
    for change in compare_coverage(earlier, later):
        reported = {missed.query for missed in (*change.newly_missed, *change.failing)}
        still = failures.get(change.unit, set()) & failed_before.get(change.unit, set())
        assert reported.isdisjoint(still)
        assert reported | still == failures.get(change.unit, set())


def test_changed_queries_are_distinguished_from_new_ones() -> None:
    earlier = unit("a", QUERIES[:4], QUERIES[:1])
    later = unit("a", QUERIES[1:5], (QUERIES[1], QUERIES[4]), found_instead="b")
    (change,) = compare_coverage([earlier], [later])
    assert change == UnitChange(
        unit="a",
        verdict="worse",
        before=0.75,
        after=0.5,
        newly_missed=(FailedProbe(QUERIES[1], "b"),),
        failing=(FailedProbe(QUERIES[4], "b"),),
    )
    assert (
        compare_coverage([unit("a", QUERIES, QUERIES[:2])], [unit("a", QUERIES, QUERIES[1:2])])[0].newly_found
        == QUERIES[:1]
    )


def test_unit_without_queries_is_neither_better_nor_worse() -> None:
    some, none = unit("a", QUERIES, ()), unit("a", (), ())
    assert [
        compare_coverage([one], [other])[0].verdict for one, other in ((some, none), (none, some), (none, none))
    ] == [
        "unknown",
        "unknown",
        "same",
    ]


def test_only_a_worse_unit_fails() -> None:
    for verdict in BACK:
        diff = CoverageDiff("v1", "v2", "none", (UnitChange(unit="a", verdict=verdict),))
        assert diff.passed == (verdict != "worse")
