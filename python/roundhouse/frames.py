"""Frames: a JSON header and raw bytes, as the worker protocol lays them out."""

import asyncio
import json
import struct
from typing import Any, Callable, List, Optional, Tuple

import numpy as np

MAX_FRAME = 1 << 30
MAX_HEADER = 16 << 20
MAX_HANDSHAKE = 64 << 10
_PREFIX = struct.Struct("<II")
_SCRATCH = 256 << 10


class ProtocolError(Exception):
    """The other side broke the protocol; the connection ends."""


class TooLarge(Exception):
    """A frame would pass the bound agreed in the handshake."""


class Payload:
    """The raw part of a frame being built: parts, each at a multiple of 8."""

    def __init__(self) -> None:
        self.parts: List[Any] = []
        self.size = 0

    def add(self, part: Any) -> Tuple[int, int]:
        """Appends bytes or anything with a buffer; returns (offset, length)."""
        view = memoryview(part)
        length = view.nbytes
        offset = self.size
        self.parts.append(view)
        padding = -length % 8
        if padding:
            self.parts.append(b"\0" * padding)
        self.size += length + padding
        return offset, length


def _plain(value: Any) -> Any:
    """JSON's form of what models put into parameters."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("utf-8")
    if isinstance(value, (set, tuple)):
        return list(value)
    raise TypeError(f"a value of type {type(value).__name__} has no JSON form")


_encode = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain
).encode


def _without_nan(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and (value != value or value in (np.inf, -np.inf)):
        return None
    if isinstance(value, dict):
        return {k: _without_nan(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(v) for v in value]
    return value


def utf8(text: str) -> bytes:
    """Any string in UTF-8: halves of surrogate pairs, which it lacks, are U+FFFD."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return whole.encode("utf-8")


def dumps(value: Any) -> bytes:
    """Compact JSON. NaN and infinities, which JSON lacks, become null."""
    try:
        text = _encode(value)
    except ValueError:
        text = _encode(_without_nan(value))
    return utf8(text)


def pack(header: Any, payload: Optional[Payload] = None, limit: int = MAX_FRAME) -> List[Any]:
    """A frame as buffers to be written one after another.

    Raises TooLarge where the frame passes ``limit`` or the header its bound.
    """
    head = dumps(header)
    head += b" " * (-len(head) % 8)
    size = 4 + len(head) + (payload.size if payload else 0)
    if size + 4 > limit or len(head) > MAX_HEADER:
        raise TooLarge(f"a frame of {size + 4} bytes; {limit} are allowed")
    prefix = _PREFIX.pack(size, len(head))
    return [prefix + head, *(payload.parts if payload else ())]


def unpack(frame: Any) -> Tuple[dict, memoryview]:
    """The header and the payload of a whole frame. The payload aliases it."""
    view = memoryview(frame)
    _, length = _PREFIX.unpack_from(view)
    try:
        header = json.loads(bytes(view[8 : 8 + length]))
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"a header that is not JSON: {error}") from error
    if not isinstance(header, dict) or not isinstance(header.get("kind"), str):
        raise ProtocolError("a header without a kind")
    return header, view[8 + length :]


def receive(peer: Any, limit: int) -> Optional[dict]:
    """The header of the next frame of a blocking socket, None at its end. A
    payload is dropped."""
    prefix = _receive(peer, _PREFIX.size)
    if prefix is None:
        return None
    size, length = _PREFIX.unpack(prefix)
    if size + 4 > limit or length + 4 > size:
        raise ProtocolError(f"a frame of {size + 4} bytes; {limit} are allowed")
    rest = _receive(peer, size - 4)
    if rest is None:
        raise ProtocolError("a frame that is cut short")
    return unpack(prefix + rest)[0]


def _receive(peer: Any, size: int) -> Optional[bytes]:
    """So many bytes, None where the end comes first."""
    parts = bytearray()
    while len(parts) < size:
        part = peer.recv(size - len(parts))
        if not part:
            return None
        parts += part
    return bytes(parts)


class Connection(asyncio.BufferedProtocol):
    """Reads frames from a socket and writes frames to it.

    ``on_frame(header, payload)`` is called for each frame in the loop's
    thread; ``on_end(error)`` once, with None when the other side closed.
    Small frames are cut from one buffer, a large one is read into its own.
    """

    def __init__(
        self,
        on_frame: Callable[[dict, memoryview], None],
        on_end: Callable[[Optional[Exception]], None],
    ) -> None:
        self.limit = MAX_HANDSHAKE
        self.writable = asyncio.Event()
        self.writable.set()
        self.transport: Any = None
        self._on_frame, self._on_end = on_frame, on_end
        self._scratch = bytearray(_SCRATCH)
        self._have = 0
        self._large: Optional[memoryview] = None
        self._ended = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.set_write_buffer_limits(high=64 << 20, low=16 << 20)

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        target = self._scratch if self._large is None else self._large
        return memoryview(target)[self._have :]

    def buffer_updated(self, nbytes: int) -> None:
        self._have += nbytes
        try:
            if self._large is not None:
                if self._have == len(self._large):
                    frame, self._large, self._have = self._large, None, 0
                    self._on_frame(*unpack(frame))
                return
            self._cut()
        except ProtocolError as error:
            self._end(error)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            self._end(ProtocolError(f"a frame that makes no sense: {error!r}"))

    def _cut(self) -> None:
        """Takes the whole frames out of the scratch buffer."""
        start, scratch = 0, self._scratch
        while self._have - start >= 8 and not self._ended:
            size, header = _PREFIX.unpack_from(scratch, start)
            if size + 4 > self.limit or header > MAX_HEADER or header + 4 > size:
                raise ProtocolError(
                    f"a frame of {size + 4} bytes with a header of {header}; "
                    f"{self.limit} and {MAX_HEADER} are allowed"
                )
            end = start + 4 + size
            if end <= self._have:
                frame = scratch[start:end]
                start = end
                self._on_frame(*unpack(frame))
                continue
            if size + 4 > len(scratch) // 2:
                # numpy's memory is not cleared first, and comes in large pages.
                self._large = memoryview(np.empty(size + 4, np.uint8))
                self._have -= start
                self._large[: self._have] = scratch[start : start + self._have]
                return
            break
        if start:
            rest = self._have - start
            scratch[:rest] = scratch[start : self._have]
            self._have = rest

    def send(self, header: dict, payload: Optional[Payload] = None) -> None:
        """Queues a frame. Raises TooLarge; after the end it is dropped."""
        parts = pack(header, payload, self.limit)
        if self.transport is None or self.transport.is_closing():
            return
        if len(parts) == 1:
            self.transport.write(parts[0])
        else:
            self.transport.writelines(parts)

    def connection_lost(self, exc: Optional[Exception]) -> None:
        self.writable.set()
        self._end(None)

    def _end(self, error: Optional[Exception]) -> None:
        if not self._ended:
            self._ended = True
            self._on_end(error)
