"""Applies the `[models."provider:name"]` tables of the configuration to the catalog."""

import datetime
import difflib
import re
from collections.abc import Mapping
from decimal import Decimal

import msgspec

from holdfast.catalog.lookup import Models, find_model
from holdfast.catalog.rows import CacheRules, Model, Price
from holdfast.errors import UserError

_PATH = re.compile(r" - at `\$\.?(?P<field>.*)`$")
_UNKNOWN_FIELD = re.compile(r"unknown field `(?P<field>.*)`$")


def with_overrides(models: Models, tables: Mapping[str, object]) -> Models:
    """The catalog with the tables applied in their order.

    A table corrects the row of its name, or copies the row named by `like`, or is a complete row. Fields of `cache` are
    merged one by one; any other field replaces the previous value.
    """
    catalog = dict(models)
    for name, table in tables.items():
        catalog[name] = _row(name, table, catalog)
    return catalog


def _row(name: str, table: object, catalog: Models) -> Model:
    provider, _, bare = name.partition(":")
    if not (provider and bare):
        raise UserError(f"model table {name!r} must be named provider:name, such as anthropic:my-model")
    if not isinstance(table, Mapping):
        raise UserError(f'{_describe(name)} must be a table, as in [models."{name}"]')
    fields = dict(table)
    like = fields.pop("like", None)
    for field in ("provider", "name"):
        if field in fields:
            raise UserError(f"{_describe(name)}: field {field!r} is given by the name of the table; remove it")
    if not (like is None or isinstance(like, str)):
        raise UserError(f"{_describe(name)}: field 'like' must be the name of a model, provider:name")
    base = _copy_fields(find_model(like, catalog), like) if like else _correct_fields(catalog.get(name))
    base_cache, own_cache = base.get("cache"), fields.get("cache")
    if isinstance(base_cache, Mapping) and isinstance(own_cache, Mapping):
        fields["cache"] = {**base_cache, **own_cache}
    try:
        return msgspec.convert({**base, **fields, "provider": provider, "name": bare}, Model)
    except msgspec.ValidationError as error:
        raise UserError(f"{_describe(name)}: {_reword(str(error))}") from error


def _copy_fields(row: Model, like: str) -> dict[str, object]:
    return _fields(row) | {"aliases": (), "released": None, "source": f"configuration, like {like}"}


def _correct_fields(row: Model | None) -> dict[str, object]:
    if row is None:
        return {"source": "configuration"}
    return _fields(row) | {"source": f"{row.source}; corrected by configuration"}


def _fields(row: Model) -> dict[str, object]:
    fields = msgspec.to_builtins(row, builtin_types=(Decimal, datetime.date))
    assert isinstance(fields, dict)
    return fields


def _describe(name: str) -> str:
    return f"model {name!r} in the configuration"


def _reword(message: str) -> str:
    """msgspec's message with the field first, and at the end the field that was probably meant."""
    path = _PATH.search(message)
    problem = message[: path.start()] if path else message
    unknown = _UNKNOWN_FIELD.search(problem)
    if unknown:
        fields = [*Model.__struct_fields__, *CacheRules.__struct_fields__, *Price.__struct_fields__]
        near = difflib.get_close_matches(unknown["field"], fields, n=1)
        problem += f"; did you mean {near[0]!r}?" if near else ""
    return f"field {path['field']!r}: {problem}" if path else problem
