"""The layers of each call's prompt, with their sizes in bytes."""

from collections.abc import Iterable

import msgspec

from holdfast.canonical.pieces import Link
from holdfast.events.envelope import Event
from holdfast.events.payloads import LlmCallStarted, ModelSwitched, RequestPrepared


class Stratum(msgspec.Struct, frozen=True):
    """A run of neighbouring blocks of one layer, in wire order, and its size."""

    layer: str
    bytes: int


def strata(events: Iterable[Event]) -> dict[str, tuple[Stratum, ...]]:
    """By request id, from the first byte to the last; neighbouring blocks of one layer are merged."""
    chain: list[Link] = []
    layers_by_request: dict[str, tuple[Stratum, ...]] = {}
    for event in events:
        match event.payload:
            case RequestPrepared() as prepared:
                del chain[prepared.shared_blocks :]
                chain += prepared.links
            case ModelSwitched():
                chain.clear()
            case LlmCallStarted(request_id=request_id):
                layers_by_request[request_id] = _merge_runs(chain)
            case _:
                pass
    return layers_by_request


def _merge_runs(chain: Iterable[Link]) -> tuple[Stratum, ...]:
    runs: list[Stratum] = []
    for digest in chain:
        size = digest.end - digest.start
        if runs and runs[-1].layer == digest.layer:
            runs[-1] = Stratum(digest.layer, runs[-1].bytes + size)
        else:
            runs.append(Stratum(digest.layer, size))
    return tuple(runs)
