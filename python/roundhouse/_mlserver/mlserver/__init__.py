"""MLServer's import paths, for runtimes written against MLServer.

Written from MLServer's documented behaviour so that custom runtimes and the
published ``mlserver-*`` runtime packages run where MLServer itself is not
installed. It needs numpy and pydantic alone, and has no server in it: the
server is on the other side of the worker's socket.
"""

from .version import __version__
from .model import MLModel
from .settings import ModelSettings, Settings
from .metrics import log, register

__all__ = ["__version__", "MLModel", "ModelSettings", "Settings", "log", "register"]
