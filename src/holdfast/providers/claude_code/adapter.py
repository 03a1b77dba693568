"""The `Adapter` for Claude Code: Anthropic's format without breakpoints, because the command places its own."""

from collections.abc import Iterable, Mapping

import msgspec

from holdfast.canonical.pieces import Piece
from holdfast.canonical.prompt import Parameters, Passage, Plan, Prompt, Segment, Ttl
from holdfast.canonical.reply import Reply
from holdfast.catalog.rows import Model
from holdfast.errors import FailureKind, ProviderError, UserError
from holdfast.providers.adapter import Endpoint, WireRequest
from holdfast.providers.anthropic import anthropic
from holdfast.providers.claude_code.output import CommandOutputReader, read_reply, write_reply, write_stream
from holdfast.providers.writing import write_request


class ClaudeCodeAdapter:
    name = "claude-code"

    def lower(self, entry: Passage) -> Passage:
        return anthropic.lower(entry)

    def spell(self, segment: Segment) -> tuple[Piece, ...]:
        return tuple(msgspec.structs.replace(block, markable=False) for block in anthropic.spell(segment))

    def session_fields(self, model: Model, session_id: str) -> tuple[tuple[str, str], ...]:
        return ()

    def lead(self, before: Piece | None, block: Piece) -> bytes:
        return anthropic.lead(before, block)

    def close(self, last: Piece | None) -> bytes:
        return anthropic.close(last)

    def mark(self, ttl: Ttl) -> bytes:
        raise UserError(f"{self.name} does its own caching and accepts no breakpoints")

    def opening(self, parameters: Parameters) -> bytes:
        return anthropic.opening(parameters)

    def endpoint(self, parameters: Parameters) -> Endpoint:
        """A command has no address, and it chooses its betas itself."""
        return Endpoint("/", ())

    def credentials(self, api_key: str) -> Mapping[str, str]:
        """None: the command has its own credentials."""
        return {}

    def write_request(self, prompt: Prompt, plan: Plan, parameters: Parameters) -> bytes:
        return write_request(self, prompt, plan, parameters)

    def read_request(self, body: bytes, headers: Mapping[str, str] | None = None) -> WireRequest:
        return anthropic.read_request(body, headers or {})

    def write_reply(self, reply: Reply) -> bytes:
        return write_reply(reply)

    def read_reply(self, body: bytes) -> Reply:
        return read_reply(body)

    def write_stream(self, reply: Reply) -> Iterable[bytes]:
        return write_stream(reply)

    def stream_reader(self) -> CommandOutputReader:
        return CommandOutputReader()

    def write_error(self, kind: FailureKind, message: str, *, status: int | None = None) -> tuple[int, bytes]:
        return anthropic.write_error(kind, message, status=status)

    def read_error(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
        return anthropic.read_error(status, headers, body)
