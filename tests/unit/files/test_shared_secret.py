"""A secret is made once, whole, for its owner alone; what is not as it should be is refused."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from launcher.files import folder_checks
from launcher.files.folder_checks import SECRET_BYTES, SECRET_VARIABLE, SecretError, secret_of_file, secret_of_user


def test_whoever_comes_first_makes_it_and_all_others_read_the_same(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: secret_of_file(tmp_path / "secret"), range(32)))
    assert len(found) == 1 and len(found.pop()) == SECRET_BYTES
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600


def test_two_files_have_two_secrets(tmp_path: Path) -> None:
    assert secret_of_file(tmp_path / "a") != secret_of_file(tmp_path / "b")


@pytest.mark.parametrize(
    ("content", "mode", "text"), [(b"short", 0o600, "is damaged"), (b"x" * 32, 0o640, "others can read")]
)
def test_what_others_could_know_or_have_changed_is_refused(
    tmp_path: Path, content: bytes, mode: int, text: str
) -> None:
    path = tmp_path / "secret"
    path.write_bytes(content)
    path.chmod(mode)
    with pytest.raises(SecretError, match=text):
        secret_of_file(path)


def test_the_users_own_is_in_the_folder_of_settings_or_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAUNCHER_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)
    assert secret_of_user() == secret_of_user() == (tmp_path / "config" / "secret").read_bytes()
    monkeypatch.setenv(SECRET_VARIABLE, "given to all ranks")
    assert secret_of_user() == b"given to all ranks"
    monkeypatch.setenv(SECRET_VARIABLE, "short")
    with pytest.raises(SecretError, match="has 5 characters, too few: use 16"):
        secret_of_user()


def test_where_none_can_be_made_the_error_says_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("LAUNCHER_CONFIG_DIR", str(tmp_path / "file" / "below"))
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)
    with pytest.raises(SecretError, match="set LAUNCHER_SECRET to the same random text"):
        secret_of_user()


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_a_secret_is_not_replaced_when_the_file_server_does_not_respond(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    path, link = tmp_path / "secret", os.link

    def fail(source: Path, target: Path) -> None:
        link(source, target)  # the answer is lost
        path.write_bytes(b"x" * SECRET_BYTES)  # or another process has made it
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", fail)
    with pytest.raises(OSError):
        folder_checks.make_secret(path)
    assert path.read_bytes() == b"x" * SECRET_BYTES
