"""Converts reasoning items to thinking blocks with a signature, and back without loss.

The signature is a JSON text with what the item has besides its text: its id, its encrypted content and, if the text is
several summaries, the length of each.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

import msgspec

from holdfast.canonical.blocks import Thinking
from holdfast.canonical.encoding import canonical_json
from holdfast.providers.members import quoted, read_string
from holdfast.providers.openai_responses.parts import spoken_names

SEPARATOR = "\n\n"


class _Seal(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    encrypted_content: str
    id: str | None = None
    lengths: tuple[int, ...] | None = None


class _Summary(msgspec.Struct, frozen=True):
    text: str


_decode_seal = msgspec.json.Decoder(_Seal).decode


def seal(encrypted_content: str, id: str | None, summaries: Sequence[str]) -> str:
    """The signature of a thinking block whose text is the joined summaries."""
    is_single = not summaries or (len(summaries) == 1 and summaries[0])
    lengths = None if is_single else tuple(map(len, summaries))
    return canonical_json(_Seal(encrypted_content, id, lengths)).decode()


def is_sealed(thinking: Thinking) -> bool:
    return _unseal(thinking) is not None


def spell_reasoning(thinking: Thinking, *, id: str = "") -> bytes:
    """The item. Without a signature of ours it has no encrypted content, and its id is the parameter."""
    unsealed = _unseal(thinking)
    summaries = _encode_summaries(summaries_of(thinking))
    if unsealed is None:
        return b'{"type":"reasoning","id":%b,"summary":[%b]}' % (quoted(id), summaries)
    sealed, _ = unsealed
    id_member = b"" if sealed.id is None else b'"id":' + quoted(sealed.id) + b","
    encrypted_content = quoted(sealed.encrypted_content)
    return b'{"type":"reasoning",%b"summary":[%b],"encrypted_content":%b}' % (id_member, summaries, encrypted_content)


def sealed_id(thinking: Thinking) -> str | None:
    unsealed = _unseal(thinking)
    return None if unsealed is None else unsealed[0].id


def summaries_of(thinking: Thinking) -> tuple[str, ...]:
    unsealed = _unseal(thinking)
    if unsealed is not None:
        return unsealed[1]
    return (thinking.text,) if thinking.text else ()


def read_reasoning(members: Mapping[str, bytes]) -> Thinking | None:
    """None if the item has fields that thinking cannot hold; unsigned if it has no encrypted content."""
    if not spoken_names(members, "status") <= {"id", "summary", "encrypted_content"}:
        return None
    summaries = _decode_summaries(members.get("summary", b"[]"))
    if summaries is None:
        return None
    text = SEPARATOR.join(summaries)
    encrypted_content = msgspec.json.decode(members.get("encrypted_content", b"null"), type=str | None)
    if not encrypted_content:
        return Thinking(text)
    id = read_string(members, "id") if "id" in members else None
    return Thinking(text, seal(encrypted_content, id, summaries))


def _encode_summaries(summaries: Sequence[str]) -> bytes:
    return b",".join(b'{"type":"summary_text","text":' + quoted(text) + b"}" for text in summaries)


def _decode_summaries(raw: bytes) -> list[str] | None:
    parts = msgspec.json.decode(raw, type=list[dict[str, msgspec.Raw]])
    if any(part.keys() != {"type", "text"} or bytes(part["type"]) != b'"summary_text"' for part in parts):
        return None
    return [text.text for text in msgspec.json.decode(raw, type=list[_Summary])]


def _unseal(thinking: Thinking) -> tuple[_Seal, tuple[str, ...]] | None:
    """None if the signature is not ours, or does not belong to this text."""
    if thinking.signature is None:
        return None
    try:
        sealed = _decode_seal(thinking.signature)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    summaries: tuple[str, ...] = (thinking.text,) if thinking.text else ()
    if sealed.lengths is not None:
        # Each summary is followed by the separator, so summary k starts at sum(length_i + len(SEPARATOR), i < k).
        ends = accumulate((length + len(SEPARATOR) for length in sealed.lengths), initial=0)
        summaries = tuple(thinking.text[start : end - len(SEPARATOR)] for start, end in pairwise(ends))
    fits_text = SEPARATOR.join(summaries) == thinking.text
    return (
        (sealed, summaries)
        if fits_text and seal(sealed.encrypted_content, sealed.id, summaries) == thinking.signature
        else None
    )
