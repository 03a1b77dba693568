"""The instructions of an agent from a service, for programs in Python: stub, manifest, recall, heartbeats."""

import urllib.error
import urllib.request
from collections.abc import Sequence
from functools import partial
from typing import TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from holdfast.clock import new_ulid, system_clock
from holdfast.errors import StoreError, UserError
from holdfast.instructions.trace import Step
from holdfast.runtime.heartbeats import Beat, Begun, Preload

ANSWER_BYTES_MAX = 20_000_000
TIMEOUT_SECONDS = 30.0

Told = TypeVar("Told")


class ServiceError(UserError):
    """`code` is that of the service, `status` that of HTTP."""

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
        return tuple(one.name for one in self.chunks)


class ListedUnit(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    description: str
    load_triggers: dict[str, tuple[str, ...]] = {}


class ListedManifest(msgspec.Struct, frozen=True, kw_only=True):
    manifest_version: str
    fact_uri: str
    entries: tuple[ListedUnit, ...]


class _Preloaded(msgspec.Struct, frozen=True):
    name: str
    content: str


class _Woken(msgspec.Struct, frozen=True, kw_only=True):
    heartbeat_id: str
    stub: str
    preloads: tuple[_Preloaded, ...]
    audit_token: str


class _Refusal(msgspec.Struct, frozen=True):
    code: str = "refused"
    message: str = "the service refuses this"


class _Refused(msgspec.Struct, frozen=True):
    error: _Refusal = _Refusal()


class _Stay(urllib.request.HTTPRedirectHandler):
    """The key is for one service: whoever is sent elsewhere does not take it along."""

    def redirect_request(self, *args: object, **more: object) -> None:
        return None


class InstructionClient:
    """Raises ServiceError for what is refused, StoreError where the service cannot be reached."""

    def __init__(self, url: str, *, key: str, agent: str, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        if urlsplit(url).scheme not in ("http", "https"):
            raise UserError("the address of a service begins with http:// or https://")
        self._url = url.rstrip("/")
        self._key = key
        self._agent = f"/v1/agents/{quote(agent, safe='')}"
        self._timeout = timeout_seconds
        self._opener = urllib.request.build_opener(_Stay)

    def stub(self, *, profile: str = "generic") -> str:
        raw = self._ask("GET", f"{self._agent}/boot-stub?profile={quote(profile, safe='')}")
        return raw.decode("utf-8", "replace")

    def manifest(self) -> ListedManifest:
        return _read(self._ask("GET", f"{self._agent}/instruction-manifest"), ListedManifest)

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
        """With `shadow` it is on record as a turn for which all instructions were in force."""
        wished = {"max_chunks": max_chunks, "token_budget": token_budget, "heartbeat_id": heartbeat_id}
        body: dict[str, object] = {"intent": intent, "manifest_hint": tuple(manifest_hint)}
        body |= {name: value for name, value in wished.items() if value is not None}
        body |= {"shadow": True} if shadow else {}
        return _read(self._ask("POST", f"{self._agent}/recall-instruction", body), RecalledChunks)

    def submit_usage(self, audit_token: str, *, used: Sequence[str] = (), missed: Sequence[str] = ()) -> None:
        body = {"audit_token": audit_token, "used_chunks": tuple(used), "missed_chunks": tuple(missed)}
        self._ask("POST", "/v1/instruction/audit", body)

    def submit_trace(self, audit_token: str, trace: Sequence[Step]) -> None:
        """What the agent did after the recall, by which is seen what it used; once. It closes no record."""
        self._ask("POST", "/v1/instruction/audit", {"audit_token": audit_token, "trace": tuple(trace)})

    def heartbeat(self, wake_token: str | None = None, *, profile: str = "generic") -> Beat[RecalledChunks]:
        """A context that ends by saying what was used; preloads need the signed token of the trigger."""
        if wake_token is None:
            recall = partial(self.recall, heartbeat_id=f"run_{new_ulid(system_clock())}")
            return Beat(recall, self.submit_usage, self.submit_trace, stub=self.stub(profile=profile))
        body = {"wake_token": wake_token, "profile": profile}
        woken = _read(self._ask("POST", f"{self._agent}/heartbeat", body), _Woken)
        preloads = tuple(Preload(one.name, one.content) for one in woken.preloads)
        begun = Begun(woken.heartbeat_id, preloads, woken.audit_token)
        recall = partial(self.recall, heartbeat_id=woken.heartbeat_id)
        return Beat(recall, self.submit_usage, self.submit_trace, stub=woken.stub, begun=begun)

    def _ask(self, method: str, path: str, body: object = None) -> bytes:
        headers = {"authorization": f"Bearer {self._key}", "content-type": "application/json"}
        content = None if body is None else msgspec.json.encode(body)
        request = urllib.request.Request(f"{self._url}{path}", content, headers, method=method)
        try:
            with self._opener.open(request, timeout=self._timeout) as answer:
                raw: bytes = answer.read(ANSWER_BYTES_MAX + 1)
        except urllib.error.HTTPError as error:
            with error:
                raise _refused(error) from error
        except (OSError, ValueError) as error:
            raise StoreError(f"the service at {self._url} cannot be reached: {type(error).__name__}") from error
        if len(raw) > ANSWER_BYTES_MAX:
            raise StoreError(f"the service at {self._url} answers with more than {ANSWER_BYTES_MAX} bytes")
        return raw


def _refused(error: urllib.error.HTTPError) -> ServiceError:
    try:
        told = msgspec.json.decode(error.read(100_000), type=_Refused).error
    except (msgspec.MsgspecError, UnicodeDecodeError, OSError):
        told = _Refusal()
    return ServiceError(told.code, told.message, status=error.code)


def _read(raw: bytes, kind: type[Told]) -> Told:
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StoreError("the service answers something else than was agreed on") from error
