"""Anthropic's model list, in pages, newest first."""

import datetime
from collections.abc import Iterable, Mapping

from holdfast.catalog.lookup import Models
from holdfast.catalog.rows import Model
from holdfast.simulator.dialect import refuse

# Anthropic's default and maximum of the `limit` parameter.
PAGE_DEFAULT = 20
PAGE_MAX = 1_000
_UNKNOWN_DATE = datetime.date(1970, 1, 1)


def list_models(models: Models, query: Mapping[str, str]) -> dict[str, object]:
    rows = sorted(_anthropic_models(models), key=lambda row: row.released or _UNKNOWN_DATE, reverse=True)
    names = [row.name for row in rows]
    start = _position(names, query, "after_id", absent=-1) + 1
    end = _position(names, query, "before_id", absent=len(names))
    limit = _parse_limit(query.get("limit"))
    window = rows[start:end]
    page = window[-limit:] if "before_id" in query else window[:limit]
    return {
        "data": [describe(row) for row in page],
        "has_more": len(window) > len(page),
        "first_id": page[0].name if page else None,
        "last_id": page[-1].name if page else None,
    }


def describe(row: Model) -> dict[str, object]:
    released = row.released or _UNKNOWN_DATE
    return {
        "type": "model",
        "id": row.name,
        "display_name": row.name.replace("-", " ").title(),
        "created_at": f"{released.isoformat()}T00:00:00Z",
        "lifecycle": "active",
        "max_input_tokens": row.context_tokens_max,
        "max_tokens": row.output_tokens_max,
    }


def _anthropic_models(models: Models) -> Iterable[Model]:
    return (row for row in models.values() if row.provider == "anthropic")


def _position(names: list[str], query: Mapping[str, str], field: str, *, absent: int) -> int:
    name = query.get(field)
    if name is None:
        return absent
    if name not in names:
        raise refuse(f"{field}: no such model in the list")
    return names.index(name)


def _parse_limit(text: str | None) -> int:
    if text is None:
        return PAGE_DEFAULT
    if not (text.isascii() and text.isdigit() and len(text) <= 4 and 1 <= int(text) <= PAGE_MAX):
        raise refuse(f"limit: must be from 1 to {PAGE_MAX}")
    return int(text)
