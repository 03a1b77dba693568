"""Splits a Gemini request body into its JSON members, and joins it with the content of an explicit cache."""

from collections.abc import Collection, Mapping

import msgspec

from holdfast.providers.adapter import PATH, WireRequest
from holdfast.providers.failures import one_line, readable
from holdfast.providers.gemini import gemini
from holdfast.providers.gemini.read import BODY_BYTES_MAX
from holdfast.providers.members import put_together, read_string, take_apart
from holdfast.providers.reading import refuse_oversized
from holdfast.simulator.dialect import refuse

CONTENTS = "contents"
HEAD_NAMES = ("systemInstruction", "tools", "toolConfig")
"""The members before the contents; a request that uses an explicit cache must not set them again."""

_decode_list = msgspec.json.Decoder(tuple[msgspec.Raw, ...]).decode


def members_of(body: bytes, known_names: Collection[str]) -> dict[str, bytes]:
    """The members by name, without nulls. Raises `ProviderError` for an unknown name."""
    refuse_oversized(body, BODY_BYTES_MAX)
    with readable("invalid_request", "Invalid JSON payload received: the request", status=400):
        body.decode()
        members = take_apart(body)
    for name in members:
        if name not in known_names:
            raise refuse(f'Invalid JSON payload received. Unknown name "{one_line(name)[:60]}": Cannot find field.')
    return {name: value for name, value in members.items() if value != b"null"}


def text_in(members: Mapping[str, bytes], name: str) -> str | None:
    with readable("invalid_request", f"Invalid value at '{name}': it", status=400):
        return read_string(members, name) if name in members else None


def list_in(members: Mapping[str, bytes], name: str) -> tuple[bytes, ...]:
    with readable("invalid_request", f"Invalid value at '{name}': it", status=400):
        return tuple(map(bytes, _decode_list(members.get(name, b"[]"))))


def joined(cached: Mapping[str, bytes], members: Mapping[str, bytes]) -> dict[str, bytes]:
    """The complete request: the cached members followed by those of the request."""
    head = {name: cached[name] for name in HEAD_NAMES if name in cached}
    contents = b"[" + b",".join((*list_in(cached, CONTENTS), *list_in(members, CONTENTS))) + b"]"
    return {**members, **head, CONTENTS: contents}


def read(members: Mapping[str, bytes], model: str, action: str = "generateContent") -> WireRequest:
    """Decode the members as a request to the model."""
    whole = put_together({CONTENTS: b"[]", **members})
    return gemini.read_request(whole, {PATH: f"/v1/models/{model}:{action}"})
