"""The simulator's request log and its limits."""

from holdfast.simulator.exchange import RecordedRequest, RequestRing
from holdfast.simulator.request_blocks import TokenCounts


def recorded(body: bytes) -> RecordedRequest:
    return RecordedRequest(1.0, "POST", "/v1/messages", 200, body)


def bodies(ring: RequestRing) -> list[bytes]:
    return [request.body for request in ring.list_requests()]


def test_the_oldest_request_is_forgotten_first() -> None:
    ring = RequestRing(requests_max=2)
    for body in (b"a", b"b", b"c"):
        ring.add(recorded(body))
    assert bodies(ring) == [b"b", b"c"]


def test_large_requests_shorten_the_log() -> None:
    ring = RequestRing(bytes_max=4)
    for body in (b"aa", b"bb"):
        ring.add(recorded(body))
    assert bodies(ring) == [b"aa", b"bb"]
    ring.add(recorded(b"c"))
    assert bodies(ring) == [b"bb", b"c"]
    ring.add(recorded(b"d"))
    assert bodies(ring) == [b"bb", b"c", b"d"]


def test_the_newest_request_remains_whatever_its_size() -> None:
    ring = RequestRing(bytes_max=1)
    ring.add(recorded(b"large"))
    assert bodies(ring) == [b"large"]


def test_a_block_is_counted_once_until_the_memo_is_full() -> None:
    counted_blocks: list[tuple[bytes, float]] = []

    def count(data: bytes, factor: float) -> int:
        counted_blocks.append((data, factor))
        return len(data)

    counts = TokenCounts(count, counts_max=2)
    assert [counts(b"a", 1.0), counts(b"bb", 1.0), counts(b"a", 1.0), counts(b"bb", 1.0)] == [1, 2, 1, 2]
    assert len(counted_blocks) == 2
    assert counts(b"a", 1.5) == 1
    assert counts(b"a", 1.0) == 1
    assert counted_blocks[2:] == [(b"a", 1.5), (b"a", 1.0)]
