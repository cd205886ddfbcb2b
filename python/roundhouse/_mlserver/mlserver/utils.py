"""Small things that runtimes import."""

import os
import urllib.parse
import uuid
from typing import Callable, Dict, List, Optional

from .errors import InvalidModelURI
from .settings import ModelSettings
from .types import InferenceRequest, InferenceResponse, Parameters


async def get_model_uri(
    settings: ModelSettings, wellknown_filenames: List[str] = []
) -> str:
    """Where the model is.

    A URI with a scheme other than ``file`` is returned as it is. A path is
    relative to the settings' file. A folder gives the first well-known file
    in it, else itself; what does not exist raises InvalidModelURI.
    """
    uri = settings.parameters.uri if settings.parameters else None
    if not uri:
        raise InvalidModelURI(settings.name)
    parts = urllib.parse.urlparse(uri, scheme="file")
    if parts.scheme != "file":
        return uri
    path = to_absolute_path(settings, parts.path)
    if os.path.isfile(path):
        return path
    if not os.path.isdir(path):
        raise InvalidModelURI(settings.name, path)
    candidates = (os.path.join(path, name) for name in wellknown_filenames)
    return next(filter(os.path.isfile, candidates), path)


def to_absolute_path(model_settings: ModelSettings, uri: str) -> str:
    """``uri`` relative to the settings' file, where there is one."""
    if model_settings._source is None:
        return uri
    folder = os.path.dirname(model_settings._source)
    return os.path.normpath(os.path.join(folder, uri))


def generate_uuid() -> str:
    """A random UUID."""
    return str(uuid.uuid4())


def get_wrapped_method(f: Callable) -> Callable:
    """The function under all decorators."""
    while hasattr(f, "__wrapped__"):
        f = f.__wrapped__
    return f


def insert_headers(
    inference_request: InferenceRequest, headers: Dict[str, str]
) -> InferenceRequest:
    """Puts the transport's headers into the request's parameters."""
    if inference_request.parameters is None:
        inference_request.parameters = Parameters()
    inference_request.parameters.headers = headers
    return inference_request


def extract_headers(inference_response: InferenceResponse) -> Optional[Dict[str, str]]:
    """Takes the headers out of the response's parameters."""
    parameters = inference_response.parameters
    if parameters is None or parameters.headers is None:
        return None
    headers, parameters.headers = parameters.headers, None
    return headers
