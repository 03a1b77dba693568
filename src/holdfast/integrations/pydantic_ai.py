"""`model = wrap(model)` for the models of pydantic-ai that send through an official client."""

import copy
from typing import Any, TypeVar, Unpack

from holdfast.errors import UserError
from holdfast.integrations.wrap import WrapArguments, wrap_together

AnyModel = TypeVar("AnyModel")


def wrap(model: AnyModel, **options: Unpack[WrapArguments]) -> AnyModel:
    """A copy of an `AnthropicModel`, `OpenAIChatModel`, `OpenAIResponsesModel` or `GoogleModel` that is recorded.

    `options` are those of `holdfast.wrap`. The given model and its provider are not changed.
    """
    copied: Any = copy.copy(model)  # The fields of pydantic-ai's models, which no type here knows.
    provider: Any = getattr(copied, "_provider", None)
    if not hasattr(provider, "_client"):
        raise UserError(f"a {type(model).__name__} cannot be wrapped: its provider has no client")
    copied._provider = copy.copy(provider)
    (copied._provider._client,) = wrap_together([provider.client], options)
    return copied  # type: ignore[no-any-return]
