"""What the fork server imports before it forks: libraries that are safe to
fork once imported, as far as an environment's models use them.

Safe means: importing starts no thread that outlives a fork, opens nothing that
two processes must not share, and the library works in a child, threads of its
own included. It is tested for each (python/tests/test_forkserver.py). Never
here: torch, tensorflow, mlflow, and any model's own code.
"""

import ast
import importlib
import importlib.util
import os
import sys
from typing import Any, Iterable, Iterator, Set

from .scope import _installed

# Packages whose modules a model's own code may name.
SAFE = frozenset("numpy scipy pandas sklearn joblib xgboost lightgbm".split())

_SKLEARN = (
    "joblib",
    "sklearn.linear_model",
    "sklearn.pipeline",
    "sklearn.compose",
    "sklearn.preprocessing",
    "sklearn.ensemble",
)
# What the models of a runtime use, the runtime itself first.
RUNTIMES = {
    "mlserver_sklearn": ("mlserver_sklearn", *_SKLEARN),
    "roundhouse.runtimes.sklearn": ("roundhouse.runtimes.sklearn", *_SKLEARN),
    "mlserver_xgboost": ("mlserver_xgboost",),
    "mlserver_lightgbm": ("mlserver_lightgbm",),
}
# Top-level packages of the modules above; where they lie is checked.
_RUNTIME_PACKAGES = frozenset(name.partition(".")[0] for name in RUNTIMES)
_MAX_SOURCE = 1 << 20


def wanted(models: Iterable[Any]) -> Set[str]:
    """The modules for models, each with ``implementation`` and perhaps
    ``folder``."""
    found: Set[str] = set()
    for model in models:
        path = str(model.get("implementation", "")).replace(":", ".")
        module = path.rpartition(".")[0]
        for name, modules in RUNTIMES.items():
            if module == name or module.startswith(name + "."):
                found.update(modules)
                break
        else:
            found.update(_named(module, model.get("folder")))
    return found


def load(modules: Iterable[str]) -> bool:
    """Imports modules that are installed and not there yet; whether any was.
    One that cannot be imported is left to the worker that needs it."""
    new = False
    for name in sorted(modules):
        if name in sys.modules or not _is_installed(name.partition(".")[0]):
            continue
        try:
            importlib.import_module(name)
            new = True
        except BaseException:  # SystemExit too: it is no reason to end
            continue
    return new


def _is_installed(top: str) -> bool:
    """Whether a package is an installed one, not somebody's file of its name."""
    if top == "roundhouse":
        return True
    if top not in SAFE and top not in _RUNTIME_PACKAGES:
        return False
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return False
    return spec is not None and _installed(str(spec.origin))


def _named(module: str, folder: Any) -> Iterator[str]:
    """The safe modules that a model's own source imports. It is read, not run."""
    if not module or not isinstance(folder, str):
        return
    base = os.path.join(folder, *module.split("."))
    for path in (base + ".py", os.path.join(base, "__init__.py")):
        try:
            with open(path, "rb") as file:
                source = file.read(_MAX_SOURCE)
            if b"environ" in source or b"putenv" in source:
                return  # it may tell libraries something before it imports them
            tree = ast.parse(source)
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                names = [node.module]
            else:
                continue
            yield from (n for n in names if n.partition(".")[0] in SAFE)
