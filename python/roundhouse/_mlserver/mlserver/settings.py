"""A model's settings, as model-settings.json has them.

Environment variables and defaults are the server's business: what arrives
here is resolved.
"""

import importlib
import inspect
import json
import os
import sys
import uuid
from typing import Any, Dict, List, Optional, Type

import pydantic
from pydantic import ConfigDict, Field, PrivateAttr

from .types import MetadataTensor


class BaseSettings(pydantic.BaseModel):
    """Settings are named by their aliases and leave out what was not set."""

    model_config = ConfigDict(protected_namespaces=(), populate_by_name=True)

    def model_dump(self, by_alias=True, exclude_unset=True, exclude_none=True, **kw):
        """As pydantic's, by alias, without unset and null fields."""
        return super().model_dump(
            by_alias=by_alias,
            exclude_unset=exclude_unset,
            exclude_none=exclude_none,
            **kw,
        )


class Settings(BaseSettings):
    """The server's settings. A worker is told only what concerns it."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    debug: bool = False
    parallel_workers: int = 1
    server_name: str = "mlserver"


class ModelParameters(BaseSettings):
    """What can differ between two instances of a model."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    uri: Optional[str] = None
    version: Optional[str] = None
    environment_path: Optional[str] = None
    environment_tarball: Optional[str] = None
    inference_pool_gid: Optional[str] = None
    autogenerate_inference_pool_gid: bool = False
    format: Optional[str] = None
    content_type: Optional[str] = None
    extra: Optional[Dict[str, Any]] = {}

    def model_post_init(self, _context: Any) -> None:
        """Makes up the pool's name where that is asked for."""
        if self.autogenerate_inference_pool_gid and self.inference_pool_gid is None:
            self.inference_pool_gid = str(uuid.uuid4())


class ModelSettings(BaseSettings):
    """One model: what it is, which class runs it, and how."""

    model_config = ConfigDict(
        extra="ignore", protected_namespaces=(), populate_by_name=True
    )

    _source: Optional[str] = PrivateAttr(default=None)

    implementation_: str = Field(
        validation_alias="implementation", serialization_alias="implementation"
    )
    name: str = ""
    platform: str = ""
    versions: List[str] = []
    inputs: List[MetadataTensor] = []
    outputs: List[MetadataTensor] = []
    parallel_workers: Optional[int] = None
    warm_workers: bool = False
    max_batch_size: int = 0
    max_batch_time: float = 0.0
    cache_enabled: bool = False
    parameters: Optional[ModelParameters] = None

    def __init__(self, **fields: Any):
        source = fields.pop("_source", None)
        implementation = fields.get("implementation")
        if inspect.isclass(implementation):
            fields["implementation"] = _import_path(implementation)
        super().__init__(**fields)
        self._source = source

    @classmethod
    def parse_file(cls, path: str) -> "ModelSettings":
        """Reads a model-settings.json."""
        with open(path, encoding="utf-8") as file:
            return cls(**{**json.load(file), "_source": path})

    @classmethod
    def model_validate(cls, obj: Any, **_options: Any) -> "ModelSettings":
        """Settings from a dict, which may hold ``_source``."""
        return obj if isinstance(obj, cls) else cls(**obj)

    @property
    def implementation(self) -> Type:
        """The class that runs the model, imported when asked for."""
        folder = os.path.dirname(self._source) if self._source else None
        if folder is None:
            return _import(self.implementation_)
        sys.path.insert(0, folder)
        try:
            return _import(self.implementation_)
        finally:
            sys.path.remove(folder)

    @implementation.setter
    def implementation(self, value: Type) -> None:
        self.implementation_ = _import_path(value)

    @property
    def version(self) -> Optional[str]:
        """The version that the parameters name."""
        return self.parameters.version if self.parameters else None


def _import_path(cls: Type) -> str:
    return f"{cls.__module__}.{cls.__name__}"


def _import(path: str) -> Type:
    module, _, name = path.replace(":", ".").rpartition(".")
    return getattr(importlib.import_module(module), name)
