"""How many harvested knowledge items are useful, by a rubric and labels that were made from the conversations alone."""

import os
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, get_args

import msgspec

from benchmarks._traces import SKIPPED, WITH_PAUSES, sessions_of, traces_folder
from holdfast.extraction.entities import split_sentences
from holdfast.extraction.tool_calls import interpret_call
from holdfast.knowledge.extract import commit_subject, core_command, extract_items
from holdfast.knowledge.items import Category, Item, normalize_item_text
from holdfast.replay.recording import Recording
from holdfast.types.blocks import ToolResult, ToolUse, join_text_blocks
from holdfast.types.json_encoding import sha256_hex
from holdfast.types.prompt import HistoryEntry

LABELS = Path(__file__).with_name("knowledge_labels.json")
Source = Literal["said", "ran", "replied", "planned", "committed"]
Split = Literal["tuning", "held-out"]
Label = Literal["useful", "partly", "noise"]
SAMPLE_RATES: dict[tuple[Source, bool], float] = {
    ("said", True): 1.0,
    ("said", False): 0.05,
    ("ran", True): 1.0,
    ("replied", False): 0.01,
    ("planned", False): 0.3,
    ("committed", False): 1.0,
}
"""The share of candidates that is labelled, by source and by whether it has a word of obligation or preference."""

_RULE_WORDS = re.compile(
    r"(?i)\b(?:always|never|must|should|shouldn't|don't|dont|do not|use|prefer|avoid|only|instead|rather|conventions?|"
    r"make sure|we|let's|lets|from now on)\b"
)


class Candidate(msgspec.Struct, frozen=True):
    """A text that could become an item; `number` is the message that it comes from."""

    source: Source
    session: str
    number: int
    text: str

    @property
    def key(self) -> str:
        return candidate_key(self.source, self.session, self.text)

    @property
    def is_likely(self) -> bool:
        return self.source == "ran" or (self.source == "said" and bool(_RULE_WORDS.search(self.text)))


def candidate_key(source: Source, session: str, text: str) -> str:
    """The digest under which a candidate is labelled. A command means the same in every session."""
    scope = "" if source == "ran" else session
    return sha256_hex(f"{source}\n{scope}\n{normalize_item_text(text)}".encode("utf-8", "surrogatepass"))[:16]


def split_of(session: str) -> Split:
    return "held-out" if int(sha256_hex(session.encode()), 16) % 2 else "tuning"


def list_candidates(session: str, entries: Iterable[HistoryEntry]) -> Iterator[Candidate]:
    """All candidates of a session, as the rubric defines them."""
    runs: Counter[str] = Counter()
    numbers: dict[str, int] = {}
    planned: tuple[tuple[str, int], ...] = ()
    for entry in entries:
        text = join_text_blocks(entry.content)
        calls = [interpret_call(block) for block in entry.content if isinstance(block, ToolUse)]
        if entry.role == "user" and not any(isinstance(block, ToolResult) for block in entry.content):
            sentences = split_sentences(text) if len(text) <= 2_000 else []
            yield from (Candidate("said", session, entry.number, said) for said in sentences if 20 <= len(said) <= 300)
        elif entry.role == "assistant" and not calls:
            replied = (sentence for sentence in split_sentences(text) if 40 <= len(sentence) <= 300)
            yield from (Candidate("replied", session, entry.number, sentence) for sentence in replied)
        for call in calls:
            command = core_command(call.command) if call.kind == "run" else ""
            if command and "\n" not in call.command and len(command) <= 160:
                runs[command] += 1
                numbers[command] = entry.number
            if subject := commit_subject(call.command):
                yield Candidate("committed", session, entry.number, subject)
            if call.kind == "plan" and call.tasks:
                planned = tuple((task.text, entry.number) for task in call.tasks)
    yield from (Candidate("ran", session, numbers[command], command) for command, times in runs.items() if times >= 2)
    yield from (Candidate("planned", session, number, text) for text, number in planned)


def sample_candidates(recordings: Iterable[Recording]) -> Iterator[Candidate]:
    """The candidates to label: chosen by their digest, so that the choice does not depend on their order."""
    seen: set[str] = set()
    for recording in recordings:
        for candidate in list_candidates(recording.id, number_entries(recording)):
            rate = SAMPLE_RATES.get((candidate.source, candidate.is_likely), 0.0)
            if candidate.key not in seen and random.Random(candidate.key).random() < rate:
                seen.add(candidate.key)
                yield candidate


def number_entries(recording: Recording) -> tuple[HistoryEntry, ...]:
    entries = (entry for call in recording.calls for entry in (*call.added, *((call.reply,) if call.reply else ())))
    return tuple(msgspec.structs.replace(entry, number=at + 1) for at, entry in enumerate(entries))


def read_labels() -> dict[str, Label]:
    """Labels by candidate key."""
    by_source = msgspec.json.decode(LABELS.read_bytes(), type=dict[Source, dict[Label, list[str]]])
    return {key: label for labels in by_source.values() for label, keys in labels.items() for key in keys}


def item_key(item: Item) -> str:
    """The key of the candidate that an item was made from."""
    session = item.sources[0].session
    if item.category == "playbooks":
        return candidate_key("ran", session, item.text.removeprefix("Run ").strip("`"))
    if item.category == "files":
        return candidate_key("committed", session, item.text.removeprefix("Changed for: "))
    return candidate_key("said" if item.sources[0].origin == "user" else "replied", session, item.text)


def harvest_split(recordings: Iterable[Recording], split: Split) -> dict[tuple[Category, str], Item]:
    """The distinct items of a split, by kind and candidate: a note on ten files is one."""
    items: dict[tuple[Category, str], Item] = {}
    for recording in recordings:
        if split_of(recording.id) == split:
            entries = number_entries(recording)
            workspace = find_workspace(entries)
            for item in extract_items(entries, session=recording.id, day="2026-11-01", workspace=workspace).items:
                items.setdefault((item.category, item_key(item)), item)
    return items


def find_workspace(entries: Iterable[HistoryEntry]) -> str:
    """The folder that holds every file that was written: recordings do not name their workspace."""
    calls = [interpret_call(block) for entry in entries for block in entry.content if isinstance(block, ToolUse)]
    paths = [call.path for call in calls if call.kind == "write" and call.path.startswith("/")]
    return os.path.commonpath(paths) if len(set(paths)) > 1 else "/"


def run() -> Iterator[tuple[str, str]]:
    traces = traces_folder()
    if traces is None:
        yield SKIPPED
        return
    recordings, labels = sessions_of(traces, WITH_PAUSES, compactions=False), read_labels()
    yield "labelled candidates", str(len(labels))
    for split in get_args(Split):
        sessions = sum(split_of(recording.id) == split for recording in recordings)
        items = harvest_split(recordings, split)
        yield f"{split}: sessions, items", f"{sessions}, {len(items)}"
        for kind in ("decisions", "facts", "playbooks", "files", ""):
            found = [labels.get(key, "unlabelled") for category, key in items if kind in ("", category)]
            yield f"{split}: precision of {kind or 'all kinds'}", describe_precision(found)
        confident = [labels.get(key, "unlabelled") for (_, key), item in items.items() if item.is_confident]
        yield f"{split}: precision of confident items", describe_precision(confident)


def describe_precision(labels: list[str]) -> str:
    """The share of useful items among the labelled ones; items without a label are counted, not left out silently."""
    counts = Counter(labels)
    known = len(labels) - counts["unlabelled"]
    if not known:
        return f"no labelled item, {counts['unlabelled']} without a label"
    rest = f"{counts['partly']} partly, {counts['noise']} noise, {counts['unlabelled']} without a label"
    return f"{counts['useful'] / known:.2f} ({counts['useful']} of {known}; {rest})"
