"""What is sent in the place of a call, and what is recorded of it; sent as it was where we cannot read it."""

from holdfast.canonical.encoding import digest, plain_json
from holdfast.canonical.scroll import Scroll
from holdfast.catalog.rows import Model
from holdfast.engine.harmless import Warnings
from holdfast.engine.marking.dialect import Dialect, Request, Rewritten
from holdfast.engine.marking.plain import Arguments, body_of, settled
from holdfast.engine.recorder import Prepared, Recorder
from holdfast.engine.witness import Witness
from holdfast.providers.adapter import PATH, Adapter, WireRequest

_SENT_AS_IT_WAS = "a call is sent as it was written, without marks and unrecorded"


class Desk:
    """Prepares the calls of one wrapped client; what was spelled for the call before is not spelled again."""

    def __init__(self, recorder: Recorder, warnings: Warnings, *, session: str | None) -> None:
        self.recorder = recorder
        self.warnings = warnings
        self._session = session
        self._witness = Witness(recorder, warnings)

    def prepare(self, dialect: Dialect, given: Arguments) -> tuple[Arguments, Prepared | None]:
        """The arguments to send, and what to record; no record where the arguments could not be read."""
        # Not guarded: what the caller's own iterator raises is the caller's, as it would be without us.
        arguments: Arguments = {name: settled(value) for name, value in given.items()}
        with self.warnings.harmless(_SENT_AS_IT_WAS):
            body = body_of(arguments, left_out=dialect.left_out)
            wire = dialect.adapter.read_request(plain_json(body))
            rewritten = Rewritten(arguments, wire)

            def rewrite(scroll: Scroll, row: Model) -> WireRequest:
                nonlocal rewritten
                tail = self._witness.tail(dialect.adapter, scroll)
                request = Request(body, wire, scroll, row, self._session_of(wire), tail)
                rewritten = dialect.rewrite(arguments, request)
                return rewritten.wire

            prepared = self._witness.prepared(dialect.adapter, wire, rewrite)
            return rewritten.arguments, prepared
        return arguments, None

    def read(self, adapter: Adapter, body: bytes, path: str) -> Prepared | None:
        """What to record of a body that is sent as it is."""
        with self.warnings.harmless("a call is not recorded"):
            return self._witness.prepared(adapter, adapter.read_request(body, {PATH: path}))
        return None

    def _session_of(self, wire: WireRequest) -> str:
        """What all calls of this client have in common; by default the first system text that it sent."""
        if self._session is None:
            texts = (text.text for segment in wire.prompt.segments for text in segment.system if text.text)
            first = next(texts, self.recorder.session_id)
            self._session = f"holdfast-{digest(first.encode(errors='replace'))[:32]}"
        return self._session
