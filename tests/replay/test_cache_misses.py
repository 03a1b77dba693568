"""What a broken cache cost, worked out by hand from the tokens that the provider has billed."""

from decimal import Decimal

import msgspec
import pytest

from holdfast.catalog.lookup import shipped_models
from holdfast.clock import CountingIds, ManualClock
from holdfast.engine.guard import WarningLog
from holdfast.engine.recorder import CallRecorder, ObservedRequest
from holdfast.ledger.accounting import iter_entries
from holdfast.ledger.cache.verdicts import CachedPrefix, PreparedRequest, Verdict, judge_call
from holdfast.stores.memory import MemoryStore
from holdfast.types.prompt import Breakpoint, Plan
from holdfast.types.reply import Reply
from holdfast.types.request_buffer import PrefixDigest, extend_digest_chain
from holdfast.types.usage import Usage

OPUS = "anthropic:claude-opus-5-5"  # Reads 0.20, plain input 4, writes 5 for five minutes and 8 for an hour.
AT = 1_794_800_000.0


def moved(*marks: Breakpoint) -> PreparedRequest:
    return PreparedRequest(AT + 60, Plan(marks), blocks_before=5, blocks_shared=1)


@pytest.mark.parametrize(
    ("kept", "usage", "lost_tokens", "lost_usd"),
    [
        # The head was written again for an hour, the history for five minutes: 5,000 x 7.80 + 20,000 x 4.80.
        (25_000, Usage(input=10, cache_write_1h=5_000, cache_write_5m=20_100), 25_000, "0.135"),
        # What no mark covers was sent as plain input: 4,000 x 4.80 + 6,000 x 3.80.
        (10_000, Usage(input=8_000, cache_write_5m=4_000), 10_000, "0.042"),
        # 87,000 of the 95,000 that were there are not sent any more: 3,000 x 4.80 + 10 x 3.80.
        (95_000, Usage(input=10, cache_read=5_000, cache_write_5m=3_000), 3_010, "0.014438"),
    ],
)
def test_what_was_lost_is_what_was_billed_anew_above_reading_it(
    kept: int, usage: Usage, lost_tokens: int, lost_usd: str
) -> None:
    left = CachedPrefix(OPUS, AT, kept, "5m", 4, {}, has_images=False)
    verdict = judge_call(left, moved(Breakpoint(0, "1h"), Breakpoint(4, "5m")), usage, shipped_models()[OPUS])
    assert verdict.kind == "prefix_changed"
    assert (verdict.expected_tokens, verdict.read_tokens) == (kept, usage.cache_read)
    assert (verdict.lost_tokens, verdict.lost_usd) == (lost_tokens, Decimal(lost_usd))


def test_writes_of_a_provider_that_marks_by_itself_are_lost_at_the_price_of_writes() -> None:
    sol = "openai:gpt-6-sol"  # Reads 0.20, writes 2.50.
    left = CachedPrefix(sol, AT, 20_000, None, None, {}, has_images=False)
    verdict = judge_call(left, moved(), Usage(input=10, cache_write_other=20_100), shipped_models()[sol])
    assert verdict.lost_usd == Decimal("0.046")


class Talk:
    """A conversation that another client has, with what its provider says of each call."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.clock = ManualClock(AT)
        self.recorder = CallRecorder(
            self.store, models=shipped_models(), clock=self.clock, new_id=CountingIds(), warnings=WarningLog("test")
        )

    def says(self, blocks: str, usage: Usage, *, end: str = "whole", compacting: Usage | None = None) -> None:
        """Each letter is a block; the last one is marked."""
        call = self.recorder.begin_call(prepared(blocks))
        assert call is not None
        reply = Reply((), "end_turn", usage, compaction_usage=compacting or msgspec.UNSET)
        match end:
            case "whole":
                self.recorder.complete_call(call, reply)
            case "cut":
                self.recorder.fail_call(call, "network", "cut", reply)
            case _:
                self.recorder.fail_call(call, "server_error", "overloaded (HTTP status 529)")
        self.clock.advance(10)

    @property
    def verdicts(self) -> list[Verdict | None]:
        (row,) = self.store.sessions()
        return [one.verdict for one in iter_entries(self.store.read(row.id), shipped_models())]


def prepared(blocks: str) -> ObservedRequest:
    links: list[PrefixDigest] = []
    for place, letter in enumerate(blocks):
        links.append(
            extend_digest_chain(links[-1] if links else None, "history" if place else "system", letter.encode() * 100)
        )
    return ObservedRequest(
        model=OPUS,
        provider="anthropic",
        row=shipped_models()[OPUS],
        plan=Plan((Breakpoint(len(blocks) - 1, "5m"),)),
        digests=tuple(links),
        parameters_digest="",
        body_bytes=100 * len(blocks),
        tokens=100,
    )


WRITTEN = Usage(input=10, cache_write_5m=25_000, output=50)
REFUSED = Usage()


def test_what_a_refused_call_had_moved_is_still_moved_when_it_is_tried_again() -> None:
    talk = Talk()
    talk.says("abc", WRITTEN)
    talk.says("Abcd", REFUSED, end="refused")
    talk.says("Abcd", REFUSED, end="refused")
    talk.says("Abcd", WRITTEN)
    last = talk.verdicts[-1]
    assert last is not None
    assert (last.kind, last.component, last.byte) == ("prefix_changed", "system", 0)
    assert last.lost_usd == Decimal("0.12")


def test_what_only_a_refused_call_has_said_can_be_said_otherwise() -> None:
    talk = Talk()
    talk.says("abc", WRITTEN)
    talk.says("abcd", REFUSED, end="refused")
    talk.says("abce", WRITTEN)
    last = talk.verdicts[-1]
    assert last is not None
    assert last.kind == "provider_side"
    talk.says("abx", WRITTEN)
    last = talk.verdicts[-1]
    assert last is not None
    assert (last.kind, last.byte) == ("prefix_changed", 200)


def test_a_request_that_moves_further_in_front_than_the_refused_one_says_so_itself() -> None:
    talk = Talk()
    talk.says("abc", WRITTEN)
    talk.says("abX", REFUSED, end="refused")
    talk.says("aYX", WRITTEN)
    last = talk.verdicts[-1]
    assert last is not None
    assert (last.kind, last.byte) == ("prefix_changed", 100)
    assert "block 1 of 3" in last.detail


def test_a_call_that_was_cut_has_left_what_it_wrote() -> None:
    talk = Talk()
    talk.says("abcdef", WRITTEN)
    talk.says("abX", Usage(input=10, cache_read=5_000, cache_write_5m=3_000, output=1), end="cut")
    talk.says("abXY", Usage(input=10, cache_read=8_000, cache_write_5m=100, output=50))
    _, cut, last = talk.verdicts
    assert cut is None
    assert last is not None
    assert (last.kind, last.expected_tokens) == ("held", 8_000)


def test_a_reply_that_does_not_say_what_it_took_is_no_loss() -> None:
    talk = Talk()
    talk.says("abc", WRITTEN)
    talk.clock.advance(200)
    talk.says("abcd", Usage())
    talk.clock.advance(200)
    talk.says("abcde", Usage(input=10, cache_write_5m=25_000))
    _, silent, last = talk.verdicts
    assert silent is None
    # It was used again in between, and is not too late.
    assert last is not None
    assert (last.kind, last.expected_tokens) == ("provider_side", 25_000)


def test_what_a_silent_reply_has_left_is_not_known_where_its_request_had_moved() -> None:
    talk = Talk()
    talk.says("abc", WRITTEN)
    talk.says("Xbc", Usage())
    talk.says("Xbcd", WRITTEN)
    _, silent, last = talk.verdicts
    assert silent is None
    assert last is not None
    assert (last.kind, last.lost_usd) == ("first_use", Decimal(0))


def test_what_a_provider_took_to_compact_is_paid_for_and_not_left_in_the_cache() -> None:
    talk = Talk()
    talk.says("abc", Usage(input=10, cache_write_5m=150_000, output=50))
    summed_up = Usage(input=100, cache_read=150_000, output=3_000)
    answered = Usage(input=10, cache_read=5_000, cache_write_5m=4_000, output=50)
    talk.says("abcde", summed_up + answered, compacting=summed_up)
    talk.says("abcdefg", Usage(input=10, cache_read=9_000, cache_write_5m=200, output=50))
    _, compacted, last = talk.verdicts
    assert compacted is not None
    assert compacted.kind == "held"
    assert last is not None
    assert (last.kind, last.expected_tokens, last.lost_usd) == ("held", 9_000, Decimal(0))
    # 110 x 4, 155,000 x 0.20, 4,000 x 5 and 3,050 x 20.
    assert talk.recorder.calls[1].cost_usd == Decimal("0.11244")
