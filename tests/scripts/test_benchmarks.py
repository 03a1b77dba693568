"""Each benchmark can be run by name, also with the package of an earlier commit, and fills the table of figures."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from benchmarks import gateway, improve_cpu
from benchmarks._gateway_ends import Pace
from benchmarks._headlines import (
    BEFORE,
    GROWTHS,
    HEADLINES,
    SETTINGS,
    SHORTENED,
    Growth,
    Headline,
    format_growth,
    format_table,
)
from benchmarks._packages import CannotMeasure, check_out, run_in_child
from benchmarks._proxies import Proxy, start_nginx
from conformance.client import InstallationFailed
from tests.support.served_gateway import raw_upstream

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MODULES = sorted(path for path in BENCHMARKS.glob("*.py") if not path.name.startswith("_"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_every_benchmark_has_a_question_and_rows(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree)
    assert "run" in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_headlines_are_figures_of_benchmarks_that_exist() -> None:
    shown = {headline.benchmark for headline in HEADLINES} | {growth.benchmark for growth in GROWTHS}
    assert shown <= {path.stem for path in MODULES}


def test_sections_of_benchmarks_that_the_settings_of_the_table_shorten_are_not_kept() -> None:
    shortened = {path.stem for path in MODULES if any(name in path.read_text() for name in SETTINGS)}
    assert shortened == set(SHORTENED)


def test_table_has_the_figures_of_both_packages_and_of_peers_beside_the_bar() -> None:
    headline = Headline("a turn", "turn", "holdfast #2", "ms", "3 ms", {"sdk": "sdk *", "other": "other"})
    then, now = {"turn": "- not measured: no such option"}, {"turn": "- holdfast: 2 ms, 1 ms\n- sdk 1.2: 4 ms"}
    assert format_table("abc", [headline], then, now) == [
        "| | before (abc) | now | bar | peers |",
        "| --- | --: | --: | --: | --- |",
        "| a turn | not measured | 1 ms | 3 ms | sdk 4 ms, other not measured |",
    ]


def test_growth_has_a_column_for_each_size_and_a_row_for_each_program() -> None:
    figures = {"ours": "ours, {size} messages #2", "one row": "in all #{place}", "other": "other {size}"}
    now = {"turn": "- ours, 10 messages: 2 ms, 1 ms\n- ours, 5,000 messages: 4 ms, 3 ms\n- in all: 5 at 10, 6 at 5,000"}
    assert format_growth([Growth("messages, ms", "turn", ["10", "5,000"], figures)], now) == [
        "",
        "| messages, ms | 10 | 5,000 |",
        "| --- | --: | --: |",
        "| ours | 1 | 3 |",
        "| one row | 5 | 6 |",
        "| other | not measured | not measured |",
    ]


def test_benchmarks_of_the_table_can_be_imported_with_the_earlier_package() -> None:
    try:
        source = check_out(BEFORE)
    except CannotMeasure:
        pytest.skip(f"this clone does not have the commit {BEFORE}")
    names = dict.fromkeys(f"benchmarks.{headline.benchmark}" for headline in HEADLINES)
    command = [sys.executable, "-c", f"import {', '.join(names)}"]
    environ = {**os.environ, "PYTHONPATH": str(source)}
    done = subprocess.run(command, cwd=BENCHMARKS.parent, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_benchmark_that_a_package_does_not_fit_fails_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "holdfast").mkdir()
    (tmp_path / "holdfast" / "__init__.py").write_text("")
    with pytest.raises(CannotMeasure, match=r"^ModuleNotFoundError: No module named 'holdfast\.\w+'$"):
        list(run_in_child("retrieval_speed", tmp_path))


def test_peer_that_refuses_requests_is_a_row_and_ends_no_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    for benchmark in (gateway, improve_cpu):
        monkeypatch.setattr(benchmark, "PEERS", {"peer": start_refusing_peer, "other": start_refusing_peer})
    ours = gateway.Measured(1.0, 1.0, "not streamed")
    compared = dict(gateway.compare_with_peers(0, ours, Pace(1.0, 1.0)))
    improved = dict(improve_cpu.compare_with_peers(0, dict.fromkeys(improve_cpu.SIZES, 1.0)))
    for name in ("peer", "other"):
        assert compared[name].casefold() == "not measured: http/1.1 503 service unavailable"
        assert improved[name].startswith("not measured: 503 from ")


@contextmanager
def start_refusing_peer(upstream_port: int) -> Iterator[Proxy]:
    with raw_upstream() as peer:
        peer.parts = (b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 2\r\n\r\n{}",)
        yield Proxy(int(peer.url.rpartition(":")[2]), os.getpid())


def test_nginx_that_cannot_be_had_is_not_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if Path("/usr/sbin/nginx").exists():
        pytest.skip("this machine has nginx")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("benchmarks._proxies.FOLDER", tmp_path)
    with pytest.raises(InstallationFailed, match="nginx is not installed"), start_nginx(0):
        pass


def test_unknown_commit_is_named() -> None:
    with pytest.raises(CannotMeasure, match="there is no commit 'no-such-commit'"):
        check_out("no-such-commit")
