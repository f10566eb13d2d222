"""Variables whose values are for nobody else: handed to the job by name, and written to no script and no record.

| cluster | how a value gets to the job |
|---|---|
| local, allocation | in the environment of the job's process |
| slurm | in sbatch's environment, which slurmctld keeps for the job's owner and root (man sbatch, --export) |
| pbs | in a file of mode 0600 in a folder of the user's own, outside of the run directory |

`qsub -v NAME` would put a value among the attributes of the job, which `qstat -f` shows to everybody unless the site
has said otherwise (query_other_jobs, pbs_server_attributes(7B)). So PBS gets a file, which the job's script removes
when the run is over. Works without torch, hydra and submitit: both sides use it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher import public
from launcher.errors import ConfigError, SubmissionError
from launcher.paths import user_data_dir

PATTERNS = "LAUNCHER_SECRETS"  # in a job: env.secrets, comma-separated
FILE = "LAUNCHER_SECRETS_FILE"  # in a job of PBS: where the values came from
FOLDER = "LAUNCHER_SECRETS_DIR"  # the user's own word on where such files are
KEPT_OUT = "(secret)"  # in a record, instead of a value
LEAST = 8  # characters of a value that is looked for in other values; shorter ones would be found anywhere
_IN_ENVIRONMENT = re.compile(r"[+~]*cluster\.environment(\.|=|$)")


def among(environ: Mapping[str, str | None], patterns: Iterable[str]) -> dict[str, str]:
    """The secrets in an environment. Pure."""
    patterns = list(patterns)
    return {name: value for name, value in environ.items() if value is not None and public.secret(name, patterns)}


# -- records


def public_overrides(words: Sequence[str], secrets: Mapping[str, str]) -> list[str]:
    """Overrides without the values of secrets: whoever repeats them has those in the environment. Pure.

    Raises:
        ConfigError: a value stands in one in a way that cannot be taken out.
    """
    found = []
    for word in words:
        key, _, value = word.partition("=")
        name = key.rpartition(".")[2]
        if _IN_ENVIRONMENT.match(word):
            if name in secrets and not value.startswith("${"):
                word = f"{key}=${{oc.env:{name}}}"
            for each, text in secrets.items():
                if text and f"{each}:" in word.replace(" ", ""):  # a whole section
                    word = word.replace(text, f"${{oc.env:{each}}}")
                    if f"${{oc.env:{each}}}" not in word:
                        raise ConfigError(f"cluster.environment: write cluster.environment.{each}=... for a secret")
        found.append(word)
    return found


def public_config(config: Mapping[str, Any], secrets: Iterable[str]) -> dict[str, Any]:
    """A resolved config without the values of secrets. Pure."""
    cluster = dict(config.get("cluster") or {})
    names = set(secrets)
    environment = cluster.get("environment") or {}
    if not names & set(environment):
        return dict(config)
    cluster["environment"] = {name: KEPT_OUT if name in names else value for name, value in environment.items()}
    return {**config, "cluster": cluster}


def require_absent(values: Any, secrets: Mapping[str, str]) -> None:
    """
    Raises:
        ConfigError: the value of a secret stands in something that is about to be written.
    """
    wanted = {name: text for name, text in secrets.items() if len(text) >= LEAST and not text.startswith("/")}
    for key, text in _texts("", values):
        for name, value in wanted.items():
            if value in text:
                raise ConfigError(
                    f"{key} has the value of {name}, a secret (env.secrets), and would be written to the run's record: "
                    f"leave it out, and read {name} from the environment where it is needed"
                )


def _texts(key: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _texts(f"{key}.{name}" if key else str(name), item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(key, item)


# -- submission


@contextlib.contextmanager
def exported(secrets: Mapping[str, str]) -> Iterator[None]:
    """Secrets of the config are in this process's environment inside, from which every job takes its own."""
    before = {name: os.environ.get(name) for name in secrets}
    os.environ.update(secrets)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def require(names: Sequence[str], environ: Mapping[str, str]) -> None:
    """
    Raises:
        SubmissionError: a run that was recorded without its secrets is to go on, and they are not here.
    """
    if missing := [name for name in names if name not in environ]:
        raise SubmissionError(
            f"{', '.join(missing)}: secrets are in no record, so set {'it' if len(missing) == 1 else 'them'} in this "
            "shell's environment and repeat the command"
        )


# -- files, for PBS


def folder() -> Path:
    """$LAUNCHER_SECRETS_DIR, else `secrets` in the per-user data folder, which the nodes have to see."""
    if named := os.environ.get(FOLDER):
        return Path(named).expanduser().absolute()
    return user_data_dir() / "secrets"


def folder_of(runs: str, base: str) -> str:
    """Where the files of the runs in a folder are: of a runs_dir, or of a sweep for its points. Pure."""
    return f"{base}/{hashlib.sha256(runs.encode()).hexdigest()[:16]}"


def file_of(run_dir: str, base: str) -> Path:
    """The file with the secrets of a run. Pure."""
    path = Path(run_dir)
    return Path(folder_of(str(path.parent), base)) / f"{path.name}.sh"


def write(text: str, path: Path) -> None:
    """A file that its owner alone can read, in folders that only the owner can enter.

    Raises:
        OSError: it cannot be written.
    """
    for each in (path.parent.parent, path.parent):
        each.mkdir(parents=True, exist_ok=True, mode=0o700)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as file:
        file.write(os.fsencode(text))
    part.replace(path)


def hand_over(run_dirs: Sequence[str], secrets: Mapping[str, str], exports: str, base: str) -> None:
    """Writes the files of runs that are about to be submitted to PBS, and removes those of runs that are over.

    Args:
        run_dirs: the runs' directories.
        secrets: names and values; without any there is no file.
        exports: shell text that sets them.
        base: the folder for such files.

    Raises:
        SubmissionError: they cannot be written.
    """
    prune(Path(base))
    for run_dir in run_dirs:
        path = file_of(run_dir, base)
        try:
            if secrets:
                write(f"# {run_dir}\n{exports}", path)
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise SubmissionError(
                f"the file with the run's secrets ({', '.join(secrets)}) cannot be written: {error}. Set {FOLDER} to a "
                "folder of your own that the nodes see, or leave those variables out of the environment"
            ) from None


def forget(run_dir: str, base: str | None) -> None:
    """Removes the file of a run that is cancelled; one that runs has read it."""
    if base is not None:
        with contextlib.suppress(OSError):
            file_of(run_dir, base).unlink(missing_ok=True)


def prune(base: Path) -> None:
    """Removes the files of runs that are over, gone or cancelled, whose own script could not do so."""
    with contextlib.suppress(OSError):
        for path in base.glob("*/*.sh"):
            with open(path, errors="replace") as file:
                run_dir = file.readline().removeprefix("# ").removesuffix("\n")
            if os.path.isabs(run_dir) and _over(Path(run_dir)):
                path.unlink(missing_ok=True)
                with contextlib.suppress(OSError):
                    path.parent.rmdir()


def _over(run_dir: Path) -> bool:
    from launcher.errors import RESUME
    from launcher.runs import Run

    run = Run(run_dir)
    if not run_dir.is_dir() or (run_dir / "cancelled").exists():
        return True
    ends = [event for each in run.attempts()[-1:] for event in each.events() if event["event"] == "ended"]
    return bool(ends) and ends[-1]["code"] != RESUME
