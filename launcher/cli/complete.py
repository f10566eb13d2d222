"""`complete`: prints or installs the scripts that complete the launcher's command line in bash, zsh and fish."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from launcher.errors import ConfigError

if TYPE_CHECKING:
    from argparse import Namespace
    from pathlib import Path

SHELLS = ("bash", "zsh", "fish")
WORDS = "LAUNCHER_COMPLETE"  # variable with the words after the program's name, one per line, then a line with a dot


def run(arguments: Namespace) -> int:
    if arguments.candidates:
        return _print_candidates()
    if arguments.shell is not None:
        print(script(_known(arguments.shell)), end="")
        return 0
    if arguments.install is None:
        raise ConfigError(f"give --install, or --print with one of {', '.join(SHELLS)}")
    return _install(_known(arguments.install or os.path.basename(os.environ.get("SHELL", ""))))


def _known(shell: str) -> str:
    if shell not in SHELLS:
        raise ConfigError(f"there is no completion for {shell or 'a shell without a name'!r}: use {', '.join(SHELLS)}")
    return shell


def _print_candidates() -> int:
    from launcher.cli.completion import candidates

    words = os.environ.get(WORDS, "\n.").split("\n")[:-1]
    for each in candidates(words):
        print(each)
    return 0


def script(shell: str) -> str:
    """Returns the completion script of a shell: bash, zsh or fish."""
    from pathlib import Path

    return Path(__file__).with_name(f"complete.{shell}").read_text()


def _install(shell: str) -> int:
    from pathlib import Path

    from launcher.files.run_files import write
    from launcher.paths import user_config_dir

    home = Path(os.environ.get("HOME", "~")).expanduser()
    folder = user_config_dir()
    if shell == "fish":  # fish loads every file in conf.d
        folder = Path(os.environ.get("XDG_CONFIG_HOME", home / ".config")) / "fish" / "conf.d"
    name = "launcher.fish" if shell == "fish" else f"complete.{shell}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = write(folder / name, script(shell))
        rc = {"bash": home / ".bashrc", "zsh": Path(os.environ.get("ZDOTDIR", home)) / ".zshrc"}.get(shell)
        if rc is not None:
            _add_line(rc, path)
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be written ({error.strerror})") from None
    print(f"{path}\n" + (f"{rc} loads it\n" if rc else "") + f"Open another {shell}, and press Tab after `launcher `")
    return 0


def _add_line(rc: Path, path: Path) -> None:
    import shlex

    line = f"[ ! -r {shlex.quote(str(path))} ] || . {shlex.quote(str(path))}  # launcher complete"
    text = rc.read_text(errors="surrogateescape") if rc.exists() else ""
    if line not in text.splitlines():
        with open(rc, "a") as file:
            file.write(("\n" if text and not text.endswith("\n") else "") + line + "\n")
