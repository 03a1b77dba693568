"""The provider of a test: the simulator on a port, its script, its clock, and what it was asked."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock

from holdfast.canonical.encoding import plain_json
from holdfast.catalog.lookup import Models
from holdfast.errors import UserError
from holdfast.providers.registry import PROVIDERS, provider_named
from holdfast.simulator.answer import Answer
from holdfast.simulator.dialect import NOTHING
from holdfast.simulator.provider import SimulatedProvider
from holdfast.simulator.records import RequestRing
from holdfast.simulator.script import Script, parse_script
from holdfast.testing.calls import ModelCall, model_calls
from holdfast.testing.serving import served

REQUESTS_MAX = 100_000
REQUESTS_BYTES_MAX = 512 * 1024 * 1024
KEY = "simulated"

ScriptLine = str | Sequence[Mapping[str, object]] | Mapping[str, object]
"""A text; the blocks of a reply; or a whole line: `content`, `stop_reason`, `fault`."""


class ServedProvider(SimulatedProvider):
    """Answers over HTTP at `url`, and as `wire=` of a session; both speak to the same cache."""

    def __init__(self) -> None:
        super().__init__(requests=RequestRing(requests_max=REQUESTS_MAX, bytes_max=REQUESTS_BYTES_MAX))
        self._answering = Lock()
        self.url = ""

    def base_url(self, provider: str) -> str:
        """What the client of `anthropic`, `openai`, `gemini` or `openrouter` takes as its base URL."""
        return self.url + _reached(provider)

    def script(self, *replies: ScriptLine | Script) -> None:
        """What is said from now on, one reply a turn of each conversation; behind the last, an echo."""
        if len(replies) == 1 and isinstance(replies[0], Script):
            self._script = replies[0]
            return
        self._script = parse_script(b"\n".join(_line(reply) for reply in replies))

    @property
    def calls(self) -> tuple[ModelCall, ...]:
        """Every request that a model has answered, oldest first."""
        return model_calls(self.requests, self.models)

    @property
    def models(self) -> Models:
        return self._known()

    def answer(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] = NOTHING,
        body: bytes = b"",
        query: Mapping[str, str] = NOTHING,
    ) -> Answer:
        # A session of the test asks from another thread than those that come in over the port.
        with self._answering:
            return super().answer(method, path, headers=headers, body=body, query=query)

    @contextmanager
    def serving(self) -> Iterator["ServedProvider"]:
        with served(self) as url:
            self.url = url
            yield self

    def environment(self) -> dict[str, str]:
        """The variables in which the official clients look for an address and a key."""
        found: dict[str, str] = {}
        for provider in PROVIDERS.values():
            if not provider.is_command:
                found[provider.base_url_variable] = self.base_url(provider.name)
                found[provider.key_variable] = KEY
        return found


def _reached(name: str) -> str:
    provider = provider_named(name)
    if provider.is_command:
        raise UserError(f"provider {name!r} is a command on this machine and has no address")
    return provider.path_prefix


def _line(reply: ScriptLine | Script) -> bytes:
    if isinstance(reply, Script):
        raise UserError("a whole script stands alone; give nothing else beside it")
    if isinstance(reply, Mapping):
        return plain_json(dict(reply))
    return plain_json({"content": reply if isinstance(reply, str) else [dict(block) for block in reply]})
