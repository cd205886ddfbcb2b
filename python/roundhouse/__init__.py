"""The Python side of Roundhouse's model server.

``python -m roundhouse.worker`` hosts models for a server on the other end of
a unix socket (docs/design/python-workers.md has the protocol). The package
needs numpy and pydantic; everything else is the models' own.
"""

__version__ = "0.1.0"


def __getattr__(name):
    # Workers import this package and most load no tensors.
    if name in ("load_safetensors", "stream_safetensors"):
        from . import weights

        return getattr(weights, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
