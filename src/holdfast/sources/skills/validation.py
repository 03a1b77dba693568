"""Validation rules for the front matter of a skill, and their severity in each mode.

`seed` follows our own specification, `strict` the published standard as its reference validator implements it, and
`lenient` loads everything that is still usable.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from holdfast.sources.skills.frontmatter import SkillFault, YamlValue, quote_text
from holdfast.sources.skills.skill import (
    BODY_CAP_RULE,
    COMPATIBILITY_CHARS_MAX,
    DESCRIPTION_CHARS_MAX,
    NAME_CHARS_MAX,
    Severity,
    SkillMode,
)

SKILL_FIELDS = ("name", "description", "license", "compatibility", "metadata", "allowed-tools")
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
    BODY_CAP_RULE: ("warning", "warning", "warning"),
}
"""The severity of a broken rule in seed, strict and lenient mode; a rule that is not listed is always an error."""

_COLUMN: dict[SkillMode, int] = {"seed": 0, "strict": 1, "lenient": 2}
_SEED_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?")
_FORBIDDEN_IN_NAME = re.compile(r"[\[\]<>`]|: ")


class SkillFields(NamedTuple):
    """The validated fields of a front matter."""

    name: str
    description: str
    license: str | None = None
    compatibility: str | None = None
    metadata: dict[str, str] | None = None
    allowed_tools: tuple[str, ...] = ()


def find_severity(rule: str, mode: SkillMode) -> Severity | None:
    """None if the mode ignores the rule."""
    severities = _SEVERITIES.get(rule)
    return "error" if severities is None else severities[_COLUMN[mode]]


def check_fields(
    fields: Mapping[str, YamlValue], folder: str, mode: SkillMode, lines: Mapping[str, int]
) -> tuple[SkillFields, list[SkillFault]]:
    """The usable values of the fields, and every broken rule, including those that the mode ignores.

    `folder` is the name of the skill's folder.
    """
    faults: list[SkillFault] = []
    name = _read_name(fields, folder, mode, faults)
    description = _read_description(fields.get("description"), faults)
    licence = _read_text_field("license", fields.get("license"), faults)
    compatibility = _read_text_field("compatibility", fields.get("compatibility"), faults)
    if compatibility is not None and len(compatibility) > COMPATIBILITY_CHARS_MAX:
        message = f"compatibility has {len(compatibility)} characters, at most {COMPATIBILITY_CHARS_MAX} are allowed"
        faults.append(SkillFault("compatibility-length", message, "shorten it"))
    metadata = _read_metadata(fields.get("metadata"), faults)
    tools = _read_tools(fields.get("allowed-tools"), faults)
    unknown = [quote_text(key) for key in fields if key not in SKILL_FIELDS]
    if unknown:
        rest = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
        message = f"unknown fields: {', '.join(unknown[:5])}{rest}"
        faults.append(
            SkillFault("unknown-field", message, f"known are {', '.join(SKILL_FIELDS)}; put others into metadata")
        )
    if faults:
        faults = [_add_line(fault, fields, lines) for fault in faults]
    return SkillFields(name, description, licence, compatibility, metadata, tools), faults


def _add_line(fault: SkillFault, fields: Mapping[str, YamlValue], lines: Mapping[str, int]) -> SkillFault:
    """Add the line of the field that the rule is about; line 1 if the field is missing."""
    if fault.rule == "unknown-field":
        return fault._replace(line=min(lines.get(key, 1) for key in fields if key not in SKILL_FIELDS))
    field = next((key for key in SKILL_FIELDS if fault.rule.startswith(key)), "")
    return fault._replace(line=lines.get(field, 1))


def _read_name(fields: Mapping[str, YamlValue], folder: str, mode: SkillMode, faults: list[SkillFault]) -> str:
    name = fields.get("name")
    if not isinstance(name, str) or not name.strip():
        message = "there is no name" if name is None or isinstance(name, str) else "the name is not a string"
        faults.append(SkillFault("name-missing", message, f"add a line name: {make_skill_name(folder)}"))
        name = folder
    else:
        faults += _check_seed_name(name) if mode == "seed" else _check_standard_name(name)
    if mode != "seed":
        name, folder = unicodedata.normalize("NFKC", name.strip()), unicodedata.normalize("NFKC", folder)
    if name != folder:
        message = f"the name {quote_text(name)} differs from the folder name {quote_text(folder)}"
        faults.append(SkillFault("name-folder", message, "rename one of them"))
    if mode == "lenient" and not is_usable_name(name):
        message = f"the name {quote_text(name)} cannot be used in the skill index"
        name = folder if is_usable_name(folder) else make_skill_name(folder)
        fix = f"use letters, digits and hyphens; until then this one is named {quote_text(name)}"
        faults.append(SkillFault("name-unusable", message, fix))
    return name


def is_usable_name(name: str) -> bool:
    """Whether the name can appear in a line of the skill index without being misread."""
    plain = name.isprintable() and name == name.strip() and not _FORBIDDEN_IN_NAME.search(name)
    return plain and 0 < len(name) <= USABLE_NAME_CHARS_MAX


def make_skill_name(folder: str) -> str:
    """Convert a folder name to a valid skill name."""
    return re.sub(r"[^a-z0-9]+", "-", folder.lower()).strip("-")[:NAME_CHARS_MAX] or "my-skill"


def _check_seed_name(name: str) -> Iterator[SkillFault]:
    if len(name) > NAME_CHARS_MAX:
        yield _name_too_long(name)
    if not _SEED_NAME.fullmatch(name):
        message = f"the name {quote_text(name)} has characters other than a-z, 0-9 and hyphens between them"
        yield SkillFault("name-characters", message, f"rename it to {make_skill_name(name)}")
    if "--" in name:
        yield _bad_hyphens(name)


def _check_standard_name(name: str) -> Iterator[SkillFault]:
    name = unicodedata.normalize("NFKC", name.strip())
    if len(name) > NAME_CHARS_MAX:
        yield _name_too_long(name)
    if name != name.lower() or not all(character.isalnum() or character == "-" for character in name):
        message = f"the name {quote_text(name)} has characters other than lower-case letters, digits and hyphens"
        yield SkillFault("name-characters", message, f"rename it to {make_skill_name(name)}")
    if "--" in name or name.startswith("-") or name.endswith("-"):
        yield _bad_hyphens(name)


def _name_too_long(name: str) -> SkillFault:
    return SkillFault(
        "name-length", f"the name has {len(name)} characters, at most {NAME_CHARS_MAX} are allowed", "shorten it"
    )


def _bad_hyphens(name: str) -> SkillFault:
    message = f"the name {quote_text(name)} has a hyphen at its start or end, or two in a row"
    return SkillFault("name-hyphens", message, f"rename it to {make_skill_name(name)}")


def _read_description(value: YamlValue, faults: list[SkillFault]) -> str:
    if not isinstance(value, str) or not value.strip():
        message = (
            "there is no description" if value is None or isinstance(value, str) else "the description is not a string"
        )
        fix = "describe in one line what the skill does and when to use it"
        faults.append(SkillFault("description-missing", message, fix))
        return ""
    if len(value) > DESCRIPTION_CHARS_MAX:
        message = f"the description has {len(value)} characters, at most {DESCRIPTION_CHARS_MAX} are allowed"
        faults.append(SkillFault("description-length", message, "shorten it; details belong in the body"))
    return value


def _read_text_field(field: str, value: YamlValue, faults: list[SkillFault]) -> str | None:
    if value is None or isinstance(value, str):
        return value
    faults.append(SkillFault(f"{field}-type", f"{field} is not a string", "write it as a string"))
    return _as_text(value)


def _read_metadata(value: YamlValue, faults: list[SkillFault]) -> dict[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        faults.append(
            SkillFault("metadata-type", "metadata is not a mapping", "write it as indented lines of key: value")
        )
        return None
    invalid_keys = [key for key, item in value.items() if item is None or isinstance(item, list | dict)]
    if invalid_keys:
        message = f"the value of {quote_text(str(invalid_keys[0]))} in metadata is not a string"
        faults.append(SkillFault("metadata-type", message, "write it as a string, in quotes if necessary"))
    return {_as_text(key): _as_text(item) for key, item in value.items()}


def _as_text(value: YamlValue) -> str:
    """A value as text; lists and mappings as JSON. In seed mode numbers are those of YAML: `1.10` becomes `1.1`."""
    if value is None or isinstance(value, str):
        return value or ""
    if not isinstance(value, list | dict):
        return str(value)
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, OverflowError):
        # A key or number that JSON does not have; only seed mode has them, and there the skill is invalid.
        return ""


def _read_tools(value: YamlValue, faults: list[SkillFault]) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        return split_tools(value)
    message = "allowed-tools is not a string"
    faults.append(SkillFault("allowed-tools-type", message, "write the names on one line, separated by spaces"))
    names = list(value) if isinstance(value, list | dict) else []
    return tuple(name.strip() for name in names if isinstance(name, str) and name.strip())


def split_tools(text: str) -> tuple[str, ...]:
    """Names separated by blanks or commas; text in parentheses belongs to its name: `Bash(git add:*)`."""
    names: list[str] = []
    start, depth = 0, 0
    for index, character in enumerate(text):
        if character in "()":
            depth = max(0, depth + (1 if character == "(" else -1))
        elif not depth and (character == "," or character.isspace()):
            names.append(text[start:index])
            start = index + 1
    names.append(text[start:])
    return tuple(name for name in names if name)
