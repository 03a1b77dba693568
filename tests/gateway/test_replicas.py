"""Replicas on one PostgreSQL: a conversation may reach any of them with any call, also while replicas are killed."""

import logging
import os
from pathlib import Path

import pytest
from tests.support.replicas import ReplicaOutcome, run_replicas

SECONDS = float(os.environ.get("HOLDFAST_REPLICA_SECONDS", "0"))
"""With a time, as in `make deep`, the load lasts so long, with 64 conversations, and with four replicas too."""

CONNECTIONS_PER_REPLICA_MAX = 16
"""Gateway and recorder each have one that writes, and at most four idle ones to read and four to change records."""

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the recorder process in /proc"),
    pytest.mark.timeout(180 + 4 * SECONDS),
]


def check(outcome: ReplicaOutcome) -> None:
    logging.getLogger(__name__).info("%s", outcome)
    assert outcome.answered > outcome.conversations
    assert (outcome.lost, outcome.double_counted) == (0, 0), outcome
    assert (outcome.split, outcome.mixed, outcome.forked, outcome.other_prefix) == (0, 0, 0, 0), outcome
    assert outcome.overshoot <= 1, outcome
    assert outcome.pings_max <= 1, outcome
    assert outcome.explicit_caches <= outcome.cache_users, outcome
    # In a short run, a replica may be killed while it creates the cache, and no other does before its lease ends.
    assert outcome.explicit_caches == outcome.cache_users or not SECONDS, outcome
    assert outcome.connections_max <= CONNECTIONS_PER_REPLICA_MAX * outcome.replicas, outcome
    assert outcome.refused or not outcome.kills or not SECONDS, "the budget was not spent, so nothing is known about it"


def test_conversations_that_change_the_replica_with_every_call_stay_whole(tmp_path: Path, postgres: str) -> None:
    check(run_replicas(postgres, tmp_path, replicas=2, conversations=4, seconds=0.0, kill_seconds=0.0, turns_max=4))


@pytest.mark.parametrize("replicas", [2, 4] if SECONDS else [2])
def test_a_killed_replica_loses_no_answered_call_and_splits_no_conversation(
    tmp_path: Path, postgres: str, replicas: int
) -> None:
    seconds, kill_seconds, conversations = (SECONDS, 10.0, 64) if SECONDS else (6.0, 3.0, 4)
    check(
        run_replicas(
            postgres,
            tmp_path,
            replicas=replicas,
            conversations=conversations,
            seconds=seconds,
            kill_seconds=kill_seconds,
        )
    )
