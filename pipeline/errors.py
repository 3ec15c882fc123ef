"""The one error tree of both halves: every message says what, where, and what to do."""

from __future__ import annotations


class ClozelineError(Exception):
    """A failure the user can act on; the command line prints it without a traceback."""

    exit_code = 1


class ConfigError(ClozelineError, ValueError):
    """A key or value of the configuration is wrong; names key, value and remedy."""

    exit_code = 2


class InputError(ClozelineError):
    """Raw input is missing, empty or cannot be read; names the file and the byte offset."""


class StorageError(ClozelineError):
    """The store failed at an operation (no space, no answer), and may not fail at the next try."""


class LastingStorageError(StorageError):
    """A failure that the same operation meets again: no such object, no right, a wrong setting."""


class CorruptError(ClozelineError):
    """Stored bytes differ from what their manifest says; names the object and both values."""


class ConflictError(ClozelineError):
    """An immutable object exists already with other bytes; names both checksums."""


class ClusterError(ClozelineError):
    """The Ray cluster cannot be reached or lacks the resources asked for."""


class TrainingError(ClozelineError):
    """A step cannot be done: a batch the model cannot take, a loss that is not finite."""
