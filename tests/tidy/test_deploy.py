"""The files of `deploy/`: each parses, says what it must for safety, and names only options and metrics that exist."""

import configparser
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from holdfast.cli.serve.command import command as serve_command
from holdfast.cli.serve.gateway import BACKLOG_METRIC, LOST_CALLS_METRIC, RESTARTS_METRIC

DEPLOY = Path(__file__).parent.parent.parent / "deploy"
PROMTOOL = shutil.which("promtool")
METRIC = re.compile(r"\bholdfast_[a-z_]+")


def load_yaml(name: str) -> list[dict[str, object]]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def find_metrics() -> set[str]:
    """The names of all metrics in the source."""
    sources = (DEPLOY.parent / "src").rglob("*.py")
    return {name for path in sources for name in re.findall(r'"(holdfast_[a-z_]+)"', path.read_text())}


def test_every_metric_in_alerts_and_dashboard_exists() -> None:
    known = find_metrics()
    assert {LOST_CALLS_METRIC, RESTARTS_METRIC, BACKLOG_METRIC} <= known
    for name in ("prometheus/alerts.yaml", "grafana/holdfast.json"):
        used = set(METRIC.findall((DEPLOY / name).read_text()))
        assert used
        assert {metric.removesuffix("_bucket") for metric in used} <= known, name


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed: apt-get install prometheus")
def test_alert_rules_pass_promtool() -> None:
    assert PROMTOOL is not None
    checked = subprocess.run(
        [PROMTOOL, "check", "rules", DEPLOY / "prometheus/alerts.yaml"], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_every_alert_says_what_happened_and_what_to_do() -> None:
    (document,) = load_yaml("prometheus/alerts.yaml")
    rules = document["groups"][0]["rules"]  # type: ignore[index]
    assert len({rule["alert"] for rule in rules}) == len(rules) > 0
    for rule in rules:
        assert {"summary", "description"} <= rule["annotations"].keys()


def test_dashboard_panels_do_not_overlap_and_ask_something() -> None:
    panels = json.loads((DEPLOY / "grafana/holdfast.json").read_text())["panels"]
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len({panel["id"] for panel in panels}) == len(panels)
    assert all(target["expr"] for panel in panels for target in panel["targets"])


def iterate_serve_words() -> Iterator[list[str]]:
    """The arguments of `holdfast serve` in all files."""
    (compose,) = load_yaml("compose.yaml")
    yield compose["x-replica"]["command"]  # type: ignore[index]
    for document in load_yaml("kubernetes/holdfast.yaml"):
        if document["kind"] == "StatefulSet":
            yield document["spec"]["template"]["spec"]["containers"][0]["args"]  # type: ignore[index]
    unit = (DEPLOY / "systemd/holdfast@.service").read_text()
    yield next(line for line in unit.splitlines() if line.startswith("ExecStart=")).split()[1:]
    yield json.loads((DEPLOY / "Containerfile").read_text().rpartition("CMD ")[2])


def test_every_option_of_serve_exists() -> None:
    text = CliRunner().invoke(serve_command, ["--help"]).output
    commands = list(iterate_serve_words())
    assert len(commands) == 4
    for words in commands:
        assert words[0] == "serve"
        for word in words:
            assert not word.startswith("--") or word in text, word


def test_containers_run_without_root_and_without_a_writable_file_system() -> None:
    image = (DEPLOY / "Containerfile").read_text()
    assert image.rindex("USER 10001") < image.index("ENTRYPOINT")
    assert "HEALTHCHECK" in image
    (compose,) = load_yaml("compose.yaml")
    services = compose["services"]
    for name in ("replica1", "replica2"):
        assert services[name]["read_only"] is True  # type: ignore[index]
        assert services[name]["cap_drop"] == ["ALL"]  # type: ignore[index]
    assert services["replica1"]["volumes"] != services["replica2"]["volumes"]  # type: ignore[index]
    workloads = [
        document for document in load_yaml("kubernetes/holdfast.yaml") if document["kind"] in ("Job", "StatefulSet")
    ]
    assert len(workloads) == 2
    for document in workloads:
        pod = document["spec"]["template"]["spec"]  # type: ignore[index]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True


def test_balancer_sends_calls_to_every_replica() -> None:
    (compose,) = load_yaml("compose.yaml")
    servers = re.findall(r"^ +server (\w+) \1:8787 check", (DEPLOY / "haproxy.cfg").read_text(), re.MULTILINE)
    assert set(servers) == {name for name in compose["services"] if name.startswith("replica")}  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["holdfast@.service", "holdfast-migrate.service"])
def test_units_are_confined(name: str) -> None:
    unit = configparser.RawConfigParser(strict=False, comment_prefixes=("#",))
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "systemd" / name)
    assert unit["Service"]["DynamicUser"] == "yes"
    assert unit["Service"]["ProtectSystem"] == "strict"
    assert unit["Service"]["ExecStart"].startswith("/opt/holdfast/bin/holdfast ")
