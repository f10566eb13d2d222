"""Reads what W&B wrote offline: records of protobuf in the blocks of LevelDB's log."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK, BEGINS_AT = 32768, 7


def folders(run: Path) -> list[Path]:
    """One for each start of rank 0, the oldest first."""
    return sorted((run / "wandb").glob("offline-run-*"))


def history(folder: Path) -> tuple[str, list[dict[str, Any]]]:
    """The id of the run, and its rows."""
    (file,) = folder.glob("*.wandb")
    identity, rows = "", []
    for record in _records(file.read_bytes()):
        if record.WhichOneof("record_type") == "run":
            identity = record.run.run_id
        if record.WhichOneof("record_type") == "history":
            items = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
            rows.append(items)
    return identity, rows


def _records(data: bytes) -> Iterator[Any]:
    from wandb.proto.wandb_internal_pb2 import Record

    at, whole = BEGINS_AT, b""
    while at + 7 <= len(data):
        if BLOCK - at % BLOCK < 7:  # no room for a head
            at += BLOCK - at % BLOCK
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # the whole of a record, or its last part
            record = Record()
            record.ParseFromString(whole)
            whole = b""
            yield record
