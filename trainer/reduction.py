"""Gradients summed over the ranks while the backward pass still runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup, Work, all_reduce

_BUCKET_BYTES = 25_000_000


class GradientReduction:
    """The sums of one step, in buckets of one fixed order: the model's parameters from the last on.

    That is about the order in which their gradients come. A bucket goes out as soon as its last
    gradient is there and the buckets before it are out; so every rank sends the same ones in the
    same order, and a resumed run adds as an undisturbed one does. (torch's DDP lays its buckets out
    anew after the first step, which is not bit-equal at three ranks.)
    """

    def __init__(self, parameters: Iterable[nn.Parameter], group: ProcessGroup | None) -> None:
        self._parameters = list(parameters)[::-1]
        self._group = group
        self._buckets = _buckets(self._parameters) if group is not None else []
        self._missing = [len(bucket) for bucket in self._buckets]
        self._sent: list[tuple[Tensor, Work | None]] = []

    @contextmanager
    def overlapping(self) -> Iterator[None]:
        """Send gradients as the backward pass in the block, the step's last one, completes them."""
        hooks = [
            parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                partial(self._arrived, number)
            )
            for number, bucket in enumerate(self._buckets)
            for parameter in bucket
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def send_rest(self) -> None:
        """Send what is left; a rank without any micro-batch adds zero to every sum."""
        for parameter in self._parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        while len(self._sent) < len(self._buckets):
            self._send()

    def wait(self) -> list[Tensor]:
        """Wait for the sums and return the gradients, which they now are."""
        for bucket, (flat, work) in zip(self._buckets, self._sent, strict=True):
            if work is not None:
                work.wait()
            gradients = _gradients(bucket)
            parts = torch.split(flat, [gradient.numel() for gradient in gradients])
            pairs = zip(parts, gradients, strict=True)
            torch._foreach_copy_(gradients, [part.view_as(one) for part, one in pairs])
        return _gradients(self._parameters)

    def _arrived(self, number: int, _: nn.Parameter) -> None:
        self._missing[number] -= 1
        while len(self._sent) < len(self._buckets) and self._missing[len(self._sent)] == 0:
            self._send()

    def _send(self) -> None:
        bucket = self._buckets[len(self._sent)]
        flat = torch.cat([gradient.reshape(-1) for gradient in _gradients(bucket)])
        self._sent.append((flat, all_reduce(flat, group=self._group, async_op=True)))


def _gradients(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def _buckets(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    buckets: list[list[nn.Parameter]] = []
    size = _BUCKET_BYTES
    for parameter in parameters:
        if size >= _BUCKET_BYTES:
            buckets.append([])
            size = 0
        buckets[-1].append(parameter)
        size += parameter.nbytes
    return buckets
