"""What a cache miss cost, computed by hand from the billed tokens."""

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

OPUS = "anthropic:claude-opus-5-5"  # Dollars per million tokens: reads 0.20, plain input 4, writes 5 (5m) and 8 (1h).
AT = 1_794_800_000.0


def request_with_changed_prefix(*breakpoints: Breakpoint) -> PreparedRequest:
    return PreparedRequest(AT + 60, Plan(breakpoints), blocks_before=5, blocks_shared=1)


@pytest.mark.parametrize(
    ("cached_tokens", "usage", "lost_tokens", "lost_usd"),
    [
        # The stable prefix was written again for an hour, the history for five minutes: 5,000 x 7.80 + 20,000 x 4.80.
        (25_000, Usage(input=10, cache_write_1h=5_000, cache_write_5m=20_100), 25_000, "0.135"),
        # Tokens that no breakpoint covers were sent as plain input: 4,000 x 4.80 + 6,000 x 3.80.
        (10_000, Usage(input=8_000, cache_write_5m=4_000), 10_000, "0.042"),
        # 87,000 of the 95,000 cached tokens are not sent any more: 3,000 x 4.80 + 10 x 3.80.
        (95_000, Usage(input=10, cache_read=5_000, cache_write_5m=3_000), 3_010, "0.014438"),
    ],
)
def test_the_loss_is_what_was_billed_above_the_price_of_reading(
    cached_tokens: int, usage: Usage, lost_tokens: int, lost_usd: str
) -> None:
    cached = CachedPrefix(OPUS, AT, cached_tokens, "5m", 4, {}, has_images=False)
    verdict = judge_call(
        cached, request_with_changed_prefix(Breakpoint(0, "1h"), Breakpoint(4, "5m")), usage, shipped_models()[OPUS]
    )
    assert verdict.kind == "prefix_changed"
    assert (verdict.expected_tokens, verdict.read_tokens) == (cached_tokens, usage.cache_read)
    assert (verdict.lost_tokens, verdict.lost_usd) == (lost_tokens, Decimal(lost_usd))


def test_writes_of_an_automatic_cache_are_lost_at_the_price_of_writes() -> None:
    sol = "openai:gpt-6-sol"  # Dollars per million tokens: reads 0.20, writes 2.50.
    cached = CachedPrefix(sol, AT, 20_000, None, None, {}, has_images=False)
    verdict = judge_call(
        cached, request_with_changed_prefix(), Usage(input=10, cache_write_other=20_100), shipped_models()[sol]
    )
    assert verdict.lost_usd == Decimal("0.046")


class RecordedConversation:
    """A conversation of another client, with the usage that its provider reports for each call."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.clock = ManualClock(AT)
        self.recorder = CallRecorder(
            self.store, models=shipped_models(), clock=self.clock, new_id=CountingIds(), warnings=WarningLog("test")
        )

    def add_call(self, blocks: str, usage: Usage, *, end: str = "whole", compacting: Usage | None = None) -> None:
        """Each letter is a block; the last one has the breakpoint."""
        call = self.recorder.begin_call(make_request(blocks))
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
        return [entry.verdict for entry in iter_entries(self.store.read(row.id), shipped_models())]


def make_request(blocks: str) -> ObservedRequest:
    digests: list[PrefixDigest] = []
    for position, letter in enumerate(blocks):
        digests.append(
            extend_digest_chain(
                digests[-1] if digests else None, "history" if position else "system", letter.encode() * 100
            )
        )
    return ObservedRequest(
        model=OPUS,
        provider="anthropic",
        row=shipped_models()[OPUS],
        plan=Plan((Breakpoint(len(blocks) - 1, "5m"),)),
        digests=tuple(digests),
        parameters_digest="",
        body_bytes=100 * len(blocks),
        tokens=100,
    )


WRITTEN = Usage(input=10, cache_write_5m=25_000, output=50)
REFUSED = Usage()


def test_a_prefix_changed_by_a_refused_call_is_still_changed_when_it_is_retried() -> None:
    conversation = RecordedConversation()
    conversation.add_call("abc", WRITTEN)
    conversation.add_call("Abcd", REFUSED, end="refused")
    conversation.add_call("Abcd", REFUSED, end="refused")
    conversation.add_call("Abcd", WRITTEN)
    last = conversation.verdicts[-1]
    assert last is not None
    assert (last.kind, last.component, last.byte) == ("prefix_changed", "system", 0)
    assert last.lost_usd == Decimal("0.12")


def test_content_that_only_a_refused_call_contained_may_change() -> None:
    conversation = RecordedConversation()
    conversation.add_call("abc", WRITTEN)
    conversation.add_call("abcd", REFUSED, end="refused")
    conversation.add_call("abce", WRITTEN)
    last = conversation.verdicts[-1]
    assert last is not None
    assert last.kind == "provider_side"
    conversation.add_call("abx", WRITTEN)
    last = conversation.verdicts[-1]
    assert last is not None
    assert (last.kind, last.byte) == ("prefix_changed", 200)


def test_a_change_before_the_one_of_the_refused_call_is_reported_itself() -> None:
    conversation = RecordedConversation()
    conversation.add_call("abc", WRITTEN)
    conversation.add_call("abX", REFUSED, end="refused")
    conversation.add_call("aYX", WRITTEN)
    last = conversation.verdicts[-1]
    assert last is not None
    assert (last.kind, last.byte) == ("prefix_changed", 100)
    assert "block 1 of 3" in last.detail


def test_an_interrupted_call_still_cached_what_it_wrote() -> None:
    conversation = RecordedConversation()
    conversation.add_call("abcdef", WRITTEN)
    conversation.add_call("abX", Usage(input=10, cache_read=5_000, cache_write_5m=3_000, output=1), end="cut")
    conversation.add_call("abXY", Usage(input=10, cache_read=8_000, cache_write_5m=100, output=50))
    _, cut, last = conversation.verdicts
    assert cut is None
    assert last is not None
    assert (last.kind, last.expected_tokens) == ("held", 8_000)


def test_a_reply_without_usage_is_no_loss() -> None:
    conversation = RecordedConversation()
    conversation.add_call("abc", WRITTEN)
    conversation.clock.advance(200)
    conversation.add_call("abcd", Usage())
    conversation.clock.advance(200)
    conversation.add_call("abcde", Usage(input=10, cache_write_5m=25_000))
    _, silent, last = conversation.verdicts
    assert silent is None
    # The prefix was used again in between, so it has not expired.
    assert last is not None
    assert (last.kind, last.expected_tokens) == ("provider_side", 25_000)


def test_after_a_reply_without_usage_and_a_changed_prefix_nothing_is_known_to_be_cached() -> None:
    conversation = RecordedConversation()
    conversation.add_call("abc", WRITTEN)
    conversation.add_call("Xbc", Usage())
    conversation.add_call("Xbcd", WRITTEN)
    _, silent, last = conversation.verdicts
    assert silent is None
    assert last is not None
    assert (last.kind, last.lost_usd) == ("first_use", Decimal(0))


def test_the_providers_own_compaction_is_paid_for_and_not_counted_as_cached() -> None:
    conversation = RecordedConversation()
    conversation.add_call("abc", Usage(input=10, cache_write_5m=150_000, output=50))
    compaction_usage = Usage(input=100, cache_read=150_000, output=3_000)
    reply_usage = Usage(input=10, cache_read=5_000, cache_write_5m=4_000, output=50)
    conversation.add_call("abcde", compaction_usage + reply_usage, compacting=compaction_usage)
    conversation.add_call("abcdefg", Usage(input=10, cache_read=9_000, cache_write_5m=200, output=50))
    _, compacted, last = conversation.verdicts
    assert compacted is not None
    assert compacted.kind == "held"
    assert last is not None
    assert (last.kind, last.expected_tokens, last.lost_usd) == ("held", 9_000, Decimal(0))
    # 110 x 4, 155,000 x 0.20, 4,000 x 5 and 3,050 x 20.
    assert conversation.recorder.calls[1].cost_usd == Decimal("0.11244")
