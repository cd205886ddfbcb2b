"""The release of MLServer whose interface this package follows."""

__version__ = "1.7.1"
