"""Which thoughts Gemini accepts: those with their original signature, and those without one."""

from collections.abc import Sequence

from holdfast.canonical.blocks import Block, Message, RedactedThinking, Thinking
from holdfast.simulator.dialect import refuse
from holdfast.simulator.seals import opened, thought_in, write_seal

STAND_INS = frozenset({"skip_thought_signature_validator", "context_engineering_is_the_way_to_go"})
"""Values that the provider accepts in place of a signature, for function calls that it did not generate."""

_STANDARD = str.maketrans("-_", "+/")


def sealed_thoughts(content: Sequence[Block], *, model: str, prefix: str) -> tuple[Block, ...]:
    """The blocks of a reply with each thought signed; a redacted thought has only its signature."""
    blocks: list[Block] = []
    for block in content:
        if isinstance(block, Thinking | RedactedThinking):
            text = block.text if isinstance(block, Thinking) else ""
            block = Thinking(text, write_seal(model, prefix, thought_in(text)))
        blocks.append(block)
    return tuple(blocks)


def check_thoughts(messages: Sequence[Message]) -> None:
    """Raises `ProviderError` for a signature that is not ours, or does not match the thought before it.

    Thoughts may come back in the parts in which they were streamed, or be left out.
    """
    for message in messages:
        thought = ""
        for block in message.content:
            if not isinstance(block, Thinking):
                thought = ""
                continue
            thought += block.text
            if block.signature is not None:
                _check(block.signature, thought)
                thought = ""


def _check(signature: str, thought: str) -> None:
    if signature in STAND_INS:
        return
    # Clients that store the signature as bytes re-encode it in either base64 alphabet.
    seal = opened(signature.translate(_STANDARD))
    if seal is None or (thought and seal.thought != thought_in(thought)):
        raise refuse("Thought signature is not valid.")
