"""Which thoughts Gemini takes back: those with the signature they were given, and those with none."""

from collections.abc import Sequence

from holdfast.canonical.blocks import Block, Message, RedactedThinking, Thinking
from holdfast.simulator.dialect import refuse
from holdfast.simulator.seals import opened, thought_in, write_seal

STAND_INS = frozenset({"skip_thought_signature_validator", "context_engineering_is_the_way_to_go"})
"""What the provider takes in place of a signature, for calls that it did not make."""

_STANDARD = str.maketrans("-_", "+/")


def sealed_thoughts(content: Sequence[Block], *, model: str, prefix: str) -> tuple[Block, ...]:
    """A reply's blocks, each thought signed; of one that is redacted only the signature is told."""
    blocks: list[Block] = []
    for block in content:
        if isinstance(block, Thinking | RedactedThinking):
            text = block.text if isinstance(block, Thinking) else ""
            block = Thinking(text, write_seal(model, prefix, thought_in(text)))
        blocks.append(block)
    return tuple(blocks)


def check_thoughts(messages: Sequence[Message]) -> None:
    """Raises `ProviderError` for a signature that is not ours, or not of the thought in front of it.

    Thoughts may come back in the parts they were streamed in, or be left out.
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
    # Clients that keep the bytes write them in either alphabet.
    seal = opened(signature.translate(_STANDARD))
    if seal is None or (thought and seal.thought != thought_in(thought)):
        raise refuse("Thought signature is not valid.")
