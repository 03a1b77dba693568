"""Decides from a reply whether the model used a skill whose body was preloaded into the prompt.

Three things count as use: asking for the skill with `skill_load`, naming its folder in a tool call, and repeating
`RUN_WORDS` words of its body in a row, in text or in the arguments of a call. Words that the rest of
the prompt has as well do not count, because the model may have them from there. Thinking is not output.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec

from holdfast.engine.tools.skill_budget import Activations
from holdfast.events.payloads.session import SkillUsed
from holdfast.layers.padding import PADDING_LAYER, SkillSection, split_skill_sections
from holdfast.types.blocks import Block, Text, ToolResult, ToolUse, parse_tool_call
from holdfast.types.prompt import HistoryEntry, LayerText

# Measured with 191 recorded sessions and 1,168 public skills: of the 223,088 pairs, 14 have 8 words in a row in common,
# 80 have 6 words, and 500 have 5 ("at the end of the").
RUN_WORDS = 8
SKILL_LOAD = "skill_load"
_WORD = re.compile(r"[^\W_]+")


class _Preloads(NamedTuple):
    """The folder of each preloaded skill, and the skill of every run of words that only its body has."""

    folders: dict[str, str]
    skill_by_run: dict[str, str]


def find_used_preloads(
    active: Activations, pinned: tuple[LayerText, ...], history: Sequence[HistoryEntry], content: Sequence[Block]
) -> tuple[SkillUsed, ...]:
    """The preloads that a reply shows to be used and that were not used before."""
    unused = [name for name in active.preloaded if name not in active.used]
    preloads = _read_preloads(pinned, active.preloaded)
    found: dict[str, SkillUsed] = {}
    for block in content:
        call = parse_tool_call(block)
        texts = (block.text,) if isinstance(block, Text) else _argument_texts(call) if call else ()
        for use in _find_uses(preloads, call, texts, history):
            if use.skill_id in unused:
                found.setdefault(use.skill_id, use)
    return tuple(found.values())


def _find_uses(
    preloads: _Preloads, call: ToolUse | None, texts: Sequence[str], history: Sequence[HistoryEntry]
) -> Iterator[SkillUsed]:
    if call is not None:
        if call.name == SKILL_LOAD:
            yield from (SkillUsed(name, "skill_load", call.id) for name in texts)
        for name, folder in preloads.folders.items():
            # The name of the folder ends here: /skills/pdf is not the start of /skills/pdf-forms.
            path = re.compile(re.escape(folder) + r"(?![\w.-])")
            if any(path.search(text) for text in texts):
                yield SkillUsed(name, "folder", call.id)
    for run in _iter_runs(texts):
        name = preloads.skill_by_run.get(run, "")
        if name and not _is_in_input(run, history):
            yield SkillUsed(name, "output", call.id if call else None)


@lru_cache(maxsize=16)
def _read_preloads(pinned: tuple[LayerText, ...], names: tuple[str, ...]) -> _Preloads:
    padding = next((layer.text for layer in pinned if layer.layer == PADDING_LAYER), "")
    split = split_skill_sections(padding, names)
    sections: tuple[SkillSection, ...] = split.sections
    skill_by_run: dict[str, str] = {}
    elsewhere = set(_iter_runs([split.rest, *(layer.text for layer in pinned if layer.layer != PADDING_LAYER)]))
    for section in sections:
        for run in _iter_runs([section.body]):
            # A run of two bodies says nothing about which of them the model follows.
            if skill_by_run.setdefault(run, section.name) != section.name:
                elsewhere.add(run)
    for run in elsewhere:
        skill_by_run.pop(run, None)
    return _Preloads({section.name: section.folder for section in sections if section.folder}, skill_by_run)


def _is_in_input(run: str, history: Sequence[HistoryEntry]) -> bool:
    """Whether the user or a tool result has the same words. Reached only for a match, so rarely."""
    blocks = (block for entry in reversed(history) if entry.role != "assistant" for block in entry.content)
    return any(f" {run} " in f" {_join_words(text)} " for block in blocks for text in _input_texts(block))


def _input_texts(block: Block) -> Iterable[str]:
    content = block.content if isinstance(block, ToolResult) else (block,)
    return (part.text for part in content if isinstance(part, Text))


def _iter_runs(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        words = _join_words(text).split()
        yield from (" ".join(words[start : start + RUN_WORDS]) for start in range(len(words) - RUN_WORDS + 1))


def _join_words(text: str) -> str:
    return " ".join(_WORD.findall(text.lower()))


def _argument_texts(call: ToolUse) -> tuple[str, ...]:
    try:
        arguments: object = msgspec.json.decode(call.arguments_json)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return (call.arguments_json,)
    return tuple(_iter_strings(arguments))


def _iter_strings(value: object) -> Iterator[str]:
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict | list):
            waiting += reversed(list(item.values()) if isinstance(item, dict) else item)
