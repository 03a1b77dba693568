"""Edits settings files of other programs in place: what is not changed keeps its bytes, comments included.

JSON (with comments, if the program accepts them), TOML, YAML and environment files. A setting is named by its path.
"""

import copy
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Protocol, cast

import msgspec
import yaml

from holdfast.errors import UserError
from holdfast.sources import confined_paths
from holdfast.sources.files import parse_toml
from holdfast.types.blocks import Json

SETTINGS_BYTES_MAX = 4_000_000
_SPACES = " \t\r\n"
_INDENT = "  "

SettingPath = tuple[str, ...]
SettingsTree = dict[str, Json]


class SettingsChange(msgspec.Struct, frozen=True):
    """`before` is None if there was no file."""

    before: str | None
    after: str

    @property
    def is_unchanged(self) -> bool:
        return (self.before or "") == self.after


def edit_settings_file(path: Path, change: Callable[[str], str], *, write: bool) -> SettingsChange:
    """Apply `change` to the file, which is replaced atomically.

    Symbolic links are followed if they stay within the project, or within the folder of `path` outside of it.
    """
    try:
        located = _locate_settings(path)
        old_bytes = _read(located)
        old_text = None if old_bytes is None else old_bytes.decode()
        settings_change = SettingsChange(old_text, change(old_text or ""))
        if write and not settings_change.is_unchanged:
            _write(located, settings_change.after.encode(), old_bytes)
    except UnicodeError:
        raise UserError(f"{path} is not text in UTF-8; it is left as it is") from None
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except (confined_paths.EscapeError, confined_paths.PathError) as error:
        raise UserError(f"the settings cannot be used: {error}") from None
    return settings_change


def remove_settings_file(path: Path, expected: str) -> None:
    """Remove the file if it still has this text. Raises UserError."""
    try:
        with confined_paths.open_parent(_locate_settings(path)) as (folder, name):
            if confined_paths.read_regular_at(folder, name, SETTINGS_BYTES_MAX + 1) != expected.encode():
                raise UserError(f"{path}: another program changed it meanwhile; try again")
            os.unlink(name, dir_fd=folder)
    except (confined_paths.EscapeError, confined_paths.PathError) as error:
        raise UserError(f"the settings cannot be used: {error}") from None


def _locate_settings(path: Path) -> confined_paths.LocatedPath:
    """Confined to the working folder if the file is inside it, else to the file's own folder."""
    absolute, here = Path(os.path.abspath(path)), Path.cwd()
    root = here if absolute.is_relative_to(here) else absolute.parent
    return confined_paths.locate_path(confined_paths.resolve_roots(root), str(absolute), writing=True)


def _read(located: confined_paths.LocatedPath) -> bytes | None:
    try:
        with confined_paths.open_parent(located) as (folder, name):
            raw = confined_paths.read_regular_at(folder, name, SETTINGS_BYTES_MAX + 1)
    except confined_paths.PathError as error:
        if str(error).endswith("does not exist"):
            return None
        raise
    if len(raw) > SETTINGS_BYTES_MAX:
        raise UserError(f"it has more than {SETTINGS_BYTES_MAX} bytes; it is left as it is")
    return raw


def _write(located: confined_paths.LocatedPath, content: bytes, before: bytes | None) -> None:
    with confined_paths.open_parent(located, make_folders=True) as (folder, name):
        # Checked just before the file is replaced: an edit that another program made meanwhile must not be lost.
        def is_unchanged() -> bool:
            try:
                return confined_paths.read_regular_at(folder, name, SETTINGS_BYTES_MAX + 1) == before
            except FileNotFoundError:
                return before is None

        if not confined_paths.write_atomically(folder, name, content, is_current=is_unchanged):
            raise UserError("another program changed it meanwhile; try again")


class JsonPart(msgspec.Struct, frozen=True):
    """A member of an object, including its name, or an item of an array; its value starts at `value_start`."""

    name: str | None
    start: int
    value_start: int
    end: int


class JsonContainer(msgspec.Struct, frozen=True):
    """An object or array with its parts; start is inclusive, end is exclusive, brackets included."""

    start: int
    end: int
    parts: tuple[JsonPart, ...]

    def find_last(self, name: str) -> JsonPart | None:
        """The last member with this name, which is the one that JSON parsers use."""
        return next((part for part in reversed(self.parts) if part.name == name), None)


def read_json(text: str) -> Json:
    """Raises ValueError for invalid JSON, including NaN and Infinity, and for too deep nesting."""
    try:
        value: Json = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return value


def describe_json_error(error: ValueError) -> str:
    """Why `read_json` refused a settings file, for its user."""
    if not isinstance(error, json.JSONDecodeError):
        return "it is not JSON; it is left as it is"
    position = _skip_spaces(error.doc, error.pos)
    line = error.doc.count("\n", 0, position) + 1
    if error.doc.startswith(("//", "/*"), position):
        return f"line {line} has a comment, and comments are not allowed there; it is left as it is, remove the comment"
    return f"it is not JSON from line {line} on; it is left as it is, correct it first"


def find_container(text: str, start: int) -> JsonContainer | None:
    """The object or array that starts at `start` of a valid JSON text; None for any other value."""
    if text[start] not in "{[":
        return None
    parts: list[JsonPart] = []
    position = _skip_spaces(text, start + 1)
    while text[position] not in "}]":
        part_start, name = position, None
        if text[start] == "{":
            name, colon = _decode_value(text, position)
            position = _skip_spaces(text, _skip_spaces(text, colon) + 1)
        _, end = _decode_value(text, position)
        parts.append(JsonPart(name if isinstance(name, str) else None, part_start, position, end))
        position = _skip_spaces(text, end)
        position = _skip_spaces(text, position + 1) if text[position] == "," else position
    return JsonContainer(start, position + 1, tuple(parts))


def find_root(text: str) -> JsonContainer | None:
    return find_container(text, _skip_spaces(text, 0))


def append_part(text: str, container: JsonContainer, name: str | None, value: Json) -> str:
    """Append a member or item in the style of its neighbours: on its own lines, or on the same line."""
    line_end = _line_end_of(text)
    if container.parts:
        last = container.parts[-1]
        margin = _indentation_at(text, last.start)
        if margin is None or "\n" not in text[container.start : last.start]:
            return f"{text[: last.end]}, {_encode_part(name, value, None, '')}{text[last.end :]}"
        encoded = _encode_part(name, value, _indent_of(text), f"{line_end}{margin}")
        return f"{text[: last.end]},{line_end}{margin}{encoded}{text[last.end :]}"
    before = text[text.rfind("\n", 0, container.start) + 1 : container.start]
    outer = before[: len(before) - len(before.lstrip(" \t"))]
    margin = f"{outer}{_indent_of(text)}"
    encoded = _encode_part(name, value, _indent_of(text), f"{line_end}{margin}")
    return f"{text[: container.start + 1]}{line_end}{margin}{encoded}{line_end}{outer}{text[container.end - 1 :]}"


def remove_part(text: str, container: JsonContainer, index: int) -> str:
    """Remove one member or item together with its comma and whitespace."""
    part, count = container.parts[index], len(container.parts)
    if count == 1:
        return text[: container.start + 1] + text[container.end - 1 :]
    if index == count - 1:
        return text[: container.parts[index - 1].end] + text[part.end :]
    return text[: part.start] + text[container.parts[index + 1].start :]


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _decode_value(text: str, at: int) -> tuple[Json, int]:
    return json.JSONDecoder().raw_decode(text, at)


def _skip_spaces(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACES:
        at += 1
    return at


def _indentation_at(text: str, start: int) -> str | None:
    """The indentation before a position; None if the line has other text before it."""
    margin = text[text.rfind("\n", 0, start) + 1 : start]
    return None if margin.strip(" \t") else margin


def _line_end_of(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _indent_of(text: str) -> str:
    root = find_root(blank_comments(text))
    margin = _indentation_at(text, root.parts[0].start) if root and root.parts else None
    return margin or _INDENT


def _encode_part(name: str | None, value: Json, indent: str | None, line_break: str) -> str:
    encoded = json.dumps(value, indent=indent, ensure_ascii=False).replace("\n", line_break)
    return encoded if name is None else f"{json.dumps(name, ensure_ascii=False)}: {encoded}"


def blank_comments(text: str) -> str:
    """JSON with comments and trailing commas as JSON of the same length, so that positions in both are the same."""
    blanked, position, comma = list(text), 0, -1
    while position < len(text):
        token = _JSONC_TOKEN.match(text, position)
        assert token is not None  # The last alternative matches any character.
        kind, end = token.lastgroup, token.end()
        if kind == "comment":
            blanked[position:end] = [char if char in "\r\n" else " " for char in text[position:end]]
        elif kind == "close" and comma >= 0:
            blanked[comma] = " "
        if kind not in ("comment", "space"):
            comma = position if kind == "comma" else -1
        position = end
    return "".join(blanked)


_JSONC_TOKEN = re.compile(
    r"""(?P<string>"(?:[^"\\\n]|\\.)*"?)|(?P<comment>//[^\n]*|/\*(?s:.*?)(?:\*/|\Z))|(?P<space>\s+)"""
    r"""|(?P<comma>,)|(?P<close>[\]}])|(?P<other>(?s:.))"""
)


class SettingsFormat(Protocol):
    """The syntax of a settings file. Methods raise UserError for a file that they cannot read or change."""

    def read(self, text: str) -> SettingsTree: ...
    def set_value(self, text: str, path: SettingPath, value: Json) -> str: ...
    def remove_value(self, text: str, path: SettingPath) -> str: ...


def change_settings(format: SettingsFormat, text: str, wanted: Mapping[SettingPath, Json | None]) -> str:
    """The text with these settings; None removes one. Raises UserError, also if anything else would change.

    An object that would be empty without a removed setting is removed too.
    """
    before = format.read(text)
    expected = copy.deepcopy(before)
    for path, value in wanted.items():
        if find_setting(expected, path) == value:
            continue
        _put(expected, path, value)
        text = format.remove_value(text, path) if value is None else format.set_value(text, path, value)
    # Whatever the file looks like: a change that another parser would read differently is not made.
    try:
        is_right = format.read(text) == expected
    except UserError:
        is_right = False
    if not is_right:
        raise UserError("it is written in a way that cannot be changed safely; change it by hand")
    return text


def find_setting(tree: Mapping[str, Json], path: SettingPath) -> Json | None:
    value: Json | None = cast("Json", tree)  # A mapping of JSON values.
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _put(tree: SettingsTree, path: SettingPath, value: Json | None) -> None:
    child = tree.get(path[0])
    if len(path) == 1:
        if value is None:
            tree.pop(path[0], None)
        else:
            tree[path[0]] = value
        return
    if child is None:
        child = {}
    if not isinstance(child, dict):
        raise UserError(f"{path[0]} is not an object; fix the settings first")
    _put(child, path[1:], value)
    if child or value is not None:
        tree[path[0]] = child
    else:
        tree.pop(path[0], None)


class JsonFormat:
    """JSON; with `comments` also comments and trailing commas, as in JSONC."""

    def __init__(self, *, comments: bool = False) -> None:
        self._comments = comments

    def read(self, text: str) -> SettingsTree:
        try:
            tree = read_json(self._clean(text) if text.strip() else "{}")
        except ValueError as error:
            raise UserError(describe_json_error(error)) from None
        if not isinstance(tree, dict):
            raise UserError("it is not a JSON object; it is left as it is")
        return tree

    def set_value(self, text: str, path: SettingPath, value: Json) -> str:
        text = text if text.strip() else "{}\n"
        clean = self._clean(text)
        container = find_root(clean)
        for depth, name in enumerate(path):
            assert container is not None  # `change_settings` has checked that these are objects.
            part = container.find_last(name)
            if part is None:
                for outer in reversed(path[depth + 1 :]):
                    value = {outer: value}
                return _append_member(text, container, name, value, clean=clean)
            if depth == len(path) - 1:
                return text[: part.value_start] + json.dumps(value, ensure_ascii=False) + text[part.end :]
            container = find_container(clean, part.value_start)
        raise AssertionError("a path has at least one name")

    def remove_value(self, text: str, path: SettingPath) -> str:
        clean = self._clean(text)
        container, chain = find_root(clean), []
        for name in path:
            part = container.find_last(name) if container else None
            if container is None or part is None:
                return text
            chain.append((container, container.parts.index(part)))
            container = find_container(clean, part.value_start)
        # From the inside out: an object that would be empty goes with its last member.
        container, index = next((pair for pair in reversed(chain) if len(pair[0].parts) > 1), chain[0])
        if text[container.start : container.end] == clean[container.start : container.end]:
            return remove_part(text, container, index)
        # Comments and trailing commas around the member stay.
        part = container.parts[index]
        comma = clean.find(",", part.end, container.end)
        comma = comma if comma >= 0 else text.find(",", part.end, container.end)
        if index < len(container.parts) - 1:
            return text[: part.start] + text[part.end : comma] + text[comma + 1 :]
        return text[: part.start] + text[part.end :]

    def _clean(self, text: str) -> str:
        return blank_comments(text) if self._comments else text


def _append_member(text: str, container: JsonContainer, name: str, value: Json, *, clean: str) -> str:
    last = container.parts[-1].end if container.parts else container.start + 1
    line_end = text.find("\n", last)
    rest = text[last:line_end] if 0 <= line_end < container.end else ""
    if not container.parts and clean[last : container.end - 1] != text[last : container.end - 1]:
        # Nothing but comments: they stay, after the new member.
        encoded = _encode_part(name, value, _INDENT, f"{_line_end_of(text)}{_INDENT}")
        return f"{text[:last]}{_line_end_of(text)}{_INDENT}{encoded}{text[last:]}"
    if not rest.strip() or not container.parts:
        return append_part(text, container, name, value)
    # A comment or a comma that follows the last member on its line stays there.
    has_comma = rest.lstrip().startswith(",")
    margin = _indentation_at(text, container.parts[-1].start) or _INDENT
    encoded = _encode_part(name, value, _indent_of(text), f"{_line_end_of(text)}{margin}")
    kept = rest.rstrip("\r") if has_comma else f",{rest.rstrip(chr(13))}"
    return f"{text[:last]}{kept}{_line_end_of(text)}{margin}{encoded}{',' if has_comma else ''}{text[line_end:]}"


class TomlFormat:
    """TOML: a top-level key, or a whole table of strings and booleans, named by its header."""

    def read(self, text: str) -> SettingsTree:
        try:
            tree: SettingsTree = parse_toml(text)
        except ValueError as error:
            raise UserError(f"it is not TOML: {error}; it is left as it is") from None
        return tree

    def set_value(self, text: str, path: SettingPath, value: Json) -> str:
        line_end = _line_end_of(text)
        if isinstance(value, dict):
            # The old table, if there is one, is replaced as a whole.
            text = self.remove_value(text, path)
            lines = [f"[{'.'.join(path)}]", *(f"{name} = {_toml(member)}" for name, member in value.items())]
            separator = line_end if text.strip() else ""
            ended = text if text.endswith("\n") or not text else f"{text}{line_end}"
            return f"{ended}{separator}{line_end.join(lines)}{line_end}"
        top_end = _first_header(text)
        found = _toml_key(path[0]).search(text, 0, top_end)
        if found:
            return f"{text[: found.start('value')]}{_toml(value)}{text[found.end('value') :]}"
        # After the last key that is in no table: at the end it would belong to the last table.
        written = [match.end() for match in re.finditer(r"(?m)^[^#\s][^\r\n]*", text[:top_end])]
        line = f"{path[0]} = {_toml(value)}"
        after_keys = f"{text[: written[-1]]}{line_end}{line}{text[written[-1] :]}" if written else ""
        try:
            if after_keys and parse_toml(after_keys).get(path[0]) == value:
                return after_keys
        except ValueError:
            # It was the middle of a text or list with several lines.
            pass
        return f"{line}{line_end}{text}"

    def remove_value(self, text: str, path: SettingPath) -> str:
        if len(path) == 1:
            found = _toml_key(path[0]).search(text, 0, _first_header(text))
            if not found:
                return text
            return text[: found.start()] + re.sub(r"\A[^\n]*\n?", "", text[found.end() :])
        lines = text.splitlines(keepends=True)
        headers = [number for number, line in enumerate(lines) if _TOML_HEADER.match(line)]
        table = rf"[ \t]*\[{re.escape('.'.join(path))}\]"
        start = next((number for number in headers if re.match(table, lines[number])), None)
        if start is None:
            return text
        end = next((number for number in headers if number > start), len(lines))
        # Comments before the next table belong to it; the blank line that `set_value` puts before this one does not.
        while end > start + 1 and lines[end - 1].lstrip()[:1] in ("", "#"):
            end -= 1
        start -= 1 if start and not lines[start - 1].strip() else 0
        return "".join(lines[:start] + lines[end:])


_TOML_HEADER = re.compile(r"(?m)^[ \t]*\[\[?[^\[\]\n]+\]\]?[ \t]*(?:#[^\n]*)?\r?$")


def _first_header(text: str) -> int:
    header = _TOML_HEADER.search(text)
    return header.start() if header else len(text)


def _toml_key(name: str) -> re.Pattern[str]:
    return re.compile(rf"""(?m)^[ \t]*{re.escape(name)}[ \t]*=[ \t]*(?P<value>"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|[^\s#]+)""")


def _toml(value: Json) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(name)} = {_toml(member)}" for name, member in value.items()) + " }"
    # Strings and booleans are written alike in both.
    return json.dumps(value, ensure_ascii=False)


class YamlFormat:
    """YAML: a top-level key with a text, or one `NAME=value` item of a top-level list, as (key, name).

    `item_lists` are the keys of such lists; they are read as objects.
    """

    def __init__(self, item_lists: tuple[str, ...]) -> None:
        self._item_lists = item_lists

    def read(self, text: str) -> SettingsTree:
        try:
            if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.CSafeLoader)):
                raise UserError("it uses YAML aliases, which are not followed here; change it by hand")
            tree = yaml.load(text, yaml.CSafeLoader)
        except (yaml.YAMLError, RecursionError, ValueError):
            raise UserError("it is not YAML; it is left as it is") from None
        if tree is None:
            return {}
        if not isinstance(tree, dict):
            raise UserError("it is not a YAML mapping; it is left as it is")
        return {str(key): self._items(value) if key in self._item_lists else value for key, value in tree.items()}

    def _items(self, value: object) -> Json:
        """`["A=1", "B=2"]`, or the text of one item, as an object."""
        items = [value] if isinstance(value, str) else value
        if items is None:
            return {}
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            raise UserError(f"{' and '.join(self._item_lists)} must be lists of texts; change it by hand")
        return {name: rest for name, _, rest in (item.partition("=") for item in items)}

    def set_value(self, text: str, path: SettingPath, value: Json) -> str:
        line_end = _line_end_of(text)
        ended = text if not text or text.endswith("\n") else f"{text}{line_end}"
        item = json.dumps(f"{path[1]}={value}" if len(path) == 2 else value, ensure_ascii=False)
        key, node = _yaml_member(text, path[0])
        if key is None or node is None:
            return (
                f"{ended}{path[0]}: {item}{line_end}"
                if len(path) == 1
                else f"{ended}{path[0]}:{line_end}  - {item}{line_end}"
            )
        if len(path) == 1:
            return text[: node.start_mark.index] + item + text[node.end_mark.index :]
        if not isinstance(node, yaml.SequenceNode):
            raise UserError(f"{path[0]} is not a list; change it by hand")
        for member in node.value:
            if str(member.value).partition("=")[0] == path[1]:
                return text[: member.start_mark.index] + item + text[member.end_mark.index :]
        start = node.start_mark.index
        if node.flow_style:
            return f"{text[: start + 1]}{item}{', ' if node.value else ''}{text[start + 1 :]}"
        line_start = text.rfind("\n", 0, start) + 1
        return f"{text[:start]}- {item}{line_end}{text[line_start:start]}{text[start:]}"

    def remove_value(self, text: str, path: SettingPath) -> str:
        key, node = _yaml_member(text, path[0])
        if key is None or node is None:
            return text
        members = node.value if isinstance(node, yaml.SequenceNode) else []
        named = [member for member in members if str(member.value).partition("=")[0] == path[-1]]
        if len(path) == 1 or len(members) == len(named):
            start, end = text.rfind("\n", 0, key.start_mark.index) + 1, text.find("\n", max(node.end_mark.index - 1, 0))
            return text[:start] + (text[end + 1 :] if end >= 0 else "")
        if not isinstance(node, yaml.SequenceNode) or node.flow_style:
            raise UserError(f"{path[0]} is a list on one line; change it by hand")
        for member in reversed(named):
            start, end = text.rfind("\n", 0, member.start_mark.index) + 1, text.find("\n", member.end_mark.index)
            text = text[:start] + (text[end + 1 :] if end >= 0 else "")
        return text


def _yaml_member(text: str, name: str) -> tuple[yaml.Node | None, yaml.Node | None]:
    """The nodes of a top-level key and its value, with their positions in the text."""
    root = yaml.compose(text, yaml.SafeLoader)
    members = root.value if isinstance(root, yaml.MappingNode) else []
    return next(((key, value) for key, value in members if key.value == name), (None, None))


class EnvFormat:
    """A file of environment variables, `NAME=value` on each line; its readers ignore what is no assignment."""

    def read(self, text: str) -> SettingsTree:
        return {match["name"]: _unquote(match["value"]) for match in _iter_variables(text)}

    def set_value(self, text: str, path: SettingPath, value: Json) -> str:
        line_end = _line_end_of(text)
        written = str(value) if re.fullmatch(r"[\w./:@%+-]+", str(value)) else f'"{value}"'
        matches = [match for match in _iter_variables(text) if match["name"] == path[0]]
        if matches:
            # The last assignment counts.
            return text[: matches[-1].start("value")] + written + text[matches[-1].end("value") :]
        ended = text if not text or text.endswith("\n") else f"{text}{line_end}"
        return f"{ended}{path[0]}={written}{line_end}"

    def remove_value(self, text: str, path: SettingPath) -> str:
        for match in reversed([match for match in _iter_variables(text) if match["name"] == path[0]]):
            end = text.find("\n", match.end())
            text = text[: match.start()] + (text[end + 1 :] if end >= 0 else "")
        return text


_ENV_VARIABLE = re.compile(
    r"""(?m)^[ \t]*(?:export[ \t]+)?(?P<name>[A-Za-z_][\w.-]*)[ \t]*=[ \t]*"""
    r"""(?P<value>"(?:[^"\\]|\\.)*"|'[^']*'|`[^`]*`|[^#\r\n]*?)[ \t]*(?:\#[^\r\n]*)?\r?$"""
)


def _iter_variables(text: str) -> Iterator[re.Match[str]]:
    return _ENV_VARIABLE.finditer(text)


def _unquote(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'`" else value
