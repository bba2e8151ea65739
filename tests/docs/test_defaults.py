"""A default that help or documents state is the one in `settings.yaml`."""

import os
import subprocess
import sys
from dataclasses import MISSING, fields

import pytest
import yaml

from receiver import settings
from tests.docs.markdown import ROOT

RECEIVER = (sys.executable, "-m", "receiver")
SETTINGS = yaml.safe_load((ROOT / "settings.yaml").read_text(encoding="utf-8"))
RULE, BRIDGE, STORE, SIMULATE = (SETTINGS[name] for name in ("receiver", "bridge", "store", "simulate"))
WINDOW, EXPIRY_SECS = RULE["dup_detection_per_source_expiry_window_size"], RULE["dup_detection_expiry_time_secs"]
MEGABYTES = BRIDGE["max_body_bytes"] >> 20
STATED = (
    ("docs/start.md", f"TwoTierDetector(window={WINDOW}, expiry_secs={EXPIRY_SECS})"),
    ("docs/policies.md", f"| `apama:window={WINDOW},expiry={EXPIRY_SECS}` | Apama |"),
    ("docs/semantics.md", f"(`dupDetectionPerSourceExpiryWindowSize`, {WINDOW} unless set)"),
    ("docs/semantics.md", f"(`dupDetectionExpiryTimeSecs`, {EXPIRY_SECS} s unless set)"),
    ("examples/bridge/sizing.sh", f"with Apama's windows: {WINDOW:,} ids per source and {EXPIRY_SECS} s."),
    ("docs/bridge.md", f"ends with {BRIDGE['max_batch_size']:,} messages (`--max-batch-size`)"),
    ("docs/bridge.md", f"after {BRIDGE['max_batch_interval_millis']} ms (`--max-batch-interval-millis`)"),
    ("docs/bridge-failures.md", f"after {BRIDGE['max_tries']} tries (`--max-tries`)"),
    ("docs/bridge-failures.md", f"a body above {MEGABYTES} MB (`--max-body-bytes`)"),
    ("docs/operations.md", f"one body of up to {MEGABYTES} MB several times"),
    ("docs/bridge.md", f"Every {BRIDGE['status_secs']} s (`--status-secs`)"),
    ("docs/embedding.md", f"ends after `lock_timeout_secs`, {STORE['lock_timeout_secs']} s by default"),
    ("docs/embedding.md", f"`retire_sources_after_days` ({RULE['retire_sources_after_days']}),"),
    ("docs/embedding.md", f"more than `max_sources` ({RULE['max_sources']:,}),"),
    ("docs/embedding.md", f"says whether it is dropped as a {RULE['id_reuse']} (the default)"),
    ("docs/embedding.md", f"(`synchronous={STORE['sqlite_synchronous']}`)"),
    ("docs/performance.md", f"| `memory` | {SIMULATE['memory_bytes_per_id']} bytes |"),
    ("settings.yaml", f"and the bridge stops: {MEGABYTES} MB."),
)


@pytest.mark.parametrize(("page", "words"), STATED)
def test_documents_state_the_defaults(page, words):
    assert words in " ".join((ROOT / page).read_text(encoding="utf-8").split())


CLASSES = {
    "receiver": settings.ReceiverSettings,
    "store": settings.StoreSettings,
    "recording": settings.Recording,
    "bridge": settings.BridgeSettings,
    "simulate": settings.SimulateSettings,
    "compare": settings.CompareSettings,
}


@pytest.mark.parametrize("section", SETTINGS)
def test_no_class_of_settings_has_a_default_of_its_own(section):
    declared = [each for each in fields(CLASSES[section]) if each.name != "path"]
    assert [each.name for each in declared if each.default is not MISSING] == []
    defaults = {each.name: each.default_factory() for each in declared}
    # `Receiver.open`, not the domain's settings, says what becomes of an id that is used twice.
    assert defaults == {name: value for name, value in SETTINGS[section].items() if name != "id_reuse"}


HELP = {
    "simulate": [
        f"--window {WINDOW} --expiry {EXPIRY_SECS} --verdicts verdicts.csv",
        f"at most N duplicates are missed. [default: {SIMULATE['max_missed']}]",
        f"the log's need. [default: {SIMULATE['margin']}]",
    ],
    "retire": [
        f"those silent for {RULE['retire_sources_after_days']} days,",
        f"beyond {RULE['max_sources']} sources",
        f"--idle {RULE['retire_sources_after_days']} ",
    ],
    "compare": [f"without sizes: then they have {WINDOW} and {EXPIRY_SECS}, and the broker's own default."],
    "bridge": [
        *(f"[default: {BRIDGE[name]}]" for name in BRIDGE),
        f"standard error every {BRIDGE['status_secs']} seconds.",
    ],
}


def help_of(name, **environment):
    ran = subprocess.run(
        [*RECEIVER, name, "--help"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "200", **environment},
    )
    return ran.returncode, " ".join(ran.stdout.split()), ran.stderr


@pytest.mark.parametrize("name", HELP)
def test_help_states_the_defaults(name):
    status, text, _ = help_of(name)
    assert status == 0
    assert [words for words in HELP[name] if words not in text] == []
    assert "{" not in text.replace("{LOG}", "").replace("{FROM} {TO}", "").replace("{URL}", "")


def test_help_states_what_a_file_of_settings_makes_of_them(tmp_path):
    """It also refuses, without a traceback, a file that it can't read."""
    own = tmp_path / "own.yaml"
    own.write_text("bridge: {max_tries: 77}\n", encoding="utf-8")
    assert "that has failed N times. [default: 77]" in help_of("bridge", RECEIVER_SETTINGS=str(own))[1]
    own.write_text("receiver: {retire_sources_after_days: 44, max_sources: 4567}\n", encoding="utf-8")
    text = help_of("retire", RECEIVER_SETTINGS=str(own))[1]
    assert "silent for 44 days" in text
    assert "beyond 4567 sources" in text
    assert "--idle 44 " in text
    own.write_text("bridge: {tries: 77}\n", encoding="utf-8")
    assert help_of("bridge", RECEIVER_SETTINGS=str(own)) == (
        2,
        "",
        f"error: {own}: there is no setting bridge.tries\nhint: did you mean bridge.max_tries?\n",
    )
