"""The names of the package root and of `holdfast.seed`, and the keyword arguments of a session."""

import importlib
import inspect
import re
import subprocess
import sys
import typing
from pathlib import Path

import pytest

import holdfast
import holdfast.seed
from holdfast import Session, UserError
from holdfast.runtime.options import Options

SEED_NAMES_PAGE = Path(__file__).parents[2] / "docs" / "seed-names.md"
NAMES_HERE = sorted(
    {
        name
        for row in SEED_NAMES_PAGE.read_text().splitlines()
        if re.match(r"\| 00\d \|", row)
        for name in re.findall(r"`(holdfast[\w.]+)`", row.split("|")[3])
    }
)


def find_object(dotted_name: str) -> object:
    value: object = holdfast
    path = "holdfast"
    for name in dotted_name.split(".")[1:]:
        path = f"{path}.{name}"
        if inspect.ismodule(value) and not hasattr(value, name):
            importlib.import_module(path)
        value = getattr(value, name)
    return value


@pytest.mark.parametrize("name", NAMES_HERE)
def test_every_name_on_the_page_of_seed_names_exists(name: str) -> None:
    assert find_object(name) is not None


def test_the_page_of_seed_names_lists_the_whole_module() -> None:
    assert {f"holdfast.seed.{name}" for name in holdfast.seed.__all__} <= set(NAMES_HERE)


@pytest.mark.parametrize("module", [holdfast, holdfast.seed])
def test_every_public_name_can_be_loaded(module: typing.Any) -> None:
    assert dir(module) == sorted(module.__all__)
    assert all(getattr(module, name) is not None for name in module.__all__)


@pytest.mark.parametrize("module", [holdfast, holdfast.seed])
def test_an_unknown_name_is_an_attribute_error(module: typing.Any) -> None:
    with pytest.raises(AttributeError, match=f"module '{module.__name__}' has no attribute 'Sesion'"):
        module.Sesion  # noqa: B018 - the access is the test.


@pytest.mark.parametrize("method", [Session.create, Session.resume])
def test_a_session_has_a_keyword_argument_for_every_option(method: typing.Any) -> None:
    parameters = inspect.signature(method).parameters.values()
    keywords = {parameter.name: parameter for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}
    types = {name: parameter.annotation for name, parameter in keywords.items()}
    assert types == {name: option | None for name, option in Options.__annotations__.items()}
    assert all(parameter.default is None for parameter in keywords.values())


def test_help_on_create_has_one_line_for_every_option() -> None:
    described = re.findall(r"(?m)^    (\w+): \S.*[.`]$", inspect.getdoc(Session.create) or "")
    assert described[:-1] == [*Options.__annotations__]
    assert described[-1] == "UserError"


def test_a_misspelled_keyword_argument_is_refused_with_a_suggestion() -> None:
    with pytest.raises(UserError, match=r"unknown option 'sytem_prompt'; did you mean 'system_prompt'\?"):
        Session.create(sytem_prompt="Be brief.")  # type: ignore[arg-type]


def test_a_session_is_loaded_without_an_http_client_and_few_modules() -> None:
    program = (
        "import sys; before = set(sys.modules)\nimport holdfast; holdfast.Session\nprint(*set(sys.modules) - before)\n"
    )
    output = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    loaded = set(output.split())
    assert "holdfast.runtime.session" in loaded
    assert not loaded & {"aiohttp", "httpx", "anthropic", "openai", "numpy", "rich", "starlette", "psycopg", "mcp"}
    assert len(loaded) < 500
