"""What the trainer's tests share."""

from __future__ import annotations

import torch

# The models are so small that threads cost more than they bring: four times the CPU time on a
# machine with other work.
torch.set_num_threads(1)
