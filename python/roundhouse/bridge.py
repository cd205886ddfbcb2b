"""The ``mlserver`` that models see: the real one, else the light one."""

import importlib
import importlib.util
import os
import sys
from typing import Any

_LIGHT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_mlserver")


class Bridge:
    """The modules of ``mlserver`` that hosting needs."""

    def __init__(self) -> None:
        self.real = ensure()
        self.package = importlib.import_module("mlserver")
        self.types: Any = importlib.import_module("mlserver.types")
        self.settings: Any = importlib.import_module("mlserver.settings")
        self.errors: Any = importlib.import_module("mlserver.errors")
        self.model: Any = importlib.import_module("mlserver.model")
        self.context: Any = importlib.import_module("mlserver.context")

    def observe_metrics(self, observer: Any) -> None:
        """Has ``observer(name, description, value or None)`` told of custom
        metrics. The real package's own are kept up beside it."""
        metrics = importlib.import_module("mlserver.metrics")
        if not self.real:
            metrics.add_observer(observer)
            return
        register, log = metrics.register, metrics.log

        def told_register(name: str, description: str) -> Any:
            observer(name, description, None)
            return register(name, description)

        def told_log(**values: float) -> None:
            log(**values)
            for name, value in values.items():
                observer(name, f"Custom metric {name}", float(value))

        for module in (self.package, metrics, sys.modules["mlserver.metrics.context"]):
            module.log = told_log
            if module is not sys.modules["mlserver.metrics.context"]:
                module.register = told_register


def ensure() -> bool:
    """Makes ``mlserver`` importable; says whether it is the real one."""
    if _LIGHT not in sys.path:
        spec = importlib.util.find_spec("mlserver")
        if spec is not None and spec.origin:
            return True
        sys.path.append(_LIGHT)
    origin = importlib.util.find_spec("mlserver").origin  # type: ignore[union-attr]
    return not str(origin).startswith(_LIGHT)
