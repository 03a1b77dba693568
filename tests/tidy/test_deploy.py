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
    assert not find_fault("check", "rules", DEPLOY / "prometheus/alerts.yaml")


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed: apt-get install prometheus")
def test_prometheus_accepts_the_configuration() -> None:
    assert not find_fault("check", "config", "--syntax-only", DEPLOY / "prometheus/prometheus.yaml")


ENDED = "holdfast_llm_calls_ended_total"


def _bucket(bound: str) -> str:
    return f'holdfast_http_request_seconds_bucket{{path="/api/sessions",le="{bound}"}}'


FIRING: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "HoldfastReplicaDown": ({"up": "1+0x5 0+0x24"}, {"up": "1+0x29"}),
    "HoldfastCallsLost": ({"holdfast_gateway_lost_calls_total": "0+0x20 1+0x9"}, {LOST_CALLS_METRIC: "5+0x29"}),
    "HoldfastRecordingBehind": ({BACKLOG_METRIC: "90000000+0x29"}, {BACKLOG_METRIC: "1000+0x29"}),
    "HoldfastRecorderRestarts": ({RESTARTS_METRIC: "0+0x20 1+1x9"}, {RESTARTS_METRIC: "3+0x29"}),
    "HoldfastInvalidKeys": ({"holdfast_failed_keys_total": "0+90x29"}, {"holdfast_failed_keys_total": "0+9x29"}),
    "HoldfastSlowApi": (
        {_bucket("2.5"): "0+1x29", _bucket("10.0"): "0+9x29", _bucket("+Inf"): "0+9x29"},
        {_bucket("2.5"): "0+9x29", _bucket("10.0"): "0+9x29", _bucket("+Inf"): "0+9x29"},
    ),
    # Every call fails: no call was ever completed, so there is no series of those.
    "HoldfastCallsFail": (
        {f'{ENDED}{{model="a:b",outcome="authentication"}}': "0+5x60"},
        {
            f'{ENDED}{{model="a:b",outcome="completed"}}': "0+90x60",
            f'{ENDED}{{model="a:b",outcome="rate_limit"}}': "0+5x60",
        },
    ),
    **{
        alert: ({f'holdfast_alerts{{kind="{kind}"}}': "1+0x29"}, {f'holdfast_alerts{{kind="{kind}"}}': "0+0x29"})
        for alert, kind in (
            ("HoldfastReadShareLow", "read_share"),
            ("HoldfastBudgetShort", "budget"),
            ("HoldfastUnreadableCalls", "unreadable"),
            ("HoldfastDegraded", "degraded"),
        )
    },
}
"""For each alert, samples of each minute at which it fires, and those of a healthy service."""


def test_every_alert_is_tried() -> None:
    (document,) = load_yaml("prometheus/alerts.yaml")
    assert {rule["alert"] for rule in document["groups"][0]["rules"]} == FIRING.keys()  # type: ignore[index]


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed: apt-get install prometheus")
@pytest.mark.parametrize("alert", FIRING)
def test_an_alert_fires_when_it_should_and_only_then(alert: str, tmp_path: Path) -> None:
    fires, healthy = FIRING[alert]
    cases = [
        {
            "interval": "1m",
            "input_series": [{"series": _add_instance(name), "values": values} for name, values in series.items()],
            "promql_expr_test": [
                {
                    "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})',
                    "eval_time": "60m" if ENDED in str(series) else "28m",
                    "exp_samples": [{"labels": "{}", "value": 1}] if fires is series else [],
                }
            ],
        }
        for series in (fires, healthy)
    ]
    file = tmp_path / "test.yaml"
    document = {"rule_files": [str(DEPLOY / "prometheus/alerts.yaml")], "evaluation_interval": "1m", "tests": cases}
    file.write_text(json.dumps(document))
    assert not find_fault("test", "rules", file)


def _add_instance(series: str) -> str:
    name, _, labels = series.partition("{")
    return f'{name}{{job="holdfast",instance="one:8765"{"," if labels else ""}{labels or "}"}'


def find_fault(*words: str | Path) -> str:
    """What promtool finds wrong."""
    assert PROMTOOL is not None
    run = subprocess.run([PROMTOOL, *words], capture_output=True, text=True, check=False)
    return run.stdout + run.stderr if run.returncode else ""


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
