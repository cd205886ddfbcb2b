"""Modules in a model's folder belong to that model alone.

``sys.modules`` holds the modules of one scope at a time, the active one. An
import from a module of another scope, or from a task that works for another
model, activates that scope first: its modules take their places, the former
ones' are kept with their own scope. Everything outside model folders is
shared and never moves.
"""

import builtins
import contextvars
import importlib
import importlib.machinery as machinery
import importlib.util
import os
import sys
import threading
from itertools import islice
from typing import Any, Dict, List, Optional, Tuple

_MARK = "__roundhouse_scope__"
_current: "contextvars.ContextVar[Optional[Scope]]" = contextvars.ContextVar(
    "roundhouse_scope", default=None
)
_lock = threading.RLock()
_active: "Optional[Scope]" = None


class _Source(machinery.SourceFileLoader):
    """Loads a source file without reading or writing byte code, so that a
    change is seen even within one second of the last."""

    def path_stats(self, path: str) -> Any:
        raise OSError("byte code is not cached")

    def exec_module(self, module: Any) -> None:
        _mark(module)
        super().exec_module(module)


def _mark(module: Any) -> None:
    if _active is not None:
        setattr(module, _MARK, _active)


_LOADERS = (
    (machinery.ExtensionFileLoader, machinery.EXTENSION_SUFFIXES),
    (_Source, machinery.SOURCE_SUFFIXES),
    (machinery.SourcelessFileLoader, machinery.BYTECODE_SUFFIXES),
)


class Scope:
    """One model's modules. ``folder`` is first on sys.path while active."""

    def __init__(self, folder: str):
        self.folder = os.path.realpath(folder)
        self.modules: Dict[str, Any] = {}
        self._shadowed: Dict[str, Any] = {}
        self._finders: Dict[str, machinery.FileFinder] = {}
        install()

    def enter(self) -> None:
        """Makes the running task one of this scope's."""
        _current.set(self)

    def import_module(self, name: str) -> Any:
        """Imports a module as this scope's code would."""
        with _lock:
            activate(self)
            return importlib.import_module(name)

    def find_spec(self, name: str, path: Optional[List[str]]) -> Any:
        """A spec for a module in the folder, or None."""
        entries = [self.folder] if path is None else [p for p in path if self._owns(p)]
        for entry in entries:
            finder = self._finders.get(entry)
            if finder is None:
                finder = self._finders[entry] = machinery.FileFinder(entry, *_LOADERS)
            spec = finder.find_spec(name)
            if spec is not None and spec.loader is not None:
                return spec
        return None

    def _owns(self, path: Any) -> bool:
        """Whether a path is of the model's own files: in the folder, but in
        no environment that lies there too."""
        if not isinstance(path, str):
            return False
        real = os.path.realpath(path)
        if real == self.folder:
            return True
        inside = real.startswith(self.folder + os.sep)
        return inside and not _installed(real[len(self.folder) :])

    def _holds(self, module: Any) -> bool:
        names = _names(module)
        if _MARK in names:
            return names[_MARK] is self
        # A folder without __init__.py, an extension, or cached byte code.
        places = [getattr(names.get("__spec__"), "origin", None)]
        if places[0] is None:
            places = list(names.get("__path__") or ())
        return any(self._owns(place) for place in places)

    def _leave(self) -> None:
        held = {n: m for n, m in _recent() if self._holds(m)}
        for name in held:
            del sys.modules[name]
        self.modules = held
        sys.modules.update(self._shadowed)
        self._shadowed = {}
        if self.folder in sys.path:
            sys.path.remove(self.folder)

    def _take(self) -> None:
        sys.path.insert(0, self.folder)
        for name in _top_level(self.folder):
            other = sys.modules.get(name)
            if other is not None and not _foreign(other):
                for full in [n for n in sys.modules if _under(n, name)]:
                    self._shadowed[full] = sys.modules.pop(full)
        sys.modules.update(self.modules)
        importlib.invalidate_caches()

    def close(self) -> None:
        """Forgets the scope's modules."""
        with _lock:
            if _active is self:
                activate(None)
            self.modules.clear()


# The modules of no scope that were there at first: how many, and the last.
_settled: Tuple[int, Optional[str]] = (0, None)


def settle() -> None:
    """Says that all modules there are now belong to no scope."""
    global _settled
    _settled = (len(sys.modules), next(reversed(sys.modules)))


def _recent() -> List[Tuple[str, Any]]:
    """The modules that came since ``settle``. A look at the others would cost
    more than time: it writes to their reference counts, and so to the memory
    that forked workers share. All modules where the order has changed."""
    count, last = _settled
    new = max(len(sys.modules) - count, 0)
    recent = list(islice(reversed(sys.modules.items()), new + 1))
    if last is None or not recent or recent.pop()[0] != last:
        return list(sys.modules.items())
    return recent[::-1]


def _names(module: Any) -> Dict[str, Any]:
    """A module's own names, without waking a lazy one or its __getattr__."""
    try:
        return object.__getattribute__(module, "__dict__")
    except AttributeError:
        return {}


def _installed(path: str) -> bool:
    """Whether a path is among installed packages."""
    return "site-packages" in path or "dist-packages" in path


def _under(name: str, top: str) -> bool:
    return name == top or name.startswith(top + ".")


def _foreign(module: Any) -> bool:
    """Whether a loaded module keeps its place although the folder has a file
    of its name: the standard library and what the worker itself stands on."""
    names = _names(module)
    name = str(names.get("__name__")).partition(".")[0]
    if name in ("roundhouse", "mlserver", "numpy", "pydantic", "__main__"):
        return True
    origin = getattr(names.get("__spec__"), "origin", None)
    return not (isinstance(origin, str) and _installed(origin))


def _top_level(folder: str) -> List[str]:
    try:
        entries = os.listdir(folder)
    except OSError:
        return []
    names = [e[:-3] for e in entries if e.endswith(".py")]
    packages = [
        e for e in entries if os.path.isfile(os.path.join(folder, e, "__init__.py"))
    ]
    return names + packages


def activate(scope: Optional[Scope]) -> None:
    """Puts a scope's modules in their places."""
    global _active
    with _lock:
        former, _active = _active, scope
        if former is scope:
            return
        if former is not None:
            former._leave()
        if scope is not None:
            scope._take()


class _Finder:
    """Asks the active scope before the rest of the path."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        return None if _active is None else _active.find_spec(name, path)

    @staticmethod
    def invalidate_caches() -> None:
        if _active is not None:
            _active._finders.clear()


_import = builtins.__import__
_import_module = importlib.import_module


def _wanted(namespace: Any) -> Optional[Scope]:
    scope = namespace.get(_MARK) if namespace else None
    return scope or _current.get()


def _scoped_import(name, globals=None, locals=None, fromlist=(), level=0):
    scope = _wanted(globals)
    if scope is None or scope is _active:
        return _import(name, globals, locals, fromlist, level)
    with _lock:
        activate(scope)
        return _import(name, globals, locals, fromlist, level)


def _scoped_import_module(name: str, package: Optional[str] = None) -> Any:
    scope = _wanted(sys._getframe(1).f_globals)
    if scope is not None and scope is not _active:
        activate(scope)
    return _import_module(name, package)


def install() -> None:
    """Puts the scopes into the import system, once."""
    if builtins.__import__ is _scoped_import:
        return
    builtins.__import__ = _scoped_import
    importlib.import_module = _scoped_import_module
    sys.meta_path.insert(0, _Finder)
