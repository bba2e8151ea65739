"""The worked case of `docs/semantics.md`, row by row: page, model and detector agree."""

from pathlib import Path

from receiver import TwoTierDetector
from tests.model import Model

PAGE = Path(__file__).resolve().parents[2] / "docs" / "semantics.md"
WINDOW, EXPIRY_SECS = 2, 10


def worked_case() -> list[list[str]]:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    header = next(number for number, line in enumerate(lines) if line.startswith("| t (s) |"))
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[header + 2 :]]
    return rows[: rows.index([])]


def queues_of(model: Model) -> str:
    return ", ".join(f"{source}: {' '.join(e.id for e in model.queues[source])}" for source in sorted(model.queues))


def time_queue_of(model: Model) -> str:
    entries = sorted(model.time_queue, key=lambda entry: entry.received_at_us)
    return " ".join(f"{entry.id}@{entry.received_at_us // 1_000_000}" for entry in entries)


def test_the_worked_case():
    assert f"W = {WINDOW}, E = {EXPIRY_SECS} s" in PAGE.read_text(encoding="utf-8")
    detector = TwoTierDetector(window=WINDOW, expiry_secs=EXPIRY_SECS)
    model = Model(WINDOW, EXPIRY_SECS * 1_000_000)
    rows = worked_case()
    assert len(rows) == 11
    for secs, source, id_, verdict, tier, queues, time_queue, remembered in rows:
        received_at_us = int(secs) * 1_000_000
        decision = detector.receive(id_, source, received_at_us=received_at_us)
        assert (decision.verdict, decision.tier or "") == (verdict, tier)
        assert detector.remembered_ids == int(remembered)
        assert model.receive(id_, source, received_at_us) == verdict
        assert (queues_of(model), time_queue_of(model)) == (queues, time_queue)
