"""The values that Anthropic's format can encode."""

from tests.support import wire_values as values
from tests.support.wires import WireValues

VALUES = WireValues(values.parameters, values.replies, ("5m", "1h"))
