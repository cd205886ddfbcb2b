"""Custom handlers: methods of a model that answer HTTP requests."""

from .custom import CustomHandler, custom_handler, get_custom_handlers

__all__ = ["CustomHandler", "custom_handler", "get_custom_handlers"]
