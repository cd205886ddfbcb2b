"""Requests merged into one, and responses split again."""

from .requests import BatchedRequests

__all__ = ["BatchedRequests"]
