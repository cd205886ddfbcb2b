"""``python -m roundhouse.forkserver``: imports what models use, and forks
workers that share that memory.

It speaks the worker protocol's frames over one blocking socket and answers
``fork`` alone. It runs no thread, no event loop and no model, so that a fork
copies nothing that is under way.
"""

import argparse
import gc
import os
import select
import signal
import socket
import sys
import time
from typing import Any, Optional

from . import preload, scope, worker
from .bridge import Bridge
from .faults import cut
from .frames import MAX_HEADER, ProtocolError, pack, receive


class ForkServer:
    """One connection to the server, and the forks it asks for."""

    def __init__(self, peer: socket.socket):
        self._peer = peer
        self._frozen = False

    def serve(self) -> Optional[dict]:
        """Answers until the server hangs up, then returns None. In a forked
        worker it returns the ``fork`` frame."""
        while True:
            header = receive(self._peer, MAX_HEADER)
            if header is None or header["kind"] == "goodbye":
                return None
            request = header.get("id")
            if request is None:
                continue
            if header["kind"] != "fork":
                self._answer(request, "unsupported", "a fork server only forks")
                continue
            try:
                pid = self._fork(header)
            except Exception as error:
                self._answer(request, "failed", f"{type(error).__name__}: {error}")
                continue
            if pid == 0:
                return header
            threads = _threads()
            if threads > 1:
                # Somebody's library runs threads, which the child lacks.
                text = f"{threads - 1} threads of imported libraries run on over a fork"
                self._answer(request, "unsupported", text)
            else:
                self._send({"kind": "result", "id": request, "pid": pid})

    def _answer(self, request: Any, kind: str, message: str) -> None:
        error = {"kind": kind, "message": cut(message)}
        self._send({"kind": "error", "id": request, "error": error})

    def _send(self, header: dict) -> None:
        for part in pack(header):
            self._peer.sendall(part)

    def _fork(self, header: dict) -> int:
        """Forks a worker, whose id it returns, and 0 in the worker."""
        if preload.load(preload.wanted(header.get("models") or ())) or not self._frozen:
            # What lives on is never looked at by a collection, in no process:
            # a look is a write, and each page written to is a page of one's own.
            scope.settle()
            gc.collect()
            gc.freeze()
            self._frozen = True
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        # The server reads it already: nothing waits here.
        output = os.open(header["output"], os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK)
        try:
            os.set_blocking(output, True)
            pid = _fork_orphan()
            if pid == 0:
                self._become_worker(output)
            return pid
        finally:
            os.close(output)

    def _become_worker(self, output: int) -> None:
        """Leaves what was the fork server's. Python itself sees to its own
        locks, threads and ``random``."""
        try:
            os.dup2(output, 1)
            os.dup2(output, 2)
            self._peer.close()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            if "numpy.random" in sys.modules:
                sys.modules["numpy.random"].seed()
            gc.enable()
        except BaseException:
            os._exit(1)


def _fork_orphan() -> int:
    """Forks a process that is at once an orphan, and so becomes a child of the
    server, which alone waits for it and learns its status. Its id, and 0 in
    the process itself."""
    reader, writer = os.pipe()
    middle = os.fork()
    if middle == 0:
        try:
            pid = os.fork()
        except BaseException:
            os._exit(1)
        if pid != 0:
            os.write(writer, str(pid).encode())
            os._exit(0)
        os.close(reader)
        os.close(writer)
        return 0
    os.close(writer)
    try:
        text = os.read(reader, 32)
    finally:
        os.close(reader)
        os.waitpid(middle, 0)
    if not text:
        raise OSError("no second process")
    return int(text)


def _threads() -> int:
    """How many threads this process has, 1 where the system does not say.
    OpenBLAS ends its own at a fork; the system needs a moment to notice."""
    end = time.monotonic() + 0.5
    while True:
        try:
            count = len(os.listdir("/proc/self/task"))
        except OSError:
            return 1
        if count == 1 or time.monotonic() > end:
            return count
        time.sleep(0.001)


def _handshake(peer: socket.socket, token: str) -> None:
    """Says hello and waits for the welcome."""
    for part in pack(worker.hello(token, [])):
        peer.sendall(part)
    if not select.select([peer], [], [], worker.HANDSHAKE)[0]:
        raise ProtocolError("no welcome")
    header = receive(peer, MAX_HEADER)
    if header is None or header["kind"] != "welcome":
        raise ProtocolError(f"expected welcome, got {header}")


def main() -> None:
    """Connects, serves, and becomes a worker where it was forked as one."""
    parser = argparse.ArgumentParser(prog="python -m roundhouse.forkserver")
    parser.add_argument("--socket", required=True, help="path of the server's unix socket")
    parser.add_argument("--grace", help="as for a worker; a fork server has nothing to finish")
    arguments = parser.parse_args()
    worker.drop_working_directory()
    token = os.environ.pop("ROUNDHOUSE_WORKER_TOKEN", "")
    gc.disable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    peer = worker.connect(arguments.socket)
    Bridge()  # imports mlserver
    try:
        _handshake(peer, token)
        peer.settimeout(None)
        wanted = ForkServer(peer).serve()
    except (OSError, ProtocolError):
        wanted = None  # the server is gone
    if wanted is None:
        os._exit(0)
    sys.argv[1:] = ["--socket", wanted["socket"], "--grace", str(wanted["grace"])]
    worker.run(worker.connect(wanted["socket"]), wanted["token"], float(wanted["grace"]))


if __name__ == "__main__":
    main()
