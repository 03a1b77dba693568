"""The `Adapter` for OpenAI's Responses API."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from holdfast.canonical.pieces import Piece
from holdfast.canonical.prompt import Parameters, Passage, Plan, Prompt, Segment, Ttl
from holdfast.canonical.reply import Reply
from holdfast.catalog.rows import Model
from holdfast.errors import FailureKind, ProviderError
from holdfast.providers.adapter import Endpoint, WireRequest
from holdfast.providers.openai_errors import read_error, write_error
from holdfast.providers.openai_fields import session_fields
from holdfast.providers.openai_responses.diagnosing import asked_to_diagnose, compares, refuses_diagnosis
from holdfast.providers.openai_responses.read import read_request
from holdfast.providers.openai_responses.reply import write_reply, write_stream
from holdfast.providers.openai_responses.spell import (
    close,
    endpoint,
    lead,
    lower,
    mark,
    opening,
    spell_segment,
)
from holdfast.providers.openai_responses.stream import ResponseFold, read_reply
from holdfast.providers.streaming import EventStreamReader
from holdfast.providers.writing import write_request

_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class OpenAIResponsesAdapter:
    name = "openai"

    def lower(self, entry: Passage) -> Passage | None:
        return lower(entry)

    def spell(self, segment: Segment) -> tuple[Piece, ...]:
        return spell_segment(segment)

    def session_fields(self, model: Model, session_id: str) -> tuple[tuple[str, str], ...]:
        fields = session_fields(model, session_id)
        # A model without reasoning refuses `include: ["reasoning.encrypted_content"]`, so the list is emptied.
        return fields if model.reasons else (*fields, ("include", "[]"))

    def lead(self, before: Piece | None, block: Piece) -> bytes:
        return lead(before, block)

    def close(self, last: Piece | None) -> bytes:
        return close(last)

    def mark(self, ttl: Ttl) -> bytes:
        return mark(ttl)

    def opening(self, parameters: Parameters) -> bytes:
        return opening(parameters)

    def endpoint(self, parameters: Parameters) -> Endpoint:
        return endpoint(parameters)

    def credentials(self, api_key: str) -> Mapping[str, str]:
        return {"authorization": f"Bearer {api_key}"}

    def asked_to_diagnose(self, parameters: Parameters, previous_response_id: str | None) -> Parameters:
        return asked_to_diagnose(parameters, previous_response_id)

    def compares(self, parameters: Parameters) -> bool:
        return compares(parameters)

    def refuses_diagnosis(self, error: ProviderError) -> bool:
        return refuses_diagnosis(error)

    def write_request(self, prompt: Prompt, plan: Plan, parameters: Parameters) -> bytes:
        return write_request(self, prompt, plan, parameters)

    def read_request(self, body: bytes, headers: Mapping[str, str] = _NO_HEADERS) -> WireRequest:
        """Also decodes requests to count tokens, which have neither `max_output_tokens` nor `stream`."""
        return read_request(body)

    def write_reply(self, reply: Reply) -> bytes:
        return write_reply(reply)

    def read_reply(self, body: bytes) -> Reply:
        return read_reply(body)

    def write_stream(self, reply: Reply) -> Iterable[bytes]:
        return write_stream(reply)

    def stream_reader(self) -> EventStreamReader:
        return EventStreamReader(ResponseFold())

    def write_error(self, kind: FailureKind, message: str, *, status: int | None = None) -> tuple[int, bytes]:
        return write_error(kind, message, status=status)

    def read_error(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
        return read_error(status, headers, body)
