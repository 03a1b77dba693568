"""What the front matter of a skill must say, and how much each mode makes of it when it does not.

`seed` is the rules of our own specification, `strict` the published standard as its reference validator reads it,
`lenient` loads whatever can still be used.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from holdfast.sources.skills.frontmatter import Fault, Value, shown
from holdfast.sources.skills.skill import (
    COMPATIBILITY_CHARS_MAX,
    DESCRIPTION_CHARS_MAX,
    NAME_CHARS_MAX,
    Severity,
    SkillMode,
)

FIELDS = ("name", "description", "license", "compatibility", "metadata", "allowed-tools")
USABLE_NAME_CHARS_MAX = 200

_SEVERITIES: dict[str, tuple[Severity | None, Severity | None, Severity | None]] = {
    "file-name": ("error", None, "warning"),
    "link-followed": ("warning", "warning", "warning"),
    "encoding": ("error", "error", "warning"),
    "byte-order-mark": ("warning", "error", "warning"),
    "nul": ("warning", "warning", "warning"),
    "opening-blanks": ("error", None, "warning"),
    "unquoted": ("error", "error", "warning"),
    "flow-style": (None, "error", None),
    "duplicate-key": ("warning", "error", "warning"),
    "unknown-field": (None, "error", "warning"),
    "name-missing": ("error", "error", "warning"),
    "name-length": ("error", "error", "warning"),
    "name-characters": ("error", "error", "warning"),
    "name-hyphens": ("error", "error", "warning"),
    "name-unusable": ("error", "error", "warning"),
    "name-folder": ("error", "error", "warning"),
    "description-length": ("error", "error", "warning"),
    "compatibility-type": ("error", "error", "warning"),
    "compatibility-length": ("error", "error", "warning"),
    "license-type": ("error", None, "warning"),
    "metadata-type": ("error", None, "warning"),
    "allowed-tools-type": ("error", None, "warning"),
    "body-length": ("warning", "warning", "warning"),
}
"""What a broken rule is, in seed, strict and lenient mode; one that is not here is an error in all three."""

_PLACE: dict[SkillMode, int] = {"seed": 0, "strict": 1, "lenient": 2}
_SEED_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?")
_NOT_IN_A_NAME = re.compile(r"[\[\]<>`]|: ")


class Declared(NamedTuple):
    """What a front matter says, in the form a skill keeps it."""

    name: str
    description: str
    license: str | None = None
    compatibility: str | None = None
    metadata: dict[str, str] | None = None
    allowed_tools: tuple[str, ...] = ()


def severity(rule: str, mode: SkillMode) -> Severity | None:
    """None where the mode does not mind."""
    broken = _SEVERITIES.get(rule)
    return "error" if broken is None else broken[_PLACE[mode]]


def declared(
    fields: Mapping[str, Value], folder: str, mode: SkillMode, lines: Mapping[str, int]
) -> tuple[Declared, list[Fault]]:
    """What the fields say, as far as it can be used, and every rule they break, those the mode does not mind too.

    `folder` is the name of the skill's folder.
    """
    faults: list[Fault] = []
    name = _name(fields, folder, mode, faults)
    description = _description(fields.get("description"), faults)
    licence = _text("license", fields.get("license"), faults)
    compatibility = _text("compatibility", fields.get("compatibility"), faults)
    if compatibility is not None and len(compatibility) > COMPATIBILITY_CHARS_MAX:
        what = f"compatibility has {len(compatibility)} characters, at most {COMPATIBILITY_CHARS_MAX} are allowed"
        faults.append(Fault("compatibility-length", what, "shorten it"))
    metadata = _metadata(fields.get("metadata"), faults)
    tools = _tools(fields.get("allowed-tools"), faults)
    unknown = [shown(key) for key in fields if key not in FIELDS]
    if unknown:
        more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
        what = f"unknown fields: {', '.join(unknown[:5])}{more}"
        faults.append(Fault("unknown-field", what, f"known are {', '.join(FIELDS)}; the rest belongs into metadata"))
    if faults:
        faults = [_placed(fault, fields, lines) for fault in faults]
    return Declared(name, description, licence, compatibility, metadata, tools), faults


def _placed(fault: Fault, fields: Mapping[str, Value], lines: Mapping[str, int]) -> Fault:
    """With the line of the field that the rule is about; of what is missing, the line that opens the front matter."""
    if fault.rule == "unknown-field":
        return fault._replace(line=min(lines.get(key, 1) for key in fields if key not in FIELDS))
    field = next((key for key in FIELDS if fault.rule.startswith(key)), "")
    return fault._replace(line=lines.get(field, 1))


def _name(fields: Mapping[str, Value], folder: str, mode: SkillMode, faults: list[Fault]) -> str:
    name = fields.get("name")
    if not isinstance(name, str) or not name.strip():
        what = "there is no name" if name is None or isinstance(name, str) else "the name is no text"
        faults.append(Fault("name-missing", what, f"add a line name: {one_word(folder)}"))
        name = folder
    else:
        faults += _seed_name(name) if mode == "seed" else _standard_name(name)
    if mode != "seed":
        name, folder = unicodedata.normalize("NFKC", name.strip()), unicodedata.normalize("NFKC", folder)
    if name != folder:
        what = f"the name {shown(name)} is not that of the folder, {shown(folder)}"
        faults.append(Fault("name-folder", what, "rename one of them"))
    if mode == "lenient" and not usable_name(name):
        what = f"an agent could not spell the name {shown(name)}"
        name = folder if usable_name(folder) else one_word(folder)
        mend = f"use letters, digits and hyphens; until then this one is called {shown(name)}"
        faults.append(Fault("name-unusable", what, mend))
    return name


def usable_name(name: str) -> bool:
    """Whether it can stand in a line of the index without being taken for something else."""
    plain = name.isprintable() and name == name.strip() and not _NOT_IN_A_NAME.search(name)
    return plain and 0 < len(name) <= USABLE_NAME_CHARS_MAX


def one_word(folder: str) -> str:
    """A folder's name as a skill's name could be."""
    return re.sub(r"[^a-z0-9]+", "-", folder.lower()).strip("-")[:NAME_CHARS_MAX] or "my-skill"


def _seed_name(name: str) -> Iterator[Fault]:
    if len(name) > NAME_CHARS_MAX:
        yield _long_name(name)
    if not _SEED_NAME.fullmatch(name):
        what = f"the name {shown(name)} is more than lower-case letters a-z, digits, and hyphens between them"
        yield Fault("name-characters", what, f"call it {one_word(name)}")
    if "--" in name:
        yield _hyphens(name)


def _standard_name(name: str) -> Iterator[Fault]:
    name = unicodedata.normalize("NFKC", name.strip())
    if len(name) > NAME_CHARS_MAX:
        yield _long_name(name)
    if name != name.lower() or not all(character.isalnum() or character == "-" for character in name):
        what = f"the name {shown(name)} is more than lower-case letters, digits and hyphens"
        yield Fault("name-characters", what, f"call it {one_word(name)}")
    if "--" in name or name.startswith("-") or name.endswith("-"):
        yield _hyphens(name)


def _long_name(name: str) -> Fault:
    return Fault("name-length", f"the name has {len(name)} characters, at most {NAME_CHARS_MAX} are allowed", "cut it")


def _hyphens(name: str) -> Fault:
    what = f"the name {shown(name)} has a hyphen at an end or two in a row"
    return Fault("name-hyphens", what, f"call it {one_word(name)}")


def _description(value: Value, faults: list[Fault]) -> str:
    if not isinstance(value, str) or not value.strip():
        what = "there is no description" if value is None or isinstance(value, str) else "the description is no text"
        mend = "say in a line what the skill does and when to use it"
        faults.append(Fault("description-missing", what, mend))
        return ""
    if len(value) > DESCRIPTION_CHARS_MAX:
        what = f"the description has {len(value)} characters, at most {DESCRIPTION_CHARS_MAX} are allowed"
        faults.append(Fault("description-length", what, "shorten it; details belong into the body"))
    return value


def _text(field: str, value: Value, faults: list[Fault]) -> str | None:
    if value is None or isinstance(value, str):
        return value
    faults.append(Fault(f"{field}-type", f"{field} is no text", "write it as one text"))
    return _as_text(value)


def _metadata(value: Value, faults: list[Fault]) -> dict[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        faults.append(Fault("metadata-type", "metadata is no mapping", "write it as lines of key: value below it"))
        return None
    odd = [key for key, one in value.items() if not isinstance(one, str)]
    if odd:
        what = f"the value of {shown(odd[0])} in metadata is no text"
        faults.append(Fault("metadata-type", what, "write it as one text, in quotes if need be"))
    return {key: _as_text(one) for key, one in value.items()}


def _as_text(value: Value) -> str:
    """A value as text; of lists and mappings, their JSON."""
    if value is None or isinstance(value, str):
        return value or ""
    return msgspec.json.encode(value).decode()


def _tools(value: Value, faults: list[Fault]) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        return split_tools(value)
    what = "allowed-tools is no text"
    faults.append(Fault("allowed-tools-type", what, "write the names in one line, with blanks between"))
    names = value if isinstance(value, list) else list(value)
    return tuple(name.strip() for name in names if isinstance(name, str) and name.strip())


def split_tools(text: str) -> tuple[str, ...]:
    """Names parted by blanks or commas; what stands in brackets belongs to its name: `Bash(git add:*)`."""
    names: list[str] = []
    start, depth = 0, 0
    for at, character in enumerate(text):
        if character in "()":
            depth = max(0, depth + (1 if character == "(" else -1))
        elif not depth and (character == "," or character.isspace()):
            names.append(text[start:at])
            start = at + 1
    names.append(text[start:])
    return tuple(name for name in names if name)
