"""Whether a request asks its provider why the cache did not hold, and what becomes of the answer.

Such a wish goes with the bytes that are sent and with nothing else: what a session records of its parameters, what it
claims at the gate and what it keeps alive are the same with it and without.
"""

import msgspec

from holdfast.canonical.prompt import Parameters
from holdfast.engine.conversation import Conversation
from holdfast.errors import ProviderError
from holdfast.providers.diagnosing import DiagnosesMisses


class Sent(msgspec.Struct, frozen=True):
    """Parameters as they go out; `asks` where a wish of ours is among them."""

    parameters: Parameters
    asks: bool = False


def asking(conversation: Conversation, parameters: Parameters) -> Sent:
    """With the wish, where the model can fulfil it and its provider has not refused it before."""
    deps, comparison = conversation.parts, conversation.state.comparison
    if not deps.asks_for_diagnosis or deps.model.provider in comparison.refused_by:
        return Sent(parameters)
    if not deps.model.cache.diagnoses_misses or not isinstance(deps.adapter, DiagnosesMisses):
        return Sent(parameters)
    if not deps.model.supports_prompt_caching:
        # Where nothing is cached there is nothing to be diagnosed.
        return Sent(parameters)
    with_diagnosis = deps.adapter.asked_to_diagnose(parameters, comparison.response_ids.get(deps.model.id))
    return Sent(with_diagnosis, asks=with_diagnosis != parameters)


def is_refused(conversation: Conversation, sent: Sent, error: ProviderError) -> bool:
    """Whether the request may be taken without our wish."""
    adapter = conversation.parts.adapter
    return sent.asks and isinstance(adapter, DiagnosesMisses) and adapter.refuses_diagnosis(error)
