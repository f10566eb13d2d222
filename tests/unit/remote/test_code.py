"""The list of the code's files, and the folder that is made of it on the other side."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest.mock import Mock

import pytest

from launcher.cli import ssh_serve
from launcher.environment import code_files
from launcher.environment.code_files import SENT, Tree, commit_of, sent_tree, tree
from launcher.errors import ConfigError, RunError
from launcher.remote import ssh
from launcher.remote.clusters import RemoteCluster

NAMES = ("train.py", "pkg/a b.py", "pkg/näme\n'x'.py", "tool.sh", "-dash", os.fsdecode(b"raw-\xff.py"))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    monkeypatch.setenv("LAUNCHER_CACHE_DIR", str(tmp_path / "cache"))
    root = tmp_path / "project"
    for name in NAMES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(os.fsencode(name))
    (root / "tool.sh").chmod(0o755)
    (root / "link").symlink_to(root / "tool.sh")
    (root / "out").symlink_to("/etc/hostname")
    return Tree(root, dict.fromkeys((*NAMES, "link", "out", "deleted"), 1))


class Sender:
    """This side; `asked` are the contents that the other one wanted, one list for each folder."""

    def __init__(self, found: Tree) -> None:
        self.tree, (self.files, self.left_out) = found, code_files.listed(found)
        self.asked: list[Sequence[str]] = []

    def __call__(self) -> Path:
        return ssh_serve.receive({"files": self.files, "commit": "abc+"}, code_files.digest_of(self.files), self._fetch)

    def _fetch(self, wanted: Sequence[str]) -> Callable[[int], bytes]:
        self.asked.append(wanted)
        data = bytearray()
        ssh.SentCode(self.tree, self.files, {}).send(wanted, data.extend)

        def read(size: int) -> bytes:
            part = bytes(data[:size])
            del data[:size]
            return part

        return read


def test_the_folder_there_is_the_code_here(here: Tree) -> None:
    sender = Sender(here)
    assert sender.left_out == ["out"]
    folder = sender()
    for name in NAMES:
        assert (folder / name).read_bytes() == os.fsencode(name)
    assert os.readlink(folder / "link") == "tool.sh"
    assert os.access(folder / "tool.sh", os.X_OK) and not os.access(folder / "train.py", os.X_OK)
    assert tree(str(folder / "pkg")).files.keys() == {*NAMES, "link", SENT}
    assert commit_of(str(folder)) == "abc+"
    assert (found := sent_tree(str(folder))) is not None and found.digest == folder.name
    assert ssh_serve.folder_of(folder.name) == folder
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_only_contents_that_are_new_are_asked_for(here: Tree) -> None:
    Sender(here)()
    (here.root / "train.py").write_text("changed")
    sender = Sender(here)
    folder = sender()
    assert [len(each) for each in sender.asked] == [1]
    assert (folder / "train.py").read_text() == "changed"
    (folder / "pkg/a b.py").write_text("edited there")
    (here.root / "more.py").touch()
    again = Sender(Tree(here.root, {**here.files, "more.py": 0}))
    assert (again() / "pkg/a b.py").read_text() == "pkg/a b.py"


@pytest.mark.parametrize("damage", ["edit", "remove", "list"])
def test_a_folder_that_was_changed_is_not_the_code(here: Tree, damage: str) -> None:
    folder = Sender(here)()
    if damage == "edit":
        (folder / "train.py").write_text("TRAIN.PY")
        os.utime(folder / "train.py", ns=(2**62, 2**62))
    elif damage == "remove":
        (folder / "train.py").unlink()
    else:
        (folder / SENT).write_text("{")
    assert ssh_serve.folder_of(folder.name) is None
    assert ssh_serve.folder_of("0" * 64) is None
    assert (Sender(here)() / "train.py").read_text() == "train.py"


def test_a_folder_that_cannot_be_read_now_stays(here: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Sender(here)()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", lambda _: (_ for _ in ()).throw(OSError(5, "Input/output error")))
        with pytest.raises(OSError, match="Input/output"):
            ssh_serve.folder_of(folder.name)
    assert ssh_serve.folder_of(folder.name) == folder


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../x", "a/../../x", ".git/hooks/post-checkout", SENT, "", "sub/.git/config"]
)
def test_a_file_that_leads_elsewhere_is_refused(here: Tree, name: str) -> None:
    files = {name: code_files.CodeFile(code_files.FILE, 0, "0" * 64)}
    with pytest.raises(RunError, match="list of the code's files is damaged"):
        ssh_serve.receive({"files": files}, code_files.digest_of(files), lambda _: lambda _: b"")


def test_what_arrives_damaged_leaves_nothing(here: Tree) -> None:
    files, _ = code_files.listed(here)
    with pytest.raises(RunError, match="has arrived damaged"):
        ssh_serve.receive({"files": files}, code_files.digest_of(files), lambda _: lambda size: b"x" * size)
    with pytest.raises(RunError, match="is damaged"):
        ssh_serve.receive({"files": files}, "0" * 64, lambda _: lambda size: b"x" * size)
    assert not list((here.root.parent / "cache/code").iterdir())


def test_a_file_that_changes_while_it_is_sent_is_named(here: Tree) -> None:
    sender = Sender(here)
    with (here.root / "train.py").open("a") as file:
        file.write("what is appended is no part of it")
    assert (sender() / "train.py").read_text() == "train.py"
    (here.root / "train.py").write_text("other.py")
    sender = Sender(here)
    (here.root / "train.py").write_text("later")
    with pytest.raises(ConfigError, match=r"train\.py was changed while the code was sent"):
        sender()
    (here.root / "train.py").unlink()
    with pytest.raises(ConfigError, match=r"train\.py was changed while the code was sent"):
        sender()


def test_files_are_read_in_pieces(here: Tree) -> None:
    (here.root / "large.bin").write_bytes(bytes(2 * code_files.PIECE + 5))
    pieces: list[bytes] = []
    file = code_files.read_file(here.root, "large.bin", pieces.append)
    assert file is not None and file.size == 2 * code_files.PIECE + 5
    assert [len(each) for each in pieces] == [code_files.PIECE, code_files.PIECE, 5]


@pytest.fixture
def repo(here: Tree, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """The working folder, with a file that is too large to be read."""
    monkeypatch.chdir(here.root)
    monkeypatch.setattr(ssh, "tree", lambda *_: Tree(here.root, {**here.files, "model.ckpt": 40 << 30}))
    return here


def cluster(*exclude: str) -> RemoteCluster:
    return RemoteCluster("hpc", Path("hpc.yaml"), "me@hpc", exclude=exclude)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], r"(?s)the code in .* is 40G .*env\.snapshot_limit=100M. The largest:\n +40G  model\.ckpt"),
        (["env.snapshot_limit=2X"], "env.snapshot_limit: '2X' is not a size"),
    ],
)
def test_code_that_is_too_large_is_refused_before_any_of_it_is_read(
    repo: Tree, words: list[str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_files, "read_file", lambda *_: pytest.fail("it was read"))
    with pytest.raises(ConfigError, match=told):
        ssh.SentCode.here(cluster(), words)


def test_the_home_in_a_path_is_that_of_each_side(here: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "laptop/venvs/torch").mkdir(parents=True)
    (tmp_path / "cluster/venvs/torch").mkdir(parents=True)
    words = ["env.activate=~/venvs/torch", f"data={tmp_path}/laptop"]
    monkeypatch.chdir(here.root)
    monkeypatch.setattr(ssh, "tree", lambda *_: here)
    monkeypatch.setenv("HOME", str(tmp_path / "laptop"))
    request = ssh.SentCode.here(cluster(), words).request
    assert request["paths"] == ["~/venvs/torch", f"{tmp_path}/laptop"]
    monkeypatch.setattr(ssh_serve, "_prepare", lambda _: None)
    monkeypatch.setattr(ssh_serve, "launcher", lambda _: 7)
    monkeypatch.setattr(sys, "stdin", sys.stdin)
    monkeypatch.setenv("HOME", str(tmp_path / "cluster"))
    asked = {"arguments": words, "paths": request["paths"]}
    assert ssh_serve._run(asked, Mock()) == 7
    (tmp_path / "cluster/venvs/torch").rmdir()
    with pytest.raises(ConfigError, match=r"^~/venvs/torch is on the machine where you typed this"):
        ssh_serve._run(asked, Mock())


def test_a_file_that_is_fetched_is_written_beside_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A login node's /tmp may be too small for a checkpoint."""
    monkeypatch.setenv("LAUNCHER_RUNS_DIR", str(tmp_path))
    written: list[Path] = []

    def launcher(words: list[str]) -> int:
        written.append(Path(words[-1]))
        written[0].write_text("content")
        return 0

    monkeypatch.setattr(ssh_serve, "_prepare", lambda _: None)
    monkeypatch.setattr(ssh_serve, "launcher", launcher)
    monkeypatch.setattr(sys, "stdin", sys.stdin)
    side = Mock()
    assert ssh_serve._run({"arguments": ["report", "a"], "output": True}, side) == 0
    assert written[0].parent.parent == tmp_path and written[0].parent.name.startswith(".")
    side.tell.assert_called_once_with(file=len("content"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EACCES, errno.EDQUOT])
def test_a_file_is_fetched_though_nothing_can_be_written_beside_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    (runs := tmp_path / "runs").mkdir()
    monkeypatch.setenv("LAUNCHER_RUNS_DIR", str(runs))
    mkdir = os.mkdir

    def refusing(path: str, *mode: int) -> None:
        if Path(path).parent == runs:
            raise OSError(number, os.strerror(number), path)
        mkdir(path, *mode)

    monkeypatch.setattr(os, "mkdir", refusing)
    with ssh_serve._folder_to_send() as folder:
        assert Path(folder).is_dir() and Path(folder).parent != runs


def test_excluded_files_are_neither_read_nor_counted(repo: Tree) -> None:
    files = ssh.SentCode.here(cluster("*.sh", "pkg", "*.ckpt"), []).files
    assert files.keys() == {"train.py", "-dash", NAMES[-1], "link"}


def test_old_folders_are_removed_and_used_ones_stay(here: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh_serve, "KEPT", 2)
    made = []
    for number in range(4):
        (here.root / "train.py").write_text(str(number))
        made.append(Sender(here)())
        os.utime(made[-1], (number, number))
    (stale := made[0].parent / ".part-x").mkdir()
    os.utime(stale, (1, 1))
    (here.root / "train.py").write_text("new")
    Sender(here)()
    assert [folder.is_dir() for folder in made] == [False, False, False, True]
    assert not stale.exists()
