"""Follows one call of a wrapped client and records its usage and outcome."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.engine.guard import WarningLog
from holdfast.engine.inject.client_method import Arguments, ClientMethod, describe_value, to_json
from holdfast.engine.recorder import CallRecorder, ObservedCall
from holdfast.errors import FailureKind, ProviderError
from holdfast.providers.errors import classify_status
from holdfast.providers.tolerant_decode import FIELD_CHARS_MAX, find_usage
from holdfast.types.json_encoding import encode_json
from holdfast.types.reply import Reply, ReplyFinished
from holdfast.types.usage import Usage

_UNREADABLE = "a reply cannot be decoded"
BYTES_PER_TOKEN = 4
USAGE_EVENTS_MAX = 16
"""How many events with usage are kept of a stream: Anthropic sends two, OpenAI one, Gemini one with each chunk."""


class CallWatcher:
    """Follows one call to its end. No method raises: a failure of the record must not break the caller's call."""

    def __init__(
        self,
        method: ClientMethod,
        recorder: CallRecorder,
        call: ObservedCall | None,
        *,
        warnings: WarningLog,
        arguments: tuple[Arguments, Arguments],
    ) -> None:
        self._method = method
        self._recorder = recorder
        self._call = call
        self._arguments = arguments
        self._warnings = warnings
        self._decoder = method.adapter.make_stream_decoder()
        self._unreadable = ""
        self._received_bytes = 0
        self._usage_events: list[bytes] = []

    def record_response(self, response: object) -> None:
        """Record a complete response, as an object of the client library."""
        body = b""
        with self._warnings.suppress_errors(_UNREADABLE):
            body = encode_json(to_json(response, describe_value))
        self.record_body(body)

    def record_body(self, body: bytes) -> None:
        """Record a complete response, as bytes."""
        if self._call is None:
            return
        with self._warnings.suppress_errors(_UNREADABLE):
            try:
                self._complete_call(self._method.adapter.decode_reply(body))
            except Exception as error:
                self._unreadable, self._received_bytes = _describe_error(error), len(body)
                self._complete_unreadable(body)
                raise

    def record_item(self, item: object) -> bool:
        """Record one item of a streamed response; return whether the caller gets it.

        An item that exists only because we added an option to the request, such as usage, is withheld.
        """
        with self._warnings.suppress_errors(_UNREADABLE):
            event = to_json(item, describe_value)
            if isinstance(event, dict):
                self.feed(self._method.as_event(event))
                return not self._method.is_added_item(*self._arguments, event)
        return True

    def feed(self, chunk: bytes) -> None:
        if self._call is None:
            return
        self._received_bytes += len(chunk)
        if b'"usage' in chunk:
            self._usage_events.append(chunk)
            # The first one stays: only the start of Anthropic's streams has the cache's counters for sure.
            del self._usage_events[1 : len(self._usage_events) - USAGE_EVENTS_MAX + 1]
        if self._unreadable:
            return
        with self._warnings.suppress_errors(_UNREADABLE):
            try:
                for delta in self._decoder.feed(chunk):
                    if isinstance(delta, ReplyFinished):
                        self._complete_call(delta.reply)
            except Exception as error:
                # An error event of the provider names no field, and ends the call; an event we cannot decode does not.
                if isinstance(error, ProviderError) and not error.field:
                    self.record_failure(error)
                else:
                    self._unreadable = _describe_error(error)
                raise

    def record_end(self) -> None:
        """Record the end of the stream."""
        # SDKs consume the event that ends a stream, such as `[DONE]`; our decoder needs it to finish the reply.
        if self._method.closing:
            self.feed(self._method.closing)
        if self._unreadable:
            self._complete_unreadable(b"".join(self._usage_events))
        self._fail_call("network", "the reply ended before it was complete")

    def record_close(self) -> None:
        """Record that the caller closed the stream."""
        self._fail_call("cancelled", "the stream was closed before its end")

    def record_drop(self) -> None:
        """Record that the stream was garbage collected; may be called at any time and in any thread."""
        call, self._call = self._call, None
        if call is not None:
            with self._warnings.suppress_errors(_UNREADABLE):
                self._recorder.drop_call(call, self._decoder.partial())

    @contextmanager
    def recording_failure(self) -> Iterator[None]:
        """Record an error that is raised in the block."""
        try:
            yield
        except BaseException as error:
            self.record_failure(error)
            raise

    @contextmanager
    def recording_stream(self) -> Iterator[None]:
        """Record how the block that passes a stream on ends: at its end, by an error, or dropped by the caller."""
        try:
            yield
        except GeneratorExit:
            self.record_drop()
            raise
        except BaseException as error:
            self.record_failure(error)
            raise
        self.record_end()

    def record_failure(self, error: BaseException) -> None:
        """Record an error that the client raised."""
        self._fail_call(*classify_error(error))

    def _fail_call(self, kind: FailureKind, message: str) -> None:
        call, self._call = self._call, None
        if call is not None:
            with self._warnings.suppress_errors(_UNREADABLE):
                self._recorder.fail_call(call, kind, message, self._decoder.partial())

    def _complete_call(self, reply: Reply) -> None:
        # Cleared first: of several signs of an end (last event, close, garbage collection) only the first counts.
        call, self._call = self._call, None
        if call is not None:
            self._recorder.complete_call(call, reply, unreadable=self._unreadable)

    def _complete_unreadable(self, body: bytes) -> None:
        """Record a response that cannot be decoded, with the usage in it, or else with an estimate by its size."""
        call = self._call
        with self._warnings.suppress_errors(_UNREADABLE):
            usage = find_usage(body)
            if call is None or (usage is not None and usage != Usage()):
                self._complete_call(Reply((), "error", usage or Usage()))
                return
            self._call = None
            prompt_tokens = call.prepared.tokens or call.prepared.body_bytes // BYTES_PER_TOKEN
            estimate = Usage(input=prompt_tokens, output=self._received_bytes // BYTES_PER_TOKEN)
            self._recorder.fail_call(call, "unreadable", self._unreadable, estimated_usage=estimate)


def _describe_error(error: Exception) -> str:
    """What could not be decoded; for an error that is not ours only its type, because it may quote the reply."""
    described = str(error) if isinstance(error, ProviderError) else f"it cannot be decoded: {type(error).__name__}"
    return described[:FIELD_CHARS_MAX]


def classify_error(error: BaseException) -> tuple[FailureKind, str]:
    """The kind of an error, and its class name. The message is left out, because it may quote the prompt."""
    name = type(error).__name__
    # The SDKs name the HTTP status `status_code` (Anthropic, OpenAI) or `code` (google-genai).
    codes = (getattr(error, field, None) for field in ("status_code", "code"))
    status = next((code for code in codes if isinstance(code, int)), 0)
    if status:
        return classify_status(status, str(error)), f"{name} (HTTP status {status})"
    if isinstance(error, ProviderError):
        return error.kind, name
    if isinstance(error, asyncio.CancelledError | KeyboardInterrupt | GeneratorExit):
        return "cancelled", name
    return ("network" if "Connection" in name or "Timeout" in name else "other"), name
