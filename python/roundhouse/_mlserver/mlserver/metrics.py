"""Custom metrics: names and values handed to whoever hosts the model."""

from typing import Any, Callable, Dict, List, Optional

from .context import model_name_var
from .errors import MLServerError

# What observers are called with: the metric's name, its description, and a
# value, or None when the metric is only made known.
Observer = Callable[[str, str, Optional[float]], None]

_observers: List[Observer] = []
_metrics: Dict[str, "Metric"] = {}


def __getattr__(name: str) -> Any:
    """``REGISTRY``, made where code asks for it: it needs prometheus_client."""
    if name != "REGISTRY":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from prometheus_client import CollectorRegistry

    registry = globals()["REGISTRY"] = CollectorRegistry(auto_describe=True)
    return registry


class InvalidModelContext(MLServerError):
    """A metric was logged by code that works for no model."""

    def __init__(self):
        super().__init__(
            "Contextual method (e.g. mlserver.log() or mlserver.register())"
            " was called outside of a model context. ",
            500,
        )


class Metric:
    """A histogram that the host keeps, labelled by model."""

    def __init__(self, name: str, description: str):
        self.name = name
        self.description = description

    def labels(self, *_values, **_labels) -> "Metric":
        """The metric itself: the host adds the model's labels."""
        return self

    def observe(self, value: float, *_exemplar) -> None:
        """Records one value."""
        for observer in _observers:
            observer(self.name, self.description, float(value))


def add_observer(observer: Observer) -> None:
    """Has ``observer`` told of every metric and value from now on."""
    _observers.append(observer)


def register(name: str, description: str) -> Metric:
    """Makes a metric known; a known name gives the metric it has."""
    metric = _metrics.get(name)
    if metric is None:
        metric = _metrics[name] = Metric(name, description)
    for observer in _observers:
        observer(metric.name, metric.description, None)
    return metric


def log(**metrics: float) -> None:
    """Records one value per keyword; unknown names are registered."""
    if model_name_var.get(None) is None:
        raise InvalidModelContext()
    for name, value in metrics.items():
        metric = _metrics.get(name) or register(name, f"Custom metric {name}")
        metric.observe(value)
