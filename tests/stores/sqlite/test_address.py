"""Which store an address opens."""

from contextlib import closing
from pathlib import Path

import pytest

from holdfast.errors import UserError
from holdfast.stores.memory import MemoryStore
from holdfast.stores.open import open_store
from holdfast.stores.sqlite.store import SqliteStore


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def opened_path(address: str | Path) -> Path:
    with closing(open_store(address)) as store:
        assert isinstance(store, SqliteStore)
        return store.path


@pytest.mark.parametrize("address", ["memory:", "memory://", "MEMORY:"])
def test_memory_is_a_store_that_is_not_persisted(address: str, here: Path) -> None:
    with closing(open_store(address)) as store:
        assert isinstance(store, MemoryStore)
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("log.db", "log.db"),
        ("sub/log.db", "sub/log.db"),
        ("./a:b.db", "a:b.db"),
        ("sqlite:///log.db", "log.db"),
        ("sqlite:///sub/log.db", "sub/log.db"),
        ("SQLite:///log.db", "log.db"),
        ("c:log.db", "c:log.db"),
        (Path("ab:log.db"), "ab:log.db"),
        ("./~", "~"),
    ],
)
def test_a_path_is_a_sqlite_file(address: str | Path, name: str, here: Path) -> None:
    assert opened_path(address) == here / name
    assert (here / name).is_file()


def test_a_fourth_slash_makes_the_path_absolute(here: Path) -> None:
    assert opened_path(f"sqlite:///{here / 'deep' / 'log.db'}") == here / "deep" / "log.db"
    assert opened_path(str(here / "log.db")) == here / "log.db"


@pytest.mark.parametrize(
    "address",
    ["mysql://me:secret@host/db", "sqlite:log.db", "sqlite://log.db", "memory:x", "ab:log.db", "postgresql:me:secret"],
)
def test_any_other_address_is_refused_with_a_list_of_the_supported_ones(address: str, here: Path) -> None:
    with pytest.raises(UserError) as refusal:
        open_store(address)
    scheme = address.partition(":")[0]
    assert str(refusal.value) == (
        f"'{scheme}:' is not a known kind of store: "
        "use a path (./PATH if it holds a colon), sqlite:///PATH, postgresql://USER@HOST/DATABASE, or memory:"
    )
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("address", ["", ":memory:", "sqlite:///", "sqlite:///:memory:"])
def test_sqlite_without_a_file_is_refused(address: str) -> None:
    with pytest.raises(UserError, match="use MemoryStore, or 'memory:'"):
        open_store(address)


@pytest.mark.parametrize("address", ["~/log.db", "sqlite:///~/log.db"])
def test_a_home_folder_is_not_guessed(address: str, here: Path) -> None:
    with pytest.raises(UserError, match=r"'~/log.db' is not expanded: write the home folder in full"):
        open_store(address)
    assert list(here.iterdir()) == []
