"""Which recorded sessions the benchmarks read: those below the folder that HOLDFAST_DATA names."""

import os
from pathlib import Path

from holdfast.replay.recording import Recording
from holdfast.replay.trace_files import read_traces

WITH_PAUSES = "entire_claude_code"
LEFT_OUT = ("left out", "HOLDFAST_DATA names no folder with traces")


def traces_folder() -> Path | None:
    folder = os.environ.get("HOLDFAST_DATA")
    found = Path(folder) / "traces" if folder else None
    return found if found is not None and found.is_dir() else None


def sessions_of(traces: Path, name: str, *, compactions: bool) -> list[Recording]:
    """In order of time. Without compactions prompts only grow: plans are compared, not clients."""
    read = read_traces([traces / f"{name}.jsonl.gz"], compactions=compactions)
    return sorted((one for one in read if isinstance(one, Recording)), key=lambda one: one.started_at)
