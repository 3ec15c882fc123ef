"""A folder goes with its last object, also while another writer is about to use it."""

from __future__ import annotations

import threading
from pathlib import Path

from pipeline.storage import LocalStorage


def test_a_write_into_a_folder_that_is_removed_meanwhile_succeeds(tmp_path: Path) -> None:
    ended = threading.Event()

    def remove() -> None:
        while not ended.is_set():
            LocalStorage(str(tmp_path)).delete("deep/er/gone")

    remover = threading.Thread(target=remove)
    remover.start()
    storage = LocalStorage(str(tmp_path))
    try:
        for number in range(30):
            storage.replace("deep/er/object", b"x")
            storage.delete("deep/er/object")
            assert storage.replace_if("deep/pointer", None, b"y"), number
            storage.delete("deep/pointer")
            storage.delete("deep/pointer.lock")
    finally:
        ended.set()
        remover.join()
