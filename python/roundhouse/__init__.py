"""The Python side of Roundhouse's model server.

``python -m roundhouse.worker`` hosts models for a server on the other end of
a unix socket (docs/design/python-workers.md has the protocol). The package
needs numpy and pydantic; everything else is the models' own.
"""

__version__ = "0.1.0"
