from __future__ import annotations

from typing import Any

import pytest

from pipeline.errors import ConfigError
from trainer.settings.schedule import ScheduleConfig


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"warmup_steps": -1}, "schedule.warmup_steps = -1"),
    ],
)
def test_value_out_of_range_is_refused_by_name(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ScheduleConfig(**values)
