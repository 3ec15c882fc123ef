"""A cluster of several Ray nodes on this machine, whose workers a test finds, ends and replaces."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import psutil

from tests.integration.product import RAY_FOLDER, Command, started
from tests.ports import free_port

WORKER = "ray::RayTrainWorker"


class Nodes:
    """A head without CPUs, where drivers run, and nodes of `cpus` CPUs each."""

    def __init__(self, stack: ExitStack, cpus: int, drain_seconds: int) -> None:
        self._stack = stack
        self._cpus = cpus
        self.address = f"127.0.0.1:{free_port()}"
        settings = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16)}
        # Else the address that Ray keeps for `auto` would be this cluster's also after its end.
        settings["RAY_TMPDIR"] = str(RAY_FOLDER / "nodes")
        self._settings = {**settings, "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": str(drain_seconds)}
        self.join = {**settings, "RAY_ADDRESS": self.address}
        """What a command's environment needs to join it."""
        self.nodes: list[Command] = []
        port = self.address.rpartition(":")[2]
        self._start("--head", f"--port={port}", "--num-cpus=0", "--include-dashboard=false")

    def _start(self, *arguments: str) -> Command:
        memory = "--object-store-memory=100000000"
        start = ("ray", "start", "--block", "--disable-usage-stats", memory, *arguments)
        node = self._stack.enter_context(started(*start, **self._settings))
        node.until(lambda: "Ray runtime started" in node.said(), "the node has started")
        return node

    def add(self) -> Command:
        """Start one more node."""
        self.nodes.append(self._start(f"--address={self.address}", f"--num-cpus={self._cpus}"))
        return self.nodes[-1]

    def worker_of(self, node: Command) -> psutil.Process:
        """Return the training worker of a node as soon as it has one."""
        return node.workers(WORKER)[0]

    def kill(self, node: Command) -> None:
        """`kill -9` a node with all that runs on it."""
        self.nodes.remove(node)
        node.kill()
        for one in node.orphans:
            with suppress(psutil.NoSuchProcess):
                one.kill()

    def give_notice(self, node: Command) -> None:
        """Send a node the SIGTERM that a container's first process gets before it is stopped."""
        self.nodes.remove(node)
        os.kill(node.process.pid, signal.SIGTERM)


@contextmanager
def ray_nodes(count: int, *, cpus: int = 1, drain_seconds: int = 10) -> Iterator[Nodes]:
    """Run a cluster of `count` nodes beside its head; a node told to end does so after a while."""
    with ExitStack() as stack:
        cluster = Nodes(stack, cpus, drain_seconds)
        for _ in range(count):
            cluster.add()
        yield cluster
