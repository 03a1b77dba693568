"""Detects which units an agent used from its trace, and stores that next to what the agent reported itself.

Evidence is text that the agent wrote or passed to a tool, unless a message or tool result had shown it before:

- `address`: the URI of a unit, or its name and version (`code-review/v2`).
- `name`: the name of a unit in the agent's own text. A name with three or more parts, a digit or an underscore counts
  anywhere; one with two parts (`code-review`, a common phrase) only in quotes or next to the word unit or instruction;
  a single word (`testing`) only in quotes and next to such a word.
- `rule`: an id at the start of a line of the unit, or in brackets (`SEC-12`, `R3:`). An id with one letter counts only
  where it is cited: in brackets, before a colon, after a word such as rule or per.
- `tool`: a tool that the unit names in backticks and that was called. `command`: a command that it names in backticks
  or in a code block and that was run with the same words. Neither counts if the unit forbids it or if it is common.
- `phrase`: eight consecutive words of the unit that no other unit has; not from fenced code, which is often the same.

A fingerprint that two loaded units share identifies neither. A unit that was not loaded is detected by address, name
or rule only, unless a loaded one has the same. Recalls and usage reports are not usage. A message that contains a
unit's whole text delivers the unit, so it does not count as having shown it before.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from holdfast.errors import InstructionError
from holdfast.instructions.access import InstructionCaller
from holdfast.instructions.context import InstructionContext
from holdfast.instructions.models import Agent, AuditRecord, DetectedUnit, EvidenceKind, ManifestEntry, UsageEvidence
from holdfast.instructions.recall.answer import find_own_record
from holdfast.instructions.recall.selection import InstructionSet
from holdfast.instructions.uri import parse_unit_uri
from holdfast.instructions.usage.fingerprints import (
    COMMAND_WORDS_MAX,
    PHRASE_WORDS,
    WORD,
    Fingerprint,
    FingerprintIndex,
    UnitText,
    index_fingerprints,
)
from holdfast.instructions.usage.trace import (
    AgentTextStep,
    ObservationStep,
    ToolCallStep,
    TraceStep,
    check_trace_size,
    find_argument_texts,
    is_instruction_tool,
    trace_after_token,
)

_TOKEN = re.compile(r"[A-Za-z0-9][\w.@+:/-]*")
_OPENING, _CLOSING = "`'\"[“‘*", "`'\"]”’*"
_BESIDE_BEFORE = re.compile(r"\b(?:(?:unit|instruction)s?:?|per)\s+[`'\"\[“‘*]*\Z", re.IGNORECASE)
_BESIDE_AFTER = re.compile(r"[`'\"\]”’*]*\s+(?:unit|instruction)s?\b", re.IGNORECASE)
_CITED_BEFORE = re.compile(
    r"\b(?:rules?|per|see|under|follow(?:s|ed|ing)?|violat\w{1,4})\s+[`'\"\[(*]*\Z", re.IGNORECASE
)
_CONTEXT_CHARACTERS = 30
_SHORT_RULE = re.compile(r"[A-Z]\d{1,5}[a-z]?")
_BARE_NAME = re.compile(r"[\d_]|[-.][^-.]+[-.]")
# Argument names under which shell tools of the common agents take a command.
_COMMAND_MEMBERS = frozenset(("command", "cmd", "commands", "script", "argv", "shell_command"))
_BETWEEN_COMMANDS = re.compile(r"&&|\|\||[;|&()\n]")
_ASSIGNMENT = re.compile(r"\w+=\S*")
# Programs that run another one: `uv run pytest` counts as `pytest`.
_WRAPPERS = tuple(
    words.split()
    for words in (
        *("sudo", "time", "env", "nohup", "exec", "command", "npx", "uv run", "poetry run", "pipenv run"),
        *("bash -c", "bash -lc", "sh -c", "sh -lc", "python -m", "python3 -m"),
    )
)
_AROUND_WORDS = "`'\"()[]*.,:;!?"
_Key = tuple[EvidenceKind, str | tuple[str, ...]]


class _Match(msgspec.Struct, frozen=True):
    key: _Key
    fingerprint: Fingerprint


_Words = TypeVar("_Words", str, tuple[str, ...])


def _look_up(kind: EvidenceKind, words: _Words, fingerprints: Mapping[_Words, Fingerprint]) -> Iterator[_Match]:
    if words in fingerprints:
        yield _Match((kind, words), fingerprints[words])


def detect_usage(
    units: Sequence[UnitText],
    trace: Sequence[TraceStep],
    *,
    loaded: frozenset[str],
    earlier_texts: Sequence[str] = (),
    index_texts: Sequence[str] = (),
) -> tuple[DetectedUnit, ...]:
    """Detections in the order of the units, with the first evidence of each kind.

    `earlier_texts` is what the agent had before the recall; `index_texts` is what the index shows of the units. A name
    or rule from the index still refers to its unit, but repeating other index text does not prove that it was read.
    """
    fingerprints = index_fingerprints(units, loaded)
    shown: set[_Key] = set()
    for text in earlier_texts:
        shown.update(match.key for match in _matches_shown(fingerprints, text) if match.key[0] != "name")
    for text in index_texts:
        shown.update(match.key for match in _matches_shown(fingerprints, text) if match.key[0] not in ("name", "rule"))
    evidence_by_unit: dict[int, dict[EvidenceKind, UsageEvidence]] = {}
    for number, step in enumerate(trace, 1):
        if isinstance(step, ObservationStep):
            delivered = _delivered_units(units, step)
            if not is_instruction_tool(step.tool):
                matches = _matches_shown(fingerprints, step.text)
                shown.update(match.key for match in matches if match.fingerprint.unit_index not in delivered)
            continue
        for match in _matches_in_step(fingerprints, step):
            kind, fingerprint = match.key[0], match.fingerprint
            if match.key not in shown:
                evidence = evidence_by_unit.setdefault(fingerprint.unit_index, {})
                evidence.setdefault(kind, UsageEvidence(kind, number, fingerprint.line))
    detected = sorted(evidence_by_unit.items())
    return tuple(DetectedUnit(units[index].name, tuple(evidence.values())) for index, evidence in detected)


def _matches_in_step(fingerprints: FingerprintIndex, step: AgentTextStep | ToolCallStep) -> Iterator[_Match]:
    if isinstance(step, AgentTextStep):
        yield from _references(fingerprints, step.text, names=True)
        yield from _phrases(fingerprints, step.text)
    elif not is_instruction_tool(step.tool):
        # MCP tools are offered as mcp__server__tool, while a unit names the bare tool.
        for name in {step.tool, step.tool.rpartition("__")[2]}:
            yield from _look_up("tool", name, fingerprints.tools)
        for member, text in find_argument_texts(step.arguments):
            yield from _references(fingerprints, text, names=False)
            yield from _phrases(fingerprints, text)
            if member in _COMMAND_MEMBERS:
                yield from _commands_run(fingerprints, text)


def _matches_shown(fingerprints: FingerprintIndex, text: str) -> Iterator[_Match]:
    """Every fingerprint that an agent could copy from a text, except URIs, which always refer to their unit."""
    yield from _phrases(fingerprints, text)
    for token, _, _ in _tokens(text):
        yield from _look_up("name", token, fingerprints.names)
        yield from _look_up("rule", token, fingerprints.rules)
        yield from _look_up("tool", token, fingerprints.tools)
    words = [word.strip(_AROUND_WORDS) for word in text.split()]
    for index, word in enumerate(words):
        for size in fingerprints.command_sizes.get(word, ()):
            yield from _look_up("command", tuple(words[index : index + size]), fingerprints.commands)


def _delivered_units(units: Sequence[UnitText], step: ObservationStep) -> frozenset[int]:
    """Units whose whole text is in a message, which is how a unit reaches an agent without a tool."""
    if step.tool:
        return frozenset()
    return frozenset(index for index, unit in enumerate(units) if unit.text.strip() and unit.text.strip() in step.text)


def _references(fingerprints: FingerprintIndex, text: str, *, names: bool) -> Iterator[_Match]:
    for token, start, end in _tokens(text):
        address = _plain_address(token)
        if address in fingerprints.addresses:
            yield _Match(("address", address), fingerprints.addresses[address])
        elif names and token in fingerprints.names and _names_unit(token, text, start, end):
            yield _Match(("name", token), fingerprints.names[token])
        elif token in fingerprints.rules and _is_cited(token, text, start, end):
            yield _Match(("rule", token), fingerprints.rules[token])


def _tokens(text: str) -> Iterator[tuple[str, int, int]]:
    """Tokens with inner punctuation kept and trailing sentence punctuation removed."""
    for match in _TOKEN.finditer(text):
        token = match[0].rstrip(".:/@+-")
        yield token, match.start(), match.start() + len(token)


def _plain_address(token: str) -> str:
    if not token.startswith("instruction:"):
        return token
    try:
        return parse_unit_uri(token).uri
    except InstructionError:
        return token


def _names_unit(name: str, text: str, start: int, end: int) -> bool:
    if _BARE_NAME.search(name):
        return True
    is_inside = start > 0 and end < len(text)
    is_quoted = is_inside and text[start - 1] in _OPENING and text[end] in _CLOSING
    before, after = text[max(0, start - _CONTEXT_CHARACTERS) : start], text[end : end + _CONTEXT_CHARACTERS]
    is_beside = bool(_BESIDE_BEFORE.search(before) or _BESIDE_AFTER.match(after))
    return (is_quoted or is_beside) if re.search(r"[-.]", name) else (is_quoted and is_beside)


def _is_cited(rule: str, text: str, start: int, end: int) -> bool:
    if not _SHORT_RULE.fullmatch(rule):
        return True
    bracketed = text[max(0, start - 1) : start] in ("(", "[") and text[end : end + 1] in (")", "]")
    before = text[max(0, start - _CONTEXT_CHARACTERS) : start]
    return bracketed or text[end : end + 1] == ":" or bool(_CITED_BEFORE.search(before))


def _phrases(fingerprints: FingerprintIndex, text: str) -> Iterator[_Match]:
    if not fingerprints.phrases:
        return
    words = [word.casefold() for word in WORD.findall(text)]
    for index in range(len(words) - PHRASE_WORDS + 1):
        yield from _look_up("phrase", tuple(words[index : index + PHRASE_WORDS]), fingerprints.phrases)


def _commands_run(fingerprints: FingerprintIndex, text: str) -> Iterator[_Match]:
    """Match at the start of each command of a line; the body of a here-document is not a command."""
    for part in _BETWEEN_COMMANDS.split(text.partition("<<")[0]):
        words = _strip_wrappers([word.strip("'\"") for word in part.split()])
        for size in fingerprints.command_sizes.get(words[0], ()) if words else ():
            yield from _look_up("command", tuple(words[:size]), fingerprints.commands)


def _strip_wrappers(words: list[str]) -> list[str]:
    """Strip leading assignments and programs that only run another program."""
    start = 0
    while start < len(words):
        wrapper = next((prefix for prefix in _WRAPPERS if words[start : start + len(prefix)] == prefix), None)
        if wrapper is None and not _ASSIGNMENT.fullmatch(words[start]):
            break
        start += len(wrapper) if wrapper else 1
    return words[start : start + COMMAND_WORDS_MAX]


class UsageComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Reported and detected usage of one record; the reported columns are None until the record is closed."""

    audit_token: str
    intent: str
    loaded: tuple[str, ...]
    reported_used: tuple[str, ...] | None
    reported_missed: tuple[str, ...] | None
    detected_used: tuple[str, ...]
    detected_missed: tuple[str, ...]
    detected: tuple[DetectedUnit, ...]
    is_stored: bool


def record_trace_usage(
    context: InstructionContext, token: str, caller: InstructionCaller, trace: Sequence[TraceStep]
) -> None:
    """Analyse the first trace without storing it; later traces change nothing. Raises InstructionError."""
    check_trace_size(trace)
    record = find_own_record(context, token, caller)
    if record.detected_at is None:
        context.records.save_detected_usage(token, detect_record_usage(context, record, trace), at=context.now())


def analyse_trace(
    context: InstructionContext, token: str, trace: Sequence[TraceStep], *, keep: bool
) -> UsageComparison:
    """Analyse a trace for an admin; a stored detection takes precedence and is not replaced."""
    check_trace_size(trace)
    record = context.records.audit(token)
    if record is None:
        raise InstructionError("audit_not_found", "there is no such audit record; the answer to a recall has its token")
    if record.detected_at is None:
        detected = detect_record_usage(context, record, trace)
        is_stored = keep and context.records.save_detected_usage(token, detected, at=context.now())
        record = msgspec.structs.replace(record, detected=detected, detected_at=context.now() if is_stored else None)
    is_closed = record.audit_closed is not None
    return UsageComparison(
        audit_token=token,
        intent=record.intent,
        loaded=tuple(chunk.name for chunk in record.loaded_chunks),
        reported_used=record.used_chunks if is_closed else None,
        reported_missed=record.missed_chunks if is_closed else None,
        detected_used=record.detected_used,
        detected_missed=record.detected_missed,
        detected=record.detected or (),
        is_stored=record.detected_at is not None,
    )


def detect_record_usage(
    context: InstructionContext, record: AuditRecord, trace: Sequence[TraceStep]
) -> tuple[DetectedUnit, ...]:
    """Detect with the texts of that time. Units that another recall of the run loaded are credited to that recall."""
    agent = context.records.agent(record.agent_id)
    if agent is None:
        return ()
    instruction_set = _instruction_set_of(context, agent, record)
    if instruction_set is None:
        return ()
    units = tuple(_unit(entry, instruction_set) for entry in instruction_set.manifest.body)
    own = frozenset(chunk.name for chunk in record.loaded_chunks)
    run = context.records.list_run_audits(agent.id, record.heartbeat_id)
    elsewhere = frozenset(chunk.name for other in run for chunk in other.loaded_chunks) - own
    # In shadow mode all texts are in the prompt, whatever the recall loaded.
    is_shadow = record.event_type == "shadow"
    loaded = frozenset(unit.name for unit in units) if is_shadow else own
    detected = detect_usage(
        units,
        trace_after_token(trace, record.audit_token),
        loaded=loaded,
        earlier_texts=(record.intent, *agent.always_rules),
        index_texts=() if is_shadow else _index_texts(instruction_set),
    )
    return tuple(detection for detection in detected if is_shadow or detection.name not in elsewhere)


def _instruction_set_of(context: InstructionContext, agent: Agent, record: AuditRecord) -> InstructionSet | None:
    """The set that the record was loaded from; a heartbeat that started before the first manifest used that one."""
    for at in (record.detail.get("as_of", record.session_start), record.created_at):
        manifest = context.records.manifest_at(agent.id, at) if isinstance(at, int) else None
        if isinstance(at, int) and manifest is not None:
            return context.instruction_sets.build(agent, manifest, at=at)
    return None


def _unit(entry: ManifestEntry, instruction_set: InstructionSet) -> UnitText:
    content = instruction_set.contents.get(entry.name)
    uris = {entry.fact_uri, content.fact_uri if content else None}
    return UnitText(entry.name, tuple(sorted(uri for uri in uris if uri)), content.text if content else "")


def _index_texts(instruction_set: InstructionSet) -> tuple[str, ...]:
    return tuple(
        text
        for entry in instruction_set.manifest.body
        for text in (entry.description, *entry.load_triggers.intents, *entry.load_triggers.keywords)
    )
