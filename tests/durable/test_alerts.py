"""The documents' alert rules: Prometheus' own tool tries them on what real receivers show it, scrape by scrape."""

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from receiver.durable.metrics import export
from tests.durable.opened import DUPLICATE, MEMORY, opened, sizes

RULES = Path(__file__).parents[2] / "docs" / "headroom-alert.yaml"
NEEDS = "DuplicatesNeedMostOfBothTiers"
HEADROOM = "DuplicateNearlyMissed"
DOMAIN = "broker:queue://orders"
SECOND_US = 1_000_000

pytestmark = pytest.mark.skipif(
    not shutil.which("promtool"), reason="no promtool: install prometheus (Debian, Ubuntu: apt install prometheus)"
)


def series(registry):
    """The samples by name, as Prometheus writes them."""
    shown = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            labels = ", ".join(f'{name}="{value}"' for name, value in sample.labels.items())
            shown[f"{sample.name}{{{labels}}}"] = sample.value
    return shown


def scrapes(window, expiry_us, distances):
    """A sender repeats itself at these distances, in messages, of which it sends one a second. Returns the samples
    after each repeat up to the first miss, and whether there was a miss."""
    registry = CollectorRegistry(auto_describe=True)
    shown, now_us = [], 0
    with opened(MEMORY, settings=sizes(window, expiry_us)) as orders:
        export(orders, registry)
        for distance in distances:
            with orders.batch() as batch:
                for number in [*range(distance), 0]:
                    now_us += SECOND_US
                    decision = batch.receive(f"{distance}-{number}", "s", received_at_us=now_us)
            if decision.verdict is not DUPLICATE:
                return shown, True
            shown.append(series(registry))
    return shown, False


def fires(shown, folder, expected):
    """Check by promtool when each alert fires: `expected` maps it to the minutes in which it does, and those in
    which it doesn't."""
    rules = {rule["alert"]: rule for rule in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"][0]["rules"]}
    names = sorted(set().union(*shown))
    cases = []
    for alert, (minutes, quiet_minutes) in expected.items():
        rule = rules[alert]
        firing = {
            "exp_labels": {"domain": DOMAIN, **rule["labels"], **({"le": "0.1"} if alert == HEADROOM else {})},
            "exp_annotations": {"summary": rule["annotations"]["summary"].replace("{{ $labels.domain }}", DOMAIN)},
        }
        cases += [{"alertname": alert, "eval_time": f"{m}m", "exp_alerts": [firing]} for m in minutes]
        cases += [{"alertname": alert, "eval_time": f"{m}m", "exp_alerts": []} for m in quiet_minutes]
    values = [
        {"series": name, "values": " ".join(repr(each[name]) if name in each else "_" for each in shown)}
        for name in names
    ]
    test = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": values, "alert_rule_test": cases}],
    }
    file = folder / "alerts.yaml"
    file.write_text(yaml.safe_dump(test), encoding="utf-8")
    ran = subprocess.run(["promtool", "test", "rules", file], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_rules_are_well_formed():
    ran = subprocess.run(["promtool", "check", "rules", RULES], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


SIZES = {
    "by the window first": (100, 60 * SECOND_US),
    "by the expiry first": (40, 100 * SECOND_US),
    "a window alone": (100, 0),
    "an expiry alone": (0, 100 * SECOND_US),
}


@pytest.mark.parametrize("case", SIZES)
def test_an_approach_fires_before_the_first_miss(case, tmp_path):
    """Each repeat comes one message later. Long before the miss no alert fires, and well before it the first rule
    does."""
    window, expiry_us = SIZES[case]
    shown, was_missed = scrapes(window, expiry_us, range(1, 250))
    assert was_missed
    last = len(shown) - 1
    # When both tiers are four fifths used, each is. The repeat at distance n is shown in minute n - 1.
    both = max(0.8 * window, 0.8 * expiry_us / SECOND_US)
    assert both + 5 < last
    fires(
        shown, tmp_path, {NEEDS: (range(round(both) + 2, last + 1), range(round(both) - 2)), HEADROOM: ((last,), (0,))}
    )


@pytest.mark.thinned(2)
@pytest.mark.parametrize("case", SIZES)
def test_what_stays_far_fires_nothing(case, tmp_path):
    window, expiry_us = SIZES[case]
    most = round(0.5 * max(window, expiry_us // SECOND_US))
    shown, was_missed = scrapes(window, expiry_us, [*range(1, most), *[most] * 40])
    assert not was_missed
    quiet = ((), range(len(shown)))
    fires(shown, tmp_path, {NEEDS: quiet, HEADROOM: quiet})


@pytest.mark.parametrize("failing", ["connection", "output"])
def test_a_bridge_that_lags_parks_or_is_cut_off_fires(failing, tmp_path):
    """All is well for an hour. Then ever more messages wait, one is parked, and each try to connect fails until the
    end, or each try to write to a full disk."""
    well, ill = 60, 40
    parked, waiting, connection, output = (
        f'receiver_bridge_{name}{{domain="{DOMAIN}"}}'
        for name in ("parked_total", "waiting", "connection_errors_total", "output_errors_total")
    )
    errors, none = (connection, output) if failing == "connection" else (output, connection)
    # Many messages wait at times, and one link breaks and is made again. Neither is worth an alarm.
    shown = [{parked: 0, waiting: 50 * (minute % 10), errors: minute // 30, none: 0} for minute in range(well)]
    shown += [{parked: 1, waiting: 450 + 60 * minute, errors: 1 + 2 * minute, none: 0} for minute in range(1, ill)]
    last = len(shown) - 1
    quiet = range(well)
    expected = {
        "BridgeParks": ((well + 1, well + 10), quiet),
        "BridgeWaitingGrows": ((last - 5, last), quiet),
        "BridgeUnready": ((well + 15, last), range(well + 10)),
    }
    fires(shown, tmp_path, expected)


def test_a_node_that_comes_and_goes_fires(tmp_path):
    """A failover and the way back are no alarm. Another node every few minutes is one."""
    changes = f'receiver_bridge_node_changes_total{{domain="{DOMAIN}",role="source"}}'
    shown = [{changes: (minute > 20) + (minute > 25)} for minute in range(60)]
    shown += [{changes: 2 + minute // 3} for minute in range(40)]
    fires(shown, tmp_path, {"BridgeChangesNodes": (range(78, 100), range(65))})


def test_one_tier_used_up_is_no_alarm_while_the_other_has_room(tmp_path):
    """For example, the expiry is short on purpose, and the window catches the repeats."""
    shown, was_missed = scrapes(200, 10 * SECOND_US, range(1, 100))
    assert not was_missed
    fires(shown, tmp_path, {NEEDS: ((), range(len(shown)))})


def test_ids_that_fill_their_memory_fire(tmp_path):
    remembered = f'receiver_remembered_ids{{domain="{DOMAIN}"}}'
    shown = [{remembered: 10_000 * minute} for minute in range(120)]
    fires(shown, tmp_path, {"RememberedIdsFillTheirMemory": ((98, 119), range(97))})


def test_sources_that_will_be_retired_early_fire(tmp_path):
    sources = f'receiver_sources{{domain="{DOMAIN}"}}'
    shown = [{sources: 100 * minute} for minute in range(100)]
    fires(shown, tmp_path, {"SourcesNearTheirMost": ((82, 99), range(80))})


@pytest.mark.parametrize(
    ("alert", "counter"), [("IdsUsedTwice", "reused_ids"), ("RecordingLacksReceipts", "record_dropped")]
)
def test_one_that_may_be_lost_fires(alert, counter, tmp_path):
    """A message that was dropped for another one's id, or a receipt that isn't in a recording."""
    counted = f'receiver_{counter}_total{{domain="{DOMAIN}"}}'
    shown = [{counted: int(minute >= 30)} for minute in range(60)]
    fires(shown, tmp_path, {alert: ((31, 44), [*range(30), *range(46, 60)])})


def test_receipts_that_nobody_folds_in_fire(tmp_path):
    waiting_secs = f'receiver_unfolded_seconds{{domain="{DOMAIN}"}}'
    shown = [{waiting_secs: max(0, 60 * (minute - 30))} for minute in range(60)]
    fires(shown, tmp_path, {"ReceiptsWaitToBeFoldedIn": ((38, 59), range(36))})
