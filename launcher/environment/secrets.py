"""Secrets of a run: files of their values, and records without them."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import random
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher import redaction
from launcher.errors import RESUME, ConfigError, RunError, SubmissionError
from launcher.files import safe_io
from launcher.files.retried_reads import exists, unwrap
from launcher.paths import folder_in, user_data_dir
from launcher.plan.plan import texts_in
from launcher.runs import event_files
from launcher.runs.directory import Run, require_private, runs_dir_of
from launcher.runs.events import Ended, every

REDACTED = "(secret)"  # replaces a value in a record
MIN_LENGTH = 8  # characters; shorter values are not searched for in other values, since they would be found anywhere
_VARIABLE = re.compile(r"\s*[+~]*cluster\.(?:pools\.[^=]+\.)?environment\.([^=\s]+)\s*=\s*(.*)", re.DOTALL)
_SECTION = re.compile(r"\s*[+~]*cluster\.(?:environment|pools(?:\.[^.=]+(?:\.environment)?)?)\s*=(.*)", re.DOTALL)
_KEY = re.compile(r"([\w-]+)\s*:\s*")  # in a section
_NO_VALUE = r"""(?:(["']?)\$\{(?:oc\.env:\w+(?:, *null)?|[\w.]+)\}\1|(?i:null))?\s*"""  # a reference, null or nothing


def redact_overrides(words: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """Returns overrides without the values of secrets, for which a resumed run needs its environment.

    | override of cluster.environment, or of a pool's, for a secret | result |
    |---|---|
    | `NAME=VALUE`, even if a later override replaces it | `NAME=${oc.env:NAME}` |
    | `~NAME=VALUE` | `~NAME` |
    | `NAME=${oc.env:OTHER}`, `NAME=null` | unchanged |
    | the whole section with a value of one (`{NAME:VALUE}`) | ConfigError: it cannot be removed |
    """
    found = []
    for word in words:
        if (one := _VARIABLE.fullmatch(word)) and redaction.is_secret(one[1], patterns):
            if not re.fullmatch(_NO_VALUE, one[2].replace("\\", "")):  # as sweepers write braces
                key = word.partition("=")[0].strip()
                word = key if key.startswith("~") else f"{key}=${{oc.env:{one[1]}}}"
        elif section := _SECTION.fullmatch(word):
            for each in _KEY.finditer(section[1]):
                empty = re.match(rf"{_NO_VALUE}[,}}]", section[1][each.end() :])
                if redaction.is_secret(each[1], patterns) and not empty:
                    raise ConfigError(
                        f"cluster.environment={{...}} has {each[1]}, a secret (env.secrets): give it by itself, as "
                        f"cluster.environment.{each[1]}=..., so that its value can be left out of the record"
                    )
        found.append(word)
    return found


def redact_config(config: Mapping[str, Any], patterns: Sequence[str]) -> dict[str, Any]:
    """Returns a resolved config without the values of secrets in cluster.environment and in those of its pools."""
    if not (cluster := config.get("cluster")):
        return dict(config)
    pools = {name: _redacted(pool, patterns) for name, pool in (cluster.get("pools") or {}).items()}
    return {**config, "cluster": {**_redacted(cluster, patterns), "pools": pools}}


def _redacted(section: Mapping[str, Any], patterns: Sequence[str]) -> dict[str, Any]:
    variables = section.get("environment") or {}
    hidden = redaction.secrets_in(variables, patterns)
    return {**section, "environment": {**variables, **dict.fromkeys(hidden, REDACTED)}}


def require_absent(values: Any, secrets: Mapping[str, str]) -> None:
    """Raises ConfigError if values have a secret (by name) of at least MIN_LENGTH characters in them."""
    # A variable may have the path of a file with the secret: this path itself is no secret.
    paths = {text for text in secrets.values() if text.startswith("/") and os.path.exists(text)}
    wanted = {name: text for name, text in secrets.items() if len(text) >= MIN_LENGTH and text not in paths}
    for key, text in texts_in(values):
        for name, value in wanted.items():
            if value in text:
                raise ConfigError(
                    f"{key or 'the config'} has the value of {name}, a secret (env.secrets), and would be written to "
                    f"the run's record: leave it out, and read {name} from the environment where it is needed"
                )


# -- Passes secret environment variables to jobs without writing their values into scripts
# In the environment of the job's process (local), of sbatch (which slurmctld keeps for the job's owner and root), or
# (PBS, Grid Engine: `qstat -f` shows to everybody what `qsub -v` got) in a private file outside of the run directory,
# which the driver removes when the run is over.


PATTERNS = "LAUNCHER_SECRETS"  # variable of a job: the patterns of secret names, comma-separated
FILE = "LAUNCHER_SECRETS_FILE"  # variable of a PBS job: the file with the values
FOLDER = "LAUNCHER_SECRETS_DIR"  # variable of the user: the folder of such files
PRUNED_AFTER = 86400.0  # seconds until such a file may be superfluous: the driver removes that of its run
LOOKED_AT = 1000  # such files that a submission looks at, as a sweep of 100,000 points may wait


def in_common(settings: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Returns the secrets of several configs, which one command submits; ConfigError: one has different values."""
    found: dict[str, str] = {}
    for name, value in (each for secrets in settings for each in secrets.items()):
        if found.setdefault(name, value) != value:
            raise ConfigError(f"cluster.environment.{name} is a secret: it must be the same everywhere")
    return found


@contextlib.contextmanager
def exported(secrets: Mapping[str, str]) -> Iterator[None]:
    """Adds secrets of the config to this process's environment inside the `with` block, so that jobs inherit them."""
    before = {name: os.environ[name] for name in secrets if name in os.environ}
    os.environ.update(secrets)
    try:
        yield
    finally:
        for name in secrets:
            os.environ.pop(name, None)
        os.environ.update(before)


def require(names: Sequence[str], environ: Mapping[str, str]) -> None:
    """Raises SubmissionError if the secrets of a recorded run are not in the environment."""
    if missing := [name for name in names if name not in environ]:
        raise SubmissionError(f"{', '.join(missing)}: secrets are in no record: export them, and repeat the command")


def folder() -> Path:
    """Returns the folder, seen by the nodes, of all files of secrets: $LAUNCHER_SECRETS_DIR, or the user's data."""
    return folder_in(FOLDER) or user_data_dir() / "secrets"


def folder_of(runs: str, base: str) -> str:
    """Returns where the secrets of all runs in a folder (runs_dir, or a sweep's directory) are, below `folder`."""
    return f"{base}/{hashlib.sha256(runs.encode()).hexdigest()[:16]}"


def file_of(run_dir: str, base: str) -> Path:
    """Returns the path of the file with the secrets of the run in `run_dir`, below the folder `base`."""
    path = Path(run_dir)
    return Path(folder_of(str(path.parent), base)) / f"{path.name}.sh"


def write(text: str, path: Path) -> None:
    """Writes a file of secrets, which jobs source, for its owner only; raises OSError, RunError: an unsafe folder."""
    try:
        _write(text, path)
    except (FileNotFoundError, FileExistsError):  # another submission has just removed the empty folder
        _write(text, path)


def _write(text: str, path: Path) -> None:
    for folder in (path.parent.parent, path.parent):
        safe_io.make_folder(folder)
        require_private(folder)
    safe_io.replace(path, os.fsencode(text), sync=False)


def remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
        path.parent.rmdir()


def hand_over(run_dirs: Sequence[str], secrets: Mapping[str, str], exports: str, base: str) -> None:
    """Writes runs' secrets, if any, before submission, removes those of runs that are over; SubmissionError."""
    _prune_once(Path(base))
    for run_dir in run_dirs:
        path = file_of(run_dir, base)
        try:
            if secrets:
                write(f"# {run_dir}\n{exports}", path)
            else:
                path.unlink(missing_ok=True)
        except (OSError, RunError) as error:
            raise SubmissionError(
                f"the file of secrets ({', '.join(secrets)}) cannot be written: {error}. Set {FOLDER} to another folder"
            ) from None


def forget(run_dir: str, base: str | None) -> None:
    """Removes the secrets of a run that is cancelled (once it has started, it has read them); None: it has none."""
    if base is not None:
        remove(file_of(run_dir, base))


def prune(base: Path) -> None:
    """Removes files of secrets of runs that are over, deleted or cancelled, if their scripts have not done so.

    Looks at LOOKED_AT of them, by chance, and keeps those that are younger than PRUNED_AFTER.
    """
    with contextlib.suppress(OSError):
        files = list(base.glob("*/*.sh"))
        for path in random.sample(files, min(len(files), LOOKED_AT)):
            with contextlib.suppress(OSError, RunError):  # the file is gone, or the run's state is not known
                if time.time() - (written := path.stat().st_mtime) < PRUNED_AFTER:
                    continue
                with open(path, errors="replace") as file:
                    run_dir = file.readline().removeprefix("# ").removesuffix("\n")
                if os.path.isabs(run_dir) and _over(Path(run_dir), written):
                    remove(path)
        for folder in base.glob("*"):  # the script of the last run in it has removed the file
            with contextlib.suppress(OSError):
                folder.rmdir()


_prune_once = functools.cache(prune)  # not for each array of a sweep


def _over(run_dir: Path, written: float) -> bool:
    """Returns whether a run does not need its file of secrets, `written` then (seconds since the epoch), any more.

    | the run | result |
    |---|---|
    | its directory is gone, and its runs_dir exists | yes |
    | both are gone: they may be on another cluster with the same home folder | no |
    | is cancelled | yes |
    | has ended after the file was written, with an exit code other than 75 | yes |
    | waits (also again), runs, or has ended with 75, after which another job may continue it | no |
    """
    run = Run(run_dir)
    if not unwrap(exists(run_dir)):
        return unwrap(exists(runs_dir_of(run_dir)))  # a point's sweep has gone
    if run.has("cancelled"):  # resume removes it before the file is written
        return True
    scripts = [each.events_file("script") for each in run.attempts()[-1:]]
    ends = [event for path in scripts for event in every(event_files.read(path), Ended)]
    return bool(ends) and ends[-1].code != RESUME and ends[-1].time > written
