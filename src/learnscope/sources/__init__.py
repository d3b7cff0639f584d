"""Rows from files, folders and the hub, and a text that comes with Python; without torch."""

from learnscope.sources.builtin_text import builtin_rows
from learnscope.sources.errors import SourceError
from learnscope.sources.reading import Split, read_rows

__all__ = ["SourceError", "Split", "builtin_rows", "read_rows"]
