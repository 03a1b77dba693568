"""`model = wrap(model)` for the chat models of LangChain that send through an official client."""

from typing import Any, TypeVar, Unpack

from holdfast.errors import UserError
from holdfast.integrations.wrap import WrapArguments, wrap_together

AnyModel = TypeVar("AnyModel")


def wrap(model: AnyModel, **options: Unpack[WrapArguments]) -> AnyModel:
    """A copy of a `ChatAnthropic`, `ChatOpenAI` or `ChatGoogleGenerativeAI` whose calls are planned and recorded.

    `options` are those of `holdfast.wrap`. Wrap the model before `bind_tools`. The given model is not changed.
    """
    copied: Any = model  # The fields of LangChain's models, which no type here knows.
    # What `bind_tools` returns has a copy method too, and passes the attributes of the model on.
    if not hasattr(copied, "model_copy") or "bound" in type(copied).model_fields:
        raise UserError(f"a {type(model).__name__} cannot be wrapped; wrap the chat model itself, before `bind_tools`")
    copied = copied.model_copy()
    if hasattr(copied, "root_async_client"):
        clients = [copied.root_client, copied.root_async_client]
        copied.root_client, copied.root_async_client = wrap_together(clients, options)
        copied.client = copied.root_client.chat.completions
        copied.async_client = copied.root_async_client.chat.completions
    elif hasattr(copied, "_async_client"):
        # Cached properties; a new value takes the place of the cached one.
        clients = wrap_together([copied._client, copied._async_client], options)
        copied.__dict__["_client"], copied.__dict__["_async_client"] = clients
    else:
        (copied.client,) = wrap_together([getattr(copied, "client", None)], options)
    return copied  # type: ignore[no-any-return]
