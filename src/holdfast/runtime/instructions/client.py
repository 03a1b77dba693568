"""HTTP client for an agent's instructions: boot stub, manifest, recall, usage reports and heartbeats."""

import http.client
import urllib.request
from collections.abc import Sequence
from functools import partial
from typing import TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from holdfast.clock import new_ulid, system_clock
from holdfast.errors import StoreError, UserError
from holdfast.instructions.usage.trace import TraceStep
from holdfast.runtime.instructions.heartbeat import HeartbeatRun, WakeStart

RESPONSE_BYTES_MAX = 20_000_000
TIMEOUT_SECONDS = 30.0
Decoded = TypeVar("Decoded")


class ServiceError(UserError):
    """The service refused a request: `code` is the service's error code, `status` the HTTP status."""

    def __init__(self, code: str, message: str, *, status: int) -> None:
        super().__init__(message)
        self.code = code
        self.status = status


class RecalledChunk(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    content: str
    tokens: int
    score: float
    source: str
    fact_uri: str | None = None
    version: str | None = None
    valid_until: str | None = None


class RecalledChunks(msgspec.Struct, frozen=True, kw_only=True):
    chunks: tuple[RecalledChunk, ...]
    total_tokens: int
    truncated: bool
    missed_hints: tuple[str, ...]
    audit_token: str

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(chunk.name for chunk in self.chunks)


class ManifestUnit(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    description: str
    load_triggers: dict[str, tuple[str, ...]] = {}


class ManifestListing(msgspec.Struct, frozen=True, kw_only=True):
    manifest_version: str
    fact_uri: str
    entries: tuple[ManifestUnit, ...]


class _HeartbeatStarted(WakeStart, frozen=True, kw_only=True):
    stub: str


class _ErrorDetail(msgspec.Struct, frozen=True):
    code: str
    message: str


class _ErrorBody(msgspec.Struct, frozen=True):
    error: _ErrorDetail


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, because urllib would send the API key to the new address too."""

    def redirect_request(self, *args: object, **more: object) -> None:
        return None


class ServiceConnection:
    """Requests to one service with one key: ServiceError if it refuses one, StoreError if it cannot be reached."""

    def __init__(self, url: str, *, key: str, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        if urlsplit(url).scheme not in ("http", "https"):
            raise UserError("the address of a service begins with http:// or https://")
        self._url = url.rstrip("/")
        self._key = key
        self._timeout = timeout_seconds
        self._opener = urllib.request.build_opener(_NoRedirect)

    def request(self, method: str, path: str, body: object = None) -> bytes:
        headers = {"authorization": f"Bearer {self._key}", "content-type": "application/json"}
        content = None if body is None else msgspec.json.encode(body)
        request = urllib.request.Request(f"{self._url}{path}", content, headers, method=method)
        try:
            with self._opener.open(request, timeout=self._timeout) as response:
                raw: bytes = response.read(RESPONSE_BYTES_MAX + 1)
        except urllib.error.HTTPError as error:
            with error:
                raise _service_error(error, self._url) from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            cause = error.reason if isinstance(error, urllib.error.URLError) else error
            reason = cause.strerror if isinstance(cause, OSError) and cause.strerror else type(cause).__name__
            raise StoreError(f"the service at {self._url} cannot be reached: {reason}") from error
        # One byte more than the limit was requested, to distinguish a body of exactly that size from a longer one.
        if len(raw) > RESPONSE_BYTES_MAX:
            raise StoreError(f"the service at {self._url} sent more than {RESPONSE_BYTES_MAX} bytes")
        return raw


class InstructionClient:
    """Methods raise ServiceError if the service refuses a request, StoreError if it cannot be reached."""

    def __init__(self, url: str, *, key: str, agent: str, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._service = ServiceConnection(url, key=key, timeout_seconds=timeout_seconds)
        self._agent = agent_path(agent)

    def stub(self, *, profile: str = "generic") -> str:
        raw = self._service.request("GET", f"{self._agent}/boot-stub?profile={quote(profile, safe='')}")
        return raw.decode("utf-8", "replace")

    def manifest(self) -> ManifestListing:
        return decode_body(self._service.request("GET", f"{self._agent}/instruction-manifest"), ManifestListing)

    def recall(
        self,
        intent: str,
        *,
        max_chunks: int | None = None,
        token_budget: int | None = None,
        manifest_hint: Sequence[str] = (),
        heartbeat_id: str | None = None,
        shadow: bool = False,
    ) -> RecalledChunks:
        """With `shadow`, record the recall as one of a turn whose prompt had all instructions."""
        limits = {"max_chunks": max_chunks, "token_budget": token_budget, "heartbeat_id": heartbeat_id}
        body: dict[str, object] = {"intent": intent, "manifest_hint": tuple(manifest_hint)}
        body |= {name: value for name, value in limits.items() if value is not None}
        body |= {"shadow": True} if shadow else {}
        return decode_body(self._service.request("POST", f"{self._agent}/recall-instruction", body), RecalledChunks)

    def submit_usage(self, audit_token: str, *, used: Sequence[str] = (), missed: Sequence[str] = ()) -> None:
        body = {"audit_token": audit_token, "used_chunks": tuple(used), "missed_chunks": tuple(missed)}
        self._service.request("POST", "/v1/instruction/audit", body)

    def submit_trace(self, audit_token: str, trace: Sequence[TraceStep]) -> None:
        """Submit, once, the agent's steps after the recall, from which usage is detected. The record stays open."""
        self._service.request("POST", "/v1/instruction/audit", {"audit_token": audit_token, "trace": tuple(trace)})

    def heartbeat(self, wake_token: str | None = None, *, profile: str = "generic") -> HeartbeatRun[RecalledChunks]:
        """A context manager that reports usage when it exits. Preloads need a signed wake token."""
        if wake_token is None:
            recall = partial(self.recall, heartbeat_id=f"run_{new_ulid(system_clock())}")
            return HeartbeatRun(recall, self.submit_usage, self.submit_trace, stub=self.stub(profile=profile))
        body = {"wake_token": wake_token, "profile": profile}
        started = decode_body(self._service.request("POST", f"{self._agent}/heartbeat", body), _HeartbeatStarted)
        recall = partial(self.recall, heartbeat_id=started.heartbeat_id)
        return HeartbeatRun(recall, self.submit_usage, self.submit_trace, stub=started.stub, begun=started)


def agent_path(agent: str) -> str:
    return f"/v1/agents/{quote(agent, safe='')}"


def _service_error(error: urllib.error.HTTPError, url: str) -> ServiceError:
    # An error may come from a proxy in between, whose body has another form: the status still says something.
    try:
        detail = msgspec.json.decode(error.read(100_000), type=_ErrorBody).error
    except (msgspec.MsgspecError, UnicodeDecodeError, OSError):
        detail = _ErrorDetail("refused", f"{url} answers with status {error.code}, and not as Holdfast does")
    message = f"{url} has no such route: check the address" if detail.code == "not_found" else detail.message
    return ServiceError(detail.code, message, status=error.code)


def decode_body(raw: bytes, kind: type[Decoded]) -> Decoded:
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StoreError("the service sent a response of an unexpected form") from error
