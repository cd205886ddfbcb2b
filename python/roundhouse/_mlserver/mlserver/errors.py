"""Errors that carry the HTTP status their cause deserves."""

from typing import Optional


class MLServerError(Exception):
    """An error for the caller; ``status_code`` becomes the HTTP status."""

    def __init__(self, msg: str, status_code: int = 400):
        super().__init__(msg)
        self.status_code = status_code


class InvalidModelURI(MLServerError):
    """The model's URI names nothing that exists."""

    def __init__(self, name: str, model_uri: Optional[str] = None):
        where = f" ({model_uri})" if model_uri else ""
        super().__init__(f"Invalid URI specified for model {name}{where}", 422)


class ModelNotFound(MLServerError):
    """No model has this name and version."""

    def __init__(self, name: str, version: Optional[str] = None):
        super().__init__(f"Model {_named(name, version)} not found", 404)


class ModelNotReady(MLServerError):
    """The model is known but cannot answer yet."""

    def __init__(self, name: str, version: Optional[str] = None):
        super().__init__(f"Model {_named(name, version)} is not ready yet.", 400)


class InferenceError(MLServerError):
    """The request cannot be answered by this model."""

    def __init__(self, msg: str):
        super().__init__(msg, 400)


class ModelParametersMissing(MLServerError):
    """The settings lack the ``parameters`` that a runtime needs."""

    def __init__(self, model_name: str):
        super().__init__(f"Parameters missing for model {model_name}", 400)


def _named(name: str, version: Optional[str]) -> str:
    return name if version is None else f"{name} with version {version}"
