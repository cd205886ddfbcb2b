"""What went wrong, in the protocol's words."""

import asyncio
import importlib.util
import sys
import traceback
from typing import Any, Optional

from .frames import TooLarge, utf8
from .tensors import BadTensor

_MESSAGE = 16 << 10
_TRACEBACK = 32 << 10

# Where the name to install is not the name to import.
_PACKAGES = {
    "PIL": "pillow",
    "catboost": "catboost",
    "cv2": "opencv-python",
    "dateutil": "python-dateutil",
    "paddle": "paddlepaddle",
    "sklearn": "scikit-learn",
    "skl2onnx": "skl2onnx",
    "tensorflow": "tensorflow",
    "yaml": "pyyaml",
}


class Fault(Exception):
    """An error whose kind in the protocol is known."""

    def __init__(self, kind: str, message: str, install: Optional[str] = None):
        super().__init__(message)
        self.kind = kind
        self.install = install


def install_line(module: str) -> str:
    """What to type so that a module can be imported by this interpreter."""
    top = module.partition(".")[0]
    package = _PACKAGES.get(top, top.replace("_", "-"))
    return f"{sys.executable} -m pip install {package}"


def missing(module: str, why: str) -> Fault:
    """A package that is not installed where the worker runs."""
    line = install_line(module)
    message = f"{why}: the Python package for '{module}' is not installed; run: {line}"
    return Fault("missing_package", message, line)


def cut(text: str, limit: int = _MESSAGE) -> str:
    """The text, shortened to a bound in bytes of UTF-8."""
    raw = utf8(text)
    if len(raw) <= limit:
        return raw.decode("utf-8")
    return raw[: limit - 3].decode("utf-8", "ignore") + "…"


def _cut_middle(text: str) -> str:
    if len(text) <= _TRACEBACK // 4:
        return text
    half = _TRACEBACK // 8
    return text[:half] + "\n…\n" + text[-half:]


def describe(error: BaseException) -> dict:
    """The ``error`` object of a frame."""
    kind, install = "failed", None
    status = getattr(error, "status_code", None)
    message = _text(error)
    if isinstance(error, asyncio.CancelledError):
        kind, message = "cancelled", "the request was cancelled"
    elif isinstance(error, Fault):
        kind, install = error.kind, error.install
    elif isinstance(error, BadTensor):
        kind = "invalid"
    elif isinstance(error, TooLarge):
        kind = "too_large"
    elif isinstance(error, SystemExit):
        message = f"the model's code tried to exit with status {error.code!r}"
    elif isinstance(error, ModuleNotFoundError) and error.name:
        if not _known(error.name):
            fault = missing(error.name, message)
            kind, message, install = fault.kind, str(fault), fault.install
    elif isinstance(status, int):
        kind = _kind_of(status)
    described: dict = {
        "kind": kind,
        "message": cut(message or type(error).__name__),
        "type": type(error).__name__,
    }
    if isinstance(status, int):
        described["status"] = status
    if install:
        described["install"] = install
    if kind in ("failed", "missing_package", "unprocessable"):
        lines = traceback.format_exception(type(error), error, error.__traceback__)
        described["traceback"] = _cut_middle("".join(lines))
    return described


def _text(error: BaseException) -> str:
    """The error's message, whatever its own code does."""
    try:
        return str(error)
    except BaseException:
        return f"{type(error).__name__}, which cannot be shown"


def _known(module: str) -> bool:
    """Whether the package is there and only a part of it was not found."""
    top = module.partition(".")[0]
    try:
        return top != module and importlib.util.find_spec(top) is not None
    except (ImportError, ValueError):
        return False


def _kind_of(status: int) -> str:
    known = {404: "not_found", 422: "unprocessable", 503: "unavailable"}
    if status in known:
        return known[status]
    return "invalid" if 400 <= status < 500 else "failed"


def pydantic_fault(error: Any, kind: str, what: str) -> Fault:
    """A pydantic ValidationError as one line: each field and its fault."""
    parts = [
        f"{'.'.join(str(p) for p in e['loc']) or 'value'}: {e['msg']}"
        for e in error.errors(include_url=False)
    ]
    return Fault(kind, f"{what}: " + "; ".join(parts))
