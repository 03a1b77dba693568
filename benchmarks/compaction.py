"""How much of what a conversation needs later survives its compaction, compared with truncation and other ways.

Recorded conversations are cut whenever they have grown by a fixed number of tokens, at the first call where the view
can be a fifth of its size. Constants were chosen on the half of the sessions that is not scored here.
"""

import hashlib
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import msgspec

from benchmarks._traces import SKIPPED, sessions_of, traces_folder
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
    """A conversation at a cut, its tokens message by message, and the entities that are used again after it."""

    history: tuple[HistoryEntry, ...]
    tokens: tuple[int, ...]
    since: int
    number: int
    used: frozenset[Entity]

    @property
    def before_tokens(self) -> int:
        return sum(self.tokens[self.since :])


class View(msgspec.Struct, frozen=True):
    """The compacted view: its text, its size, and the messages that single lines refer to."""

    text: str
    tokens: int
    kept_from: int
    sources: frozenset[int] = frozenset()
    summary: Summary | None = None


Compactor = Callable[[Moment], View | None]


def is_scored(recording: Recording) -> bool:
    """Whether a session is one of the half that is scored."""
    return hashlib.sha256(recording.id.encode()).digest()[0] % 2 == 1


def number_entries(recording: Recording) -> tuple[HistoryEntry, ...]:
    entries = (item for call in recording.calls for item in (*call.added, *((call.reply,) if call.reply else ())))
    return tuple(msgspec.structs.replace(entry, number=at + 1) for at, entry in enumerate(entries))


def find_named(entry: HistoryEntry) -> set[Entity]:
    found = set(find_entities(extract_plain_text(entry.content)))
    for block in entry.content:
        if isinstance(block, ToolUse) and (command := interpret_call(block).command):
            found.add(Entity("command", collapse_whitespace(command)[:160]))
    return found


def find_cuts(recording: Recording) -> Iterator[Moment]:
    """Cuts of a conversation, each when it has grown enough since the previous one and can shrink to a fifth."""
    history = number_entries(recording)
    tokens = tuple(count_tokens(extract_plain_text(item.content)) for item in history)
    named = [find_named(item) for item in history]
    since, number = 0, 0
    for end in range(1, len(history)):
        if history[end].role != "assistant" or sum(tokens[since:end]) < EVERY_TOKENS:
            continue
        moment = Moment(history[:end], tokens[:end], since, number + 1, frozenset())
        cut = _cut(moment)
        if cut is None or sum(tokens[cut.stop : end]) > SHARE_MAX * moment.before_tokens / 2:
            continue
        seen = set().union(*named[:end])
        used = seen.intersection(_used_next(history, named, end))
        yield msgspec.structs.replace(moment, used=frozenset(used))
        since, number = cut.stop, number + 1


def _used_next(history: Sequence[HistoryEntry], named: Sequence[set[Entity]], end: int) -> set[Entity]:
    """What the model or the user mentions in the turns after a cut; tool outputs do not count."""
    used, turns = set[Entity](), 0
    for entry, found in zip(history[end:], named[end:], strict=True):
        turns += entry.role == "assistant"
        if turns > NEXT_TURNS:
            break
        if entry.role == "assistant" or not any(type(block).__name__ == "ToolResult" for block in entry.content):
            used |= found
    return used


def _cut(moment: Moment):  # type: ignore[no-untyped-def]  # the type is that of cut_at
    _, tail = split_token_budget(moment.before_tokens, DEFAULT_CONFIG)
    return choose_cut(moment.history, moment.tokens, tail_tokens_max=tail, unsent=len(moment.history))


def _text(history: Sequence[HistoryEntry]) -> str:
    return "\n".join(extract_plain_text(item.content) for item in history)


def ours(moment: Moment) -> View | None:
    cut = _cut(moment)
    summary_max, _ = split_token_budget(moment.before_tokens, DEFAULT_CONFIG)
    retained = moment.history[cut.stop :]
    summary = build_summary(
        extract_facts(moment.history[: cut.stop]),
        tokens_max=summary_max,
        count=count_tokens,
        kept=KeptMessages(_text(retained), len(extract_facts(retained).requests)),
    )
    text = render_summary(summary, recall=True)
    sources = frozenset(number for line in summary.lines for number in line.sources)
    size = count_tokens(text) + sum(moment.tokens[cut.stop :])
    return View(f"{text}\n{_text(retained)}", size, cut.stop, sources, summary)


def truncation(moment: Moment) -> View:
    """The newest groups that fit into a fifth."""
    room = int(moment.before_tokens * SHARE_MAX)
    cut = choose_cut(moment.history, moment.tokens, tail_tokens_max=room, unsent=len(moment.history))
    start = cut.stop if cut else 0
    return View(_text(moment.history[start:]), sum(moment.tokens[start:]), start)


def keep_last(count: int) -> Compactor:
    def last(moment: Moment) -> View:
        groups = group_exchanges(moment.history, moment.tokens)[-count:]
        start = groups[0].start
        return View(_text(moment.history[start:]), sum(moment.tokens[start:]), start)

    return last


def seed(moment: Moment) -> View:
    """The summary of seed 002 and its last four messages."""
    start = group_exchanges(moment.history)[-2].start if len(moment.history) > 4 else 0
    text = summarize_messages([Message(item.role, item.content) for item in moment.history[:start]])
    return View(f"{text}\n{_text(moment.history[start:])}", count_tokens(text) + sum(moment.tokens[start:]), start)


def read_client_summaries(recording: Recording) -> Iterator[tuple[Moment, View]]:
    """What a recorded client has really put in place of its conversation, and the moment in which it did."""
    entries: list[HistoryEntry] = []
    for index, call in enumerate(recording.calls):
        if call.kept_entries == 0 and entries:
            later_entries = [item for later in recording.calls[index:] for item in (*later.added, *_reply(later))]
            later_entries = later_entries[len(call.added) :]
            before = tuple(entries)
            seen = set().union(*(find_named(item) for item in before))
            used = seen & _used_next(later_entries, [find_named(item) for item in later_entries], 0)
            tokens = tuple(count_tokens(extract_plain_text(item.content)) for item in before)
            text = _text(call.added)
            yield Moment(before, tokens, 0, 1, frozenset(used)), View(text, count_tokens(text), len(before))
            entries = []
        entries += [*call.added, *_reply(call)]


def _reply(call: RecordedCall) -> tuple[HistoryEntry, ...]:
    return (call.reply,) if call.reply is not None else ()


def find_reachable(moment: Moment, view: View) -> set[Entity]:
    """The text of the groups that a line of the summary refers to."""
    found = set[Entity]()
    for group in group_exchanges(moment.history):
        inside = moment.history[group.start : group.stop]
        if any(item.number in view.sources for item in inside):
            for item in inside:
                found |= find_named(item)
    return found


def present(entity: Entity, view: View, normalized: str) -> bool:
    return entity.text in (normalized if entity.kind in ("error", "command") else view.text)


def count_fabricated(moment: Moment, summary: Summary) -> int:
    """Entities in a summary that the conversation does not contain; our own digests do not count."""
    entries = _text(moment.history)
    count = 0
    for line in summary.lines:
        for entity in find_entities(line.text):
            ours_to_make = f"sha:{entity.text}" in line.text or entity.kind == "error"
            count += not ours_to_make and entity.text not in entries
    return count


def run() -> list[tuple[str, str]]:
    folder = traces_folder()
    if folder is None:
        return [SKIPPED]
    sessions = [item for name in SOURCES for item in sessions_of(folder, name, compactions=False) if is_scored(item)]
    sessions.sort(key=lambda item: hashlib.sha256(item.id.encode()).hexdigest())
    cuts = [moment for item in sessions[:SESSIONS_MAX] for moment in find_cuts(item)]
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
        for item in sessions_of(folder, name, compactions=True)
        for moment, view in read_client_summaries(item)
    }
    if summaries:
        normalized = [moment for moment, _ in summaries.values()]
        label = f"the client's own {len(normalized)} summaries"
        rows += _scores(label, lambda moment: summaries[id(moment)][1], normalized)
    return rows


def _scores(name: str, compactor: Compactor, cuts: Sequence[Moment]) -> list[tuple[str, str]]:
    total, seen, reachable = Counter[str](), Counter[str](), Counter[str]()
    shares, fabricated_count, seconds = [], 0, []
    for moment in cuts:
        started = time.perf_counter()
        view = compactor(moment)
        seconds.append(time.perf_counter() - started)
        if view is None:
            continue
        shares.append(view.tokens / moment.before_tokens)
        normalized, reach = normalize_text(view.text), find_reachable(moment, view) if view.sources else set()
        fabricated_count += count_fabricated(moment, view.summary) if view.summary else 0
        for entity in moment.used:
            for key in ("all", entity.kind, f"compaction {min(moment.number, 4)}"):
                total[key] += 1
                there = present(entity, view, normalized)
                seen[key] += there
                reachable[key] += there or entity in reach
    bars = f" (bar: {IN_VIEW_MIN:.2f} and {EXPANDABLE_MIN:.2f})" if name == "holdfast" else ""
    rows = [
        (f"{name}: recall in view, and with lines that lead there", f"{_both(seen, reachable, total, 'all')}{bars}")
    ]
    rows.append((f"{name}: size", f"{statistics.mean(shares):.3f} of before, at most {max(shares):.3f}"))
    if name == "holdfast":
        rows += [
            (f"  {key}, {total[key]} uses", _both(seen, reachable, total, key)) for key in sorted(total) if key != "all"
        ]
        rows.append(("fabricated entities", f"{fabricated_count} (bar: 0)"))
        rows.append(("time for a record", f"{statistics.median(seconds):.2f} s, at most {max(seconds):.2f} s"))
    return rows


def normalize_text(text: str) -> str:
    """The text on one line and without its numbers, as signatures of errors and commands are."""
    return "\n".join((collapse_whitespace(text), *(error_signature(line) for line in text.splitlines())))


def _both(seen: Counter[str], reachable: Counter[str], total: Counter[str], key: str) -> str:
    return f"{seen[key] / max(1, total[key]):.3f}, {reachable[key] / max(1, total[key]):.3f}"
