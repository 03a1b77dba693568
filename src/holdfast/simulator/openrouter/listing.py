"""OpenRouter's model list with prices."""

from decimal import Decimal

from holdfast.catalog.lookup import Models, price_at, utc_date
from holdfast.catalog.rows import Model
from holdfast.providers.openrouter import openrouter
from holdfast.simulator.openai.listing import created

_PARAMETERS = ("max_tokens", "reasoning", "stop", "temperature", "tool_choice", "tools")
_TOKENS_PRICED = 1_000_000


def list_models(models: Models, *, at: float) -> dict[str, object]:
    rows = [describe(row, at=at) for row in models.values() if row.provider == openrouter.name]
    return {"data": rows, "links": {"next": None}, "total_count": len(rows)}


def describe(row: Model, *, at: float) -> dict[str, object]:
    return {
        "id": row.name,
        "canonical_slug": row.name,
        "name": row.name,
        "created": created(row),
        "context_length": row.context_tokens_max,
        "architecture": {
            "modality": "text+image->text",
            "input_modalities": ["text", "image"],
            "output_modalities": ["text"],
            "tokenizer": "Other",
            "instruct_type": None,
        },
        "pricing": _pricing(row, at),
        "top_provider": {
            "context_length": row.context_tokens_max,
            "max_completion_tokens": row.output_tokens_max,
            "is_moderated": False,
        },
        "per_request_limits": None,
        "supported_parameters": _PARAMETERS,
        "default_parameters": None,
        "supported_voices": None,
        "links": {"details": f"/api/v1/models/{row.name}/endpoints"},
    }


def _pricing(row: Model, at: float) -> dict[str, str]:
    """Dollars per token."""
    if not row.prices:
        return {"prompt": "0", "completion": "0"}
    price = price_at(row, utc_date(at), 0)
    return {
        "prompt": _per_token(price.input),
        "completion": _per_token(price.output),
        "input_cache_read": _per_token(price.cache_read),
        "input_cache_write": _per_token(price.cache_write_5m),
    }


def _per_token(rate: Decimal) -> str:
    return f"{(rate / _TOKENS_PRICED).normalize():f}"
