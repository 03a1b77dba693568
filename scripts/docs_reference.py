"""Writes the reference pages of the docs site from the code: commands, Python, HTTP, configuration, events."""

import ast
import inspect
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import click
import msgspec

import holdfast
import holdfast.seed
from holdfast.cli.main import COMMANDS, GROUPS
from holdfast.cli.main import command as main_command
from holdfast.events.payloads.union import AnyPayload
from holdfast.gateway.routes import UpstreamSettings
from holdfast.runtime import config as config_module
from holdfast.runtime.config import HOME_ONLY_SETTINGS, LIMIT_SETTINGS, SETTINGS, Config, setting_value
from holdfast.runtime.instructions import settings as instruction_settings
from holdfast.service.http.openapi import make_openapi
from holdfast.service.route_table import ROUTES

Json = Mapping[str, Any]
NOTE = "Generated from the code when the site is built.\n"


def reference_pages() -> dict[str, str]:
    """Path below `docs/` -> Markdown."""
    return {
        "reference/commands.md": _commands_index(),
        **{f"reference/commands/{name}.md": _command_page(name) for name in sorted(COMMANDS)},
        "reference/python.md": _python_page(),
        "reference/http.md": _http_page(make_openapi(ROUTES)),
        "reference/configuration.md": _configuration_page(),
        "reference/events.md": _events_page(),
    }


# Commands


def _commands_index() -> str:
    sections = []
    for title, commands in GROUPS.items():
        rows = [(f"[`{name}`](commands/{name}.md)", entry.help_text) for name, entry in commands.items()]
        sections += [f"## {title}", _table(("command", "does"), rows)]
    return _page("Commands", NOTE, *sections)


def _command_page(name: str) -> str:
    context = click.Context(main_command, info_name="holdfast")
    command = main_command.get_command(context, name)
    assert command is not None
    example = f"Example:\n\n```text\n{COMMANDS[name].example}\n```"
    return _page(f"holdfast {name}", *_describe_command(command, context, name, level=1), example)


def _describe_command(command: click.Command, parent: click.Context, name: str, *, level: int) -> Iterator[str]:
    context = click.Context(command, info_name=name, parent=parent)
    if level > 1:
        yield f"{'#' * level} {context.command_path}"
    # `\b` keeps click from wrapping a paragraph; such a paragraph is an example or a list.
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        yield _preformatted(paragraph[2:]) if paragraph.startswith("\b\n") else _text(paragraph)
    usage = " ".join((context.command_path, *command.collect_usage_pieces(context)))
    yield f"```text\n{usage}\n```"
    records = (parameter.get_help_record(context) for parameter in command.get_params(context))
    options = [(_code(option), _text(help_text)) for option, help_text in filter(None, records)]
    if options:
        yield _table(("option", "meaning"), options)
    if isinstance(command, click.Group):
        for child_name in command.list_commands(context):
            child = command.get_command(context, child_name)
            if child is not None and not child.hidden:
                yield from _describe_command(child, context, child_name, level=level + 1)


# Python


def _python_page() -> str:
    options = "    options:\n      show_root_heading: true\n      heading_level: 3"
    names = sorted(set(holdfast.__all__) - {"__version__"}, key=str.lower)
    sections = [f"::: holdfast.{name}\n{options}" for name in names]
    seed = [f"::: holdfast.seed.{name}\n{options}" for name in sorted(holdfast.seed.__all__, key=str.lower)]
    return _page(
        "Python",
        NOTE,
        "## holdfast",
        *sections,
        "## holdfast.seed\n\nNames that the seed documents define.",
        *seed,
        "## The pytest plugin",
        *(
            f"::: holdfast.testing.plugin.{name}\n{options}"
            for name in ("simulated_provider", "prefix_guard", "cache_report")
        ),
    )


# HTTP


def _http_page(document: Json) -> str:
    sections: list[str] = []
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            sections += _describe_operation(method.upper(), path, operation)
    schemas = document["components"]["schemas"]
    sections.append("## Values")
    for name, schema in schemas.items():
        sections += [f"### {name}", _text(schema.get("description", "")), _schema_table(schema)]
    return _page(
        "HTTP API",
        NOTE,
        "The service sends this as an OpenAPI document at `/openapi.json`. Every error is an "
        "[ErrorResponse](#errorresponse); the page on errors explains each code.",
        "## Routes",
        *filter(None, sections),
    )


def _describe_operation(method: str, path: str, operation: Json) -> Iterator[str]:
    yield f"### {method} {_code(path)}"
    yield _text(operation.get("summary", ""))
    rows = [
        (
            _code(parameter["name"]),
            parameter["in"],
            _schema_type(parameter["schema"]),
            "yes" if parameter.get("required") else "",
        )
        for parameter in operation.get("parameters", ())
    ]
    if rows:
        yield _table(("parameter", "in", "type", "required"), rows)
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    if body:
        yield f"Body: {_schema_type(body)}"
    for status, response in operation["responses"].items():
        if int(status) < 300:
            content = response.get("content", {})
            shown = ", ".join(
                _schema_type(value["schema"]) if "json" in kind else _code(kind) for kind, value in content.items()
            )
            yield f"Returns {status}: {shown or 'no body'}. Errors: " + ", ".join(
                status for status in operation["responses"] if int(status) >= 300
            )


def _schema_table(schema: Json) -> str:
    if "properties" not in schema:
        return _schema_type(schema)
    required = schema.get("required", ())
    rows = [
        (_code(name), _schema_type(value), "required" if name in required else _default(value))
        for name, value in schema["properties"].items()
    ]
    return _table(("field", "type", "default"), rows)


def _schema_type(schema: Json) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_schema_type(choice) for choice in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(_code(str(choice)) for choice in schema["enum"])
    match schema.get("type"):
        case "array":
            items = schema.get("items")
            return f"list of {_schema_type(items)}" if isinstance(items, dict) and items else "list"
        case "object" if isinstance(schema.get("additionalProperties"), dict):
            return f"map to {_schema_type(schema['additionalProperties'])}"
        case str() as kind:
            return kind + (f" ({schema['format']})" if "format" in schema else "")
        case _:
            return "any"


def _default(schema: Json) -> str:
    return _code(msgspec.json.encode(schema["default"]).decode()) if "default" in schema else ""


# Configuration and events


def _configuration_page() -> str:
    texts = attribute_docstrings(Config, Path(config_module.__file__))
    defaults = Config(home="~/.holdfast")
    rows = []
    for name, variable in SETTINGS.items():
        table, dot, _ = name.partition(".")
        value = setting_value(defaults, name)
        rows.append(
            (
                f"`{name}`<br>`{variable}`",
                _text(texts.get(table if dot else name, "")),
                "" if value in (None, "", ()) else _code(str(value)),
                "no" if name in HOME_ONLY_SETTINGS else "lower it" if name in LIMIT_SETTINGS else "yes",
            )
        )
    upstream = _struct_rows(UpstreamSettings)
    instructions = instruction_settings._Table
    return _page(
        "Configuration",
        NOTE,
        "Settings are read from a flag, the environment, `.holdfast/config.toml` of the workspace and `config.toml` of "
        "the home folder (`HOLDFAST_HOME`, `~/.holdfast` by default); the first one that sets a value wins. `holdfast "
        "config` shows every value and where it comes from. The last column says whether the file of a workspace may "
        "set it.",
        _table(("setting and variable", "meaning", "default", "workspace"), rows),
        f"## [gateway.upstreams.NAME]\n\n{_text(inspect.getdoc(UpstreamSettings) or '')}",
        _table(("field", "type", "default"), upstream),
        f"## [instructions]\n\n{_text(inspect.getdoc(instructions) or '')}",
        _table(("field", "type", "default"), _struct_rows(instructions)),
    )


def attribute_docstrings(owner: type, path: Path) -> dict[str, str]:
    """Attribute of a class -> the string right below it."""
    body = next(
        node.body
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == owner.__name__
    )
    return {
        field.target.id: inspect.cleandoc(text.value.value)
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


def _events_page() -> str:
    payloads = sorted(_union_members(AnyPayload), key=lambda kind: str(kind.__struct_config__.tag))
    sections = []
    for payload in payloads:
        own = payload.__doc__ if payload.__doc__ and "__doc__" in vars(payload) else None
        sections += [
            f"## {payload.__struct_config__.tag}",
            _text(inspect.cleandoc(own or "")),
            _table(("field", "type", "default"), _struct_rows(payload)),
        ]
    return _page(
        "Events",
        NOTE,
        "The log of a session is a list of these. Every other figure is computed from them.",
        *filter(None, sections),
    )


def _union_members(union: object) -> Iterator[type[msgspec.Struct]]:
    for member in get_args(union) or (union,):
        if isinstance(member, types.UnionType):
            yield from _union_members(member)
        else:
            yield member


def _struct_rows(struct: type[msgspec.Struct]) -> list[tuple[str, str, str]]:
    rows = []
    for field in msgspec.structs.fields(struct):
        default = (
            "required" if field.required else _code(repr(None if field.default is msgspec.NODEFAULT else field.default))
        )
        if field.default_factory is not msgspec.NODEFAULT:
            default = _code(repr(field.default_factory()))
        rows.append(
            (_code(field.encode_name), _code(_type_name(struct.__annotations__.get(field.name, field.type))), default)
        )
    return rows


def _type_name(kind: object) -> str:
    name = kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind)
    return re.sub(r"\b(?:[a-z_]\w*\.)+(?=\w)", "", name)


# Markdown


def _page(title: str, *parts: str) -> str:
    return "\n\n".join((f"# {title}", *(part.rstrip() for part in parts))) + "\n"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _text(text: str) -> str:
    """Text of a docstring: its words may contain `<`, `[` and `|`, which are no markup."""
    joined = " ".join(text.split())
    parts = re.split(r"(`[^`]*`)", joined)
    return "".join(part if part.startswith("`") else re.sub(r"([<>|\[\]*_])", r"\\\1", part) for part in parts)


def _code(text: str) -> str:
    fence = "``" if "`" in text else "`"
    return f"{fence}{' '.join(text.split())}{fence}"


def _preformatted(text: str) -> str:
    return f"```text\n{inspect.cleandoc(text)}\n```"
