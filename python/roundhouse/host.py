"""The models of one worker: loading, unloading, and finding them."""

import asyncio
import inspect
import logging
import os
from contextlib import contextmanager
from typing import Any, Dict, Iterator, Optional, Set

from pydantic import ValidationError

from . import http, scope
from .bridge import Bridge
from .faults import Fault, missing, pydantic_fault
from .reports import model_key

log = logging.getLogger("roundhouse")
_MAX_KEY = 512


class Hosted:
    """One instance of a model."""

    def __init__(self, key: str, instance: Any, modules: Optional[scope.Scope]):
        self.key = key
        self.instance = instance
        self.modules = modules
        self.handlers = http.handlers(instance)
        self.tasks: Set[asyncio.Task] = set()
        self.told_ready = False


class Host:
    """Loads models, one after another, and keeps them by key."""

    def __init__(self, bridge: Bridge):
        self.bridge = bridge
        self.models: Dict[str, Hosted] = {}
        self._loading: Set[str] = set()
        self._one_load = asyncio.Lock()

    def get(self, key: Any, ready: bool = True) -> Hosted:
        """The model of a key. Raises where it is unknown or not ready."""
        hosted = self.models.get(key)
        if hosted is None:
            raise Fault("not_found", f"no model is loaded under the key {key!r}")
        if ready and not hosted.instance.ready:
            name, version = hosted.instance.name, hosted.instance.version
            raise self.bridge.errors.ModelNotReady(name, version)
        return hosted

    @contextmanager
    def working_for(self, hosted: Hosted) -> Iterator[Any]:
        """Has imports, metrics and logs know whose code runs in this task."""
        if hosted.modules is not None:
            hosted.modules.enter()
        token = model_key.set(hosted.key)
        try:
            with self.bridge.context.model_context(hosted.instance.settings):
                yield hosted.instance
        finally:
            model_key.reset(token)

    async def load(self, frame: dict) -> dict:
        """Loads the model of a ``load`` frame; the result's fields."""
        key = frame.get("model")
        if not isinstance(key, str) or not 0 < len(key.encode()) <= _MAX_KEY:
            raise Fault("invalid", "a load needs a key of 1 to 512 bytes in 'model'")
        if key in self.models or key in self._loading:
            raise Fault("invalid", f"the key {key!r} is taken")
        self._loading.add(key)
        try:
            async with self._one_load:
                hosted = await self._load(key, frame)
            self.models[key] = hosted
        finally:
            self._loading.discard(key)
        return await self.describe(hosted)

    async def _load(self, key: str, frame: dict) -> Hosted:
        folder = frame.get("folder")
        options = frame.get("options") or {}
        modules = None
        if folder and options.get("isolate", True):
            modules = scope.Scope(folder)
            modules.enter()
        model_key.set(key)
        try:
            settings = self._settings(frame.get("settings"), folder)
            implementation = self._implementation(settings, modules, folder)
            hosted = Hosted(key, implementation(settings), modules)
            with self.working_for(hosted) as instance:
                loaded = await instance.load()
                instance.ready = bool(loaded)
        except BaseException:
            if modules is not None:
                modules.close()
            raise
        hosted.told_ready = bool(hosted.instance.ready)
        return hosted

    def _settings(self, given: Any, folder: Optional[str]) -> Any:
        if not isinstance(given, dict):
            raise Fault("unprocessable", "a load needs the model's settings")
        given = dict(given)
        if folder:
            given["_source"] = os.path.join(folder, "model-settings.json")
        try:
            return self.bridge.settings.ModelSettings.model_validate(given)
        except ValidationError as error:
            raise pydantic_fault(error, "unprocessable", "the model's settings") from error

    def _implementation(
        self, settings: Any, modules: Optional[scope.Scope], folder: Optional[str]
    ) -> Any:
        path = settings.implementation_.replace(":", ".")
        module, _, name = path.rpartition(".")
        if not module:
            raise Fault(
                "unprocessable",
                f"implementation {path!r} is no import path such as models.MyRuntime",
            )
        try:
            if modules is None:
                return getattr(scope._import_module(module), name)
            return getattr(modules.import_module(module), name)
        except ModuleNotFoundError as error:
            top = module.partition(".")[0]
            if error.name not in (top, module):
                raise
            if top.startswith("mlserver_"):
                raise missing(top, f"implementation {path!r}") from error
            raise Fault(
                "unprocessable",
                f"implementation {path!r}: there is no module {error.name!r} in "
                f"{folder or 'sys.path'} and none is installed",
            ) from error
        except AttributeError as error:
            raise Fault("unprocessable", f"implementation {path!r}: {error}") from error

    async def unload(self, key: Any, grace: float) -> None:
        """Finishes the model's requests, at most ``grace`` seconds, and frees it."""
        hosted = self.get(key, ready=False)
        del self.models[key]
        if hosted.tasks:
            _, late = await asyncio.wait(list(hosted.tasks), timeout=grace)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=5)
        try:
            with self.working_for(hosted) as instance:
                await instance.unload()
        finally:
            if hosted.modules is not None:
                hosted.modules.close()

    async def unload_all(self, limit: float) -> None:
        """Unloads everything; what fails or takes too long is logged."""
        jobs = [asyncio.ensure_future(self.unload(k, 0)) for k in list(self.models)]
        if not jobs:
            return
        done, late = await asyncio.wait(jobs, timeout=limit)
        for job in late:
            job.cancel()
        for job in done:
            if not job.cancelled() and job.exception():
                log.warning("a model failed to unload: %s", job.exception())

    async def describe(self, hosted: Hosted) -> dict:
        """The fields of a result about a model as it is now."""
        with self.working_for(hosted) as instance:
            metadata = instance.metadata()
            if inspect.isawaitable(metadata):
                metadata = await metadata
        described = metadata.model_dump(mode="json")
        version = getattr(instance, "version", None)
        if version:
            described["version"] = version
        base = self.bridge.model.MLModel
        return {
            "metadata": described,
            "ready": bool(instance.ready),
            "handlers": [
                {"name": name, **handler.mark.model_dump()}
                for name, handler in hosted.handlers.items()
            ],
            "streams": type(instance).predict_stream is not base.predict_stream,
        }
