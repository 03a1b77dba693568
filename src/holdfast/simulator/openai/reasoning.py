"""Which reasoning items OpenAI accepts: its own, with unchanged encrypted content."""

from collections.abc import Sequence

from holdfast.canonical.blocks import Block, Opaque, RedactedThinking, Thinking
from holdfast.canonical.encoding import digest
from holdfast.providers.fields import decoded, field_of
from holdfast.providers.openai_responses.reasoning import seal
from holdfast.simulator.blocks import SentBlock
from holdfast.simulator.dialect import refuse
from holdfast.simulator.seals import opened, thought_in, write_seal

_ID_CHARS = 24


def sealed_reasoning(content: Sequence[Block], *, model: str, prefix: str) -> tuple[Block, ...]:
    """The blocks of a reply, thinking with an id and encrypted content; redacted thinking has no summary."""
    blocks: list[Block] = []
    for index, block in enumerate(content):
        if isinstance(block, Thinking | RedactedThinking):
            text = block.text if isinstance(block, Thinking) else ""
            id = f"rs_{digest(f'{prefix}/{index}'.encode())[:_ID_CHARS]}"
            encrypted_content = write_seal(model, prefix, thought_in(text))
            block = Thinking(text, seal(encrypted_content, id, (text,) if text else ()))
        blocks.append(block)
    return tuple(blocks)


def check_reasoning(blocks: Sequence[SentBlock]) -> None:
    """Raises `ProviderError` for encrypted content that is not ours, or does not match its summary."""
    for sent in blocks:
        match sent.block:
            case Thinking(text=text, signature=signature):
                _check(field_of(decoded(signature), "encrypted_content"), text, sent.path)
            case Opaque(kind="reasoning", raw=raw):
                _check(field_of(decoded(raw.decode(errors="replace")), "encrypted_content"), None, sent.path)
            case _:
                pass


def _check(encrypted_content: object, text: str | None, path: str) -> None:
    if encrypted_content is None:
        return
    content = opened(encrypted_content) if isinstance(encrypted_content, str) else None
    if content is None or (text is not None and content.thought != thought_in(text)):
        raise refuse(
            f"The encrypted content of the reasoning item at {path} could not be verified; send it as it came."
        )
