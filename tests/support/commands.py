"""The `holdfast` command with arguments, as a subprocess or in the process of the test."""

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.cli.main import main


def run_command(*arguments: str, cwd: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    """The command as a user starts it."""
    return subprocess.run(
        [sys.executable, "-m", "holdfast", *arguments],
        env={**os.environ, **environ},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def run_in_process(*arguments: str, cwd: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    """The same in this process: a subprocess takes half a second to start, so few tests should use one."""
    words = ["holdfast", *arguments]
    streams = (io.BytesIO(), io.BytesIO())
    out, err = (io.TextIOWrapper(one, encoding="utf-8", write_through=True) for one in streams)
    with pytest.MonkeyPatch.context() as patch, contextlib.chdir(cwd or Path.cwd()):
        patch.setattr(sys, "argv", words)
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        for name, value in environ.items():
            patch.setenv(name, value)
        with pytest.raises(SystemExit) as result:
            main()
    status = result.value.code
    assert isinstance(status, int)
    return subprocess.CompletedProcess(words, status, *(one.getvalue().decode() for one in streams))
