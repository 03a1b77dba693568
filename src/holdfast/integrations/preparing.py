"""Prepares the calls of a wrapped client: rewrites their arguments and encodes them for the record."""

from collections.abc import Callable

from holdfast.canonical.encoding import digest, plain_json
from holdfast.canonical.scroll import Scroll
from holdfast.catalog.rows import Model
from holdfast.engine.harmless import Warnings
from holdfast.engine.marking.dialect import Dialect, Request, Rewritten
from holdfast.engine.marking.plain import Arguments, body_of, settled
from holdfast.engine.recorder import Prepared, Recorder
from holdfast.engine.witness import Witness
from holdfast.events.controls import Controls
from holdfast.events.payloads_controls import CacheControlled
from holdfast.providers.adapter import PATH, Adapter, WireRequest

_SENT_UNCHANGED = "a call is sent unchanged, without cache breakpoints, and is not recorded"


class Desk:
    """Prepares the calls of one wrapped client; blocks that were encoded for the previous call are reused."""

    def __init__(
        self,
        recorder: Recorder,
        warnings: Warnings,
        *,
        session: str | None,
        controls: Callable[[str], Controls] | None = None,
    ) -> None:
        self.recorder = recorder
        self.warnings = warnings
        self._session = session
        self._observer = Witness(recorder, warnings)
        self._controls = controls
        self._enabled = True
        self._control_changes: tuple[CacheControlled, ...] = ()

    def prepare(self, dialect: Dialect, caller_arguments: Arguments) -> tuple[Arguments, Prepared | None]:
        """The arguments to send, and what to record; None if the arguments could not be decoded."""
        # Outside of the guard: an error that the caller's own iterator raises has to reach the caller.
        arguments: Arguments = {name: settled(value) for name, value in caller_arguments.items()}
        with self.warnings.harmless(_SENT_UNCHANGED):
            body = body_of(arguments, left_out=dialect.left_out)
            wire = dialect.adapter.read_request(plain_json(body))
            rewritten = Rewritten(arguments, wire)

            def rewrite(buffer: Scroll, model: Model) -> WireRequest:
                nonlocal rewritten
                suffix = self._observer.tail(dialect.adapter, buffer)
                request = Request(body, wire, buffer, model, self._session_of(wire), suffix)
                rewritten = dialect.rewrite(arguments, request)
                return rewritten.wire

            # With caching turned off the call is recorded, but not rewritten.
            may_cache = self._may_cache(dialect.adapter)
            prepared = self._observer.prepared(dialect.adapter, wire, rewrite if may_cache else None)
            return rewritten.arguments, prepared
        return arguments, None

    def news(self) -> tuple[CacheControlled, ...]:
        """Changes of the cache controls since the last call; each is returned once."""
        changes, self._control_changes = self._control_changes, ()
        return changes

    def _may_cache(self, adapter: Adapter) -> bool:
        """Whether caching is turned on for this record and provider in the store."""
        if self._controls is None:
            return True
        controls = self._controls(self.recorder.session_id)
        enabled = controls.session.caching_enabled and controls.settings.providers.get(adapter.name, True)
        if enabled != self._enabled:
            self._enabled = enabled
            self._control_changes += (
                CacheControlled(enabled=enabled, reason="" if enabled else "caching was turned off"),
            )
        return enabled

    def read(self, adapter: Adapter, body: bytes, path: str) -> Prepared | None:
        """What to record of a body that is sent unchanged."""
        with self.warnings.harmless("a call is not recorded"):
            return self._observer.prepared(adapter, adapter.read_request(body, {PATH: path}))
        return None

    def _session_of(self, wire: WireRequest) -> str:
        """The key that routes all calls of this client to one cache; by default a digest of its first system text."""
        if self._session is None:
            texts = (text.text for segment in wire.prompt.segments for text in segment.system if text.text)
            first = next(texts, self.recorder.session_id)
            self._session = f"holdfast-{digest(first.encode(errors='replace'))[:32]}"
        return self._session
