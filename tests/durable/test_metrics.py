"""The text that Prometheus scrapes: the receivers' own figures, and an alarm before the first miss."""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from prometheus_client import REGISTRY, CollectorRegistry, Counter, generate_latest
from prometheus_client.openmetrics import exposition, parser
from prometheus_client.parser import text_string_to_metric_families

from receiver import Receipt
from receiver.durable.metrics import export
from receiver.durable.status import BOUNDS
from receiver.errors import SettingsError
from tests.durable.opened import DUPLICATE, MEMORY, opened, send, sizes, undone
from tests.stores import engine_of

DOMAIN = "broker:queue://orders"
RULES = Path(__file__).parents[2] / "docs" / "headroom-alert.yaml"


@pytest.fixture
def registry():
    return CollectorRegistry(auto_describe=True)


def scraped(registry: CollectorRegistry) -> dict[tuple[str, ...], float]:
    """The samples by name and label values, with the domain first."""
    samples = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            labels = dict(sample.labels)
            key = sample.name, labels.pop("domain"), *labels.values()
            assert key not in samples
            samples[key] = sample.value
    return samples


def of_domain(registry: CollectorRegistry, domain: str = DOMAIN) -> dict[str, float]:
    return {
        " ".join((name, *labels)): value for (name, of, *labels), value in scraped(registry).items() if of == domain
    }


def test_a_scrape_shows_what_the_status_says(registry, tmp_path):
    with opened(MEMORY, settings=sizes(2, 10_000_000), record=tmp_path) as orders:
        export(orders, registry)
        with orders.batch() as batch:
            batch.receive_many(
                [
                    Receipt("a", "s", 1_000_000, redelivered=True, jms_timestamp_ms=250, body_digest="x"),
                    Receipt("a", "s", 500_000, body_digest="y"),
                    Receipt("b", "s", 1_000_000),
                    Receipt("c", "s", 3_000_000),
                    Receipt("d", "s", 4_000_000),
                    Receipt("a", "s", 5_000_000),
                    Receipt(None),
                    Receipt("\ud800", "s", 5_000_000),
                ]
            )
        undone(orders, "e")
        orders.session.recorder.flush()
        status, samples = orders.status(), of_domain(registry)
    assert {name: samples[f"receiver_{name}_total"] for name in ("receipts", "unchecked", "redelivered")} == {
        "receipts": 8,
        "unchecked": 1,
        "redelivered": 1,
    }
    assert samples["receiver_duplicates_total source"] == 1
    assert samples["receiver_duplicates_total time"] == status.time_tier_dups == 1
    assert samples["receiver_reused_ids_total"] == status.reused_ids == 1
    assert samples["receiver_clock_clamped_total"] == status.clock_clamped == 1
    assert (samples["receiver_recorded_total"], samples["receiver_record_dropped_total"]) == (7, 1)
    outcomes = {key.split()[1]: value for key, value in samples.items() if key.startswith("receiver_batches_total")}
    assert outcomes == {"committed": 1, "rolled_back": 1, "failed": 0}
    assert samples["receiver_remembered_ids"] == status.rDupIds == 5
    assert (samples["receiver_window_ids"], samples["receiver_expiry_seconds"]) == (2, 10)
    assert (samples["receiver_window_need_ids"], samples["receiver_expiry_need_seconds"]) == (3, 3)
    assert (status.window_need, status.window_need_is_lower_bound, status.expiry_need_secs) == (3, True, 3)
    assert samples["receiver_max_delivery_seconds"] == 0.75
    assert samples["receiver_min_headroom_ratio"] == status.min_headroom
    assert samples["receiver_headroom_ratio_count"] == samples["receiver_headroom_ratio_bucket +Inf"] == 2
    assert samples["receiver_headroom_ratio_sum"] == pytest.approx(status.headroom.total)
    for name, buckets in {"batch": status.batch_secs, "commit": status.commit_secs}.items():
        assert samples[f"receiver_{name}_seconds_count"] == samples[f"receiver_{name}_seconds_bucket +Inf"] == 1
        assert samples[f"receiver_{name}_seconds_sum"] == pytest.approx(buckets.total)


def test_each_commit_is_timed_once(registry, store_url):
    """A batch in its caller's transaction has no commit of its own. A batch that is rolled back is in neither
    histogram."""
    with opened(store_url) as orders:
        export(orders, registry)
        began = time.perf_counter()
        for id_ in "aba":
            send(orders, id_)
        undone(orders, "c")
        own_secs = orders.status().batch_secs.total
        with engine_of(store_url).begin() as connection, orders.batch(connection) as batch:
            batch.receive("d")
        all_secs = time.perf_counter() - began
        status, samples = orders.status(), of_domain(registry)
    assert (samples["receiver_batch_seconds_count"], samples["receiver_commit_seconds_count"]) == (4, 3)
    assert 0 < status.commit_secs.total < own_secs < status.batch_secs.total < all_secs
    assert sum(status.batch_secs.counts) == 4


def test_the_text_is_well_formed_with_and_without_receivers(registry):
    for _ in range(2):
        families = list(parser.text_string_to_metric_families(exposition.generate_latest(registry).decode()))
        assert all(family.name.startswith("receiver_") and family.documentation for family in families)
        with opened(MEMORY, connection_id='"\\\n\ud800') as orders:
            export(orders, registry)
            send(orders, "a", "a")
    assert {domain for _, domain, *_ in scraped(registry)} == {'"\\\\\n\\ud800:queue://orders'}


def test_headroom_shows_before_the_first_miss(registry):
    """The sender repeats itself one message later each time. Only the scrapes show it."""
    window = 100
    first_seen: dict[str, int] = {}
    first_missed = None
    with opened(MEMORY, settings=sizes(window, 0)) as orders:
        export(orders, registry)
        for distance in range(1, window + 10):
            verdicts = send(orders, *(f"{distance}-{number}" for number in range(distance)), f"{distance}-0")
            if verdicts[-1] is not DUPLICATE and first_missed is None:
                first_missed = distance
            for key, value in of_domain(registry).items():
                if key.startswith("receiver_headroom_ratio_bucket") and value:
                    first_seen.setdefault(key.split()[1], distance)
    assert first_missed == window + 1
    assert first_seen == {str(bound): max(1, round(window * (1 - bound))) for bound in BOUNDS} | {"+Inf": 1}


def test_the_rules_for_alarms_on_the_headroom_name_bounds_that_there_are():
    rules = [rule for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]]
    bounds = [
        float(bound)
        for rule in rules
        for bound in re.findall(r'receiver_headroom_ratio_bucket\{le="(.*?)"\}', rule["expr"])
    ]
    assert len(bounds) == 2
    assert set(bounds) <= set(BOUNDS)


def test_receivers_of_a_domain_are_added_up_and_counters_never_fall(registry):
    one, other = opened(MEMORY, settings=sizes(4, 0)), opened(MEMORY, settings=sizes(5, 0))
    with opened(MEMORY, connection_id="another") as third:
        for orders in (one, other, third, other):
            export(orders, registry)
        send(one, *"aba")
        send(other, *"abcdea")
        send(third, "a")
        before = of_domain(registry)
        one.close()
        after = of_domain(registry)
        assert of_domain(registry, "another:queue://orders")["receiver_receipts_total"] == 1
    assert before["receiver_receipts_total"] == 9
    assert before["receiver_headroom_ratio_bucket 0.3"] == 1
    assert (before["receiver_window_ids"], before["receiver_min_headroom_ratio"]) == (5, 0)
    assert after == before
    other.close()
    with opened(MEMORY) as orders:
        export(orders, registry)
        send(orders, "x")
        again = of_domain(registry)
    for _ in range(2):
        closed = of_domain(registry)
        assert set(again) - set(closed) == {key for key in again if "_ids" in key and "total" not in key} | {
            "receiver_expiry_seconds",
            "receiver_max_delivery_seconds",
            "receiver_sources",
            "receiver_silent_sources",
            "receiver_unfolded_receipts",
            "receiver_unfolded_seconds",
            "receiver_retired_sources",
        }
    assert again["receiver_receipts_total"] == closed["receiver_receipts_total"] == 10
    assert all(again[key] >= value for key, value in before.items() if "_total" in key or "_bucket" in key)


def test_what_duplicates_needed_is_the_domains(registry, store_url):
    """The largest need over its receivers, from the first scrape after a restart on; none before there was a
    duplicate."""
    needs = {"receiver_window_need_ids", "receiver_expiry_need_seconds"}
    with opened(store_url, settings=sizes(4, 0)) as one, opened(store_url) as other:
        export(one, registry)
        export(other, registry)
        send(one, *"abc")
        assert not needs & set(of_domain(registry))
        send(one, "a")
        assert of_domain(registry)["receiver_window_need_ids"] == 3
        send(other, "d", "d")
        assert of_domain(registry)["receiver_window_need_ids"] == 3
    assert not needs & set(of_domain(registry))
    with opened(store_url) as anew:
        export(anew, registry)
        samples = of_domain(registry)
    assert {name: samples[name] for name in needs} == {
        "receiver_window_need_ids": 3,
        "receiver_expiry_need_seconds": 0.000001,
    }


def test_the_default_registry_is_that_of_the_process():
    with opened(MEMORY, domain="name:in the default registry") as orders:
        export(orders)
        assert REGISTRY.get_sample_value("receiver_receipts_total", {"domain": "in the default registry"}) == 0


def test_names_that_the_application_has_used_are_refused_each_time(registry):
    Counter("receiver_receipts", "The application's own.", registry=registry)
    with opened(MEMORY) as orders:
        for _ in range(2):
            with pytest.raises(ValueError, match="Duplicated timeseries"):
                export(orders, registry)


def test_without_the_package_the_extra_is_named():
    program = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "from receiver.errors import MissingExtraError\n"
        "try:\n    import receiver.durable.metrics\n"
        "except MissingExtraError as error:\n    print(error)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "-m pip install 'prometheus-client>=" in ran.stdout


def test_what_is_no_receiver_breaks_no_scrape(registry):
    with pytest.raises(SettingsError, match="export takes a receiver"):
        export("sqlite:///receiver.db", registry)
    assert generate_latest(registry) == b""


def test_a_port_is_no_registry():
    with opened("memory://") as orders, pytest.raises(SettingsError, match=r"export takes a registry .*, not 8080"):
        export(orders, 8080)
