"""Decompresses recorded bodies by their Content-Encoding; the forwarded bytes stay compressed as received."""

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
    zstandard = None  # type: ignore[assignment]  # Optional module; _DECODERS is built accordingly.

# Limits against decompression bombs: a small body can expand to gigabytes.
PLAIN_BYTES_MAX = 64 * 1024 * 1024
WINDOW_BYTES_MAX = 128 * 1024 * 1024
_INVALID = "the body is not valid for its Content-Encoding"


def decompress_body(body: bytes, encoding: str) -> bytes:
    """The decompressed body; for a truncated body, as much of it as can be decoded.

    Raises ProviderError for an unknown encoding or for data that does not match it.
    """
    # Encodings are listed in the order in which they were applied (RFC 9110, section 8.4).
    for name in reversed([part.strip().lower() for part in encoding.split(",") if part.strip()]):
        if name not in _DECODERS:
            raise ProviderError("other", "the body has an unsupported Content-Encoding")
        body = _DECODERS[name](body)
    return body


def _decode_gzip(body: bytes) -> bytes:
    # 16 + 15: gzip header and trailer, maximum window (zlib's wbits).
    return _inflate(body, 31)


def _decode_deflate(body: bytes) -> bytes:
    """Accepts a zlib frame, as the standard requires, and raw deflate data, which some servers send."""
    # zlib header (RFC 1950): compression method 8 in the low nibble, first two bytes a multiple of 31.
    has_zlib_frame = len(body) < 2 or (body[0] & 15 == 8 and int.from_bytes(body[:2]) % 31 == 0)
    return _inflate(body, 15 if has_zlib_frame else -15)


def _inflate(body: bytes, window: int) -> bytes:
    try:
        return _check_size(zlib.decompressobj(window).decompress(body, PLAIN_BYTES_MAX + 1))
    except zlib.error:
        raise ProviderError("other", _INVALID) from None


def _decode_brotli(body: bytes) -> bytes:
    reader = brotli.Decompressor()
    parts, size, pending = [], 0, body
    try:
        while size <= PLAIN_BYTES_MAX and not reader.is_finished():
            part: bytes = reader.process(pending, output_buffer_limit=PLAIN_BYTES_MAX + 1 - size)
            parts.append(part)
            size, pending = size + len(part), b""
            if not part:
                break
    except brotli.error:
        raise ProviderError("other", _INVALID) from None
    return _check_size(b"".join(parts))


def _decode_zstd(body: bytes) -> bytes:
    reader = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES_MAX)
    try:
        with reader.stream_reader(io.BytesIO(body), read_across_frames=True) as stream:
            return _check_size(stream.read(PLAIN_BYTES_MAX + 1))
    except zstandard.ZstdError:
        raise ProviderError("other", _INVALID) from None


def _check_size(plain: bytes) -> bytes:
    if len(plain) > PLAIN_BYTES_MAX:
        raise ProviderError("other", f"the decompressed body has more than {PLAIN_BYTES_MAX} bytes")
    return plain


_DECODERS: Mapping[str, Callable[[bytes], bytes]] = {
    "identity": bytes,
    "gzip": _decode_gzip,
    "x-gzip": _decode_gzip,
    "deflate": _decode_deflate,
    **({"br": _decode_brotli} if brotli is not None else {}),
    **({"zstd": _decode_zstd} if zstandard is not None else {}),
}
