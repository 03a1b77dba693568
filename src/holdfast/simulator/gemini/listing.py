"""Gemini's model list, and its paging."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from holdfast.catalog.lookup import Models
from holdfast.catalog.rows import Model
from holdfast.providers.gemini import gemini
from holdfast.simulator.dialect import refuse

PAGE_DEFAULT = 50
PAGE_MAX = 1_000

Row = TypeVar("Row")


def list_models(models: Models, query: Mapping[str, str]) -> dict[str, object]:
    page, next_page_token = page_of([row for row in models.values() if row.provider == gemini.name], query)
    response: dict[str, object] = {"models": [describe(row) for row in page]}
    return {**response, "nextPageToken": next_page_token} if next_page_token else response


def describe(row: Model) -> dict[str, object]:
    methods = ["generateContent", "countTokens", *(["createCachedContent"] if row.cache.explicit_tokens_min else [])]
    return {
        "name": f"models/{row.name}",
        "version": row.name,
        "displayName": row.name.replace("-", " ").title(),
        "inputTokenLimit": row.context_tokens_max,
        "outputTokenLimit": row.output_tokens_max,
        "supportedGenerationMethods": methods,
    }


def page_of(rows: Sequence[Row], query: Mapping[str, str]) -> tuple[Sequence[Row], str]:
    """The requested page, and the token of the next page; empty after the last page."""
    start = _parse_number(query, "pageToken", absent=0)
    size = min(_parse_number(query, "pageSize", absent=PAGE_DEFAULT) or PAGE_DEFAULT, PAGE_MAX)
    end = start + size
    return rows[start:end], str(end) if end < len(rows) else ""


def _parse_number(query: Mapping[str, str], name: str, *, absent: int) -> int:
    text = query.get(name) or str(absent)
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise refuse(f"Invalid value at '{name}'.")
    return int(text)
