"""Streams: requests coming in while responses go out, both under credit."""

import asyncio
from collections import deque
from typing import Any, AsyncIterator, Deque, Optional

from .frames import Connection, Payload, ProtocolError
from .tensors import Reader

CREDIT = 16
_END = object()


class Stream:
    """One stream's two queues. The incoming one is bounded by the credit the
    server was given, the outgoing one by the credit it gives."""

    def __init__(self, request: int, connection: Connection, reader: Reader):
        self.first_id: Optional[str] = None
        self._id = request
        self._connection = connection
        self._reader = reader
        self._waiting: Deque[Any] = deque()
        self._arrived = asyncio.Event()
        self._allowed = CREDIT  # items the server may still send
        self._credit = CREDIT  # items we may still send
        self._credited = asyncio.Event()
        self._closed = False

    def open(self, header: dict, payload: memoryview) -> None:
        """Takes what the ``stream`` frame itself carried."""
        if header.get("request") is not None:
            first = self._reader.request(header["request"], payload)
            self.first_id = first.id
            self._waiting.appendleft((first, False))
            self._arrived.set()
        if header.get("last"):
            self._close()

    def _close(self) -> None:
        self._closed = True
        self._waiting.append((_END, False))
        self._arrived.set()

    def received(self, kind: str, header: dict, payload: memoryview) -> None:
        """Takes an item, end or credit frame."""
        if kind == "credit":
            self._credit += int(header.get("n", 0))
            self._credited.set()
        elif self._closed:
            raise ProtocolError(f"{kind} after the end of stream {self._id}")
        elif kind == "end":
            self._close()
        elif self._allowed == 0:
            raise ProtocolError(f"stream {self._id} was sent more than its credit")
        else:
            self._allowed -= 1
            self._waiting.append(((header.get("request") or {}, payload), True))
            self._arrived.set()

    async def requests(self) -> AsyncIterator[Any]:
        """The requests as they come; taking one gives its credit back."""
        while True:
            while not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
            item, counted = self._waiting.popleft()
            if item is _END:
                return
            if counted:
                item = self._reader.request(*item)
                self._allowed += 1
                self._connection.send({"kind": "credit", "id": self._id, "n": 1})
            if self.first_id is None:
                self.first_id = item.id
            yield item

    async def send(self, fields: dict, raw: Payload) -> None:
        """Sends an item once there is credit and room for it."""
        while self._credit <= 0:
            self._credited.clear()
            await self._credited.wait()
        await self._connection.writable.wait()
        self._credit -= 1
        self._connection.send({"kind": "item", "id": self._id, **fields}, raw)
