"""What a tool looks like to a model."""

import msgspec


class ToolSpec(msgspec.Struct, frozen=True):
    """`input_schema_json` is canonical JSON, so that equal schemas have equal bytes.

    `wire_json`, where set, is a provider's own tool or one with fields we do not know, sent as it is.
    """

    name: str
    description: str
    input_schema_json: str
    wire_json: str | None = None
