"""The `Adapter` for Chat Completions, in one provider's variant."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from holdfast.canonical.pieces import Piece
from holdfast.canonical.prompt import Parameters, Passage, Plan, Prompt, Segment, Ttl
from holdfast.canonical.reply import Reply
from holdfast.catalog.rows import Model
from holdfast.errors import FailureKind, ProviderError
from holdfast.providers.adapter import Endpoint, WireRequest
from holdfast.providers.openai_chat.flavour import Fields, Flavour
from holdfast.providers.openai_chat.lowering import lower
from holdfast.providers.openai_chat.parameters import opening, refuse_betas
from holdfast.providers.openai_chat.read import read_request
from holdfast.providers.openai_chat.reply import write_reply, write_stream
from holdfast.providers.openai_chat.spell import close, lead, mark, spell_segment
from holdfast.providers.openai_chat.stream import ChatFold, read_reply
from holdfast.providers.openai_errors import read_error
from holdfast.providers.streaming import EventStreamReader
from holdfast.providers.writing import write_request

PATH = "/chat/completions"

_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class ChatAdapter:
    def __init__(self, flavour: Flavour) -> None:
        self._flavour = flavour

    @property
    def name(self) -> str:
        return self._flavour.name

    def lower(self, entry: Passage) -> Passage | None:
        return lower(entry, self._flavour)

    def spell(self, segment: Segment) -> tuple[Piece, ...]:
        return spell_segment(segment, self._flavour)

    def session_fields(self, model: Model, session_id: str) -> Fields:
        return self._flavour.session_fields(model, session_id)

    def lead(self, before: Piece | None, block: Piece) -> bytes:
        return lead(before, block)

    def close(self, last: Piece | None) -> bytes:
        return close(last)

    def mark(self, ttl: Ttl) -> bytes:
        return mark(ttl, self._flavour)

    def opening(self, parameters: Parameters) -> bytes:
        return opening(parameters, self._flavour)

    def endpoint(self, parameters: Parameters) -> Endpoint:
        refuse_betas(parameters, self._flavour)
        return Endpoint(PATH, (("content-type", "application/json"),))

    def credentials(self, api_key: str) -> Mapping[str, str]:
        return {"authorization": f"Bearer {api_key}"}

    def write_request(self, prompt: Prompt, plan: Plan, parameters: Parameters) -> bytes:
        return write_request(self, prompt, plan, parameters)

    def read_request(self, body: bytes, headers: Mapping[str, str] = _NO_HEADERS) -> WireRequest:
        return read_request(body, self._flavour)

    def write_reply(self, reply: Reply) -> bytes:
        return write_reply(reply, self._flavour)

    def read_reply(self, body: bytes) -> Reply:
        return read_reply(body, self._flavour)

    def write_stream(self, reply: Reply) -> Iterable[bytes]:
        return write_stream(reply, self._flavour)

    def stream_reader(self) -> EventStreamReader:
        return EventStreamReader(ChatFold(self._flavour))

    def write_error(self, kind: FailureKind, message: str, *, status: int | None = None) -> tuple[int, bytes]:
        return self._flavour.write_error(kind, message, status=status)

    def read_error(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
        return read_error(status, headers, body)
