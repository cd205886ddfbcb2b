"""What requests for Hugging Face models may take. Needs no torch."""

import asyncio
import importlib
import itertools
import os
import queue
import threading

import pytest

import roundhouse
from roundhouse.faults import describe
from roundhouse.runtimes import bounds, openai


@pytest.mark.parametrize(
    ("lengths", "width", "want"),
    [
        ([], None, []),
        ([3], None, [[0]]),
        ([1, 9, 4], None, [[1, 2, 0]]),
        ([0, 0], None, [[0, 1]]),
        # A long text has no company where that would take its memory many times.
        ([1, 9000, 1], None, [[1], [0, 2]]),
        ([4096, 1, 4096], None, [[0, 2], [1]]),
        ([1, 1, 5], 8192, [[2], [0], [1]]),
    ],
)
def test_parts(lengths, width, want):
    assert bounds.parts(lengths, width) == want


def test_short_texts_are_not_padded_to_a_long_one():
    parts = bounds.parts([1] * 2047 + [512])
    assert sorted(itertools.chain(*parts)) == list(range(2048))
    assert parts[0][0] == 2047 and all(len(part) <= bounds.BATCH for part in parts)
    assert len(bounds.parts([128] * 2048)) == 128


@pytest.mark.parametrize(
    ("lengths", "width"), [([129] * 2048, None), ([1] * 2048, 512), ([262145], None)]
)
def test_requests_that_take_too_much_memory(lengths, width):
    with pytest.raises(openai.Refused, match="262144 are read at once") as refused:
        bounds.parts(lengths, width)
    assert refused.value.status == 413


@pytest.mark.parametrize(
    ("texts", "limit", "besides", "status"),
    [
        (["x" * 640], 10, 0, None),
        (["x" * 641], 10, 0, 400),
        (["x", "x" * 600], 10, 41, 400),
        (["x" * 2048] * 2048, 512, 0, None),
        (["x" * 2048] * 2048, 512, 1, 413),
        (["x" * (1 << 23)], 1 << 19, 0, None),
    ],
)
def test_characters(texts, limit, besides, status):
    if status is None:
        bounds.characters("input", texts, limit, besides)
        return
    with pytest.raises(openai.Refused, match="^input .* characters") as refused:
        bounds.characters("input", texts, limit, besides)
    assert refused.value.status == status


def test_values():
    bounds.values(bounds.MAX_VALUES)
    with pytest.raises(openai.Refused, match="2097153 values") as refused:
        bounds.values(bounds.MAX_VALUES + 1)
    assert refused.value.status == 413


def test_the_status_holds_over_other_protocols():
    for status in (400, 413, 429):
        assert describe(openai.Refused("no", status=status))["status"] == status


def test_a_place_is_free_once_its_thread_is():
    """A client that leaves stops its work, and makes no room before that."""

    async def crowd():
        places, begun, go_on = bounds.Places(), threading.Semaphore(0), threading.Event()
        left: queue.Queue = queue.Queue()

        def work(abandoned, word):
            begun.release()
            go_on.wait(30)
            left.put(abandoned.is_set())
            return word

        tasks = [asyncio.ensure_future(places.run(work, n)) for n in range(bounds.MAX_REQUESTS)]
        for _ in range(bounds.THREADS):
            assert await asyncio.to_thread(begun.acquire, timeout=30)
        with pytest.raises(openai.Refused) as refused:
            await places.run(work, "late")
        assert refused.value.status == 429
        running, waiting = tasks[: bounds.THREADS], tasks[bounds.THREADS :]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        with pytest.raises(openai.Refused):
            await places.run(work, "still late")
        waiting[-1].cancel()  # no thread has it
        await asyncio.gather(waiting[-1], return_exceptions=True)
        waiting[-1] = asyncio.ensure_future(places.run(work, "in time"))
        await asyncio.sleep(0)
        go_on.set()
        said = await asyncio.gather(*waiting)
        places.close()
        return said, [left.get(timeout=30) for _ in range(bounds.MAX_REQUESTS)]

    said, left = asyncio.run(crowd())
    assert said == [*range(bounds.THREADS, bounds.MAX_REQUESTS - 1), "in time"]
    assert left.count(True) == bounds.THREADS


def test_bytes_that_are_no_text_are_the_clients_fault(monkeypatch):
    monkeypatch.syspath_prepend(os.path.join(os.path.dirname(roundhouse.__file__), "_mlserver"))
    huggingface = pytest.importorskip("roundhouse.runtimes.huggingface")
    types = importlib.import_module("mlserver.types")
    model = huggingface.HuggingFace(
        importlib.import_module("mlserver").ModelSettings(
            name="m", implementation=huggingface.HuggingFace
        )
    )

    def texts(*data):
        sent = types.RequestInput(name="x", datatype="BYTES", shape=[len(data)], data=list(data))
        return model._texts(types.InferenceRequest(inputs=[sent]))

    assert texts(b"a", "b") == ["a", "b"]
    with pytest.raises(Exception, match="(?i)utf-8") as refused:
        texts(b"a", b"\xff")
    assert describe(refused.value)["status"] == 400
