"""The logger that runtimes write to. The worker forwards its records."""

import logging

LoggerName = "mlserver"

logger = logging.getLogger(LoggerName)


def get_logger() -> logging.Logger:
    """The logger named ``mlserver``."""
    return logger


def configure_logger(settings=None) -> logging.Logger:
    """Sets the level only: where records go is the host's business."""
    debug = bool(settings is not None and getattr(settings, "debug", False))
    logger.setLevel(logging.DEBUG if debug else logging.INFO)
    return logger
