"""How many requests the simulator remembers."""

from holdfast.simulator.records import RecordedRequest, RequestRing


def recorded(body: bytes) -> RecordedRequest:
    return RecordedRequest(1.0, "POST", "/v1/messages", 200, body)


def bodies(ring: RequestRing) -> list[bytes]:
    return [request.body for request in ring.newest()]


def test_the_oldest_request_is_forgotten_first() -> None:
    ring = RequestRing(requests_max=2)
    for body in (b"a", b"b", b"c"):
        ring.add(recorded(body))
    assert bodies(ring) == [b"b", b"c"]


def test_large_requests_make_the_ring_shorter() -> None:
    ring = RequestRing(bytes_max=4)
    for body in (b"aa", b"bb"):
        ring.add(recorded(body))
    assert bodies(ring) == [b"aa", b"bb"]
    ring.add(recorded(b"c"))
    assert bodies(ring) == [b"bb", b"c"]
    ring.add(recorded(b"d"))
    assert bodies(ring) == [b"bb", b"c", b"d"]


def test_the_newest_request_is_kept_whatever_its_size() -> None:
    ring = RequestRing(bytes_max=1)
    ring.add(recorded(b"large"))
    assert bodies(ring) == [b"large"]
