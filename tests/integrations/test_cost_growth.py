"""What a wrapped client adds to one more call of a long conversation, counted in operations."""

from typing import Any

import anthropic
from tests.support.operations import OperationCounter
from tests.support.served import SimulatorServer

from holdfast.integrations import recorder_of, wrap
from holdfast.simulator.script import parse_script
from holdfast.stores.memory import MemoryStore

SHORT, LONG = 11, 211
CALLS = 3
SYSTEM = "You read before you write. " * 400
# Planning and recording look at each message of the body once, as in the gateway.
OPERATIONS_A_MESSAGE_MAX = 500


def count_last_call(messages: int, simulated: SimulatorServer, counter: OperationCounter) -> int:
    """The operations of a call whose conversation was sent three times before, until it is recorded."""
    with wrap(simulated.client(), store=MemoryStore()) as client:
        for call in range(CALLS):
            send(client, messages + 2 * call)
        assert len(recorder_of(client).calls) == CALLS
        with counter.counting() as operations:
            send(client, messages + 2 * CALLS)
            assert len(recorder_of(client).calls) == CALLS + 1
    return operations.total()


def send(client: anthropic.Anthropic, messages: int) -> None:
    roles = ("user", "assistant")
    spoken: Any = [{"role": roles[n % 2], "content": f"Message {n} says this."} for n in range(messages)]
    client.messages.create(model="claude-sonnet-5-5", max_tokens=50, system=SYSTEM, messages=spoken)


def test_one_more_call_costs_few_operations_for_each_earlier_message() -> None:
    # What the simulator does, in a thread that began before, is not counted.
    with SimulatorServer(parse_script("")) as simulated, OperationCounter().open() as counter:
        short, long = (count_last_call(messages, simulated, counter) for messages in (SHORT, LONG))
    assert short > 0
    assert (long - short) / (LONG - SHORT) < OPERATIONS_A_MESSAGE_MAX
