"""What a session remembers of its newest responses: time, usage, and the provider's response ids."""

from collections.abc import Mapping

import msgspec

from holdfast.canonical.usage import Usage
from holdfast.engine.sent import SentCall
from holdfast.events.payloads import LlmCallCompleted, LlmCallFailed
from holdfast.planning.memory import Sent


def answered(request: Sent | None, usage: Usage) -> SentCall | None:
    if request is None:
        return None
    return SentCall(request.at, request.marks[-1].ttl if request.marks else None, usage)


class Comparison(msgspec.Struct, frozen=True):
    """What a cache-miss diagnosis compares the next request with: the id of the newest response, by model.

    `refused_by` are providers that refused a request with the diagnosis parameter.
    """

    response_ids: Mapping[str, str] = {}
    refused_by: frozenset[str] = frozenset()


def comparison_after(before: Comparison, outcome: LlmCallCompleted | LlmCallFailed) -> Comparison:
    match outcome:
        case LlmCallCompleted(model=model, response_id=id) if id:
            return msgspec.structs.replace(before, response_ids={**before.response_ids, model: id})
        case LlmCallFailed(refused_diagnosis=True, provider=provider):
            return msgspec.structs.replace(before, refused_by=before.refused_by | {provider})
        case _:
            return before
