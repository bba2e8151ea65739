import pytest


@pytest.fixture
def tiny_blocks(monkeypatch):
    """Blocks and pieces of a few bytes, so that every row lies across some border."""
    monkeypatch.setattr("receiver.logs.source.FIRST_BLOCK_BYTES", 1)
    monkeypatch.setattr("receiver.logs.source.BLOCK_BYTES", 7)
    monkeypatch.setattr("receiver.logs.opening.PIECE_BYTES", 5)
