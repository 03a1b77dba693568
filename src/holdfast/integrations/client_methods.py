"""Replaces the methods of an SDK client that send requests by ones that place breakpoints and record calls."""

import functools
import inspect
from collections.abc import Callable

import msgspec

from holdfast.catalog.schema import Model
from holdfast.engine.guard import WarningLog
from holdfast.engine.inject.client_method import (
    Arguments,
    ClientMethod,
    ClientRequest,
    RewrittenRequest,
    client_body,
    describe_value,
    materialize_iterators,
)
from holdfast.engine.recorder import CallRecorder, ObservedRequest
from holdfast.engine.request_observer import RequestObserver
from holdfast.events.cache_controls import CacheControls
from holdfast.events.payloads.cache import CacheControlsApplied
from holdfast.integrations.proxy import Proxy, ReplaceAttribute, await_value
from holdfast.integrations.response_capture import CallWatcher
from holdfast.integrations.streams import WatchedStream, WatchedStreamContext
from holdfast.providers.adapter import PATH_HEADER, Adapter, WireRequest
from holdfast.providers.tolerant_decode import UNKNOWN_MODEL, decode_request_tolerantly
from holdfast.types.json_encoding import encode_json, sha256_hex
from holdfast.types.prompt import Plan
from holdfast.types.request_buffer import RequestBuffer

ClientMethods = dict[str, ClientMethod]
"""Methods by their path from the client, such as `chat.completions.create`."""

# Methods that return a new client, which has to be wrapped too.
_COPY_METHODS = frozenset({"copy", "with_options"})


class CallPreparer:
    """Prepares the calls of one wrapped client; blocks that were encoded for the previous call are reused."""

    def __init__(
        self,
        recorder: CallRecorder,
        warnings: WarningLog,
        *,
        session: str | None,
        controls: Callable[[str], CacheControls] | None = None,
    ) -> None:
        self.recorder = recorder
        self.warnings = warnings
        self._session = session
        self._observer = RequestObserver(recorder, warnings)
        self._controls = controls
        self._enabled = True
        self._control_changes: tuple[CacheControlsApplied, ...] = ()

    def prepare_call(self, method: ClientMethod, given: Arguments) -> tuple[Arguments, ObservedRequest]:
        """The arguments to send, and what to record. A request that we cannot decode is sent unchanged."""
        # Outside of the guard: an error that the caller's own iterator raises has to reach the caller.
        arguments: Arguments = {name: materialize_iterators(value) for name, value in given.items()}
        with self.warnings.suppress_errors(_SENT_UNCHANGED):
            body = client_body(arguments, left_out=method.left_out)
            wire = method.adapter.decode_request(encode_json(body))
            rewritten = RewrittenRequest(arguments, wire)

            def rewrite(buffer: RequestBuffer, model: Model) -> WireRequest:
                nonlocal rewritten
                suffix = self._observer.previous_tail(method.adapter, buffer)
                request = ClientRequest(body, wire, buffer, model, self._session_of(wire), suffix)
                rewritten = method.rewrite(arguments, request)
                return rewritten.wire_request

            # With caching turned off the call is recorded, but not rewritten.
            may_cache = self._may_cache(method.adapter)
            prepared = self._observer.prepare(method.adapter, wire, rewrite if may_cache else None)
            return rewritten.arguments, prepared

        def describe_body() -> bytes:
            return encode_json(client_body(arguments, left_out=method.left_out, default=describe_value))

        named = arguments.get("model")
        model = named if isinstance(named, str) else UNKNOWN_MODEL
        return arguments, self.observe_request(method.adapter, describe_body, model=model)

    def take_control_changes(self) -> tuple[CacheControlsApplied, ...]:
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
            reason = "" if enabled else "caching was turned off"
            self._control_changes += (CacheControlsApplied(caching_enabled=enabled, reason=reason),)
        return enabled

    def observe_request(
        self, adapter: Adapter, encode_body: Callable[[], bytes], *, model: str, path: str = ""
    ) -> ObservedRequest:
        """What to record of a request that is sent unchanged: what can be decoded of it, at least its model."""
        headers = {PATH_HEADER: path} if path else {}
        with self.warnings.suppress_errors("the content of a call is not recorded"):
            body = encode_body()
            request = decode_request_tolerantly(adapter, body, headers)
            request, prepared = self._observer.prepare_unchanged(adapter, request, body, headers)
            return msgspec.structs.replace(prepared, unreadable=request.unreadable)
        model = f"{adapter.name}:{model}"
        return ObservedRequest(
            model=model,
            provider=adapter.name,
            row=self.recorder.find_catalog_row(model),
            plan=Plan(),
            digests=(),
            parameters_digest="",
            body_bytes=0,
            tokens=0,
            unreadable=("the request cannot be encoded",),
        )

    def _session_of(self, wire: WireRequest) -> str:
        """The key that routes all calls of this client to one cache; by default a digest of its first system text."""
        if self._session is None:
            texts = (text.text for segment in wire.prompt.segments for text in segment.system if text.text)
            first = next(texts, self.recorder.session_id)
            self._session = f"holdfast-{sha256_hex(first.encode(errors='replace'))[:32]}"
        return self._session


def wrap_client(client: object, preparer: CallPreparer, *, methods: ClientMethods) -> Proxy:
    """Wrap a client so that the given methods are watched, also in copies that it makes of itself."""
    replace_attribute = _attributes_at("", methods, preparer)

    def client_attributes(name: str, value: object) -> object:
        if name not in _COPY_METHODS or not callable(value):
            return replace_attribute(name, value)

        @functools.wraps(value)
        def copy_and_wrap(*args: object, **kwargs: object) -> Proxy:
            return wrap_client(value(*args, **kwargs), preparer, methods=methods)

        return copy_and_wrap

    return WrappedClient(client, client_attributes, preparer)


class WrappedClient(Proxy):
    """The proxy of a whole client, which holds the record of its calls."""

    def __init__(self, target: object, replace: ReplaceAttribute, preparer: CallPreparer) -> None:
        super().__init__(target, replace)
        object.__setattr__(self, "_holdfast_recorder", preparer.recorder)


def _attributes_at(path: str, methods: ClientMethods, preparer: CallPreparer) -> ReplaceAttribute:
    def replace(name: str, value: object) -> object:
        full_path = path + name
        if full_path in methods and callable(value):
            return _watched_method(value, methods[full_path], preparer)
        if any(method_path.startswith(full_path + ".") for method_path in methods):
            return Proxy(value, _attributes_at(full_path + ".", methods, preparer))
        return value

    return replace


def _watched_method(
    original: Callable[..., object], method: ClientMethod, preparer: CallPreparer
) -> Callable[..., object]:
    @functools.wraps(original)
    def call(*args: object, **caller_arguments: object) -> object:
        # The SDKs take keyword arguments only; a call with positional ones is left for the SDK to reject.
        if args:
            return original(*args, **caller_arguments)
        arguments, prepared = preparer.prepare_call(method, caller_arguments)
        start = functools.partial(begin_call, method, preparer, prepared, (caller_arguments, arguments))
        if method.opens_stream:
            return WatchedStreamContext(original(**arguments), start, preparer.warnings)
        watch = start()
        with watch.recording_failure():
            response = original(**arguments)
        watch_result = _await_and_watch if inspect.isawaitable(response) else _watch_result
        return watch_result(response, watch, bool(caller_arguments.get("stream")))

    return call


def begin_call(
    method: ClientMethod,
    preparer: CallPreparer,
    prepared: ObservedRequest,
    arguments: tuple[Arguments, Arguments] = ({}, {}),
) -> CallWatcher:
    """Start watching a call that is sent now, with the caller's and the sent arguments."""
    call = preparer.recorder.begin_call(prepared, *preparer.take_control_changes())
    return CallWatcher(method, preparer.recorder, call, warnings=preparer.warnings, arguments=arguments)


def _watch_result(response: object, watch: CallWatcher, streams: bool) -> object:
    if streams:
        return WatchedStream(response, watch)
    watch.record_response(response)
    return response


async def _await_and_watch(response: object, watch: CallWatcher, streams: bool) -> object:
    with watch.recording_failure():
        result = await await_value(response)
    return _watch_result(result, watch, streams)


_SENT_UNCHANGED = "a call is sent unchanged, without cache breakpoints"
