"""``python -m roundhouse.worker``: hosts models for the server on a socket."""

import argparse
import asyncio
import ctypes
import functools
import gc
import logging
import os
import platform
import select
import signal
import socket
import sys
import threading
import time
from importlib import metadata
from typing import Any, Callable, Dict, List, Optional

try:
    from pydantic import ValidationError

    from . import __version__, http, tensors
    from .bridge import Bridge
    from .collected import Collected
    from .faults import Fault, cut, describe, pydantic_fault
    from .frames import MAX_FRAME, Connection, Payload, ProtocolError, TooLarge
    from .host import Host, Hosted
    from .reports import Reports
    from .streams import Stream
except ModuleNotFoundError as error:
    # The server reads this line and says what to install; a traceback of ours
    # would only stand before it.
    sys.exit(f"ModuleNotFoundError: {error}")

PROTOCOL = 1
HANDSHAKE = 10.0
log = logging.getLogger("roundhouse")

_PACKAGES = (
    "numpy pydantic pandas mlserver scikit-learn xgboost xgboost-cpu lightgbm catboost "
    "mlflow mlflow-skinny transformers torch tensorflow paddlepaddle onnxruntime "
    "mlserver-sklearn mlserver-xgboost mlserver-lightgbm mlserver-catboost "
    "mlserver-mlflow mlserver-huggingface mlserver-mllib mlserver-alibi-detect "
    "mlserver-alibi-explain"
).split()


def _give_back() -> None:
    """Gives memory back to the system that a model has left."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):  # not the GNU library
        pass


class Worker:
    """One connection to the server, and the models it asked for."""

    def __init__(self, bridge: Bridge, token: str, grace: float):
        self.bridge = bridge
        self.host = Host(bridge)
        self.reader = tensors.Reader(bridge.types)
        self.grace = grace
        self.status: "asyncio.Future[int]" = asyncio.get_running_loop().create_future()
        self.connection = Connection(self._frame, self._ended)
        self._token = token
        self._welcomed = False
        self._stopping = False
        self._in_flight: Dict[int, asyncio.Task] = {}
        self._streams: Dict[int, Stream] = {}
        self._max_in_flight = 1024
        self._custom_streams = False
        self.reports = Reports(asyncio.get_running_loop(), self._push)
        self.collected = Collected(asyncio.get_running_loop(), self._push)
        self._kinds: Dict[str, Callable[[dict, memoryview], Any]] = {
            "load": self._load,
            "unload": self._unload,
            "metadata": self._metadata,
            "infer": self._infer,
            "custom": self._custom,
            "stream": self._stream,
        }

    def hello(self) -> None:
        """The first frame."""
        self.connection.send(hello(self._token, ["streams", "custom"]))

    def expect_welcome(self) -> None:
        """Ends a connection on which no welcome has come in time."""
        if not self._welcomed:
            self._ended(ProtocolError(f"no welcome within {HANDSHAKE:.0f} seconds"))

    # Frames arriving.

    def _frame(self, header: dict, payload: memoryview) -> None:
        kind = header["kind"]
        if not self._welcomed:
            self._handshake(kind, header)
            return
        request = header.get("id")
        if request is None:
            if kind == "stop":
                self.stop(header.get("grace"))
            elif kind == "goodbye":
                self._ended(None)
            return
        if not isinstance(request, int) or not 0 <= request < 1 << 63:
            raise ProtocolError(f"an id that is no integer of 63 bits: {request!r}")
        if kind == "ping":
            self._pong(request)
        elif kind == "cancel":
            task = self._in_flight.get(request)
            if task is not None:
                task.cancel()
        elif kind in ("item", "end", "credit"):
            self._stream_frame(kind, request, header, payload)
        else:
            self._start(kind, request, header, payload)

    def _handshake(self, kind: str, header: dict) -> None:
        if kind == "goodbye":
            self._ended(None)
            return
        if kind != "welcome" or header.get("protocol") != PROTOCOL:
            raise ProtocolError(f"expected welcome with protocol {PROTOCOL}")
        limits = header.get("limits") or {}
        limit = limits.get("max_frame_bytes", MAX_FRAME)
        self.connection.limit = min(int(limit), (1 << 32) - 1)
        self._max_in_flight = int(limits.get("max_in_flight", self._max_in_flight))
        self._custom_streams = "custom_streams" in (header.get("features") or [])
        self._welcomed = True
        self.reports.install()
        self.bridge.observe_metrics(self.reports.observe)

    def _start(self, kind: str, request: int, header: dict, payload: memoryview) -> None:
        if request in self._in_flight:
            raise ProtocolError(f"the id {request} is in flight")
        refusal: Optional[Fault] = None
        if kind not in self._kinds:
            refusal = Fault("unsupported", f"this worker knows no {cut(kind, 64)!r}")
        elif self._stopping:
            refusal = Fault("unavailable", "the worker is stopping")
        elif len(self._in_flight) >= self._max_in_flight:
            refusal = Fault(
                "unavailable", f"{self._max_in_flight} requests are in flight already"
            )
        if refusal is not None:
            self._fail(request, refusal)
            return
        if kind == "stream" or kind == "custom" and self._custom_streams:
            self._streams[request] = Stream(request, self.connection, self.reader)
        task = asyncio.get_running_loop().create_task(
            self._run(kind, request, header, payload)
        )
        self._in_flight[request] = task
        task.add_done_callback(lambda _task: self._settled(request))

    def _settled(self, request: int) -> None:
        self._in_flight.pop(request, None)
        self._streams.pop(request, None)

    async def _run(
        self, kind: str, request: int, header: dict, payload: memoryview
    ) -> None:
        """Runs one request to its one answer, whatever the model does."""
        try:
            raw = Payload()
            fields = await self._kinds[kind](header, payload, raw)
            self._report()
            ended = kind == "stream" or kind == "custom" and not fields
            answer = "end" if ended else "result"
            self._answer({"kind": answer, "id": request, **fields}, raw)
        except asyncio.CancelledError as error:
            self._fail(request, error)
        except ValidationError as error:
            if kind in ("infer", "stream") and not _from_model(error):
                self._fail(request, pydantic_fault(error, "invalid", "the request"))
            else:
                self._fail(request, error)
        except BaseException as error:  # SystemExit too: it is the model's alone
            self._fail(request, error)

    def _answer(self, frame: dict, raw: Payload) -> None:
        """Sends what a model answered. That it is too large is no client's fault."""
        try:
            self.connection.send(frame, raw)
        except TooLarge as error:
            raise Fault("failed", f"the model's answer cannot be sent: {error}") from error

    def _fail(self, request: int, error: BaseException) -> None:
        """Answers with an error, whatever it is made of."""
        try:
            described = describe(error)
        except BaseException:  # its own code runs where it is shown
            name = type(error).__name__
            described = {"kind": "failed", "message": f"{name}, which cannot be shown"}
        try:
            self._report()
        finally:
            frame = {"kind": "error", "id": request, "error": described}
            self.connection.send(frame)

    # The kinds of request. Each returns the fields of its answer.

    async def _load(self, header: dict, _payload: Any, _raw: Payload) -> dict:
        return await self.host.load(header)

    async def _unload(self, header: dict, _payload: Any, _raw: Payload) -> dict:
        grace = header.get("grace", self.grace)
        await self.host.unload(header.get("model"), float(grace))
        if not self.host.models:
            asyncio.get_running_loop().call_soon(_give_back)
        return {}

    async def _metadata(self, header: dict, _payload: Any, _raw: Payload) -> dict:
        return await self.host.describe(self.host.get(header.get("model"), ready=False))

    async def _infer(self, header: dict, payload: memoryview, raw: Payload) -> dict:
        hosted = self.host.get(header.get("model"))
        request = self.reader.request(header.get("request") or {}, payload)
        with self._work(hosted) as instance:
            answer = await instance.predict(request)
        return {"response": self._response(answer, request.id, raw)}

    def _response(self, answer: Any, request_id: Optional[str], raw: Payload) -> dict:
        return encode(answer, request_id, raw, self.bridge.types)

    async def _custom(self, header: dict, payload: memoryview, raw: Payload) -> dict:
        hosted = self.host.get(header.get("model"))
        body = bytes(tensors.cut(header["body"], payload)) if header.get("body") else b""
        stream = self._streams.get(header["id"])

        async def send(status: Optional[int], headers: list, content: bytes) -> None:
            piece = Payload()
            fields = _http(status, headers, content, piece)
            self._report()
            await self._send_item(stream, fields, piece)

        with self._work(hosted):
            answer = await http.call(
                hosted.handlers, header, body, None if stream is None else send
            )
        return _http(*answer, raw) if answer is not None else {}

    async def _send_item(self, stream: Any, fields: dict, raw: Payload) -> None:
        """Sends an item. That it is too large is no client's fault."""
        try:
            await stream.send(fields, raw)
        except TooLarge as error:
            why = f"the model's answer cannot be sent: {error}"
            raise Fault("failed", why) from error

    async def _stream(self, header: dict, payload: memoryview, _raw: Payload) -> dict:
        stream = self._streams[header["id"]]
        hosted = self.host.get(header.get("model"))
        stream.open(header, payload)
        with self._work(hosted) as instance:
            answers = instance.predict_stream(stream.requests())
            try:
                async for answer in answers:
                    raw = Payload()
                    item = self._response(answer, stream.first_id, raw)
                    self._report()
                    await self._send_item(stream, {"response": item}, raw)
            finally:
                close = getattr(answers, "aclose", None)
                if close is not None:
                    await close()
        return {}

    def _work(self, hosted: Hosted) -> Any:
        return _Working(self.host, hosted, self._told)

    def _report(self) -> None:
        """Sends what code has logged and measured."""
        self.reports.flush_reports()
        self.collected.tell()

    def _told(self, hosted: Hosted) -> None:
        """Pushes a change of the model's own readiness."""
        ready = bool(hosted.instance.ready)
        if ready != hosted.told_ready:
            hosted.told_ready = ready
            self._push({"kind": "ready", "model": hosted.key, "ready": ready})

    def _stream_frame(
        self, kind: str, request: int, header: dict, payload: memoryview
    ) -> None:
        stream = self._streams.get(request)
        if stream is not None:
            stream.received(kind, header, payload)

    # Everything else.

    def _pong(self, request: int) -> None:
        self.connection.send(
            {
                "kind": "pong",
                "id": request,
                "in_flight": len(self._in_flight),
                "models": len(self.host.models),
                "rss_bytes": _resident(),
            }
        )

    def _push(self, frame: dict) -> None:
        if self._welcomed:
            self.connection.send(frame)

    def stop(self, grace: Any = None) -> None:
        """Begins a graceful stop; a second call changes nothing."""
        if self._stopping:
            return
        self._stopping = True
        limit = float(grace) if isinstance(grace, (int, float)) else self.grace
        self._stop_task = asyncio.get_running_loop().create_task(self._stop(limit))

    async def _stop(self, grace: float) -> None:
        await self._finish(grace)
        await self.host.unload_all(min(grace, 30.0))
        self.reports.flush_reports()
        if "prometheus_client" in sys.modules:
            self.collected.collect()
        self.connection.send({"kind": "goodbye", "reason": "stopped"})
        self._finished(0)

    async def _finish(self, grace: float) -> None:
        """Waits for what is in flight, then cancels it."""
        waiting = list(self._in_flight.values())
        if waiting and grace > 0:
            await asyncio.wait(waiting, timeout=grace)
        late = [task for task in self._in_flight.values() if not task.done()]
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=1)

    def _ended(self, error: Optional[Exception]) -> None:
        """The server is gone, or broke the protocol."""
        if error is not None:
            self.connection.send({"kind": "goodbye", "reason": cut(str(error))})
        self._stopping = True
        self._end_task = asyncio.get_running_loop().create_task(
            self._wind_up(0 if error is None else 2)
        )

    async def _wind_up(self, status: int) -> None:
        await self._finish(0)
        await self.host.unload_all(5)
        self._finished(status)

    def _finished(self, status: int) -> None:
        if not self.status.done():
            self.status.set_result(status)


class _Working:
    """The context a model's code runs in; its task is one of the model's."""

    def __init__(self, host: Host, hosted: Hosted, after: Callable[[Hosted], None]):
        self._hosted, self._after = hosted, after
        self._inner = host.working_for(hosted)

    def __enter__(self) -> Any:
        self._task = asyncio.current_task()
        self._hosted.tasks.add(self._task)  # type: ignore[arg-type]
        return self._inner.__enter__()

    def __exit__(self, *raised: Any) -> Any:
        self._hosted.tasks.discard(self._task)  # type: ignore[arg-type]
        self._after(self._hosted)
        return self._inner.__exit__(*raised)


def encode(answer: Any, request_id: Optional[str], raw: Payload, types: Any) -> dict:
    """A model's answer as a frame's ``response``."""
    if not isinstance(answer, types.InferenceResponse):
        raise TypeError(
            "the model answered with "
            f"{type(answer).__name__} where an InferenceResponse is due"
        )
    item = tensors.response(answer, raw)
    if item.get("id") is None and request_id is not None:
        item["id"] = request_id
    return item


def _http(status: Optional[int], headers: list, content: bytes, raw: Payload) -> dict:
    """An HTTP answer, or a piece of one, as a field of a frame."""
    offset, length = raw.add(content)
    described: dict = {"body": {"offset": offset, "length": length}}
    if status is not None:
        described.update(status=status, headers=headers)
    return {"http": described}


def _from_model(error: BaseException) -> bool:
    """Whether an error comes from beneath this package."""
    trace = error.__traceback__
    here = os.path.dirname(os.path.abspath(__file__))
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith(here) and f"{os.sep}pydantic" not in file:
            return True
        trace = trace.tb_next
    return False


def hello(token: str, features: List[str]) -> dict:
    """The header of the first frame."""
    return {
        "kind": "hello",
        "protocols": [PROTOCOL],
        "token": token,
        "pid": os.getpid(),
        "worker": {
            "language": "python",
            "version": platform.python_version(),
            "implementation": platform.python_implementation(),
            "platform": f"{sys.platform}-{platform.machine()}",
            "executable": sys.executable,
        },
        "packages": _installed(),
        "features": features,
    }


@functools.lru_cache(maxsize=None)  # a forked worker need not look again
def _installed() -> Dict[str, str]:
    found = {"roundhouse": __version__}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _resident() -> int:
    """Resident memory in bytes, 0 where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def _watch(descriptor: int, limit: float) -> None:
    """Ends the process a while after the server hung up, whatever the loop
    is stuck in."""
    poll = select.poll()
    poll.register(descriptor, 0)
    while not poll.poll():
        pass
    time.sleep(limit)
    os._exit(1)


def connect(path: str) -> socket.socket:
    """A connection to the server. Where there is none the process ends."""
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    peer.settimeout(10)
    try:
        peer.connect(path)
    except OSError as error:
        sys.exit(f"roundhouse.worker: cannot reach {path}: {error}")
    return peer


async def serve(peer: socket.socket, token: str, grace: float) -> int:
    """Works for the server at the other end of ``peer``; the exit status."""
    loop = asyncio.get_running_loop()
    worker = Worker(Bridge(), token, grace)
    peer.setblocking(False)
    watcher = threading.Thread(target=_watch, args=(os.dup(peer.fileno()), 10.0))
    watcher.daemon = True
    watcher.start()
    loop.add_signal_handler(signal.SIGTERM, worker.stop)
    # A terminal sends SIGINT to the whole group; the server decides what ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    await loop.create_unix_connection(lambda: worker.connection, sock=peer)
    worker.hello()
    loop.call_later(HANDSHAKE, worker.expect_welcome)
    status = await worker.status
    worker.connection.transport.close()
    await asyncio.sleep(0)
    return status


def drop_working_directory() -> None:
    """Undoes what ``-m`` did: files that happen to lie in the server's working
    directory are no modules. PYTHONPATH's own entries stay."""
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if sys.path and sys.path[0] in ("", os.getcwd()) and sys.path[0] not in named:
        del sys.path[0]


def _leave(status: int) -> None:
    """Exits even where a model left threads that do not end."""
    last = threading.Timer(10.0, os._exit, args=(status,))
    last.daemon = True
    last.start()
    sys.exit(status)


def run(peer: socket.socket, token: str, grace: float) -> None:
    """Serves, then exits."""
    _leave(asyncio.run(serve(peer, token, grace)))


def main() -> None:
    """Reads the arguments, connects and serves."""
    parser = argparse.ArgumentParser(prog="python -m roundhouse.worker")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--socket", help="path of the server's unix socket")
    where.add_argument("--socket-fd", type=int, help="an inherited, connected socket")
    parser.add_argument("--grace", type=float, default=30.0, help="seconds to stop in")
    arguments = parser.parse_args()
    drop_working_directory()
    token = os.environ.pop("ROUNDHOUSE_WORKER_TOKEN", "")
    if arguments.socket_fd is not None:
        peer = socket.socket(fileno=arguments.socket_fd)
    else:
        peer = connect(arguments.socket)
    run(peer, token, arguments.grace)


if __name__ == "__main__":
    main()
