"""What a client's answer took, read from the answer while the caller gets it as it comes."""

import asyncio

from holdfast.canonical.encoding import plain_json
from holdfast.canonical.reply import Reply, ReplyFinished
from holdfast.engine.harmless import Warnings
from holdfast.engine.marking.dialect import Dialect
from holdfast.engine.marking.plain import Arguments, plain
from holdfast.engine.recorder import Call, Recorder
from holdfast.errors import FailureKind, ProviderError
from holdfast.providers.failures import kind_of

_UNREAD = "a reply cannot be read, so that nobody knows what it took"


class Watch:
    """Follows one call to its end. Nothing in here raises."""

    def __init__(
        self,
        dialect: Dialect,
        recorder: Recorder,
        call: Call | None,
        *,
        warnings: Warnings,
        arguments: tuple[Arguments, Arguments],
    ) -> None:
        self._dialect = dialect
        self._recorder = recorder
        self._call = call
        self._arguments = arguments
        self._warnings = warnings
        self._reader = dialect.adapter.stream_reader()

    def replied(self, answer: object) -> None:
        """The call was answered by a whole reply, as an object of the client's."""
        body = b""
        with self._warnings.harmless(_UNREAD):
            body = plain_json(plain(answer))
        self.received(body)

    def received(self, body: bytes) -> None:
        """The call was answered by a whole reply."""
        if self._call is None:
            return
        reply: Reply | None = None
        with self._warnings.harmless(_UNREAD):
            reply = self._dialect.adapter.read_reply(body)
        self._end(reply)

    def saw(self, item: object) -> bool:
        """One item of a streamed reply; whether it is the caller's."""
        with self._warnings.harmless(_UNREAD):
            spelled = plain(item)
            if isinstance(spelled, dict):
                self.feed(self._dialect.as_event(spelled))
                return not self._dialect.is_ours(*self._arguments, spelled)
        return True

    def feed(self, chunk: bytes) -> None:
        if self._call is None:
            return
        with self._warnings.harmless(_UNREAD):
            try:
                for delta in self._reader.feed(chunk):
                    if isinstance(delta, ReplyFinished):
                        self._end(delta.reply)
            except ProviderError as error:
                self.failed(error)
                raise

    def ended(self) -> None:
        """The stream has no more items."""
        if self._dialect.closing:
            self.feed(self._dialect.closing)
        self._break_off("network", "the reply ended before it was complete")

    def closed(self) -> None:
        """The caller wants no more of it."""
        self._break_off("cancelled", "the stream was closed before its end")

    def dropped(self) -> None:
        """Nobody holds the stream any more; may be called at any time, by the garbage collector."""
        call, self._call = self._call, None
        if call is not None:
            with self._warnings.harmless(_UNREAD):
                self._recorder.drop(call, self._reader.partial())

    def failed(self, error: BaseException) -> None:
        """What the client raised."""
        kind, message = failure_of(error)
        self._break_off(kind, message)

    def _break_off(self, kind: FailureKind, message: str) -> None:
        call, self._call = self._call, None
        if call is not None:
            with self._warnings.harmless(_UNREAD):
                self._recorder.fail(call, kind, message, self._reader.partial())

    def _end(self, reply: Reply | None) -> None:
        call, self._call = self._call, None
        if call is not None and reply is not None:
            self._recorder.complete(call, reply)
        elif call is not None:
            self._recorder.fail(call, "other", "the reply could not be read")


def failure_of(error: BaseException) -> tuple[FailureKind, str]:
    """The kind of an error, and a line that names it and quotes nothing: a message may hold what was sent."""
    name = type(error).__name__
    status = next(
        (code for field in ("status_code", "code") if isinstance(code := getattr(error, field, None), int)), 0
    )
    if status:
        return kind_of(status, str(error)), f"{name} (HTTP status {status})"
    if isinstance(error, ProviderError):
        return error.kind, name
    if isinstance(error, asyncio.CancelledError | KeyboardInterrupt | GeneratorExit):
        return "cancelled", name
    return ("network" if "Connection" in name or "Timeout" in name else "other"), name
