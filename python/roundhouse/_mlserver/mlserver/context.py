"""Which model the running code works for."""

from contextlib import contextmanager
from contextvars import ContextVar

model_name_var: "ContextVar[str]" = ContextVar("model_name")
model_version_var: "ContextVar[str]" = ContextVar("model_version")


@contextmanager
def model_context(model_settings):
    """Says that what runs inside works for the model of these settings."""
    name = model_name_var.set(model_settings.name)
    version = model_version_var.set(model_settings.version or "")
    try:
        yield
    finally:
        model_name_var.reset(name)
        model_version_var.reset(version)
