"""How an item of reasoning becomes thinking with a signature, and comes back as it was.

The signature is one JSON text of what the item needs besides its words: its id, its encrypted content and, where
the words are several summaries, how long each is.
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
    """The signature of thinking whose text is these summaries."""
    plain = not summaries or (len(summaries) == 1 and summaries[0])
    lengths = None if plain else tuple(map(len, summaries))
    return canonical_json(_Seal(encrypted_content, id, lengths)).decode()


def is_sealed(thinking: Thinking) -> bool:
    return _unseal(thinking) is not None


def spell_reasoning(thinking: Thinking, *, id: str = "") -> bytes:
    """The item; without a signature of ours it has no encrypted content, and the id that is given."""
    found = _unseal(thinking)
    summaries = _spell_summaries(summaries_of(thinking))
    if found is None:
        return b'{"type":"reasoning","id":%b,"summary":[%b]}' % (quoted(id), summaries)
    sealed, _ = found
    named = b"" if sealed.id is None else b'"id":' + quoted(sealed.id) + b","
    encrypted_content = quoted(sealed.encrypted_content)
    return b'{"type":"reasoning",%b"summary":[%b],"encrypted_content":%b}' % (named, summaries, encrypted_content)


def sealed_id(thinking: Thinking) -> str | None:
    found = _unseal(thinking)
    return None if found is None else found[0].id


def summaries_of(thinking: Thinking) -> tuple[str, ...]:
    found = _unseal(thinking)
    if found is not None:
        return found[1]
    return (thinking.text,) if thinking.text else ()


def read_reasoning(members: Mapping[str, bytes]) -> Thinking | None:
    """None where the item holds what thinking cannot; without a signature where nothing in it is encrypted."""
    if not spoken_names(members, "status") <= {"id", "summary", "encrypted_content"}:
        return None
    summaries = _read_summaries(members.get("summary", b"[]"))
    if summaries is None:
        return None
    text = SEPARATOR.join(summaries)
    encrypted_content = msgspec.json.decode(members.get("encrypted_content", b"null"), type=str | None)
    if not encrypted_content:
        return Thinking(text)
    id = read_string(members, "id") if "id" in members else None
    return Thinking(text, seal(encrypted_content, id, summaries))


def _spell_summaries(summaries: Sequence[str]) -> bytes:
    return b",".join(b'{"type":"summary_text","text":' + quoted(text) + b"}" for text in summaries)


def _read_summaries(raw: bytes) -> list[str] | None:
    parts = msgspec.json.decode(raw, type=list[dict[str, msgspec.Raw]])
    if any(part.keys() != {"type", "text"} or bytes(part["type"]) != b'"summary_text"' for part in parts):
        return None
    return [text.text for text in msgspec.json.decode(raw, type=list[_Summary])]


def _unseal(thinking: Thinking) -> tuple[_Seal, tuple[str, ...]] | None:
    """None for a signature that is not ours, or not of this text."""
    if thinking.signature is None:
        return None
    try:
        sealed = _decode_seal(thinking.signature)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    summaries: tuple[str, ...] = (thinking.text,) if thinking.text else ()
    if sealed.lengths is not None:
        ends = accumulate((length + len(SEPARATOR) for length in sealed.lengths), initial=0)
        summaries = tuple(thinking.text[start : end - len(SEPARATOR)] for start, end in pairwise(ends))
    same = SEPARATOR.join(summaries) == thinking.text
    return (
        (sealed, summaries)
        if same and seal(sealed.encrypted_content, sealed.id, summaries) == thinking.signature
        else None
    )
