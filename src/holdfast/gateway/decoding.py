"""What a compressed body says, for whoever looks on; the body itself goes on as it came."""

import io
import zlib
from collections.abc import Callable, Mapping

from holdfast.errors import ProviderError

try:
    import brotli
except ImportError:  # pragma: no cover - an extra
    brotli = None
try:
    import zstandard
except ImportError:  # pragma: no cover - an extra
    zstandard = None  # type: ignore[assignment]  # A module or nothing: what needs it asks first.

PLAIN_BYTES_MAX = 64 * 1024 * 1024
WINDOW_BYTES_MAX = 128 * 1024 * 1024

_UNFIT = "a body is not compressed as its header says"


def plain_body(body: bytes, encoding: str) -> bytes:
    """As much as there is of a body that was cut.

    Raises ProviderError for an encoding that is not known here, and for what it does not fit.
    """
    for name in reversed([one.strip().lower() for one in encoding.split(",") if one.strip()]):
        if name not in _READERS:
            raise ProviderError("other", "a body is compressed in a way that cannot be read here")
        body = _READERS[name](body)
    return body


def _gunzipped(body: bytes) -> bytes:
    return _inflated(body, 31)


def _deflated(body: bytes) -> bytes:
    """With the frame that the name promises, or without it, as some servers send it."""
    framed = len(body) < 2 or (body[0] & 15 == 8 and int.from_bytes(body[:2]) % 31 == 0)
    return _inflated(body, 15 if framed else -15)


def _inflated(body: bytes, window: int) -> bytes:
    try:
        return _checked(zlib.decompressobj(window).decompress(body, PLAIN_BYTES_MAX + 1))
    except zlib.error:
        raise ProviderError("other", _UNFIT) from None


def _unbrotlied(body: bytes) -> bytes:
    reader = brotli.Decompressor()
    parts, size, given = [], 0, body
    try:
        while size <= PLAIN_BYTES_MAX and not reader.is_finished():
            part: bytes = reader.process(given, output_buffer_limit=PLAIN_BYTES_MAX + 1 - size)
            parts.append(part)
            size, given = size + len(part), b""
            if not part:
                break
    except brotli.error:
        raise ProviderError("other", _UNFIT) from None
    return _checked(b"".join(parts))


def _unzstandarded(body: bytes) -> bytes:
    reader = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES_MAX)
    try:
        with reader.stream_reader(io.BytesIO(body), read_across_frames=True) as stream:
            return _checked(stream.read(PLAIN_BYTES_MAX + 1))
    except zstandard.ZstdError:
        raise ProviderError("other", _UNFIT) from None


def _checked(plain: bytes) -> bytes:
    if len(plain) > PLAIN_BYTES_MAX:
        raise ProviderError("other", f"a body has more than {PLAIN_BYTES_MAX} bytes when it is unpacked")
    return plain


_READERS: Mapping[str, Callable[[bytes], bytes]] = {
    "identity": bytes,
    "gzip": _gunzipped,
    "x-gzip": _gunzipped,
    "deflate": _deflated,
    **({"br": _unbrotlied} if brotli is not None else {}),
    **({"zstd": _unzstandarded} if zstandard is not None else {}),
}
