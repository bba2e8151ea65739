"""The dashboard and the alert rules use metrics that exist, and a real Prometheus has data for each query."""

import json
import math
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml
from prometheus_client import CollectorRegistry

from examples.demo.processes import HOST, free_ports
from receiver.bridge.connectors import Message, sink_of
from receiver.bridge.metrics import export
from receiver.bridge.opening import open_bridge

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD = json.loads((ROOT / "deploy" / "grafana-dashboard.json").read_text(encoding="utf-8"))
RULES = ROOT / "docs" / "headroom-alert.yaml"
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
SOON_SECS = 90


def alert_queries():
    (group,) = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [rule["expr"] for rule in group["rules"]]


@pytest.fixture
def declared(sqlite_url, tmp_path):
    """The names of all samples that can occur."""
    registry = CollectorRegistry()
    bridge = open_bridge(f"amqp://{HOST}/orders", f"file:{tmp_path / 'orders.jsonl'}", sqlite_url)
    export(bridge, registry)
    bridge.close()
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum"), "gauge": ("",)}
    return {metric.name + suffix for metric in registry.collect() for suffix in suffixes[metric.type]}


def test_queries_name_metrics_that_there_are(declared):
    named = {query: set(re.findall(r"\breceiver_\w+", query)) for query in [*QUERIES, *alert_queries()]}
    assert all(named.values())
    assert {query: names - declared for query, names in named.items() if names - declared} == {}


def test_each_query_is_about_the_domains_chosen_and_each_panel_explains_itself():
    variables = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
    assert set(variables) == {"datasource", "domain"}
    assert variables["domain"]["query"] == "label_values(receiver_receipts_total, domain)"
    assert [query for query in QUERIES if query.count('{domain=~"$domain"}') != 1] == []
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    assert [panel["title"] for panel in panels if not panel["description"]] == []
    corners = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(corners) == len(panels)


@contextmanager
def process(log, *command, cwd):
    with log.open("wb") as output:
        started = subprocess.Popen(command, cwd=cwd, stdout=output, stderr=output)
    try:
        yield
        assert started.poll() is None, log.read_text()
    finally:
        started.send_signal(signal.SIGTERM)
        try:
            started.wait(20)
        except subprocess.TimeoutExpired:
            started.kill()


def asked(port, path, **parameters):
    """Prometheus' answer; None before it is up."""
    try:
        with urlopen(f"http://{HOST}:{port}/api/v1/{path}?{urlencode(parameters)}") as answer:
            return json.load(answer)["data"]
    except URLError:
        return None


def has_data(port, query):
    real = query.replace("$domain", ".*").replace("$__rate_interval", "6s")
    data = asked(port, "query", query=real)
    return data is not None and any(not math.isnan(float(one["value"][1])) for one in data["result"])


def order(number):
    """An order. Every tenth one comes again."""
    return Message(body=b"", properties={"uniqueMessageId": str(number - number % 10 // 9), "messageSourceId": "shop"})


@pytest.mark.artemis
@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("prometheus"), reason="no prometheus (Debian, Ubuntu: apt install prometheus)")
def test_a_real_prometheus_has_data_for_each_query_of_a_real_bridge(tmp_path, running_artemis):
    metrics_port, port = free_ports(8080, 9090)
    queue = f"amqp://{HOST}:{running_artemis.amqp_port}/queue/dashboard"
    (tmp_path / "prometheus.yml").write_text(
        f"global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [{RULES}]\n"
        f"scrape_configs: [{{job_name: receiver, static_configs: [{{targets: ['{HOST}:{metrics_port}']}}]}}]\n"
    )
    bridge = [sys.executable, "-m", "receiver", "bridge", queue, "file:orders.jsonl", "--store", "sqlite:///r.db"]
    prometheus = ["prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data"]
    with (
        process(tmp_path / "bridge.log", *bridge, "--metrics-port", str(metrics_port), cwd=tmp_path),
        process(tmp_path / "prometheus.log", *prometheus, f"--web.listen-address={HOST}:{port}", cwd=tmp_path),
        sink_of(queue) as sink,
    ):
        give_up, number, without = time.monotonic() + SOON_SECS, 0, list(QUERIES)
        while without:
            assert time.monotonic() < give_up, without
            sink.send([order(number + each) for each in range(20)])
            number += 20
            time.sleep(0.2)
            without = [query for query in without if not has_data(port, query)]
        rules = asked(port, "rules")["groups"][0]["rules"]
        assert {rule["health"] for rule in rules} <= {"ok", "unknown"}
        assert len(rules) == len(alert_queries())
