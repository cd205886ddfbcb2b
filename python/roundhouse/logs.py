"""The server's logging settings, in a worker."""

import json
import logging
import logging.config
import os

# The loggers whose records the server takes.
NAMES = ("mlserver", "roundhouse")


def configure() -> None:
    """Applies debug and logging_settings as MLServer does.

    The loggers that the configuration gives handlers are its own from then on;
    the others keep those they have. One that cannot be applied is logged and
    changes nothing else.
    """
    log = logging.getLogger("roundhouse")
    if os.environ.get("ROUNDHOUSE_DEBUG"):
        for name in NAMES:
            logging.getLogger(name).setLevel(logging.DEBUG)
    settings = os.environ.get("ROUNDHOUSE_LOGGING", "")
    if not settings:
        return
    kept = {name: list(logging.getLogger(name).handlers) for name in ("", *NAMES)}
    problem = None
    try:
        _apply(settings)
    except Exception as error:
        problem = error
    for name, handlers in kept.items():
        logger = logging.getLogger(name)
        logger.disabled = False
        if not logger.handlers:
            logger.handlers = handlers
    if problem is not None:
        log.warning("logging_settings cannot be applied: %s", problem)


def _apply(settings: str) -> None:
    if settings.lstrip().startswith("{"):
        logging.config.dictConfig(json.loads(settings))
    elif "json" in os.path.splitext(settings)[1]:
        with open(settings, encoding="utf-8") as file:
            logging.config.dictConfig(json.load(file))
    else:
        logging.config.fileConfig(settings, disable_existing_loggers=False)
