"""What the ledger says of calls that somebody else has recorded."""

import pytest

from holdfast.canonical.blocks import Text
from holdfast.canonical.prompt import Passage
from holdfast.canonical.usage import Usage
from holdfast.catalog.lookup import find_model
from holdfast.planning.policy import WaitedFor
from holdfast.replay.colds import COMMAND
from holdfast.replay.habits import Habits
from holdfast.replay.recording import RecordedCall, Recording
from holdfast.replay.verdicts import recorded_verdicts

ROW = find_model("anthropic:claude-sonnet-4-6")
TELLING = Habits(person=100, person_lost=10, tool=1_000)


def call(
    at: float,
    *,
    read: int,
    sent: int,
    says: str = "So?",
    by: WaitedFor = "tool",
    model: str = "a",
    kept: int | None = None,
) -> RecordedCall:
    usage = Usage(cache_read=read, cache_write_5m=sent - read)
    return RecordedCall(at, at, by, (Passage("user", (Text(says),)),), usage=usage, model=model, kept=kept)


FIRST = call(0, read=0, sent=30_000, by="start")


@pytest.mark.parametrize(
    ("second", "kind", "component"),
    [
        (call(10, read=30_000, sent=31_000), "held", None),
        (call(10, read=28_001, sent=31_000), "held", None),
        (call(301, read=0, sent=31_000), "ttl_expired", None),
        (call(301, read=0, sent=31_000, model="b"), "planned", "model"),
        (call(10, read=9_000, sent=12_000, kept=0), "planned", "compaction"),
        (call(10, read=9_000, sent=29_000), "prefix_changed", "history"),
        (call(10, read=20_000, sent=29_000), "prefix_changed", "history"),
        (call(10, read=9_000, sent=31_000, says=f"{COMMAND}review", by="person"), "prefix_changed", "head"),
        (call(10, read=9_000, sent=31_000), "provider_side", None),
        (call(10, read=9_000, sent=31_000, by="person"), "provider_side", None),
    ],
)
def test_a_recorded_call_is_judged_by_its_times_its_sizes_and_what_it_says(
    second: RecordedCall, kind: str, component: str | None
) -> None:
    first, verdict = recorded_verdicts(Recording("one", "", (), (FIRST, second)), ROW)
    assert first is not None
    assert verdict is not None
    assert (first.kind, verdict.kind, verdict.component) == ("first_use", kind, component)
    assert (verdict.lost_usd > 0) is (kind != "held")


def test_what_the_client_is_in_the_habit_of_changing_speaks_for_the_provider_behind_a_person_alone() -> None:
    for by, gap, kind in (
        ("person", 10, "prefix_changed"),
        ("tool", 10, "provider_side"),
        ("person", 301, "ttl_expired"),
    ):
        second = call(gap, read=9_000, sent=31_000, by=by)  # type: ignore[arg-type]
        _, verdict = recorded_verdicts(Recording("one", "", (), (FIRST, second)), ROW, TELLING)
        assert verdict is not None
        assert verdict.kind == kind
    assert TELLING.tell


@pytest.mark.parametrize(("lost", "kind"), [(2, "provider_side"), (3, "prefix_changed")])
def test_a_habit_shows_in_three_losses_and_not_in_two(lost: int, kind: str) -> None:
    second = call(10, read=9_000, sent=31_000, by="person")
    known = Habits(person=4, person_lost=lost, tool=1_000)
    _, verdict = recorded_verdicts(Recording("one", "", (), (FIRST, second)), ROW, known)
    assert verdict is not None
    assert verdict.kind == kind


def test_calls_without_usage_are_not_judged() -> None:
    silent = RecordedCall(10, 10, "tool", ())
    third = call(20, read=30_000, sent=31_000)
    first, none, last = recorded_verdicts(Recording("one", "", (), (FIRST, silent, third)), ROW)
    assert none is None
    assert first is not None
    assert last is not None
    assert last.kind == "held"
    assert recorded_verdicts(Recording("one", "", (), (silent,)), ROW) == (None,)
