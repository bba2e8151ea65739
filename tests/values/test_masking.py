"""Addresses are shown without their credentials, whatever letters these have."""

from __future__ import annotations

import pytest

from receiver.masking import masked, masked_log, masked_text


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("amqp://u:s@cr/et?#@h:5672/queue/x", "amqp://***@h:5672/queue/x"),
        ("nats://a/token@h", "nats://***@h"),
        ("amqp:u:secret@h/x", "***@h/x"),
        ("://u:secret@", "***@"),
        ("postgresql:/u:secret@h/d", "postgresql:/***@h/d"),
        ("postgresql://u:two\nlines@h/d", "postgresql://***@h/d"),
        ("postgresql://h/d?sslpassword=secret&sslmode=require", "postgresql://h/d?sslpassword=***&sslmode=require"),
        ("amqps://h/a?SSL.Passphrase=secret", "amqps://h/a?SSL.Passphrase=***"),
        ("amqps://h/a?my-pass-phrase=secret", "amqps://h/a?my-pass-phrase=***"),
        ("amqp://h/topic/passengers?subscription=x", "amqp://h/topic/passengers?subscription=x"),
        ("sqlite:///receiver.db", "sqlite:///receiver.db"),
        (None, "None"),
    ],
)
def test_an_address(address, shown):
    assert masked(address) == shown


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("ftp://user:a/b?c#d@e@host:21/x.csv", "ftp://***@host:21/x.csv"),
        ("https://token@host/x.csv?X-Amz-Signature=4711", "https://***@host/x.csv?***"),
        ("https://host/x.csv?token/4711", "https://host/x.csv?***"),
        ("s3://bucket/a@b/part-?.csv", "s3://bucket/a@b/part-?.csv"),
        ("s3://bucket/day-?/hour=1/a.csv", "s3://bucket/day-?/hour=1/a.csv"),
        ("a log.csv", "a log.csv"),
    ],
)
def test_a_log(url, shown):
    assert masked_log(url) == shown


def test_a_text():
    text = "got extra argument(s) (amqp://u:s3cr@t@h/x https://h/a@b)"
    assert masked_text(text) == "got extra argument(s) (amqp://u:***@h/x https://h/a@b)"
