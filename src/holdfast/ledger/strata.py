"""Which layers the prompt of each call was made of, and how many bytes each has."""

from collections.abc import Iterable

import msgspec

from holdfast.canonical.pieces import Link
from holdfast.events.envelope import Event
from holdfast.events.payloads import LlmCallStarted, ModelSwitched, RequestPrepared


class Stratum(msgspec.Struct, frozen=True):
    """One layer of a prompt: so many bytes of it stand together, in the order of the wire."""

    layer: str
    bytes: int


def strata(events: Iterable[Event]) -> dict[str, tuple[Stratum, ...]]:
    """By request, from the first byte to the last; neighbouring blocks of one layer are one."""
    chain: list[Link] = []
    found: dict[str, tuple[Stratum, ...]] = {}
    for event in events:
        match event.payload:
            case RequestPrepared() as it:
                del chain[it.shared_blocks :]
                chain += it.links
            case ModelSwitched():
                chain.clear()
            case LlmCallStarted(request_id=request_id):
                found[request_id] = _joined(chain)
            case _:
                pass
    return found


def _joined(chain: Iterable[Link]) -> tuple[Stratum, ...]:
    strata: list[Stratum] = []
    for link in chain:
        size = link.end - link.start
        if strata and strata[-1].layer == link.layer:
            strata[-1] = Stratum(link.layer, strata[-1].bytes + size)
        else:
            strata.append(Stratum(link.layer, size))
    return tuple(strata)
