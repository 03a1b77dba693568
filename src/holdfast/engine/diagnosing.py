"""Asks the provider for the reason of a cache miss, where it supports that.

The diagnosis parameter is added to the sent bytes only: recorded parameters, single-flight keys and keep-alive requests
are the same with and without it.
"""

import msgspec

from holdfast.canonical.prompt import Parameters
from holdfast.engine.conversation import Conversation
from holdfast.errors import ProviderError
from holdfast.providers.diagnosing import DiagnosesMisses


class Sent(msgspec.Struct, frozen=True):
    """The parameters as sent; `asks` says whether we added a diagnosis request."""

    parameters: Parameters
    asks: bool = False


def asking(conversation: Conversation, parameters: Parameters) -> Sent:
    """The parameters with a diagnosis request, if the model supports it and the provider has not refused it before."""
    deps, comparison = conversation.parts, conversation.state.comparison
    if not deps.asks_for_diagnosis or deps.model.provider in comparison.refused_by:
        return Sent(parameters)
    if not deps.model.cache.diagnoses_misses or not isinstance(deps.adapter, DiagnosesMisses):
        return Sent(parameters)
    if not deps.model.supports_prompt_caching:
        # Without caching there is no miss to diagnose.
        return Sent(parameters)
    with_diagnosis = deps.adapter.asked_to_diagnose(parameters, comparison.response_ids.get(deps.model.id))
    return Sent(with_diagnosis, asks=with_diagnosis != parameters)


def is_refused(conversation: Conversation, sent: Sent, error: ProviderError) -> bool:
    """Whether the error is about our diagnosis request, so that the call may succeed without it."""
    adapter = conversation.parts.adapter
    return sent.asks and isinstance(adapter, DiagnosesMisses) and adapter.refuses_diagnosis(error)
