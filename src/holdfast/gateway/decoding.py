"""What a compressed body says, for whoever looks on; the body itself goes on as it came."""

import zlib

from holdfast.errors import ProviderError

PLAIN_BYTES_MAX = 64 * 1024 * 1024

_WINDOWS = {"gzip": 31, "x-gzip": 31, "deflate": 15}


def plain_body(body: bytes, encoding: str) -> bytes:
    """Raises ProviderError for an encoding that is not known here, and for what it does not fit."""
    for name in reversed([one.strip().lower() for one in encoding.split(",") if one.strip()]):
        if name == "identity":
            continue
        if name not in _WINDOWS:
            raise ProviderError("other", "a body is compressed in a way that cannot be read here")
        body = _inflated(body, _WINDOWS[name])
    return body


def _inflated(body: bytes, window: int) -> bytes:
    """As much as there is of a body that was cut."""
    reader = zlib.decompressobj(window)
    try:
        plain = reader.decompress(body, PLAIN_BYTES_MAX)
    except zlib.error:
        raise ProviderError("other", "a body is not compressed as its header says") from None
    if reader.unconsumed_tail:
        raise ProviderError("other", f"a body has more than {PLAIN_BYTES_MAX} bytes when it is unpacked")
    return plain
