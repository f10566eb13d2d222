"""Another user can exchange an archive of an environment: nothing of his is run, and nothing of the user's is changed.

Needs root, who can be both users.
"""

from __future__ import annotations

import io
import os
import stat
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.environment import archives
from tests.two_users import as_somebody_else

pytestmark = pytest.mark.root


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A folder like /tmp. pytest's own are below one that nobody else may enter."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(os.path.realpath(name))
        folder.chmod(0o1777)
        yield folder


def packed(path: Path, *members: tuple[str, bytes, str]) -> None:
    with tarfile.open(path, "w") as tar:
        for name, kind, to in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, to
            member.size, member.mode = (4 if member.isfile() else 0), 0o777
            tar.addfile(member, io.BytesIO(b"evil"))


@pytest.fixture
def their_archive(open_to_all: Path) -> Path:
    path = open_to_all / "env.tar"
    as_somebody_else(lambda: packed(path, ("module.py", tarfile.REGTYPE, "")))
    return path


@pytest.mark.parametrize("to", ["{0}", "../{1}"])
def test_no_hard_link_of_theirs_reaches_a_file_of_the_user(open_to_all: Path, tmp_path: Path, to: str) -> None:
    """With it the next member would be written into that file, with the user's rights."""
    secret = open_to_all / "secret"
    secret.write_text("mine")
    secret.chmod(0o600)
    path, link = open_to_all / "env.tar", to.format(secret, secret.name)
    as_somebody_else(lambda: packed(path, ("module.py", tarfile.LNKTYPE, link), ("module.py", tarfile.REGTYPE, "")))
    with pytest.raises(archives.ArchiveError, match=r"module\.py is a hard link to"):
        archives.unpack(path, open_to_all / "out", archives.digest_of(path))
    found = secret.stat()
    assert (secret.read_text(), stat.S_IMODE(found.st_mode), found.st_nlink) == ("mine", 0o600, 1)


def test_an_archive_of_theirs_is_compared_before_anything_of_it_is_unpacked(
    their_archive: Path, open_to_all: Path
) -> None:
    digest = archives.digest_of(their_archive)
    as_somebody_else(lambda: packed(their_archive, ("evil.py", tarfile.REGTYPE, "")))
    with pytest.raises(archives.ArchiveError, match="has changed since the run was submitted"):
        archives.unpack(their_archive, open_to_all / "out", digest)
    assert not [*(open_to_all / "out").iterdir()]


def test_what_is_unpacked_is_a_copy_that_they_can_neither_change_nor_find(
    their_archive: Path, open_to_all: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest, real = archives.digest_of(their_archive), tarfile.open

    def exchange() -> list[str]:
        """Into the file that has been read; what else he can write to in the folder."""
        with open(their_archive, "r+b") as file, open(their_archive, "rb"):
            file.write(b"\0" * 1024)
        packed(open_to_all / "evil.tar", ("evil.py", tarfile.REGTYPE, ""))
        os.replace(open_to_all / "evil.tar", their_archive)
        return [path.name for path in open_to_all.rglob("*") if path != their_archive and os.access(path, os.W_OK)]

    def then(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(tarfile, "open", real)
        assert as_somebody_else(exchange) == []
        return real(*arguments, **options)

    monkeypatch.setattr(tarfile, "open", then)
    archives.unpack(their_archive, open_to_all / "out", digest)
    assert [path.name for path in (open_to_all / "out").iterdir()] == ["module.py"]
    assert archives.digest_of(their_archive) != digest

    def seen() -> list[str]:
        return [path.name for path in (open_to_all / "out").iterdir()]

    with pytest.raises(AssertionError, match="the other user's process failed"):
        as_somebody_else(seen)


def test_a_place_for_it_that_they_have_taken_is_not_used(their_archive: Path, open_to_all: Path) -> None:
    digest = archives.digest_of(their_archive)
    place = open_to_all / f"launcher-{os.getuid()}-{digest[:16]}"
    as_somebody_else(lambda: place.mkdir(mode=0o700))
    with pytest.raises(archives.ArchiveError, match="is not a private folder of yours"):
        archives.enter(their_archive, digest, str(open_to_all))
    assert not [*place.iterdir()]
