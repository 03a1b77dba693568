"""How configuration adds models to the catalog and corrects the ones that are there."""

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
    """The catalog with `[models."provider:name"]` tables applied, in their order.

    A table corrects the row of its name, or starts from the row that `like` names, or is a whole row. Fields
    of `cache` are taken one by one; any other field replaces what was there.
    """
    known = dict(models)
    for name, table in tables.items():
        known[name] = _row(name, table, known)
    return known


def _row(name: str, table: object, known: Models) -> Model:
    provider, _, bare = name.partition(":")
    if not (provider and bare):
        raise UserError(f"model table {name!r} must be named provider:name, such as anthropic:my-model")
    if not isinstance(table, Mapping):
        raise UserError(f'{_place(name)} must be a table, as in [models."{name}"]')
    fields = dict(table)
    like = fields.pop("like", None)
    for field in ("provider", "name"):
        if field in fields:
            raise UserError(f"{_place(name)}: field {field!r} is told by the name of the table; remove it")
    if not (like is None or isinstance(like, str)):
        raise UserError(f"{_place(name)}: field 'like' must be the name of a model, provider:name")
    start = _copied(find_model(like, known), like) if like else _corrected(known.get(name))
    before, after = start.get("cache"), fields.get("cache")
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        fields["cache"] = {**before, **after}
    try:
        return msgspec.convert({**start, **fields, "provider": provider, "name": bare}, Model)
    except msgspec.ValidationError as error:
        raise UserError(f"{_place(name)}: {_in_our_words(str(error))}") from error


def _copied(row: Model, like: str) -> dict[str, object]:
    return _fields(row) | {"aliases": (), "released": None, "source": f"configuration, like {like}"}


def _corrected(row: Model | None) -> dict[str, object]:
    if row is None:
        return {"source": "configuration"}
    return _fields(row) | {"source": f"{row.source}; corrected by configuration"}


def _fields(row: Model) -> dict[str, object]:
    fields = msgspec.to_builtins(row, builtin_types=(Decimal, datetime.date))
    assert isinstance(fields, dict)
    return fields


def _place(name: str) -> str:
    return f"model {name!r} in the configuration"


def _in_our_words(complaint: str) -> str:
    """The complaint with the field in front, and the field that was perhaps meant behind."""
    path = _PATH.search(complaint)
    what = complaint[: path.start()] if path else complaint
    unknown = _UNKNOWN_FIELD.search(what)
    if unknown:
        ours = [*Model.__struct_fields__, *CacheRules.__struct_fields__, *Price.__struct_fields__]
        near = difflib.get_close_matches(unknown["field"], ours, n=1)
        what += f"; did you mean {near[0]!r}?" if near else ""
    return f"field {path['field']!r}: {what}" if path else what
