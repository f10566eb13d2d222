"""`checkpoint`: what a training that goes on does to its checkpoints while they are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from launcher.checkpoint import format as checkpoints
from launcher.cli import checkpoint, commands
from launcher.errors import RunError
from launcher.reports import collect


@pytest.mark.parametrize(("what", "verdict"), [("gone", "removed meanwhile"), ("aside", "damaged"), (None, "damaged")])
def test_a_checkpoint_that_its_training_removes_meanwhile_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], what: str | None, verdict: str
) -> None:
    folder, read = tmp_path / "checkpoints", checkpoints.read
    listed = folder / checkpoints.name_of(100)
    listed.mkdir(parents=True)

    def later(path: Path, *arguments: Any) -> checkpoints.Manifest:
        if what is not None:
            listed.rename(folder / checkpoints.temporary(100, 0, what))
        return read(path, *arguments)

    def again() -> None:
        for path in folder.iterdir():
            path.rename(listed)

    monkeypatch.setattr(checkpoints, "read", later)
    removed = verdict == "removed meanwhile"
    assert commands.main(["checkpoint", "verify", str(folder)]) == (0 if removed else 1)
    assert capsys.readouterr().out.splitlines()[0] == f"step 100: {verdict}"
    again()
    rows = list(checkpoint._rows(checkpoint.NamedCheckpoints("a", folder, None)))
    assert [row["step"] for row in rows] == ([] if removed else [100])
    again()
    problems: list[str] = []
    assert collect._checkpoints(folder, problems) == ()
    assert len(problems) == (0 if removed else 1)


def test_a_folder_below_the_home_of_an_unknown_user_is_not_there() -> None:
    with pytest.raises(RunError, match="~nobodyx/checkpoints does not exist"):
        commands.main(["checkpoint", "list", "~nobodyx/checkpoints"])
