"""OpenAI's model list."""

import datetime

from holdfast.catalog.lookup import Models
from holdfast.catalog.rows import Model
from holdfast.simulator.openai.understand import PROVIDER


def list_models(models: Models) -> dict[str, object]:
    return {"object": "list", "data": [describe(row) for row in models.values() if row.provider == PROVIDER]}


def describe(row: Model) -> dict[str, object]:
    return {"id": row.name, "object": "model", "created": created(row), "owned_by": "openai"}


def created(row: Model) -> int:
    """The release date in seconds since the Unix epoch; 0 if unknown."""
    if row.released is None:
        return 0
    return int(datetime.datetime.combine(row.released, datetime.time(), datetime.UTC).timestamp())
