"""Checkpoints that somebody outside the training asks for: a notice of pre-emption, a resize."""

from __future__ import annotations


class CheckpointRequests:
    """Those asked for on one rank; the ranks agree at their next step, and rank 0 saves.

    Plain counters, because a signal handler asks: no lock could be taken there. One thread asks,
    the training thread answers.
    """

    def __init__(self) -> None:
        self._asked = 0
        self._answered = 0
        self._is_closed = False

    def ask(self) -> int:
        """Ask for a checkpoint of the step that is running or the next one; returns its number."""
        self._asked += 1
        return self._asked

    def newest(self) -> int:
        """Return the number of the newest request; 0 before the first."""
        return self._asked

    def is_waiting(self, number: int) -> bool:
        """Say whether that request still waits for its checkpoint."""
        return self._answered < number and not self._is_closed

    def answer(self, number: int) -> None:
        """Note that the requests up to that one have their checkpoint."""
        self._answered = max(self._answered, number)

    def close(self) -> None:
        """Note that the training has ended: whoever waits need not."""
        self._is_closed = True
