"""Log records and custom metrics, gathered and pushed to the server."""

import asyncio
import contextvars
import logging
import threading
import traceback
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional, Tuple

from . import logs
from .faults import cut

_BOUND = 1024

# The key of the model that the running task works for.
model_key: "contextvars.ContextVar[Optional[str]]" = contextvars.ContextVar(
    "roundhouse_model", default=None
)


class Reports(logging.Handler):
    """Collects from any thread; ``flush_reports`` sends, in the loop's."""

    def __init__(self, loop: asyncio.AbstractEventLoop, send: Callable[[dict], None]):
        super().__init__(logging.NOTSET)
        self._loop, self._send = loop, send
        self._guard = threading.Lock()
        self._records: Deque[dict] = deque()
        self._values: Deque[Tuple[Optional[str], str, str, Optional[float]]] = deque()
        self._lost = {"log": 0, "metrics": 0}
        self._scheduled = False

    def install(self) -> None:
        """Takes the records of the loggers the protocol names."""
        for name in ("mlserver", "roundhouse"):
            logger = logging.getLogger(name)
            logger.setLevel(logging.INFO)
            logger.addHandler(self)
            logger.propagate = False
        quiet = _AtLeast(self, logging.WARNING)
        logging.getLogger().addHandler(quiet)
        logs.configure()

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps a record. Never raises."""
        try:
            item = {
                "level": record.levelname,
                "logger": record.name,
                "message": cut(record.getMessage()),
                "time": record.created,
            }
            key = model_key.get()
            if key is not None:
                item["model"] = key
            if record.exc_info and record.exc_info[0]:
                text = "".join(traceback.format_exception(*record.exc_info))
                item["traceback"] = cut(text)
            self._keep(self._records, item, "log")
        except Exception:
            self._lost["log"] += 1

    def observe(self, name: str, description: str, value: Optional[float]) -> None:
        """Keeps a custom metric's registration or value."""
        self._keep(self._values, (model_key.get(), name, description, value), "metrics")

    def _keep(self, queue: Any, item: Any, kind: str) -> None:
        with self._guard:
            if len(queue) >= _BOUND:
                queue.popleft()
                self._lost[kind] += 1
            queue.append(item)
            if self._scheduled:
                return
            self._scheduled = True
        try:
            self._loop.call_soon_threadsafe(self.flush_reports)
        except RuntimeError:
            pass  # the loop is closed: nobody is left to read it

    def flush_reports(self) -> None:
        """Sends what there is. Runs in the loop's thread."""
        with self._guard:
            self._scheduled = False
            records, values = list(self._records), list(self._values)
            self._records.clear()
            self._values.clear()
            lost, self._lost = self._lost, {"log": 0, "metrics": 0}
        for start in range(0, len(records), 256):
            frame: dict = {"kind": "log", "records": records[start : start + 256]}
            if lost["log"]:
                frame["dropped"], lost["log"] = lost["log"], 0
            self._send(frame)
        for frame in _metric_frames(values):
            if lost["metrics"]:
                frame["dropped"], lost["metrics"] = lost["metrics"], 0
            self._send(frame)


def _metric_frames(values: List[Any]) -> List[dict]:
    """One frame per model, in the order the models logged."""
    frames: Dict[Optional[str], dict] = {}
    for key, name, description, value in values:
        frame = frames.get(key)
        if frame is None:
            frame = {"kind": "metrics", "registered": [], "observations": []}
            if key is not None:
                frame["model"] = key
            frames[key] = frame
        if value is None:
            frame["registered"].append({"name": name, "description": description})
        else:
            frame["observations"].append([name, value])
    return list(frames.values())


class _AtLeast(logging.Handler):
    def __init__(self, target: Reports, level: int):
        super().__init__(level)
        self._target = target

    def emit(self, record: logging.LogRecord) -> None:
        self._target.emit(record)
