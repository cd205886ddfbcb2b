"""Runtimes of our own, for the formats that MLServer has none for and for
machines without its packages.

Each module imports its library when a model is loaded; a library that is
missing is an error with the line that installs it. They are written against
``mlserver``, the real package or the light one, as any runtime is.
"""
