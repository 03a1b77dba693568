"""What was really said in a session, message by message, whatever its view has become."""

from collections.abc import Iterable, Sequence

from holdfast.canonical.blocks import Text
from holdfast.canonical.prompt import Passage, Stability
from holdfast.compaction.groups import groups_of
from holdfast.events.envelope import Event
from holdfast.events.payloads import ContextInjected, MessageAppended, MessagesWithdrawn


def logged(events: Iterable[Event]) -> tuple[Passage, ...]:
    """Every message of the log under its number, less those that were withdrawn."""
    passages: list[Passage] = []
    number = 0
    for event in events:
        match event.payload:
            case MessageAppended(message=message):
                number += 1
                passages.append(Passage(message.role, message.content, number=number))
            case ContextInjected(place="messages") as it:
                number += 1
                passages.append(
                    Passage(
                        "user",
                        (Text(it.text),),
                        it.layer,
                        Stability.VOLATILE,
                        ephemeral=it.ephemeral,
                        number=number,
                    )
                )
            case MessagesWithdrawn():
                while passages and passages[-1].role != "assistant":
                    passages.pop()
            case _:
                pass
    return tuple(passages)


def groups_behind(passages: Sequence[Passage], first: int, last: int) -> tuple[tuple[Passage, ...], ...]:
    """The whole groups that messages `first` to `last` stand in, in order."""
    found = []
    for group in groups_of(passages):
        numbers = [passage.number for passage in passages[group.start : group.stop]]
        if numbers[0] <= last and numbers[-1] >= first:
            found.append(tuple(passages[group.start : group.stop]))
    return tuple(found)
