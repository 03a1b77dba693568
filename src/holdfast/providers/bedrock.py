"""Amazon Bedrock's binary event streams, decoded into server-sent events, and its token counts.

Bedrock forwards the events of a model in frames of the format `application/vnd.amazon.eventstream`. As server-sent
events, those of Claude are Anthropic's own.
"""

import base64
import binascii
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from holdfast.providers.json_splice import decode_or_none
from holdfast.providers.sse import encode_event
from holdfast.types.blocks import Json
from holdfast.types.json_encoding import encode_json
from holdfast.types.usage import Usage, clamp_token_count

EVENT_STREAM_TYPE = "application/vnd.amazon.eventstream"
# Bedrock's frames have at most 24 MiB; a larger length means that the stream is not one.
FRAME_BYTES_MAX = 24 * 1024 * 1024

# A frame: lengths of the frame and of its headers, CRC-32 of both; headers; payload; CRC-32 of everything before it.
_PRELUDE = struct.Struct(">III")
_CRC_BYTES = 4
_STRING_TYPE = 7
# Bytes of a header value by its type; the types 6 (bytes) and 7 (string) begin with their length.
_VALUE_BYTES = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}
_METRICS = "amazon-bedrock-invocationMetrics"
_COUNTERS = {
    "input_tokens": ("inputTokenCount", "x-amzn-bedrock-input-token-count"),
    "output_tokens": ("outputTokenCount", "x-amzn-bedrock-output-token-count"),
    "cache_read_input_tokens": ("cacheReadInputTokenCount", "x-amzn-bedrock-cache-read-input-token-count"),
    "cache_creation_input_tokens": ("cacheWriteInputTokenCount", "x-amzn-bedrock-cache-write-input-token-count"),
}
"""Anthropic's name of each counter, its name in the metrics of a stream's last event, and its response header.

Bedrock's counters are disjoint like Anthropic's: `inputTokenCount` excludes what was read and written (LiteLLM pull
request 36878, measured)."""

_ERROR_TYPES = {
    "throttlingException": "rate_limit_error",
    "validationException": "invalid_request_error",
    "modelTimeoutException": "timeout_error",
    "serviceUnavailableException": "overloaded_error",
}


class Frame(msgspec.Struct, frozen=True):
    """`headers` are those with text values, such as `:event-type`."""

    headers: dict[str, str]
    payload: bytes


class FrameParser:
    """Parses frames however they are split into chunks. What follows a malformed frame is ignored."""

    def __init__(self) -> None:
        self._unread = bytearray()
        self.is_malformed = False

    def feed(self, chunk: bytes) -> Iterator[Frame]:
        """The frames that this chunk completes."""
        self._unread += chunk
        while not self.is_malformed and len(self._unread) >= _PRELUDE.size:
            size, header_size, crc = _PRELUDE.unpack_from(self._unread)
            if zlib.crc32(self._unread[:8]) != crc or size > FRAME_BYTES_MAX:
                self.is_malformed = True
            elif len(self._unread) < size:
                return
            else:
                frame = bytes(self._unread[:size])
                del self._unread[:size]
                if decoded := _decode_frame(frame, header_size):
                    yield decoded
                else:
                    self.is_malformed = True


def _decode_frame(frame: bytes, header_size: int) -> Frame | None:
    payload_at = _PRELUDE.size + header_size
    if payload_at > len(frame) - _CRC_BYTES or zlib.crc32(frame[:-_CRC_BYTES]) != int.from_bytes(frame[-_CRC_BYTES:]):
        return None
    try:
        headers = dict(_iterate_headers(frame[_PRELUDE.size : payload_at]))
    except (IndexError, KeyError, UnicodeDecodeError):
        return None
    return Frame(headers, frame[payload_at:-_CRC_BYTES])


def _iterate_headers(block: bytes) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(block):
        name_end = at + 1 + block[at]
        name, kind, at = block[at + 1 : name_end].decode(), block[name_end], name_end + 1
        if kind in (6, _STRING_TYPE):
            size, at = int.from_bytes(block[at : at + 2]), at + 2
        else:
            size = _VALUE_BYTES[kind]
        if kind == _STRING_TYPE:
            yield name, block[at : at + size].decode()
        at += size


def encode_frame(event_type: str, payload: bytes) -> bytes:
    names = {":event-type": event_type, ":content-type": "application/json", ":message-type": "event"}
    headers = b"".join(
        bytes([len(name)]) + name.encode() + bytes([_STRING_TYPE]) + len(value).to_bytes(2) + value.encode()
        for name, value in names.items()
    )
    lengths = struct.pack(">II", _PRELUDE.size + len(headers) + len(payload) + _CRC_BYTES, len(headers))
    frame = lengths + zlib.crc32(lengths).to_bytes(4) + headers + payload
    return frame + zlib.crc32(frame).to_bytes(4)


def encode_chunk_frame(event: bytes) -> bytes:
    """One event of a model, as `invoke-with-response-stream` sends it."""
    return encode_frame("chunk", encode_json({"bytes": base64.b64encode(event).decode()}))


def decode_event_stream(chunks: Iterable[bytes]) -> bytes:
    """The stream as server-sent events, as far as it can be decoded."""
    parser = FrameParser()
    return b"".join(_to_event(frame) for chunk in chunks for frame in parser.feed(chunk))


def _to_event(frame: Frame) -> bytes:
    payload = decode_or_none(msgspec.json.decode, frame.payload)
    failure = frame.headers.get(":exception-type") or frame.headers.get(":error-code")
    if failure is not None:
        message = payload.get("message", "") if isinstance(payload, dict) else ""
        error = {"type": _ERROR_TYPES.get(failure, "api_error"), "message": message}
        return encode_event(encode_json({"type": "error", "error": error}), "error")
    encoded = payload.get("bytes") if isinstance(payload, dict) else None
    if not isinstance(encoded, str):
        # Converse streams their events without another envelope; the event's name is in the header.
        return encode_event(frame.payload, frame.headers.get(":event-type", ""))
    try:
        event = base64.b64decode(encoded, validate=True)
    except binascii.Error:
        return b""
    decoded = decode_or_none(msgspec.json.decode, event)
    metrics = decoded.get(_METRICS) if isinstance(decoded, dict) else None
    if isinstance(decoded, dict) and isinstance(metrics, dict) and "usage" not in decoded:
        usage: dict[str, Json] = {name: metrics.get(theirs, 0) for name, (theirs, _) in _COUNTERS.items()}
        return encode_event(encode_json({**decoded, "usage": usage}))
    return encode_event(event)


def read_usage_headers(headers: Mapping[str, str]) -> Usage | None:
    """The usage in the headers of a response, which the models of all vendors have; None if there is none."""
    values = {name: headers.get(header, "") for name, (_, header) in _COUNTERS.items()}
    counts = {name: clamp_token_count(int(value[:18])) for name, value in values.items() if value.isdigit()}
    if not counts:
        return None
    return Usage(
        input=counts.get("input_tokens", 0),
        cache_read=counts.get("cache_read_input_tokens", 0),
        cache_write_5m=counts.get("cache_creation_input_tokens", 0),
        output=counts.get("output_tokens", 0),
    )
