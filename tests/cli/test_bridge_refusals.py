"""`receiver bridge` when it can't begin: a clear error with a remedy, exit 2, and no secret shown."""

from dataclasses import fields
from typing import Annotated

import pytest
from running import complaint

from examples.demo.processes import HOST
from receiver import Receiver
from receiver.cli.bridge import bridge as bridge_command
from receiver.cli.options import Fields, with_fields
from receiver.settings import BridgeSettings
from tests.stores import execute

NOWHERE = f"amqp://{HOST}:1/orders"
STORE = ("--store", "sqlite:///r.db")
SECRET = "s3cret"  # noqa: S105 - of nobody

REFUSALS = {
    "an unreachable broker": ((NOWHERE, "file:x", *STORE), "can't be reached"),
    "one of STOMP": ((f"stomp://{HOST}:1/orders", "file:x", *STORE), "can't be reached"),
    "an unreachable target": ((f"stomp://{HOST}:2/orders", NOWHERE, *STORE), "amqp://127.0.0.1:1/queue/orders"),
    "a topic without subscription": (("amqp://h/topic/prices", "file:x", *STORE), "subscription=NAME"),
    "no store": ((NOWHERE, "file:x"), "needs a store"),
    "a store that keeps nothing": ((NOWHERE, "file:x", "--store", "memory://"), "needs a store"),
    "a store without a kind": ((NOWHERE, "file:x", "--store", "r.db"), "isn't a store's address"),
    "a store of no kind": ((NOWHERE, "file:x", "--store", "redis://h"), "isn't a store's address"),
    "a store in no folder": ((NOWHERE, "file:x", "--store", "sqlite:///no/r.db"), "no folder"),
    "a password in a store's address": ((NOWHERE, "file:x", "--store", "postgresql://u:s3cret@127.0.0.1:1/d"), "reached"),
    "an unknown mode": ((NOWHERE, "file:x", *STORE, "--mode", "TWICE"), "TWICE"),
    "an unknown target": ((NOWHERE, "ftp://x", *STORE), "isn't a target"),
    "no target": ((NOWHERE,), "TO"),
    "a target before the source": (("file:x", NOWHERE, *STORE), "FROM comes before TO"),
    "hosts that can't be reached": ((f"amqp://{HOST}:1,{HOST}:2/orders", "file:x", *STORE), f"{HOST}:1/queue/orders can't be reached: Connection refused; amqp://{HOST}:2"),
    "names that stand for nothing": (("stomp://a.invalid,b.invalid/orders", "file:x", *STORE), "a.invalid:61613/queue/orders can't be reached"),
    "a ring by another node": (("amqp://a,b/queue/q", "amqp://c,b/q", *STORE), "is both source and target"),
    "an address that is none": (("orders", "file:x", *STORE), "broker's address"),
    "a password in such": (("http://u:s3cret@h/q", "file:x", *STORE), "broker's address"),
    "a folder for a target": ((NOWHERE, "file:.", *STORE), "is a folder"),
    "a target in no folder": ((NOWHERE, "file:no/x", *STORE), "no folder"),
    "a function that isn't there": ((NOWHERE, "python:json:no_such", *STORE), "can't be imported"),
    "no such function for ids": ((NOWHERE, "file:x", *STORE, "--ids", "json:no_such"), "--ids json:no_such can't be imported"),
    "a function for ids beside a property": ((NOWHERE, "file:x", *STORE, "--ids", "json:loads", "--id-property", "x"), "not from both"),
    "an unknown option": ((NOWHERE, "file:x", *STORE, "--no-such"), "--no-such"),
    "an unknown policy": ((NOWHERE, "file:x", *STORE, "--policy", "guess"), "guess"),
    "a policy that nobody advances": ((NOWHERE, "file:x", *STORE, "--policy", "cmq:retry=1,network=1"), "advance()"),
    "the same without a store": ((NOWHERE, "file:x", "--mode", "BEST_EFFORT", "--policy", "cmq:retry=1,network=1"), "advance()"),
    "a receiver of no name": ((NOWHERE, "file:x", *STORE, "--domain", "receiver"), "--receiver-id"),
    "an empty receiver id": ((NOWHERE, "file:x", *STORE, "--receiver-id", ""), "receiver id is empty"),
    "an unknown key": ((NOWHERE, "file:x", *STORE, "--domain", "guess"), "guess"),
    "an unknown rule for ids": ((NOWHERE, "file:x", *STORE, "--missing-ids", "guess"), "guess"),
    "a window alone": ((NOWHERE, "file:x", *STORE, "--window", "5"), "go together"),
    "an expiry alone": ((NOWHERE, "file:x", *STORE, "--expiry", "5"), "go together"),
    "windows that detect nothing": ((NOWHERE, "file:x", *STORE, "--window", "0", "--expiry", "0"), "AT_LEAST_ONCE"),
    "a window of text": ((NOWHERE, "file:x", *STORE, "--window", "x"), "--window"),
    "no time at all": ((NOWHERE, "file:x", *STORE, "--status-secs", "-1"), "status_secs"),
    "no patience": ((NOWHERE, "file:x", *STORE, "--stuck-after-secs", "-1"), "stuck_after_secs"),
    "no number": ((NOWHERE, "file:x", *STORE, "--status-secs", "nan"), "status_secs"),
    "no idle time": ((NOWHERE, "file:x", *STORE, "--stop-when-idle", "-1"), "--stop-when-idle"),
    "a batch of none": ((NOWHERE, "file:x", *STORE, "--max-batch-size", "0"), "max_batch_size"),
    "a batch before its time": ((NOWHERE, "file:x", *STORE, "--max-batch-interval-millis", "-1"), "max_batch_interval"),
    "no try": ((NOWHERE, "file:x", *STORE, "--max-tries", "0"), "max_tries"),
    "a body below nothing": ((NOWHERE, "file:x", *STORE, "--max-body-bytes", "-1"), "max_body_bytes"),
    "no such password file": ((NOWHERE, "file:x", *STORE, "--from-password-file", "no"), "can't be read"),
    "a password file of bytes": ((NOWHERE, "file:x", *STORE, "--to-password-file", "bytes"), "can't be read"),
    "a log in no folder": ((NOWHERE, "file:x", *STORE, "--record", "text/x"), "text"),
    "ids that are required in BEST_EFFORT": (
        (NOWHERE, "file:x", "--mode", "BEST_EFFORT", "--missing-ids", "refuse"), "can't park",
    ),
    "certificates without TLS": ((NOWHERE, "file:x", *STORE, "--tls-ca", "text"), "TLS"),
    "a certificate without TLS": (("stomp://h/q", "amqp://g/q", *STORE, "--tls-cert", "text"), "TLS"),
    "a ring": ((NOWHERE, NOWHERE, *STORE), "is both source and target"),
    "a ring by another protocol": (("amqp://localhost/queue/q", "stomp://127.0.0.1/q", *STORE), "one protocol"),
    "a secret for duplicates": ((NOWHERE, "file:o", *STORE, "--duplicates-to", "ampq://u:s3cret@h/x"), "isn't a target"),
    "another way with ids": ((NOWHERE, "file:o", *STORE, "--id-reuse", "keep"), "--id-reuse"),
    "an empty id property": ((NOWHERE, "file:o", *STORE, "--id-property", ""), "--id-property"),
    "an empty connection id": ((NOWHERE, "file:o", *STORE, "--connection-id", ""), "--connection-id"),
    "a ring by another name": (("stomp://H/q", "stomps://u@h:61613/queue/q", *STORE), "is both source and target"),
    "an id in a header of STOMP's": (("stomp://h/q", "file:x", *STORE, "--id-property", "type"), "a header type of its own"),
    "a source in one": (
        ("stomp://h/q", "file:x", *STORE, "--source-property", "correlation-id"), "a header correlation-id of its own",
    ),
    "a password in a protocol that is none": ((NOWHERE, "ampq://u:s3cret@h/queue/x", *STORE), "isn't a target"),
    "a password in one in capitals": ((NOWHERE, "AMQP://u:s3cret@h/x", *STORE), "isn't a target"),
    "a password with a slash": ((NOWHERE, "amqp://u:s3cret/x@h/queue/x", *STORE), "broker's address"),
    "a password that could be a port": ((NOWHERE, "amqp://u:12345/s3cret@host/queue/x", *STORE), "an @ behind the host"),
    "a password without slashes": ((NOWHERE, "amqp:u:s3cret@h/queue/x", *STORE), "an @ behind the host"),
    "a password in a function": ((NOWHERE, "python:u:s3cret@h", *STORE), "names no function"),
    "a password too many": ((NOWHERE, "file:x", "amqp://u:s3cret@h/queue/x", *STORE), "extra argument(s) (amqp://u:***@h"),
    "a password for a mode": ((NOWHERE, "file:x", *STORE, "--mode", "amqp://u:s3cret@h/queue/x"), "'amqp://u:***@h"),
    "a key without its certificate": (("amqps://h/q", "file:x", *STORE, "--tls-key", "text"), "without its certificate"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSALS)
def test_what_is_refused(tmp_path, bridge, what):
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    (tmp_path / "text").write_text("")
    arguments, words = REFUSALS[what]
    said = complaint(bridge(*arguments))
    assert words in said
    assert SECRET not in said


def test_each_setting_has_an_option_of_its_name():
    assert [each.name for each in fields(BridgeSettings) if each.name not in bridge_command.__annotations__] == []


def test_an_option_for_a_field_that_is_not_there_is_a_bug():
    """So if a field is renamed, no command starts. Otherwise its option would be ignored without a word."""

    def command(*, settings: Annotated[BridgeSettings, Fields(max_attempts="--max-tries N")]) -> None:
        raise AssertionError(settings)

    with pytest.raises(KeyError, match="max_attempts"):
        with_fields(command)


def test_a_store_of_a_newer_version(bridge, tmp_path):
    complaint(bridge(NOWHERE, "file:x", *STORE))
    execute(f"sqlite:///{tmp_path}/r.db", "UPDATE receiver_alembic_version SET version_num = '9999'")
    assert "9999" in complaint(bridge(NOWHERE, "file:x", *STORE))


@pytest.mark.parametrize("spoilt", [b"no database at all" * 500, None])
def test_a_damaged_store(bridge, tmp_path, spoilt):
    if spoilt is None:
        complaint(bridge(NOWHERE, "file:x", *STORE))
        whole = (tmp_path / "r.db").read_bytes()
        spoilt = whole[:4096] + b"\xff" * (len(whole) - 4096)
    (tmp_path / "r.db").write_bytes(spoilt)
    assert "r.db" in complaint(bridge(NOWHERE, "file:x", *STORE))


def test_ids_of_a_domain_with_another_policy(bridge):
    complaint(bridge(NOWHERE, "file:x", *STORE, "--policy", "perfect"))
    assert "perfect" in complaint(bridge(NOWHERE, "file:x", *STORE, "--policy", "sequence"))


def test_a_domain_whose_policy_nobody_would_advance(bridge, tmp_path):
    channel = {"connection_id": f"{HOST}:1", "destination": "orders"}
    Receiver.open(f"sqlite:///{tmp_path}/r.db", **channel, policy="cmq:retry=1,network=1").close()
    assert "advance()" in complaint(bridge(NOWHERE, "file:x", *STORE))


def test_what_is_refused_for_its_domain_leaves_no_store(bridge, tmp_path):
    for refused in (["--domain", "receiver"], ["--policy", "cmq:retry=1,network=1"]):
        complaint(bridge(NOWHERE, "file:x", *STORE, *refused))
    assert not (tmp_path / "r.db").exists()
