"""The usage of an interrupted call: what the provider had reported, and an estimate of the output received."""

import msgspec

from holdfast.canonical.reply import Delta, Reply, TextDelta, ThinkingDelta, ToolUseDelta
from holdfast.canonical.usage import Usage
from holdfast.catalog.tokens import count_tokens


class Arrived:
    """The text of a reply as far as it was received, thinking and tool arguments included."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def take(self, delta: Delta) -> None:
        match delta:
            case TextDelta(text=text) | ThinkingDelta(text=text) | ToolUseDelta(json_part=text):
                self._texts.append(text)
            case _:
                pass

    def taken(self, partial: Reply | None, tokens_factor: float) -> tuple[Usage, bool]:
        """The usage, and whether its output is our estimate.

        Most providers report output tokens only at the end of a stream. If the prompt was not reported either, the call
        has no usage at all.
        """
        reported = partial.usage if partial else Usage()
        if partial is None or partial.stop_reason != "cancelled" or not reported.tokens_sent:
            return reported, False
        estimate = count_tokens("".join(self._texts), tokens_factor)
        if estimate <= reported.output:
            return reported, False
        return msgspec.structs.replace(reported, output=estimate), True
