"""How a reply tells which blocks of the request the model did not see."""

from collections.abc import Iterator, Sequence

import msgspec

from holdfast.canonical.encoding import plain_json
from holdfast.simulator.dialect import DroppedBlock


def with_input_transformations(body: bytes, dropped: Sequence[DroppedBlock]) -> bytes:
    """A whole reply that also says which blocks of the request the model did not see."""
    message: dict[str, msgspec.Raw] = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    return plain_json({**message, "input_transformations": dropped})


def stream_with_input_transformations(events: Iterator[bytes], dropped: Sequence[DroppedBlock]) -> Iterator[bytes]:
    """A streamed reply that says the same, as the provider does, where the message starts."""
    name, _, start = next(events).partition(b"\ndata: ")
    event: dict[str, msgspec.Raw] = msgspec.json.decode(start, type=dict[str, msgspec.Raw])
    message = with_input_transformations(bytes(event["message"]), dropped)
    yield name + b"\ndata: " + plain_json({**event, "message": msgspec.Raw(message)}) + b"\n\n"
    yield from events
