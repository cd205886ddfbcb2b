"""What requests for a Hugging Face model may take: places, characters, memory."""

import asyncio
import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, List, Optional

from . import openai

# Requests about whole texts that are answered or wait, and those that are worked on.
MAX_REQUESTS = 64
THREADS = 4
# Characters of a text for each token that the model reads: tokenizing takes time and
# memory, and what comes after is cut or refused.
CHARACTERS = 64
# Characters of all texts of a request.
MAX_CHARACTERS = 4194304
# Tokens of all texts of a request, each padded to the longest beside which it goes
# through the model.
MAX_TOKENS = 262144
# Numbers of an answer that shows logits or probabilities.
MAX_VALUES = 2097152
# Texts that go through the model together, and their padded tokens. One text may have
# more.
BATCH = 16
BATCH_TOKENS = 8192


class Abandoned(Exception):
    """Nobody waits for the answer."""


class Places:
    """Runs work in threads of its own, for a bounded number of requests. A request
    whose client leaves holds its place until its thread is free."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, "texts")
        self._free = threading.Semaphore(MAX_REQUESTS)

    async def run(self, work: Callable, *args: Any) -> Any:
        """What ``work`` returns. Its first argument is an event that is set once
        nobody waits for that."""
        if not self._free.acquire(blocking=False):
            raise openai.Refused(f"{MAX_REQUESTS} requests wait; try again later", status=429)
        abandoned, context = threading.Event(), contextvars.copy_context()
        try:
            done = self._threads.submit(context.run, work, abandoned, *args)
        except RuntimeError:  # closed
            self._free.release()
            raise
        done.add_done_callback(lambda _: self._free.release())
        try:
            return await asyncio.wrap_future(done)
        finally:
            abandoned.set()

    def close(self) -> None:
        """Takes no more work, and drops what waits."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def characters(name: str, texts: List[str], limit: int, besides: int = 0) -> None:
    """Refuses texts that are too long to be tokenized for a model that reads ``limit``
    tokens. ``besides``: characters that are read with each text."""
    for number, text in enumerate(texts):
        if len(text) + besides > limit * CHARACTERS:
            raise openai.Refused(
                f"{name} {number} has {len(text) + besides} characters; at most "
                f"{limit * CHARACTERS} are read for the {limit} tokens that fit", name,
                code="context_length_exceeded",
            )  # fmt: skip
    total, most = sum(map(len, texts)) + besides * len(texts), max(MAX_CHARACTERS, limit * 16)
    if total > most:
        raise openai.Refused(
            f"{name} has {total} characters in all; {most} are read at once", name, status=413
        )


def parts(lengths: List[int], width: Optional[int] = None) -> List[List[int]]:
    """The numbers of the texts that go through the model together, those of like
    length, or each as ``width`` long. Refuses what takes too much memory."""
    found: List[List[int]] = []
    total = 0
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    longest = 0  # of the last part: its first
    for number in order:
        room = found and len(found[-1]) < BATCH
        if not room or (len(found[-1]) + 1) * longest > BATCH_TOKENS:
            found.append([])
            longest = width or lengths[number]
        found[-1].append(number)
        total += longest
    if total > MAX_TOKENS:
        raise openai.Refused(
            f"the texts have {total} tokens, each padded to the longest beside it; "
            f"{MAX_TOKENS} are read at once", status=413,
        )  # fmt: skip
    return found


def values(count: int) -> None:
    """Refuses an answer of so many logits or probabilities that memory runs short."""
    if count > MAX_VALUES:
        raise openai.Refused(
            f"the answer has {count} values; at most {MAX_VALUES} are shown", status=413
        )
