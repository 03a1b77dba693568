"""What compaction costs and what it keeps: our modes against never, seed 002, LangChain and the last ten groups.

Recorded conversations are sent again call by call under each policy. A call reads from the cache the entries that it
shares with the call before, if they have not expired, and writes the rest; prices and TTL are those of `MODEL`. Replies
are the recorded ones, so an agent that would have read a file again is not charged for it: the share of edits whose
text is still in view, and the names that are used next and still in view, show what a policy would have to fetch again.
"""

import hashlib
import re
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from html import escape
from pathlib import Path
from typing import Any

import msgspec
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage, trim_messages

from benchmarks._traces import SKIPPED, WITH_PAUSES, sessions_of, traces_folder
from holdfast.catalog.lookup import find_model
from holdfast.catalog.token_count import count_tokens
from holdfast.compaction.models import CompactionConfig, Summary
from holdfast.compaction.seed_strategy import compact_messages
from holdfast.compaction.tool_results import plan_lossless_clearing
from holdfast.compaction.view import clear_batch, group_exchanges
from holdfast.extraction.entities import Entity, EntityKind, find_entities
from holdfast.extraction.tool_calls import extract_plain_text
from holdfast.replay.compaction import compact_recording
from holdfast.replay.playback import find_newest_price
from holdfast.replay.recording import Recording
from holdfast.types.blocks import Json, Message, ToolResult, ToolUse
from holdfast.types.prompt import HistoryEntry

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.support.summary_claims import find_false_claims

MODEL = find_model("anthropic:claude-sonnet-4-6")
TTL = "5m"
LIMIT_TOKENS = 100_000
"""The threshold of seed 002; LangChain trims to the same size."""

NEXT_CALLS = 20
KINDS: tuple[EntityKind, ...] = ("path", "symbol", "value")
WORKERS = 2
PLOT = Path(__file__).parent.parent / "docs" / "images" / "compaction-frontier.svg"
_LINE_NUMBER = re.compile(r"^ *\d+[→\t]", re.MULTILINE)


class Session(msgspec.Struct, frozen=True):
    """A recorded conversation that only grows: entry `n` has number `n + 1`, and a call sends the first `stop`."""

    recording: Recording
    entries: tuple[HistoryEntry, ...]
    tokens: tuple[int, ...]
    prefix_tokens: int
    stops: tuple[int, ...]


class SentCall(msgspec.Struct, frozen=True):
    """The entries that a call sends after the stable prefix, and the summary if it is new: of how many messages."""

    at: float
    view: tuple[HistoryEntry, ...]
    summary: Summary | None = None
    covered: int = 0


Policy = Callable[[Session], list[SentCall]]


class Score(msgspec.Struct, frozen=True):
    """Sums over sessions, so that scores can be added."""

    sessions: int = 0
    calls: int = 0
    cuts: int = 0
    cost: float = 0.0
    edits: int = 0
    edits_in_view: int = 0
    uses: tuple[int, ...] = (0,) * len(KINDS)
    uses_in_view: tuple[int, ...] = (0,) * len(KINDS)
    uses_after_cut: int = 0
    uses_after_cut_in_view: int = 0
    lines: int = 0
    false_lines: int = 0

    def __add__(self, other: "Score") -> "Score":
        pairs = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True)
        sums: list[Any] = [tuple(map(sum, zip(a, b, strict=True))) if isinstance(a, tuple) else a + b for a, b in pairs]
        return Score(*sums)


def number_session(recording: Recording) -> Session:
    entries: list[HistoryEntry] = []
    stops = []
    for call in recording.calls:
        for entry in call.added:
            entries.append(msgspec.structs.replace(entry, number=len(entries) + 1))
        stops.append(len(entries))
        if call.reply is not None:
            entries.append(msgspec.structs.replace(call.reply, number=len(entries) + 1))
    tokens = tuple(count_tokens(extract_plain_text(entry.content), MODEL.tokens_factor) for entry in entries)
    # The client's system prompt and tools are not recorded, but the size of the first prompt is.
    prefix_tokens = max(0, (recording.first_prompt_tokens or 0) - sum(tokens[: stops[0]]))
    return Session(recording, tuple(entries), tokens, prefix_tokens, tuple(stops))


def never(session: Session) -> list[SentCall]:
    calls = zip(session.recording.calls, session.stops, strict=True)
    return [SentCall(call.at, session.entries[:stop]) for call, stop in calls]


def keep_last(count: int) -> Policy:
    def play(session: Session) -> list[SentCall]:
        sent = []
        for call in never(session):
            groups = group_exchanges(call.view)
            sent.append(SentCall(call.at, call.view[groups[-count:][0].start :]))
        return sent

    return play


def seed_002(session: Session) -> list[SentCall]:
    """The seed's own functions: four messages are kept, from 100,000 tokens of prompt on."""
    sent: list[SentCall] = []
    view: tuple[HistoryEntry, ...] = ()
    summary_tokens = before = 0
    for call in never(session):
        view += call.view[before:]
        before = len(call.view)
        numbered_tokens = sum(session.tokens[entry.number - 1] for entry in view if entry.number)
        if session.prefix_tokens + summary_tokens + numbered_tokens >= LIMIT_TOKENS:
            result = compact_messages([Message(entry.role, entry.content) for entry in view], CompactionConfig())
            if result.removed_message_count:
                summary = HistoryEntry("user", result.messages[0].content, layer="record")
                view = (summary, *view[len(view) - len(result.messages) + 1 :])
                summary_tokens = count_tokens(extract_plain_text(summary.content), MODEL.tokens_factor)
        sent.append(SentCall(call.at, view))
    return sent


def langchain_trim(session: Session) -> list[SentCall]:
    """`trim_messages` of langchain-core with the arguments of its documentation, to the same limit."""
    converted = [_to_langchain(entry) for entry in session.entries]

    def count(messages: Sequence[BaseMessage]) -> int:
        return sum(session.tokens[int(number) - 1] for number in dict.fromkeys(m.id for m in messages) if number)

    sent = []
    for call in never(session):
        trimmed = trim_messages(
            [message for entry in call.view for message in converted[entry.number - 1]],
            max_tokens=max(1, LIMIT_TOKENS - session.prefix_tokens),
            token_counter=count,
            strategy="last",
            start_on="human",
            end_on=("human", "tool"),
        )
        numbers = {int(message.id) for message in trimmed if message.id}
        view = tuple(entry for entry in call.view if entry.number in numbers)
        # Where no user text is among the newest messages, as in a long tool loop, it returns nothing that can be sent.
        sent.append(SentCall(call.at, view or call.view[group_exchanges(call.view)[-1].start :]))
    return sent


def _to_langchain(entry: HistoryEntry) -> list[BaseMessage]:
    number = str(entry.number)
    if entry.role == "assistant":
        calls = [block for block in entry.content if isinstance(block, ToolUse)]
        return [AIMessage("", id=number, tool_calls=[{"name": call.name, "args": {}, "id": call.id} for call in calls])]
    results = [block for block in entry.content if isinstance(block, ToolResult)]
    return [ToolMessage("", tool_call_id=r.tool_use_id, id=number) for r in results] or [HumanMessage("", id=number)]


def holdfast_mode(config: CompactionConfig) -> Policy:
    def play(session: Session) -> list[SentCall]:
        compacted = compact_recording(session.recording, MODEL, config)
        view: tuple[HistoryEntry, ...] = ()
        sent = []
        summaries = {placed.call: placed for placed in compacted.summaries}
        for index, call in enumerate(compacted.recording.calls):
            view = (*(view if call.kept_entries is None else view[: call.kept_entries]), *call.added)
            placed = summaries.get(index)
            sent.append(SentCall(call.at, view, *((placed.summary, placed.last) if placed else ())))
            number = max(entry.number for entry in view) + 1
            view += (msgspec.structs.replace(call.reply, number=number),) if call.reply else ()
        return sent

    return play


def clear_lossless(session: Session) -> list[SentCall]:
    """Lossless clearing alone, where it is free: before a call whose cache has expired."""
    sent: list[SentCall] = []
    cleared: dict[int, HistoryEntry] = {}
    for call in never(session):
        view = tuple(cleared.get(entry.number, entry) for entry in call.view)
        if sent and call.at - sent[-1].at >= MODEL.cache.ttls_seconds[TTL]:
            # The reply to the previous call counts as sent.
            batch = plan_lossless_clearing(view, sent=len(sent[-1].view) + 1)
            changed = clear_batch(view, batch.results, batch.images) if batch else view
            cleared |= {new.number: new for old, new in zip(view, changed, strict=True) if old is not new}
            view = changed
        sent.append(SentCall(call.at, view))
    return sent


POLICIES: dict[str, Policy] = {
    "never": never,
    "lossless clearing alone": clear_lossless,
    "seed 002": seed_002,
    "LangChain trim_messages": langchain_trim,
    "the last 10 groups": keep_last(10),
    "holdfast threshold": holdfast_mode(CompactionConfig(mode="threshold")),
    "holdfast economical": holdfast_mode(CompactionConfig(mode="economical")),
}


class Uses:
    """What each reply of a session uses of the conversation before it, and in which entries that was seen."""

    def __init__(self, session: Session) -> None:
        texts = [_LINE_NUMBER.sub("", extract_plain_text(entry.content)) for entry in session.entries]
        self.texts = texts
        seen: dict[Entity, list[int]] = {}
        self.names_by_call: list[list[tuple[Entity, list[int]]]] = []
        self.edits_by_call: list[list[tuple[str, list[int]]]] = []
        self.seen = seen
        at = 0
        for stop in session.stops:
            for index in range(at, stop):
                self._index(index)
            at = stop
            reply = session.entries[stop] if stop < len(session.entries) else None
            if reply is None or reply.role != "assistant":
                self.names_by_call.append([])
                self.edits_by_call.append([])
                continue
            found = {entity for entity in find_entities(texts[stop]) if entity.kind in KINDS}
            self.names_by_call.append([(entity, seen[entity]) for entity in sorted(found, key=str) if entity in seen])
            edits = []
            for old in find_old_strings(reply):
                numbers = [index + 1 for index in range(stop) if old in texts[index]]
                edits += [(old, numbers)] if numbers else []
            self.edits_by_call.append(edits)

    def _index(self, index: int) -> None:
        for entity in set(find_entities(self.texts[index])):
            if entity.kind in KINDS:
                self.seen.setdefault(entity, []).append(index + 1)


def find_old_strings(reply: HistoryEntry) -> Iterator[str]:
    """The texts that the edits of a reply replace."""
    for block in reply.content:
        if isinstance(block, ToolUse):
            try:
                arguments = msgspec.json.decode(block.arguments_json)
            except msgspec.MsgspecError:
                continue
            yield from _old_strings(arguments)


def _old_strings(value: Json) -> Iterator[str]:
    if isinstance(value, dict):
        for name in ("old_string", "old_str", "oldText"):
            text = value.get(name)
            if isinstance(text, str) and text.strip():
                yield text
        edits = value.get("edits")
        for edit in edits if isinstance(edits, list) else ():
            yield from _old_strings(edit)


class _View:
    """Answers whether something is in view: by number for unchanged entries, by text for the others."""

    def __init__(self, session: Session, call: SentCall) -> None:
        unchanged, changed = [], []
        for entry in call.view:
            original = session.entries[entry.number - 1] if entry.number else None
            if original is not None and entry.content is original.content:
                unchanged.append(entry.number)
            else:
                changed.append(_LINE_NUMBER.sub("", extract_plain_text(entry.content)))
        self.first = unchanged[0] if unchanged else sys.maxsize
        self.is_contiguous = not unchanged or unchanged[-1] - unchanged[0] + 1 == len(unchanged)
        self.last = unchanged[-1] if unchanged else 0
        self.numbers = frozenset(unchanged)
        self.text = "\n".join(changed)

    def has(self, text: str, numbers: Sequence[int]) -> bool:
        if self.is_contiguous:
            at = bisect_left(numbers, self.first)
            if at < len(numbers) and numbers[at] <= self.last:
                return True
        elif any(number in self.numbers for number in numbers):
            return True
        return text in self.text


def score_session(session: Session, uses: Uses, policy: Policy) -> Score:
    sent = policy(session)
    setting = find_newest_price(MODEL, LIMIT_TOKENS)
    read, write = float(setting.cache_read / setting.input), float(setting.cache_write_5m / setting.input)
    ttl_seconds = MODEL.cache.ttls_seconds[TTL]
    score = Score(1, len(sent))
    previous: SentCall | None = None
    for index, call in enumerate(sent):
        shared = _shared_entries(previous, call)
        sizes = [_entry_tokens(session, entry) for entry in call.view]
        prompt = session.prefix_tokens + sum(sizes)
        shared_tokens = session.prefix_tokens + sum(sizes[:shared])
        is_cold = previous is None or call.at - previous.at >= ttl_seconds
        cost = write * prompt if is_cold else read * shared_tokens + write * (prompt - shared_tokens)
        view = _View(session, call)
        edits = [view.has(*edit) for edit in uses.edits_by_call[index]]
        names = uses.names_by_call[index]
        in_view = [entity.kind for entity, numbers in names if view.has(entity.text, numbers)]
        is_cut = previous is not None and shared < len(previous.view)
        after_cut = _score_after_cut(uses, view, index, session.stops[index]) if is_cut else (0, 0)
        false_claims = find_false_claims(call.summary, session.entries[: call.covered]) if call.summary else []
        score += Score(
            lines=len(call.summary.lines) if call.summary else 0,
            false_lines=len(false_claims),
            cuts=is_cut,
            cost=cost,
            edits=len(edits),
            edits_in_view=sum(edits),
            uses=tuple(sum(entity.kind == kind for entity, _ in names) for kind in KINDS),
            uses_in_view=tuple(in_view.count(kind) for kind in KINDS),
            uses_after_cut=after_cut[0],
            uses_after_cut_in_view=after_cut[1],
        )
        previous = call
    return score


def _score_after_cut(uses: Uses, view: _View, index: int, stop: int) -> tuple[int, int]:
    """Names seen before a cut and used in the next calls, and how many of them the cut left in view."""
    following = uses.names_by_call[index : index + NEXT_CALLS]
    names = {entity: numbers for used in following for entity, numbers in used if numbers[0] <= stop}
    return len(names), sum(view.has(entity.text, numbers) for entity, numbers in names.items())


def _shared_entries(previous: SentCall | None, call: SentCall) -> int:
    if previous is None:
        return 0
    pairs = enumerate(zip(previous.view, call.view, strict=False))
    differing = (at for at, (old, new) in pairs if old.content is not new.content)
    return next(differing, min(len(previous.view), len(call.view)))


def _entry_tokens(session: Session, entry: HistoryEntry) -> int:
    if entry.number and entry.content is session.entries[entry.number - 1].content:
        return session.tokens[entry.number - 1]
    return count_tokens(extract_plain_text(entry.content), MODEL.tokens_factor)


def score_recording(recording: Recording) -> dict[str, Score]:
    session = number_session(recording)
    uses = Uses(session)
    return {name: score_session(session, uses, policy) for name, policy in POLICIES.items()}


def run() -> list[tuple[str, str]]:
    folder = traces_folder()
    if folder is None:
        return [SKIPPED]
    recordings = sessions_of(folder, WITH_PAUSES, compactions=False)
    # Longest first, so that the workers end together.
    recordings.sort(key=lambda recording: (-len(recording.calls), hashlib.sha256(recording.id.encode()).hexdigest()))
    by_session: list[dict[str, Score]] = []
    with ProcessPoolExecutor(WORKERS) as pool:
        for result in pool.map(score_recording, recordings):
            by_session.append(result)
            if len(by_session) % 20 == 0:
                print(f"{len(by_session)} sessions", file=sys.stderr, flush=True)
    scores = {name: sum((result[name] for result in by_session), Score()) for name in POLICIES}
    PLOT.write_text(draw_frontier(scores))
    return [*print_scores(scores, by_session), ("plot", str(PLOT.relative_to(PLOT.parent.parent.parent)))]


def print_scores(scores: dict[str, Score], by_session: Sequence[dict[str, Score]]) -> list[tuple[str, str]]:
    base = scores["never"]
    rows = [
        ("sessions", f"{base.sessions}, {base.calls} calls, {base.edits} edits of text seen before, {MODEL.id}, {TTL}")
    ]
    for name, score in scores.items():
        kinds = ", ".join(f"{kind} {in_view / max(1, uses):.3f}" for kind, uses, in_view in _by_kind(score))
        figures = (
            f"cost {score.cost / base.cost:.3f}",
            f"edits {score.edits_in_view / max(1, score.edits):.3f}",
            f"next use {sum(score.uses_in_view) / max(1, sum(score.uses)):.3f} ({kinds})",
            f"after a cut {after_cut_share(score):.3f}",
            f"{score.cuts} cuts",
            *describe_worst_session([result[name].cost / result["never"].cost for result in by_session]),
        )
        # Policies without our summaries have no lines to check.
        share = score.false_lines * 100 / max(1, score.lines)
        false_lines = f", {share:.2f} false in 100 of {score.lines} summary lines"
        rows.append((name, ", ".join(figures) + (false_lines if score.lines else "")))
    return rows


def describe_worst_session(ratios: Sequence[float]) -> Iterator[str]:
    """How many sessions cost more than without the policy, and the worst of them."""
    above = sum(ratio > 1 + 1e-9 for ratio in ratios)
    if above:
        yield f"{above} of {len(ratios)} sessions above never, at most {max(ratios):.3f}"


def _by_kind(score: Score) -> Iterator[tuple[str, int, int]]:
    return zip(KINDS, score.uses, score.uses_in_view, strict=True)


# Colours that are legible on a light and on a dark page, where a viewer ignores the style below.
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#737b85}.title{font-weight:600}.axis{stroke:#8c959f;stroke-width:1}"
    ".bar{stroke:#8c959f;stroke-dasharray:4 4}.ours{fill:#2f81f7}.theirs{fill:#bf5b04}"
    "@media(prefers-color-scheme:dark){text{fill:#c9d1d9}.theirs{fill:#f0883e}}"
)
WIDTH, HEIGHT, MARGIN = 460, 380, 60


def draw_frontier(scores: dict[str, Score]) -> str:
    """Cost against what stays in view, for edits and for names that are used after a cut; up and left is better."""
    panels = (
        ("edits whose text is in view", 0.97, lambda score: score.edits_in_view / max(1, score.edits)),
        ("names used after a cut that are in view", 0.90, after_cut_share),
    )
    parts = [_panel(scores, at * WIDTH, *panel) for at, panel in enumerate(panels)]
    size = f'width="{WIDTH * 2}" height="{HEIGHT}" viewBox="0 0 {WIDTH * 2} {HEIGHT}"'
    title = "<title>Cost of compaction against what stays in view</title>"
    start = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">{title}<style>{STYLE}</style>'
    return f"{start}{''.join(parts)}</svg>\n"


def after_cut_share(score: Score) -> float:
    return score.uses_after_cut_in_view / score.uses_after_cut if score.uses_after_cut else 1.0


def _panel(scores: dict[str, Score], left: int, title: str, bar: float, share: Callable[[Score], float]) -> str:
    base = scores["never"].cost
    low = min(0.5, *(share(score) for score in scores.values())) // 0.1 / 10

    def place(cost: float, kept: float) -> tuple[float, float]:
        across, up = (cost - 0.4) / 0.7, (kept - low) / (1.0 - low)
        return left + MARGIN + across * (WIDTH - 1.5 * MARGIN), HEIGHT - MARGIN - up * (HEIGHT - 2 * MARGIN)

    (x0, y0), (x1, y1), (_, y_bar) = place(0.4, low), place(1.1, 1.0), place(0.4, bar)
    parts = [
        f'<text class="title" x="{x0:.0f}" y="30">{escape(title)}</text>',
        f'<path class="axis" fill="none" d="M{x0:.0f} {y1:.0f}V{y0:.0f}H{x1:.0f}"/>',
        f'<path class="bar" d="M{x0:.0f} {y_bar:.1f}H{x1:.0f}"/>',
        f'<text x="{x0:.0f}" y="{HEIGHT - 15}">cost, never compacting = 1</text>',
    ]
    for cost in (0.4, 0.6, 0.8, 1.0):
        parts.append(f'<text text-anchor="middle" x="{place(cost, low)[0]:.0f}" y="{y0 + 18:.0f}">{cost:.1f}</text>')
    for kept in (low, bar, 1.0):
        parts.append(f'<text text-anchor="end" x="{x0 - 6:.0f}" y="{place(0.4, kept)[1] + 4:.0f}">{kept:.2f}</text>')
    taken: list[float] = []
    for name, score in sorted(scores.items(), key=lambda item: -share(item[1])):
        x, y = place(score.cost / base, share(score))
        kind = "ours" if name.startswith("holdfast") else "theirs"
        # Labels of points that are close to each other are moved down, one below the other.
        label_y = y + 4
        while any(abs(label_y - other) < 15 for other in taken):
            label_y += 3
        taken.append(label_y)
        anchor, offset = ("end", -9) if score.cost / base > 0.8 else ("start", 9)
        label = f'<text text-anchor="{anchor}" x="{x + offset:.1f}" y="{label_y:.1f}">{escape(name)}</text>'
        parts.append(f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="5"/>{label}')
    return "".join(parts)
