"""Properties of every audit: any bytes, any split of a reply, and any cost of a plan."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.support.client_transcripts import Script, usage

from holdfast.catalog.lookup import shipped_models
from holdfast.ledger.cache.verdicts import EXPECTED_KINDS, UNEXPECTED_KINDS, cached_tokens_after, find_read_granularity
from holdfast.ledger.spending import AuditScope, Spending, SpendingFold
from holdfast.replay.audit import PriceLookup, audit_transcript
from holdfast.replay.cache_misses import judge_calls
from holdfast.replay.claude_code_transcripts import read_transcript
from holdfast.replay.file_audits import BrokenLine
from holdfast.replay.recording import RecordedCall, Recording, Transcript, deduplicate_transcripts
from holdfast.types.usage import Usage

MODELS = ("anthropic:claude-sonnet-4-6", "anthropic:claude-opus-4-5", "openai:gpt-6-sol", "anthropic:nobody")

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
"""Any JSON value, and values that are nearly JSON."""

KINDS = st.sampled_from(["user", "assistant", "system", "summary", "progress"]) | anything
NAMES = st.sampled_from(["a", "b", "c"]) | st.none() | anything
COUNTS = st.integers(-5, 10**12) | st.none() | anything
near_lines = st.fixed_dictionaries(
    {},
    optional={
        "type": KINDS,
        "subtype": st.sampled_from(["compact_boundary", None]) | anything,
        "uuid": NAMES,
        "parentUuid": NAMES,
        "sessionId": NAMES,
        "agentId": NAMES,
        "requestId": NAMES,
        "timestamp": st.datetimes().map(lambda at: at.isoformat()) | anything,
        "cwd": NAMES,
        "isSidechain": st.booleans() | anything,
        "isMeta": st.booleans() | anything,
        "isCompactSummary": st.booleans() | anything,
        "message": st.fixed_dictionaries(
            {},
            optional={
                "id": NAMES,
                "model": st.sampled_from(["claude-sonnet-4-6", "<synthetic>", "nobody"]) | anything,
                "content": st.text() | st.lists(anything, max_size=2) | anything,
                "usage": st.fixed_dictionaries(
                    {},
                    optional={
                        "input_tokens": COUNTS,
                        "output_tokens": COUNTS,
                        "cache_read_input_tokens": COUNTS,
                        "cache_creation_input_tokens": COUNTS,
                        "cache_creation": st.fixed_dictionaries({"ephemeral_1h_input_tokens": COUNTS}) | anything,
                    },
                )
                | anything,
            },
        )
        | anything,
    },
)
"""Lines that are almost those of a transcript."""


def audit_files(files: Sequence[bytes], *, with_text: bool = False) -> Spending:
    broken_lines, transcripts = 0, []
    with tempfile.TemporaryDirectory() as folder:
        for number, content in enumerate(files):
            path = Path(folder) / f"{number}.jsonl"
            path.write_bytes(content)
            for item in read_transcript(path, with_text=with_text):
                if isinstance(item, BrokenLine):
                    assert "\n" not in item.reason
                    broken_lines += 1
                else:
                    transcripts.append(item)
    return replace(audit_transcripts(*deduplicate_transcripts(transcripts)), broken_lines=broken_lines)


def audit_transcripts(*transcripts: Transcript) -> Spending:
    fold, prices = SpendingFold(), PriceLookup(shipped_models())
    for transcript in transcripts:
        conversation = audit_transcript(transcript, prices, AuditScope(ranges=True))
        assert conversation is not None
        fold.add(conversation)
    return fold.build()


def lines_of(script: Script) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in script.lines)


@given(st.lists(st.binary(max_size=200), max_size=3), st.booleans())
def test_any_bytes_are_handled(files: list[bytes], with_text: bool) -> None:
    report = audit_files(files, with_text=with_text)
    assert report.total.calls == 0
    line_count = sum(bool(line.strip()) for file in files for line in file.split(b"\n"))
    assert report.broken_lines <= line_count


@given(st.lists(near_lines | anything, max_size=8), st.booleans())
def test_any_json_is_handled_and_a_valid_call_after_it_is_counted(lines: list[object], with_text: bool) -> None:
    good = lines_of(Script("good").ask().reply(usage(0, 9_000), id="good"))
    report = audit_files([b"".join(json.dumps(line).encode() + b"\n" for line in lines) + good], with_text=with_text)
    assert report.total.calls >= 1
    assert report.usage.cache_write_5m >= 9_000
    assert report.broken_lines <= len(lines)
    assert report.total.usd.is_finite()
    assert report.planned_usd.is_finite()


@given(
    st.lists(st.tuples(st.integers(1, 5), st.floats(1, 4000)), min_size=1, max_size=6),
    st.lists(st.integers(0, 5), max_size=3),
)
def test_spending_is_counted_once_however_replies_are_split_and_files_are_copied(
    calls: list[tuple[int, float]], copies: list[int]
) -> None:
    def script(split: bool) -> Script:
        built = Script().ask()
        for number, (parts, idle_seconds) in enumerate(calls):
            built.reply(usage(number * 3_000, 9_000), parts=parts if split else 1).result(after=idle_seconds)
        return built

    unsplit = audit_files([lines_of(script(False))])
    files = [lines_of(script(True))]
    files += [b"".join(files[0].splitlines(keepends=True)[: 2 + length]) for length in copies]
    split = audit_files(files)
    assert (split.usage, split.total.usd) == (unsplit.usage, unsplit.total.usd)
    assert split.total.calls == unsplit.total.calls == len(calls)


@st.composite
def recordings(draw: st.DrawFn) -> Transcript:
    """Prompts that grow, shrink, pause, and hit or miss the cache, with any usage."""
    at, sent, calls = draw(st.floats(1.75e9, 1.8e9)), 0, []
    for _ in range(draw(st.integers(1, 8))):
        at += draw(st.floats(0, 600) | st.floats(0, 9_000))
        sent = draw(st.integers(1, 200_000) | st.integers(sent, sent + 5_000).filter(bool))
        read = draw(st.sampled_from([0, sent // 2, sent]))
        long = draw(st.booleans())
        written = Usage(cache_write_1h=sent - read) if long else Usage(cache_write_5m=sent - read)
        used = written + Usage(cache_read=read, output=draw(st.integers(0, 500)))
        model = draw(st.sampled_from(MODELS))
        calls.append(RecordedCall(at, at, "tool", (), None, used, model, draw(st.sampled_from([None, None, 0]))))
    ids = tuple(str(number) for number in range(len(calls)))
    return Transcript(Recording("r", "", (), tuple(calls)), "r", "p", ids)


@given(recordings())
def test_no_plan_costs_less_than_the_optimum_and_losses_never_exceed_spending(transcript: Transcript) -> None:
    report = audit_transcripts(transcript)
    total = report.total
    assert report.planned_range_usd is not None
    assert report.optimum_usd is not None
    low, high = report.planned_range_usd
    assert report.optimum_usd <= low <= report.planned_usd <= high
    assert 0 <= total.lost_usd <= total.usd
    assert total.cache_misses == sum(loss.calls for loss in report.losses) <= total.calls
    (row,) = report.sessions
    assert replace(row.amounts, name=total.name) == total
    assert row.planned_usd == report.planned_usd
    for rows in (report.models, report.days, report.projects, report.clients):
        assert sum(row.usd for row in rows) == total.usd == sum(kind.usd for kind in total.kinds)
        assert sum(row.tokens for row in rows) == total.tokens


@given(recordings())
def test_every_token_sent_is_context_that_was_sent_first_or_again(transcript: Transcript) -> None:
    report = audit_transcripts(transcript)
    sent = report.usage.tokens_sent
    context = sum(row.context_tokens + row.resent_tokens for row in report.rereads)
    sources = sum(tool.tokens + tool.resent_tokens for tool in report.tools)
    assert context == pytest.approx(sent, abs=10)
    assert sources == pytest.approx(sent, abs=10)


@given(recordings())
def test_a_recorded_call_holds_only_if_all_that_was_left_to_read_was_read(transcript: Transcript) -> None:
    calls, models = transcript.recording.calls, shipped_models()
    rows = [models.get(call.model or "") for call in calls]
    left = 0
    for call, row, verdict in zip(calls, rows, judge_calls(calls, rows), strict=True):
        if row is None:
            assert verdict is None
            continue
        assert verdict is not None
        assert call.usage is not None
        missing = left - call.usage.cache_read
        if verdict.kind == "held":
            # Reads that are reported in steps may end up to two steps earlier: their own, and the last one's.
            assert missing <= 2 * find_read_granularity(row.cache)
        elif missing > 2 * find_read_granularity(row.cache) and call.usage.tokens_sent >= row.cache.tokens_min:
            assert verdict.kind in (*EXPECTED_KINDS, *UNEXPECTED_KINDS)
            assert bool(verdict.lost_usd) == bool(verdict.lost_tokens)
            assert verdict.component or verdict.detail
        left = cached_tokens_after(call.usage, row.cache)


@given(recordings())
def test_a_plan_costs_the_same_whenever_expired_cache_entries_are_dropped(transcript: Transcript) -> None:
    planned = audit_transcripts(transcript).planned_usd
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("holdfast.replay.size_estimate.EXPIRED_ENTRIES_MAX", 0)
        assert audit_transcripts(transcript).planned_usd == planned
