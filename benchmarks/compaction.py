"""What of a compacted conversation is still there when it is used again, beside plain truncation and other ways.

Recorded conversations are cut whenever they have grown by so many tokens, at the first call where the view can be a
fifth of what it was. Constants were chosen on the half of the sessions that is not scored here.
"""

import hashlib
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import msgspec

from benchmarks._traces import LEFT_OUT, sessions_of, traces_folder
from holdfast.catalog.token_count import count_tokens
from holdfast.compaction.decision import split_token_budget
from holdfast.compaction.models import DEFAULT_CONFIG, Summary
from holdfast.compaction.seed_strategy import summarize_messages
from holdfast.compaction.summary import KeptMessages, build_summary, render_summary
from holdfast.compaction.view import choose_cut, group_exchanges
from holdfast.extraction.entities import Entity, collapse_whitespace, error_signature, find_entities
from holdfast.extraction.facts import extract_facts
from holdfast.extraction.tool_calls import extract_plain_text, interpret_call
from holdfast.replay.recording import RecordedCall, Recording
from holdfast.types.blocks import Message, ToolUse
from holdfast.types.prompt import HistoryEntry

SOURCES = ("entire_claude_code", "pi_coding_agent")
EVERY_TOKENS = 40_000
NEXT_TURNS = 20
IN_VIEW_MIN, EXPANDABLE_MIN = 0.70, 0.90
SHARE_MAX = DEFAULT_CONFIG.share_max
SESSIONS_MAX = 40
"""So that it ends within minutes; they are the first by the digest of their ids."""


class Moment(msgspec.Struct, frozen=True):
    """A conversation at a cut, its tokens message by message, and the entities that are used again behind it."""

    passages: tuple[HistoryEntry, ...]
    tokens: tuple[int, ...]
    since: int
    number: int
    used: frozenset[Entity]

    @property
    def before_tokens(self) -> int:
        return sum(self.tokens[self.since :])


class View(msgspec.Struct, frozen=True):
    """What is left: its text, its size, and the messages that single lines of it lead to."""

    text: str
    tokens: int
    kept_from: int
    sources: frozenset[int] = frozenset()
    record: Summary | None = None


Compactor = Callable[[Moment], View | None]


def scored(recording: Recording) -> bool:
    """Whether a session is one of the half that is scored."""
    return hashlib.sha256(recording.id.encode()).digest()[0] % 2 == 1


def numbered(recording: Recording) -> tuple[HistoryEntry, ...]:
    said = (one for call in recording.calls for one in (*call.added, *((call.reply,) if call.reply else ())))
    return tuple(msgspec.structs.replace(passage, number=at + 1) for at, passage in enumerate(said))


def named_in(passage: HistoryEntry) -> set[Entity]:
    found = set(find_entities(extract_plain_text(passage.content)))
    for block in passage.content:
        if isinstance(block, ToolUse) and (command := interpret_call(block).command):
            found.add(Entity("command", collapse_whitespace(command)[:160]))
    return found


def moments(recording: Recording) -> Iterator[Moment]:
    """Cuts of a conversation, each once it has grown enough behind the one before and can be made a fifth."""
    passages = numbered(recording)
    tokens = tuple(count_tokens(extract_plain_text(one.content)) for one in passages)
    named = [named_in(one) for one in passages]
    since, number = 0, 0
    for end in range(1, len(passages)):
        if passages[end].role != "assistant" or sum(tokens[since:end]) < EVERY_TOKENS:
            continue
        moment = Moment(passages[:end], tokens[:end], since, number + 1, frozenset())
        cut = _cut(moment)
        if cut is None or sum(tokens[cut.stop : end]) > SHARE_MAX * moment.before_tokens / 2:
            continue
        seen = set().union(*named[:end])
        used = seen.intersection(_used_next(passages, named, end))
        yield msgspec.structs.replace(moment, used=frozenset(used))
        since, number = cut.stop, number + 1


def _used_next(passages: Sequence[HistoryEntry], named: Sequence[set[Entity]], end: int) -> set[Entity]:
    """What the model says or asks for, or a person says, in the turns behind a cut; outputs bring what they name."""
    used, turns = set[Entity](), 0
    for passage, found in zip(passages[end:], named[end:], strict=True):
        turns += passage.role == "assistant"
        if turns > NEXT_TURNS:
            break
        if passage.role == "assistant" or not any(type(block).__name__ == "ToolResult" for block in passage.content):
            used |= found
    return used


def _cut(moment: Moment):  # type: ignore[no-untyped-def]  # the type is that of cut_at
    _, tail = split_token_budget(moment.before_tokens, DEFAULT_CONFIG)
    return choose_cut(moment.passages, moment.tokens, tail_tokens_max=tail, unsent=len(moment.passages))


def _text(passages: Sequence[HistoryEntry]) -> str:
    return "\n".join(extract_plain_text(one.content) for one in passages)


def ours(moment: Moment) -> View | None:
    cut = _cut(moment)
    record_max, _ = split_token_budget(moment.before_tokens, DEFAULT_CONFIG)
    kept = moment.passages[cut.stop :]
    record = build_summary(
        extract_facts(moment.passages[: cut.stop]),
        tokens_max=record_max,
        count=count_tokens,
        kept=KeptMessages(_text(kept), len(extract_facts(kept).requests)),
    )
    text = render_summary(record, recall=True)
    sources = frozenset(number for line in record.lines for number in line.sources)
    size = count_tokens(text) + sum(moment.tokens[cut.stop :])
    return View(f"{text}\n{_text(kept)}", size, cut.stop, sources, record)


def truncation(moment: Moment) -> View:
    """The newest groups that fit into a fifth."""
    room = int(moment.before_tokens * SHARE_MAX)
    cut = choose_cut(moment.passages, moment.tokens, tail_tokens_max=room, unsent=len(moment.passages))
    start = cut.stop if cut else 0
    return View(_text(moment.passages[start:]), sum(moment.tokens[start:]), start)


def keep_last(count: int) -> Compactor:
    def last(moment: Moment) -> View:
        groups = group_exchanges(moment.passages, moment.tokens)[-count:]
        start = groups[0].start
        return View(_text(moment.passages[start:]), sum(moment.tokens[start:]), start)

    return last


def seed(moment: Moment) -> View:
    """The summary of seed 002 and its last four messages."""
    start = group_exchanges(moment.passages)[-2].start if len(moment.passages) > 4 else 0
    text = summarize_messages([Message(one.role, one.content) for one in moment.passages[:start]])
    return View(f"{text}\n{_text(moment.passages[start:])}", count_tokens(text) + sum(moment.tokens[start:]), start)


def summed_up_by_the_client(recording: Recording) -> Iterator[tuple[Moment, View]]:
    """What a recorded client has really put in place of its conversation, and the moment in which it did."""
    said: list[HistoryEntry] = []
    for index, call in enumerate(recording.calls):
        if call.kept_entries == 0 and said:
            behind = [one for later in recording.calls[index:] for one in (*later.added, *_reply(later))]
            behind = behind[len(call.added) :]
            before = tuple(said)
            seen = set().union(*(named_in(one) for one in before))
            used = seen & _used_next(behind, [named_in(one) for one in behind], 0)
            tokens = tuple(count_tokens(extract_plain_text(one.content)) for one in before)
            text = _text(call.added)
            yield Moment(before, tokens, 0, 1, frozenset(used)), View(text, count_tokens(text), len(before))
            said = []
        said += [*call.added, *_reply(call)]


def _reply(call: RecordedCall) -> tuple[HistoryEntry, ...]:
    return (call.reply,) if call.reply is not None else ()


def reached(moment: Moment, view: View) -> set[Entity]:
    """What stands in the groups that a line of the record leads to."""
    found = set[Entity]()
    for group in group_exchanges(moment.passages):
        inside = moment.passages[group.start : group.stop]
        if any(one.number in view.sources for one in inside):
            for one in inside:
                found |= named_in(one)
    return found


def present(entity: Entity, view: View, told: str) -> bool:
    return entity.text in (told if entity.kind in ("error", "command") else view.text)


def fabricated(moment: Moment, record: Summary) -> int:
    """Entities that a record names and nobody has said; digests that we have made ourselves are marked as such."""
    said = _text(moment.passages)
    count = 0
    for line in record.lines:
        for entity in find_entities(line.text):
            ours_to_make = f"sha:{entity.text}" in line.text or entity.kind == "error"
            count += not ours_to_make and entity.text not in said
    return count


def run() -> list[tuple[str, str]]:
    folder = traces_folder()
    if folder is None:
        return [LEFT_OUT]
    sessions = [one for name in SOURCES for one in sessions_of(folder, name, compactions=False) if scored(one)]
    sessions.sort(key=lambda one: hashlib.sha256(one.id.encode()).hexdigest())
    cuts = [moment for one in sessions[:SESSIONS_MAX] for moment in moments(one)]
    rivals: dict[str, Compactor] = {
        "holdfast": ours,
        "truncation to a fifth": truncation,
        "the last 10 groups": keep_last(10),
        "seed 002": seed,
    }
    rows = [("cuts", f"{len(cuts)} in {len(sessions[:SESSIONS_MAX])} sessions that chose no constant")]
    for name, compactor in rivals.items():
        rows += _scores(name, compactor, cuts)
    summaries = {
        id(moment): (moment, view)
        for name in SOURCES
        for one in sessions_of(folder, name, compactions=True)
        for moment, view in summed_up_by_the_client(one)
    }
    if summaries:
        told = [moment for moment, _ in summaries.values()]
        label = f"the client's own {len(told)} summaries"
        rows += _scores(label, lambda moment: summaries[id(moment)][1], told)
    return rows


def _scores(name: str, compactor: Compactor, cuts: Sequence[Moment]) -> list[tuple[str, str]]:
    total, seen, led = Counter[str](), Counter[str](), Counter[str]()
    shares, invented, taken = [], 0, []
    for moment in cuts:
        begun = time.perf_counter()
        view = compactor(moment)
        taken.append(time.perf_counter() - begun)
        if view is None:
            continue
        shares.append(view.tokens / moment.before_tokens)
        told, reach = signature_free(view.text), reached(moment, view) if view.sources else set()
        invented += fabricated(moment, view.record) if view.record else 0
        for entity in moment.used:
            for key in ("all", entity.kind, f"compaction {min(moment.number, 4)}"):
                total[key] += 1
                there = present(entity, view, told)
                seen[key] += there
                led[key] += there or entity in reach
    bars = f" (bar: {IN_VIEW_MIN:.2f} and {EXPANDABLE_MIN:.2f})" if name == "holdfast" else ""
    rows = [(f"{name}: recall in view, and with lines that lead there", f"{_both(seen, led, total, 'all')}{bars}")]
    rows.append((f"{name}: size", f"{statistics.mean(shares):.3f} of before, at most {max(shares):.3f}"))
    if name == "holdfast":
        rows += [(f"  {key}, {total[key]} uses", _both(seen, led, total, key)) for key in sorted(total) if key != "all"]
        rows.append(("fabricated entities", f"{invented} (bar: 0)"))
        rows.append(("time for a record", f"{statistics.median(taken):.2f} s, at most {max(taken):.2f} s"))
    return rows


def signature_free(text: str) -> str:
    """The text on one line and without its numbers, as signatures of errors and commands are."""
    return "\n".join((collapse_whitespace(text), *(error_signature(line) for line in text.splitlines())))


def _both(seen: Counter[str], led: Counter[str], total: Counter[str], key: str) -> str:
    return f"{seen[key] / max(1, total[key]):.3f}, {led[key] / max(1, total[key]):.3f}"
