"""The metrics that models' code keeps with ``prometheus_client``, told to the
server: what is at ``metrics_endpoint`` is of all workers, also of busy ones and
of those that have ended."""

import asyncio
import sys
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from .faults import cut

# Seconds: between two collections, and until the next where no request asks for
# one. A collection that takes long comes less often.
_BETWEEN, _IDLE, _SHARE = 0.25, 5.0, 20.0
_MAX_SAMPLES, _MAX_BYTES = 10_000, 1 << 20  # the server keeps no more
_MAX_TEXT = 1024
# Of this process, not of a model's code.
_OWN = ("PROCESS_COLLECTOR", "PLATFORM_COLLECTOR", "GC_COLLECTOR")
# What Prometheus' text format has for OpenMetrics' types, and what their name
# then ends with. Samples of these, but for gauges, add up over workers.
_TYPES = {
    "counter": ("counter", "_total"),
    "gauge": ("gauge", ""),
    "histogram": ("histogram", ""),
    "summary": ("summary", ""),
    "info": ("gauge", "_info"),
    "stateset": ("gauge", ""),
    "unknown": ("untyped", ""),
}

Key = Tuple[str, Tuple[Tuple[str, str], ...]]


class Collected:
    """Tells of changes alone; nothing before code imports the library."""

    def __init__(self, loop: asyncio.AbstractEventLoop, send: Callable[[dict], None]):
        self._loop, self._send = loop, send
        self._told: Dict[Key, float] = {}
        self._due = 0.0
        self._timer: Optional[asyncio.TimerHandle] = None
        self._soon = False

    def tell(self) -> None:
        """Sends what has changed: now, or soon where it was sent just now."""
        if "prometheus_client" not in sys.modules:
            return
        if self._loop.time() >= self._due:
            self.collect()
        elif not self._soon:
            self._soon = True
            self._again(self._due)

    def collect(self) -> None:
        """Sends what has changed."""
        self._soon = False
        began = time.perf_counter()
        try:
            self._collect()
        except Exception:
            pass  # the code's own collectors run; the next time comes
        took = time.perf_counter() - began
        now = self._loop.time()
        self._due = now + max(_BETWEEN, _SHARE * took)
        self._again(max(self._due, now + _IDLE))

    def _again(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self.collect)

    def _collect(self) -> None:
        seen: Dict[Key, float] = {}
        size = 0
        changed: List[dict] = []
        for family in _families():
            samples = []
            for name, labels, value in family.pop("samples"):
                size += len(name) + sum(len(k) + len(v) for k, v in labels)
                if len(seen) == _MAX_SAMPLES or size > _MAX_BYTES:
                    break
                key = (name, tuple(labels))
                seen[key] = value
                if self._told.get(key) != value:
                    # JSON has no NaN and no infinities.
                    finite = value - value == 0
                    samples.append([name, labels, value if finite else str(value)])
            if samples:
                changed.append({**family, "samples": samples})
        gone = any(key not in seen for key in self._told)
        self._told = {} if gone else seen
        if gone:
            self._send({"kind": "metrics", "collected": [], "whole": True})
            self._collect()
        elif changed:
            self._send({"kind": "metrics", "collected": changed})


def _families() -> Iterator[dict]:
    """What the registries hold, a metric at a time, as the text format has it."""
    client = sys.modules["prometheus_client"]
    registries = [client.REGISTRY]
    own = vars(sys.modules.get("mlserver.metrics", client)).get("REGISTRY")
    if own is not None and own is not client.REGISTRY:
        registries.append(own)
    skipped = [getattr(client, name, None) for name in _OWN]
    for registry in registries:
        # A gauge's mode is the collector's; without them all are one collector.
        collectors = list(getattr(registry, "_collector_to_names", None) or [registry])
        for collector in collectors:
            if not any(collector is other for other in skipped):
                yield from _collector(collector)


def _collector(collector: Any) -> Iterator[dict]:
    try:
        metrics = list(collector.collect())
    except Exception:
        return  # the code's own fault, which ends no other metric
    mode = getattr(collector, "_multiprocess_mode", "all").replace("live", "")
    for metric in metrics:
        kind, suffix = _TYPES.get(metric.type, ("untyped", ""))
        samples = []
        for sample in metric.samples:
            if sample.name.endswith("_created") and kind != "gauge":
                continue
            labels = [(str(k), cut(str(v), _MAX_TEXT)) for k, v in sample.labels.items()]
            samples.append((sample.name, labels, float(sample.value)))
        yield {
            "name": metric.name + suffix,
            "help": cut(str(metric.documentation), _MAX_TEXT),
            "type": kind,
            "mode": "sum" if kind not in ("gauge", "untyped") else mode,
            "samples": samples,
        }
