"""The files to deploy with: their systems' tools accept them, and they fit the command that they start."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer
import yaml

from receiver.bridge.connectors.address import BrokerAddress
from receiver.cli import app
from receiver.store.databases import store_url

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
MANIFESTS = ["kubernetes.yaml", "kubernetes-sqlite.yaml"]
UNIT = DEPLOY / "receiver-bridge.service"


def documents(name):
    return {each["kind"]: each for each in yaml.safe_load_all((DEPLOY / name).read_text(encoding="utf-8"))}


def pod(name):
    (workload,) = [each for kind, each in documents(name).items() if kind != "Secret"]
    return workload["spec"]["template"]


def container(name):
    (only,) = pod(name)["spec"]["containers"]
    return only


def parsed(arguments):
    """The options of `receiver bridge`, as the command reads them."""
    command = typer.main.get_command(app)
    name, *rest = arguments
    assert name == "bridge"
    return command.commands[name].make_context(name, rest).params


def start_of_unit():
    (line,) = re.findall(r"^ExecStart=((?:.*\\\n)*.*)$", UNIT.read_text(encoding="utf-8"), re.MULTILINE)
    return shlex.split(line.replace("\\\n", " "))


STARTS = {
    **{name: lambda name=name: container(name)["args"] for name in MANIFESTS},
    UNIT.name: lambda: start_of_unit()[1:],
}


@pytest.mark.parametrize("name", STARTS)
def test_the_command_is_one_that_there_is(name):
    given = parsed(STARTS[name]())
    assert BrokerAddress.parse(given["source"]).host == "broker.example.com"
    store_url(given["store"])
    assert given["health_port"] == given["metrics_port"]
    # Prometheus' own ports, and those that it has allocated to exporters, such as 9100 to node_exporter.
    assert int(given["metrics_port"].rpartition(":")[2]) not in range(9090, 10_000)


@pytest.mark.parametrize("name", MANIFESTS)
def test_probes_go_to_the_port_that_is_served(name):
    bridge = container(name)
    (port,) = bridge["ports"]
    given = parsed(bridge["args"])
    assert given["metrics_port"] == f"0.0.0.0:{port['containerPort']}"
    assert pod(name)["metadata"]["annotations"]["prometheus.io/port"] == str(port["containerPort"])
    pages = {kind: bridge[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")}
    assert pages == {
        "startup": {"path": "/livez", "port": port["name"]},
        "liveness": {"path": "/livez", "port": port["name"]},
        "readiness": {"path": "/readyz", "port": port["name"]},
    }


@pytest.mark.parametrize("name", MANIFESTS)
def test_passwords_come_from_a_secret_that_has_them_and_nothing_else(name):
    secret = documents(name)["Secret"]
    wanted = {each["name"]: each["valueFrom"]["secretKeyRef"] for each in container(name)["env"]}
    assert {each["name"] for each in wanted.values()} == {secret["metadata"]["name"]}
    assert {each["key"] for each in wanted.values()} == set(secret["stringData"])
    assert wanted.keys() <= {"RECEIVER_FROM_PASSWORD", "RECEIVER_TO_PASSWORD", "PGPASSWORD"}


def test_what_is_kept_in_files_is_never_open_twice():
    kinds = {name: documents(name) for name in MANIFESTS}
    assert parsed(container("kubernetes.yaml")["args"])["store"].startswith("postgresql://")
    assert "Deployment" in kinds["kubernetes.yaml"]
    files = parsed(container("kubernetes-sqlite.yaml")["args"])
    workload = kinds["kubernetes-sqlite.yaml"]["StatefulSet"]["spec"]
    assert workload["replicas"] == 1
    assert workload["volumeClaimTemplates"][0]["spec"]["accessModes"] == ["ReadWriteOncePod"]
    (mount,) = container("kubernetes-sqlite.yaml")["volumeMounts"]
    assert files["store"].startswith(f"sqlite:///{mount['mountPath']}/")
    assert files["target"].startswith(f"file:{mount['mountPath']}/")


@pytest.mark.parametrize("name", MANIFESTS)
def test_the_user_is_that_of_the_image(name):
    (user, group) = re.findall(r"^USER (\d+):(\d+)$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)[
        0
    ]
    context = pod(name)["spec"]["securityContext"]
    assert (context["runAsUser"], context["runAsGroup"]) == (int(user), int(group))


@pytest.mark.skipif(not shutil.which("kubernetes-validate"), reason="no kubernetes-validate (pip install it)")
@pytest.mark.parametrize("name", MANIFESTS)
@pytest.mark.slow
def test_kubernetes_knows_every_field(name):
    ran = subprocess.run(
        ["kubernetes-validate", "--strict", DEPLOY / name], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze")
def test_systemd_knows_every_line(tmp_path):
    program = start_of_unit()[0]
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text(encoding="utf-8").replace(program, sys.executable), encoding="utf-8")
    ran = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout + ran.stderr) == (0, "")
