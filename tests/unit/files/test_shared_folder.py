"""Whether nodes see the folder of runs, as far as that can be told before anything is submitted."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.errors import ConfigError
from launcher.files import folder_checks

HERE = ("login", "localhost")


@pytest.mark.parametrize(
    ("kind", "seen", "nodes", "note"),
    [
        ("nfs4", False, ["n1"], None),
        ("lustre", False, ["n1"], None),
        ("", False, ["n1"], None),  # nobody knows
        ("tmpfs", False, ["login"], None),
        ("tmpfs", True, ["n1"], None),
        ("ext4", True, ["n1"], None),
        ("ext4", False, [], None),
        ("xfs", False, ["n1", "login"], "runs_dir=/runs is on xfs, usually a local disk: unless this machine "
                                        "exports it to the compute nodes, the job will never start"),
    ],
)  # fmt: skip
def test_a_note_where_nodes_may_not_see_it(kind: str, seen: bool, nodes: list[str], note: str | None) -> None:
    assert folder_checks.check_visible(Path("/runs"), kind, seen=seen, nodes=nodes, here=HERE) == note


@pytest.mark.parametrize("kind", folder_checks.IN_MEMORY)
def test_what_no_node_can_see_is_refused(kind: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        folder_checks.check_visible(Path("/dev/shm/runs"), kind, seen=False, nodes=["n2", "n1"], here=HERE)
    assert str(refusal.value) == (
        f"runs_dir=/dev/shm/runs is in this machine's memory ({kind}), and n1, n2 cannot see it: set runs_dir (or "
        "LAUNCHER_RUNS_DIR) to a folder that all nodes share"
    )
