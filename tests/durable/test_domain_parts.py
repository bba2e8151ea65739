"""A domain whose name would lack a part of its channel, and so hold channels that have nothing to do with each other."""

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
