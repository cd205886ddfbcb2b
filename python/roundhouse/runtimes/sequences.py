"""What is generated: sequences of tokens, and their text."""

import asyncio
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

# Tokens before the first that decide how it is written: whether a space precedes it.
_BEFORE = 6
# A character is at most four bytes. What makes none of more tokens than this never
# will.
_PENDING = 8


class Text:
    """The text of tokens as far as it is certain. It ends before a stop string."""

    def __init__(
        self,
        decode: Callable[[List[int]], str],
        prompt: List[int],
        stop: List[str],
    ):
        self.stopped = False
        self._decode, self._stop = decode, stop
        self._ids = list(prompt[-_BEFORE:])
        self._from, self._read = 0, len(self._ids)
        self._held = ""  # may be the beginning of a stop string

    def add(self, token: int) -> str:
        """The text that one more token makes certain."""
        self._ids.append(token)
        text = self._undecided()
        pending = len(self._ids) - self._read
        if not text or text.endswith("\ufffd") and pending <= _PENDING:
            return ""
        self._from, self._read = self._read, len(self._ids)
        return self._before_stop(text)

    def end(self) -> str:
        """What is left when no more tokens come."""
        if self.stopped:
            return ""
        text = self._before_stop(self._undecided())
        self._read = len(self._ids)
        return text if self.stopped else text + self._held

    def _undecided(self) -> str:
        shown = self._decode(self._ids[self._from : self._read])
        return self._decode(self._ids[self._from :])[len(shown) :]

    def _before_stop(self, text: str) -> str:
        text = self._held + text
        found = [at for at in (text.find(s) for s in self._stop) if at >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        kept = max((_overlap(text, s) for s in self._stop), default=0)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]


def _overlap(text: str, stop: str) -> int:
    """How much of the text's end is a beginning of the stop string."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)


@dataclass
class Sampling:
    """How tokens are chosen, and when a sequence ends."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    bias: Dict[int, float] = field(default_factory=dict)
    seed: Optional[int] = None
    stop: List[str] = field(default_factory=list)
    ignore_eos: bool = False
    logprobs: Optional[int] = None  # how many alternatives; None for no logprobs


class Token(NamedTuple):
    """A token that was chosen, and the text that it made certain."""

    id: int
    text: str
    logprob: Optional[float] = None
    top: Tuple[Tuple[int, float], ...] = ()


class End(NamedTuple):
    """The end of a sequence: the text that was still held, and why it ended."""

    text: str
    reason: str


class Busy(Exception):
    """More sequences wait than may."""


class Sequence:
    """One sequence that is generated. What it makes goes to ``events`` with its
    number."""

    def __init__(
        self, number: int, prompt: List[int], sampling: Sampling, events: asyncio.Queue
    ):
        self.number, self.prompt, self.sampling = number, prompt, sampling
        self.ended = False  # no further token is chosen
        self._events, self._loop = events, asyncio.get_running_loop()

    def cancel(self) -> None:
        """Ends it at the next token."""
        self.ended = True

    def put(self, event: Any) -> None:
        """Hands on an event, from any thread."""
        try:
            self._loop.call_soon_threadsafe(self._events.put_nowait, (self.number, event))
        except RuntimeError:  # the loop is closed: nobody waits
            self.ended = True
