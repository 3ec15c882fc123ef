from __future__ import annotations

import pickle

import pytest
from ray.train import ControllerError, WorkerGroupError

from pipeline.errors import (
    ClusterError,
    ConfigError,
    ConflictError,
    CorruptError,
    LastingStorageError,
    StorageError,
    TrainingError,
)
from pipeline.ray_session import our_error
from trainer.cluster.failure_policy import LastingFailures, healed_by_restart
from trainer.cluster.worker import faults_told

LASTING = (
    ClusterError,
    ConfigError,
    ConflictError,
    CorruptError,
    LastingStorageError,
    TrainingError,
)


@pytest.mark.parametrize("kind", LASTING)
def test_what_the_next_attempt_would_meet_again_is_not_healed(kind: type[Exception]) -> None:
    assert not healed_by_restart(kind("shard: bytes were changed"))


@pytest.mark.parametrize(
    "error",
    [
        StorageError("the store does not answer"),
        RuntimeError("Connection closed by peer"),
        ConnectionResetError(),
    ],
)
def test_what_was_lost_may_come_back(error: Exception) -> None:
    assert healed_by_restart(error)


def test_the_lasting_failure_of_any_worker_ends_the_run_with_itself() -> None:
    lost, corrupt = RuntimeError("Connection closed by peer"), CorruptError("bytes were changed")
    with pytest.raises(CorruptError, match="bytes were changed"):
        LastingFailures().after_exception(None, {0: lost, 1: corrupt})
    gone = LastingStorageError("s.arrow: cannot read: NoSuchKey")
    with pytest.raises(LastingStorageError, match=r"s\.arrow"):
        LastingFailures().after_exception(None, {0: StorageError("no answer"), 1: gone})
    LastingFailures().after_exception(None, {0: lost, 1: StorageError("no answer")})


def test_a_fault_of_the_program_ends_the_run_and_says_on_which_rank_and_where() -> None:
    told = r"rank 1: KeyError: 'x'\n.* \(.*policy\.py:\d+\)"
    with pytest.raises(TrainingError, match=told), faults_told(1):
        {}["x"]
    for error in (RuntimeError("Connection closed by peer"), ConfigError("batch_size"), OSError()):
        with pytest.raises(type(error)) as raised, faults_told(1):
            raise error
        assert raised.value is error


@pytest.mark.parametrize("pickled", [False, True])
def test_the_command_finds_its_own_error_in_those_of_the_trainer(pickled: bool) -> None:
    corrupt = CorruptError("bytes were changed")
    for error in (
        ControllerError(corrupt),
        WorkerGroupError("two workers failed", {0: RuntimeError("lost"), 1: corrupt}),
    ):
        found = our_error(pickle.loads(pickle.dumps(error)) if pickled else error)
        assert isinstance(found, CorruptError)
        assert str(found) == "bytes were changed"
