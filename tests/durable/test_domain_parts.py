"""A domain whose name would lack a part of its channel would merge channels that have nothing to do with each other."""

import pytest

from receiver.domains import DomainKey
from receiver.errors import SettingsError
from tests.durable.opened import DUPLICATE, MEMORY, NEW, opened, send


@pytest.mark.parametrize(
    "lacking",
    [
        {"domain": "receiver"},
        {"domain": "receiver", "receiver_id": ""},
        {"connection_id": ""},
        {"destination": ""},
        {"destination": "queue://"},
        {"domain": "connection", "connection_id": ""},
    ],
)
def test_a_part_that_the_key_needs_must_be_given(lacking, tmp_path):
    for url in (MEMORY, f"sqlite:///{tmp_path}/receiver.db"):
        with pytest.raises(
            SettingsError, match=r"needs a (connection_id|receiver_id|destination), and there is none"
        ) as caught:
            opened(url, **lacking)
        assert "give one" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_a_refund_is_no_duplicate_of_an_order(store_url):
    with (
        opened(store_url, domain="receiver", destination="queue://orders", receiver_id="orders") as orders,
        opened(store_url, domain="receiver", destination="queue://refunds", receiver_id="refunds") as refunds,
    ):
        assert send(orders, "1:shop") == [NEW]
        assert send(refunds, "1:shop") == [NEW]
        assert send(orders, "1:shop") == [DUPLICATE]


def test_a_store_that_has_such_a_domain_refuses_it_and_goes_on_with_the_part(store_url, monkeypatch):
    with monkeypatch.context() as before:
        before.setattr(DomainKey, "check", lambda *_: None)  # as versions before did
        with opened(store_url, domain="receiver") as merged:
            send(merged, "1:shop")
    with pytest.raises(SettingsError, match="receiver_id") as caught:
        opened(store_url, domain="receiver")
    assert "--receiver-id" in caught.value.hint
    with opened(store_url, domain="receiver", receiver_id="orders") as orders:
        assert send(orders, "1:shop") == [NEW]


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def test_the_same_queue_under_another_name_of_its_broker_is_warned_of_once(store_url, caplog):
    for connection_id in ("mq-1:5672", "mq-2:5672", "mq-2:5672"):
        with opened(store_url, connection_id=connection_id, destination="queue://orders"):
            pass
    (warning,) = warnings_of(caplog)
    assert r"mq-2\:5672:queue://orders is a new domain. It knows no id of mq-1\:5672:queue://orders" in warning


@pytest.mark.parametrize(
    "other",
    [
        {"destination": "queue://more-orders"},
        {"destination": "topic://orders", "receiver_id": "billing"},
        {"destination": "queue://orders", "domain": "destination"},
        {"destination": "queue://orders", "domain": "connection"},
        {"destination": "queue://orders", "domain": "name:orders"},
    ],
)
def test_other_domains_are_not_warned_of(store_url, caplog, other):
    with opened(store_url, destination="queue://orders"), opened(store_url, connection_id="another", **other):
        assert warnings_of(caplog) == []
