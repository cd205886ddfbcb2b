"""Fixtures: a server's end of the protocol, and workers started against it."""

import os
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.dirname(HERE)
sys.path.insert(0, HERE)
sys.path.insert(0, PACKAGE)

from peer import Peer  # noqa: E402


@pytest.fixture
def start(tmp_path):
    """Starts workers; ends them with the test."""
    peers = []

    def starter(**options):
        peer = Peer(tmp_path / f"worker{len(peers)}", **options)
        peers.append(peer)
        return peer

    yield starter
    for peer in peers:
        peer.close()


@pytest.fixture
def worker(start):
    """A worker that has been welcomed."""
    peer = start()
    peer.welcome()
    return peer


@pytest.fixture
def model(tmp_path, worker):
    """Writes a model's files and loads it."""

    def loader(source, key="m@1", name="m", settings=None, folder=None, **fields):
        folder = folder or tmp_path / "models" / key.replace("@", "_")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "models.py").write_text(source)
        resolved = {"name": name, "implementation": "models.Model", **(settings or {})}
        return worker.ask(
            kind="load", model=key, settings=resolved, folder=str(folder), **fields
        )

    return loader
