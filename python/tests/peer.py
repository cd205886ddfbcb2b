"""The server's end of the worker protocol, written apart from the worker's."""

import json
import os
import socket
import struct
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TOKEN = "a-secret"
WAIT = 60.0


def frame(header, payload=b""):
    """One frame."""
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    return struct.pack("<II", 4 + len(head) + len(payload), len(head)) + head + payload


def elements(raw):
    """The elements of a BYTES payload."""
    found, at = [], 0
    while at < len(raw):
        (length,) = struct.unpack_from("<I", raw, at)
        at += 4
        if length == 0xFFFFFFFF:
            found.append(None)
            continue
        found.append(bytes(raw[at : at + length]))
        at += length
    return found


def packed(*values):
    """A BYTES payload."""
    parts = []
    for value in values:
        if value is None:
            parts.append(struct.pack("<I", 0xFFFFFFFF))
        else:
            parts.append(struct.pack("<I", len(value)) + value)
    return b"".join(parts)


def listen(folder):
    """A socket in a folder: its path and itself."""
    place = os.path.relpath(folder / "s")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(place)
    listener.listen(1)
    listener.settimeout(WAIT)
    return place, listener


class Peer:
    """A worker process and the server's end of its socket."""

    MODULE = "roundhouse.worker"

    def __init__(self, folder, grace=5.0, python=sys.executable, stdout=None, path=None):
        folder.mkdir(parents=True, exist_ok=True)
        place, listener = listen(folder)
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, (os.path.dirname(HERE), path))),
            "ROUNDHOUSE_WORKER_TOKEN": TOKEN,
        }
        self.process = subprocess.Popen(
            [python, "-m", self.MODULE, "--socket", place, "--grace", str(grace)],
            env=environment,
            stdout=stdout,
        )
        self.accept(listener)

    def accept(self, listener):
        """Takes the connection and the first frame."""
        self.socket, _ = listener.accept()
        listener.close()
        self.socket.settimeout(WAIT)
        self.hello, _ = self.receive()
        self.pushed = []
        self._id = 0

    def welcome(self, **limits):
        """Finishes the handshake."""
        self.send({"kind": "welcome", "protocol": 1, "limits": limits})

    def send(self, header, payload=b""):
        """Sends one frame."""
        self.socket.sendall(frame(header, payload))

    def receive(self):
        """The next frame; EOFError at the end."""
        size, head = struct.unpack("<II", self._exactly(8))
        rest = self._exactly(size - 4)
        assert (8 + head) % 8 == 0
        return json.loads(rest[:head]), memoryview(rest)[head:]

    def _exactly(self, count):
        parts = bytearray()
        while len(parts) < count:
            part = self.socket.recv(count - len(parts))
            if not part:
                raise EOFError
            parts += part
        return bytes(parts)

    def next_id(self):
        """An id nobody has."""
        self._id += 1
        return self._id

    def answer(self, request):
        """The next frame about a request; pushed frames are kept aside."""
        while True:
            header, payload = self.receive()
            if header.get("id") == request:
                return header, payload
            self.pushed.append(header)

    def ask(self, payload=b"", raw=False, **header):
        """One request and its answer's header (and payload, with raw)."""
        request = self.next_id()
        self.send({**header, "id": request}, payload)
        answered, rest = self.answer(request)
        return (answered, rest) if raw else answered

    def infer(self, key, inputs, payload=b"", raw=False, **fields):
        """Asks a model."""
        request = {"inputs": inputs, **fields}
        return self.ask(payload, raw, kind="infer", model=key, request=request)

    def wait(self, limit=WAIT):
        """The worker's exit status."""
        return self.process.wait(limit)

    def until(self, condition, limit=WAIT):
        """Reads pushed frames until one fits."""
        deadline = time.monotonic() + limit
        for header in self.pushed:
            if condition(header):
                return header
        while time.monotonic() < deadline:
            header, _ = self.receive()
            self.pushed.append(header)
            if condition(header):
                return header
        raise TimeoutError

    def close(self):
        """Ends the worker."""
        self.socket.close()
        try:
            self.process.wait(2)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Forked(Peer):
    """A forked worker; it is nobody's child here and ends with its socket."""

    def __init__(self, listener):
        self.accept(listener)


class ForkPeer(Peer):
    """A fork server."""

    MODULE = "roundhouse.forkserver"

    def __init__(self, folder, **options):
        super().__init__(folder, **options)
        self.folder = folder
        self.workers = []
        self.welcome()
        pipe = str(folder / "pipe")
        os.mkfifo(pipe)
        self.output = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)

    def ask_fork(self, models, place="nowhere", **fields):
        """Asks for a worker; the answer."""
        pipe = str(self.folder / "pipe")
        wanted = {"socket": place, "token": "of a worker", "output": pipe, "grace": 5}
        return self.ask(kind="fork", models=models, **{**wanted, **fields})

    def fork(self, models):
        """A worker."""
        folder = self.folder / f"worker{len(self.workers)}"
        folder.mkdir()
        place, listener = listen(folder)
        answer = self.ask_fork(models, place)
        assert answer["kind"] == "result", answer
        self.forked = answer["pid"]
        self.workers.append(Forked(listener))
        return self.workers[-1]

    def close(self):
        for worker in self.workers:
            worker.socket.close()
        super().close()
        os.close(self.output)
