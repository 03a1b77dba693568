"""A library over a file, and the units that tests publish and recall."""

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result
from tests.support.instruction_service import UNITS

from holdfast import Library
from holdfast.cli.main import command
from holdfast.clock import ManualClock
from holdfast.instructions.settings import InstructionSettings


class TickingClock(ManualClock):
    """A clock that advances each time it is read."""

    def __call__(self) -> float:
        self.advance(0.01)
        return self.now


class LibraryProject:
    """A library over a file, a folder to publish from, and a clock."""

    def __init__(self, path: Path, *, clock: ManualClock | None = None) -> None:
        self.path = path
        self.clock = clock or ManualClock()
        self.folder = path / "folder"
        self.folder.mkdir()
        # The same encoder here and in the commands, whatever the default is.
        settings = InstructionSettings(root=path / "files", encoder="wordllama")
        (path / "home").mkdir()
        (path / "home" / "config.toml").write_text('[instructions]\nencoder = "wordllama"\n')
        self.library = Library(path / "kept.db", settings=settings, entity="acme:user/ann", clock=self.clock)

    def write(self, *, mode: str = "coexistence", texts: dict[str, str] | None = None, **more: object) -> None:
        entries = []
        for name, (description, intents, content) in UNITS.items():
            (self.folder / f"{name}.md").write_text((texts or {}).get(name, content))
            entry: dict[str, object] = {"name": name, "description": description}
            entry |= {"load_triggers": {"intents": intents}, "fact_uri": f"instruction:local/main/{name}/v1"}
            entries.append(entry | ({"path": f"{name}.md"} if mode == "coexistence" else {}))
        self.write_manifest({"agent_id": "main", "version": "v1", "migration_mode": mode, "entries": entries, **more})

    def write_manifest(self, manifest_body: object) -> None:
        (self.folder / "manifest.json").write_text(json.dumps(manifest_body))

    def manifest(self) -> Any:
        return json.loads((self.folder / "manifest.json").read_text())

    def recall_and_close(self, times: int, *, missed: tuple[str, ...] = ()) -> None:
        for _ in range(times):
            recalled = self.library.recall("claim a ticket", max_chunks=1)
            self.library.submit_usage(recalled.audit_token, used=("checkout-procedure",), missed=missed)

    def recalled(self, intent: str) -> list[str]:
        return [chunk.name for chunk in self.library.recall(intent).result.chunks]

    def run(self, *words: str, db: str | None = None) -> Result:
        environ = {"HOLDFAST_HOME": str(self.path / "home")}
        words = ("instructions", *words, "--db", db or str(self.path / "kept.db"))
        return CliRunner().invoke(command, words, env=environ, obj=self.clock)


def is_insertion(text: str, longer: str) -> bool:
    """Whether the longer text is the shorter one with one insertion."""
    at = next((at for at, (left, right) in enumerate(zip(text, longer, strict=False)) if left != right), len(text))
    return longer.endswith(text[at:])
