"""The recorded sessions that the benchmarks read, from the folder that HOLDFAST_DATA names."""

import os
from pathlib import Path

from holdfast.replay.recording import Recording
from holdfast.replay.trace_files import read_traces

WITH_PAUSES = "entire_claude_code"
SKIPPED = ("skipped", "HOLDFAST_DATA names no folder with traces")


def traces_folder() -> Path | None:
    folder = os.environ.get("HOLDFAST_DATA")
    traces = Path(folder) / "traces" if folder else None
    return traces if traces is not None and traces.is_dir() else None


def sessions_of(traces: Path, name: str, *, compactions: bool) -> list[Recording]:
    """Oldest first. Without compactions prompts only grow: plans are compared, not clients."""
    read = read_traces([traces / f"{name}.jsonl.gz"], compactions=compactions)
    return sorted(
        (recording for recording in read if isinstance(recording, Recording)),
        key=lambda recording: recording.started_at,
    )
