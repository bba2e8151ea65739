"""What is said before Spark starts, and what the session is like."""

import os
import re
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pyspark
import pytest
from programs import run_program

from receiver.errors import SettingsError, SparkError
from receiver.spark.failures import check_java
from receiver.spark.flow import costs
from receiver.spark.session import archive_options, session
from tests.patience import until

ROOT = Path(__file__).resolve().parents[2]
SPARK_SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"


@pytest.fixture
def pretend_java(monkeypatch, tmp_path):
    """Let a shell script pass for Java."""

    def pretend(script: str) -> str:
        java = tmp_path / "java"
        java.write_text(f"#!/bin/sh\n{script}\n")
        java.chmod(java.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.delenv("JAVA_HOME", raising=False)
        return str(java)

    return pretend


def test_no_java(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(SparkError, match=r"none on the PATH .*install Java 17"):
        check_java()


def test_a_java_home_without_java(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SparkError, match=f"JAVA_HOME is {tmp_path}.*install Java 17"):
        check_java()


@pytest.mark.parametrize(
    ("version", "said"),
    [("11.0.2", "is Java 11 "), ("1.8.0_292", "is Java 8 "), ("9", "is Java 9 ")],
)
def test_an_old_java(pretend_java, version, said):
    pretend_java(f"""echo 'openjdk version "{version}" 2019-01-15' >&2""")
    with pytest.raises(SparkError, match=f"Java 17 or newer.*{said}.*install"):
        check_java()


def test_a_java_8_knows_no_modules(pretend_java):
    pretend_java("""[ "$1" = -version ] || exit 1; echo 'openjdk version "1.8.0_292"' >&2""")
    with pytest.raises(SparkError, match="is Java 8 "):
        check_java()


def test_a_java_without_the_module(pretend_java):
    java = pretend_java("""[ "$1" = -version ] || exit 1; echo 'openjdk version "17.0.15" 2025-04-15' >&2""")
    with pytest.raises(SparkError, match=rf"module jdk\.incubator\.vector, which {java} \(Java 17\) lacks"):
        check_java()


@pytest.mark.parametrize("script", ["echo I am no Java; exit 1", "exit 0", "kill -9 $$"])
def test_something_else_by_the_name_of_java(pretend_java, script):
    pretend_java(script)
    with pytest.raises(SparkError, match="doesn't work as Java"):
        check_java()


@pytest.mark.parametrize(
    "master",
    [
        "",
        "locl",
        "local[]",
        "local[x]",
        "local[0]",
        "local-cluster[0,1,1024]",
        "http://h:1",
        "spark://",
        "spark://h",
        "spark://h:x",
    ],
)
def test_a_master_that_can_not_be_meant(master):
    with pytest.raises(SettingsError, match="--master"), session(master):
        pass


@pytest.mark.parametrize(
    "master", ["spark://127.0.0.1:1", "spark://127.0.0.1:1,127.0.0.1:2", "spark://no.such.host.invalid:7077"]
)
def test_a_master_that_can_not_be_reached_is_named(master):
    with pytest.raises(SparkError, match=f"{master} can't be reached"), session(master):
        pass


def test_a_session_that_runs_already_is_used_and_goes_on(spark):
    before = spark.conf.get("spark.sql.adaptive.enabled")
    spark.conf.set("spark.sql.adaptive.enabled", "true")
    with session(None) as ours:
        assert ours.sparkContext is spark.sparkContext
        assert ours.conf.get("spark.sql.adaptive.enabled") == "false"
    assert spark.conf.get("spark.sql.adaptive.enabled") == "true"
    assert spark.range(3).count() == 3
    spark.conf.set("spark.sql.adaptive.enabled", before)


def test_another_master_than_that_of_the_session_that_runs(spark):
    with pytest.raises(SettingsError, match=r"is running already, on local\[2\]"), session("local[1]"):
        pass
    assert spark.range(3).count() == 3


SHOW = """
def work(spark):
    names = "spark.app.name", "spark.shuffle.compress", "spark.ui.enabled"
    print(spark.sparkContext.master, *(spark.sparkContext.getConf().get(name) for name in names))
    given = spark._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()
    print(*(option for option in given if option.startswith("-Xmx")))
"""


@pytest.mark.slow
@pytest.mark.usefixtures("java")
def test_the_user_has_the_last_word_and_all_is_quiet():
    given = "--master local[3] --conf spark.shuffle.compress=true --conf spark.driver.memory=700m pyspark-shell"
    ran = run_program(SHOW, master=None, PYSPARK_SUBMIT_ARGS=given)
    assert (ran.stdout, ran.stderr) == ("local[3] receiver true false\n-Xmx700m\n", "")


@pytest.mark.slow
@pytest.mark.usefixtures("java")
def test_verbose_lets_java_speak_and_tells_what_each_step_cost(tmp_path):
    log = tmp_path / "log.csv"
    log.write_text("received_at,unique_message_id,connection_id,destination\n1,a,c,q\n2,b,c,q\n3,a,c,q\n")
    command = [sys.executable, "-m", "receiver", "simulate", log, "--engine", "spark", "--master", "local[2]"]
    proxied = os.environ | {"http_proxy": "http://127.0.0.1:1"}  # this proxy doesn't know Spark's own pages
    ran = subprocess.run([*command, "--verbose"], capture_output=True, text=True, check=True, env=proxied)
    assert "WARN" in ran.stderr
    reported = re.findall(r"^(.+): [\d.]+ s, [\d,]+ tasks, [\d,]+ rows, [\d,.]+ MB shuffled$", ran.stderr, re.MULTILINE)
    # Python is started beside the steps. On a busy machine they may end first, and it isn't reported.
    if "Starting Python" in reported:
        reported.remove("Starting Python")
    assert reported[:4] == ["Reading receipts", "Linking ids", "Assembling chunks", "Measuring duplicates"]
    assert reported[-1] == "Replaying"


def test_what_steps_cost_is_no_reason_to_fail():
    (said,) = costs(SimpleNamespace(uiWebUrl="http://127.0.0.1:1", applicationId="local-1"))
    assert said.startswith("what each step cost can't be read at http://127.0.0.1:1/")


ARCHIVED = """
def work(spark):
    given = spark._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()
    print(spark.range(5).count(), *(option for option in given if option.endswith((".jsa", ".new"))))
"""


def archiving(cache):
    """Java's options for archives."""
    ran = run_program(ARCHIVED, XDG_CACHE_HOME=str(cache))
    assert ran.returncode == 0, ran.stderr
    count, *options = ran.stdout.split()
    assert count == "5"
    return [option.partition("=")[0] for option in options]


def replace(archive: Path, content: bytes, age_secs: float = 0) -> None:
    """Replace a file instead of overwriting it: a Java that has mapped it would crash."""
    other = archive.with_suffix(".other")
    other.write_bytes(content)
    os.utime(other, (time.time() - age_secs,) * 2)
    other.replace(archive)


@pytest.mark.slow
@pytest.mark.usefixtures("java")
def test_java_leaves_an_archive_of_its_classes_and_starts_from_it(tmp_path, pytestconfig):
    if pytestconfig.getoption("--campaign") != "long":
        pytest.skip("three starts of Spark, and Java's last moments: --campaign=long")
    assert archiving(tmp_path) == ["-XX:ArchiveClassesAtExit"]
    give_up, sizes = time.monotonic() + 120, [0]
    while not 0 < sizes[-1] == sizes[-min(20, len(sizes))]:  # Java writes it at its end
        assert time.monotonic() < give_up
        time.sleep(0.1)
        sizes.append(sum(file.stat().st_size for file in tmp_path.rglob("*.new")))
    (unfinished,) = tmp_path.rglob("*.new")
    os.utime(unfinished, (0, 0))
    assert archiving(tmp_path) == ["-XX:SharedArchiveFile"]
    (archive,) = tmp_path.rglob("*.jsa")
    assert archive.exists()  # so it was useful
    replace(archive, b"no archive")
    assert archiving(tmp_path) == ["-XX:SharedArchiveFile"]
    assert archive.exists()


@pytest.fixture
def archive(tmp_path, monkeypatch) -> Path:
    """The path of an archive of this Java and Spark, in a new cache. No file is there yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    unfinished = Path(archive_options().partition("=")[2])
    return unfinished.with_name(re.sub(r"-\d+\.new$", ".jsa", unfinished.name))


@pytest.mark.slow
@pytest.mark.usefixtures("java")
def test_an_archive_that_java_can_not_use_is_made_anew(tmp_path, archive):
    replace(archive, b"no archive", age_secs=90_000)
    assert archiving(tmp_path) == ["-XX:SharedArchiveFile"]
    assert archive_options().startswith("-XX:ArchiveClassesAtExit=")


@pytest.mark.usefixtures("java")
def test_each_spark_has_its_own_archive_and_the_longest_unused_go(archive, tmp_path, monkeypatch):
    names = {archive.name}
    replace(archive, b"")
    for days in range(1, 6):
        home = tmp_path / f"spark-{days}"
        (home / "jars").mkdir(parents=True)
        monkeypatch.setenv("SPARK_HOME", str(home))
        (before,) = re.findall(r"\S+(?=-\d+\.new)", archive_options().partition("=")[2])
        replace(Path(f"{before}.jsa"), b"", age_secs=days * 86_400)
        names.add(f"{Path(before).name}.jsa")
    left_by_a_kill = archive.with_name("spark-0-1.new")
    replace(left_by_a_kill, b"", age_secs=7 * 86_400)
    assert len(names) == 6
    assert archive_options().endswith(f"{before}.jsa")  # used now, although the oldest
    left = {path.name for path in archive.parent.iterdir()}
    assert len(left) == 4
    assert {archive.name, f"{Path(before).name}.jsa"} <= left <= names
    (home / "jars").rename(tmp_path / "jars")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert "-XX:ArchiveClassesAtExit=" in archive_options()  # its first start
    assert len(list(archive.parent.iterdir())) == 3


@pytest.mark.slow
@pytest.mark.usefixtures("java")
def test_ctrl_c_while_java_starts_leaves_no_java():
    def said(*command):
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    program = [sys.executable, "-c", "from receiver.spark.session import session\nwith session('local[1]'): pass"]
    with subprocess.Popen(program, stderr=subprocess.DEVNULL) as process:
        while not (java := said("pgrep", "-P", str(process.pid), "-x", "java")):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
    until(lambda: said("ps", "-o", "stat=", "-p", java) in {"", "Z"}, lambda: f"Java goes on as process {java}")


@pytest.mark.usefixtures("java")
def test_without_a_cache_java_starts_as_it_does(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert archive_options() == ""


@pytest.mark.usefixtures("java")
def test_an_archive_that_may_still_be_written_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = archive_options()
    assert first.startswith("-XX:ArchiveClassesAtExit=")
    unfinished = Path(first.partition("=")[2])
    unfinished.write_bytes(b"half")
    assert archive_options() == ""
    os.utime(unfinished, (0, 0))
    assert " -XX:SharedArchiveFile=" in archive_options()
    assert not unfinished.exists()


def submit(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [SPARK_SUBMIT, "--master", "local[1]", ROOT / "spark_jobs" / "size_windows.py", *arguments]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.usefixtures("java")
def test_spark_submit_runs_the_job():
    helped = submit("--help")
    assert helped.returncode == 0
    assert helped.stdout.startswith("Usage: receiver simulate")


@pytest.mark.slow
@pytest.mark.usefixtures("java")
def test_spark_submit_keeps_errors_out_of_the_results():
    refused = submit("nowhere.csv", "--window", "x")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "error: " in refused.stderr


@pytest.mark.usefixtures("java")
def test_spark_connect_is_refused():
    command = [sys.executable, "-m", "receiver", "simulate", "--engine", "spark", "examples/artemis-receipts.csv.gz"]
    environment = {**os.environ, "SPARK_REMOTE": "local[1]"}
    refused = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert refused.returncode != 0
    assert refused.stderr.startswith("error: Spark would connect by Spark Connect")
