"""Adds the report on dropped blocks to Anthropic's replies."""

from collections.abc import Iterator, Sequence

import msgspec

from holdfast.canonical.encoding import plain_json
from holdfast.simulator.dialect import DroppedBlock


def with_input_transformations(body: bytes, dropped: Sequence[DroppedBlock]) -> bytes:
    """A reply with the list of request blocks that the model did not see."""
    message: dict[str, msgspec.Raw] = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    return plain_json({**message, "input_transformations": dropped})


def stream_with_input_transformations(events: Iterator[bytes], dropped: Sequence[DroppedBlock]) -> Iterator[bytes]:
    """The same for a streamed reply; the provider reports it in the event that starts the message."""
    name, _, start = next(events).partition(b"\ndata: ")
    event: dict[str, msgspec.Raw] = msgspec.json.decode(start, type=dict[str, msgspec.Raw])
    message = with_input_transformations(bytes(event["message"]), dropped)
    yield name + b"\ndata: " + plain_json({**event, "message": msgspec.Raw(message)}) + b"\n\n"
    yield from events
