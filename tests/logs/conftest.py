import resource

import pytest


@pytest.fixture
def tiny_blocks(monkeypatch):
    """Blocks and pieces of a few bytes, so that every row crosses a border."""
    monkeypatch.setattr("receiver.logs.source.FIRST_BLOCK_BYTES", 1)
    monkeypatch.setattr("receiver.logs.source.BLOCK_BYTES", 7)
    monkeypatch.setattr("receiver.logs.opening.PIECE_BYTES", 5)


@pytest.fixture
def small_disk():
    """Limits files to 64 KB, which is like a full disk for a writer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
