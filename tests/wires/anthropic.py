"""What Anthropic can spell."""

import wire_values as values
from wires import WireValues

VALUES = WireValues(values.parameters, values.replies, ("5m", "1h"))
