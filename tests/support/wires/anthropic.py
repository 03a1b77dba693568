"""What Anthropic can spell."""

from tests.support import wire_values as values
from tests.support.wires import WireValues

VALUES = WireValues(values.parameters, values.replies, ("5m", "1h"))
