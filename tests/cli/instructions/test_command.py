"""`holdfast serve --instructions`: what it requires, and what it refuses to start with."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.errors import UserError
from holdfast.instructions.units.signatures import load_deployment_key
from holdfast.runtime.instructions.settings import load_instruction_config


def settings(tmp_path: Path, text: str) -> dict[str, str]:
    (tmp_path / "config.toml").write_text(text)
    return {"HOLDFAST_HOME": str(tmp_path)}


def test_instructions_are_off_until_the_home_file_turns_them_on(tmp_path: Path) -> None:
    assert not load_instruction_config({"HOLDFAST_HOME": str(tmp_path)}).enabled
    assert load_instruction_config(settings(tmp_path, "[instructions]\nenabled = true\n")).enabled


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[instructions]\nenabled = 3\n", "enabled"),
        ("[instructions]\nenabeld = true\n", "enabeld"),
        ('[instructions]\ndeployment = "a/b"\n', "deployment"),
        ('[instructions]\nwake_public_key = "short"\n', "Ed25519"),
        (
            '[instructions]\nencoder = "other"\n',
            "unknown encoder 'other'; use wordllama, none, the folder of an ONNX model",
        ),
        ("[instructions\n", "cannot be read"),
    ],
)
def test_invalid_settings_are_named(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        load_instruction_config(settings(tmp_path, text))


def test_a_weak_secret_or_one_without_an_issuer_is_refused(tmp_path: Path) -> None:
    environ = settings(tmp_path, '[instructions]\nwake_issuer = "control-plane"\n')
    with pytest.raises(UserError, match="at least 32 bytes"):
        load_instruction_config({**environ, "HOLDFAST_WAKE_SECRET": "short"})
    trust = load_instruction_config({**environ, "HOLDFAST_WAKE_SECRET": "s" * 32}).settings.wake
    assert trust is not None
    assert trust.issuer == "control-plane"
    with pytest.raises(UserError, match="wake_issuer"):
        load_instruction_config({**settings(tmp_path, ""), "HOLDFAST_WAKE_SECRET": "s" * 32})


def test_a_deployments_key_is_created_once_and_private_to_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "home" / "instructions.key"
    first = load_deployment_key(path)
    assert load_deployment_key(path) == first
    assert path.stat().st_mode & 0o077 == 0
    path.write_bytes(b"short")
    with pytest.raises(UserError, match="is not a deployment key"):
        load_deployment_key(path)


@pytest.mark.parametrize("name", ["recall", "coverage"])
def test_without_its_package_a_command_says_how_to_install_it(name: str) -> None:
    program = (
        "import sys; sys.modules['cryptography'] = None\nfrom holdfast.cli.main import main\n"
        f"sys.argv[1:] = ['instructions', {name!r}, '--agent', 'a', *{['hello'] if name == 'recall' else []}]\nmain()"
    )
    completed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env=os.environ
    )
    assert completed.returncode == 1
    assert (
        completed.stderr
        == "holdfast: instructions need an extra package: pip install 'holdfast-context[instructions]'\n"
    )
