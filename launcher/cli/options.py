"""The options, arguments and help of each command. It imports little, so that --help and completion are fast.

The docstring of each `of_COMMAND` function is the text that `COMMAND --help` shows.
"""

from __future__ import annotations

import time
from argparse import ArgumentTypeError, RawDescriptionHelpFormatter
from typing import TYPE_CHECKING

from launcher.errors import ConfigError, near
from launcher.units import parse_ranges, parse_time

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Mapping
    from pathlib import Path

    from launcher.cli.commands import Parser


RUN = "id, unique prefix of one, `latest`, or directory"
EITHER = f"of a run, a sweep, or a sweep's point (SWEEP/7): {RUN}"
RUN_USAGE = "run [-m] SCRIPT [KEY=VALUE ...] [-- ARGUMENT ...]"
PRUNABLE = ("done", "pruned", "stopped", "failed", "cancelled", "lost")
# The actions of commands that have several, with the line that the help shows of each below the options.
ACTIONS: Mapping[str, Mapping[str, str]] = {
    "sweep": {
        "status": "its progress, and points that failed or run; no SWEEP: all sweeps",
        "results": "its points with their metrics, the best one first",
        "rerun": "restart points that are not done, from their checkpoints",
        "cancel": "end its points, and start no more",
        "throttle": "let at most N of its points run at once from now on",
        "wait": "wait until all its points are over; exit code 0 if all are done",
    },
    "checkpoint": dict.fromkeys(("list", "inspect", "verify", "extract", "adopt"), ""),
    "site": {
        "list": "profiles that `cluster=NAME` knows, and where their files are",
        "show": "the file of a profile",
        "init": "write a profile from the configuration of this machine's scheduler",
        "check": "compare a profile with the scheduler of this machine",
    },
    "env": {"pack": "make an archive of a venv that env.archive unpacks on each node"},
    "template": {
        "show": "one that changes nothing, to start from (--whole: our templates)",
        "lint": "errors in one of yours, and which parts of ours it lacks",
    },
    "data": {"fetch": ""},
}


def add_actions(parser: ArgumentParser, command: str, more: str = "") -> None:
    """Adds the argument ACTION to a command that has several actions, and a list of the actions below the options.

    Args:
        parser: the command's parser.
        command: the command's name.
        more: text below the list.
    """
    lines = [f"  {name:<10}{words}" for name, words in ACTIONS[command].items()]
    parser.formatter_class = lambda prog: RawDescriptionHelpFormatter(prog, max_help_position=26, width=80)
    parser.epilog = "\n".join(["actions:", *lines]) + more
    parser.add_argument("action", metavar="ACTION", help="see below")


def require_action(command: str, action: str) -> None:
    """Checks that a command has an action of this name.

    Raises:
        ConfigError: it has none.
    """
    known = list(ACTIONS[command])
    if action not in known:
        raise ConfigError(f"there is no {command} command {action!r}.{near(action, known)} Known: {', '.join(known)}")


def add_runs_dir(parser: ArgumentParser) -> None:
    """Adds the option --runs-dir. Its value is a Path; None: the option was not given."""
    parser.add_argument(
        "--runs-dir",
        type=folder,
        metavar="DIR",
        help="where run directories are (default: $LAUNCHER_RUNS_DIR, else the per-user data folder)",
    )


def folder(text: str) -> Path:
    """Converts an option's value to a Path."""
    # Lazily: 5 ms, and most commands are given no folder
    from pathlib import Path

    return Path(text)


def whole_number(text: str) -> int:
    """Converts an option's value to a whole number from 0 up."""
    if not text.isdecimal():
        raise ArgumentTypeError(f"{text!r} is not a whole number from 0 up")
    return int(text)


def age(text: str) -> float:
    """Converts an option's value to a time, in seconds since the epoch.

    The value is an age (2d, 12h, 90m), a day (2026-10-31), or a local time (2026-10-31T18:00).
    """
    # Lazily: 2 ms, and few commands are given a time
    from datetime import datetime

    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        pass
    try:
        if text.isdecimal():
            raise ValueError
        return time.time() - parse_time(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a time: write 2d, 12h, 90m, 2026-10-31 or 2026-10-31T18:00") from None


def positive(text: str) -> int:
    """Converts an option's value to a whole number from 1 up."""
    if not text.isdecimal() or not int(text):
        raise ArgumentTypeError(f"{text!r} is not a whole number from 1 up")
    return int(text)


def ranks(text: str) -> tuple[int, ...]:
    """Converts an option's value, such as `3` or `0-3,7`, to rank numbers without duplicates."""
    try:
        return tuple(dict.fromkeys(parse_ranges(text)))
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


# -- the options of each command


def of_run(parser: Parser) -> None:
    """Run your own script, written for torchrun or for no launcher at all, once for each rank. The run has the
    script's name. KEY=VALUE are the keys of every run and of workload=program."""
    parser.usage = parser.prog.removesuffix("run") + RUN_USAGE
    parser.behind = "arguments"
    parser.epilog = (
        "Everything after `--` reaches the script unchanged, and needs no quotes but your shell's. An argument that is "
        "swept (-m) is given as a key: workload.flags.lr=0.1,0.01 is --lr 0.1, then --lr 0.01, after the other "
        "arguments; for a script that is a Hydra app workload.overrides.lr=0.1,0.01 is lr=0.1, then lr=0.01."
    )
    parser.add_argument("script", metavar="SCRIPT", help="a Python file, or one that is executable")
    parser.add_argument(
        "overrides", metavar="KEY=VALUE", nargs="*", default=[], help="cluster=slurm nodes=2 time=2h ..."
    )
    parser.add_argument("--module", action="store_true", help="SCRIPT is a module: as `python -m` runs it")
    parser.add_argument("-m", "--multirun", action="store_true", help="a sweep: one run for each combination")
    parser.add_argument("--yes", action="store_true", help="submit without confirmation (confirm_above)")
    parser.add_argument("--cfg", choices=("job", "hydra", "all"), help="only show the config")
    parser.add_argument("--resolve", action="store_true", help="with --cfg: all references resolved")
    parser.add_argument("--config-dir", metavar="DIR", help="one more folder of configs")


def of_status(parser: ArgumentParser) -> None:
    """Show the state of the live runs and sweeps and the newest others, or of the named RUNs, with one query to the
    scheduler for all."""
    parser.add_argument("names", metavar="RUN", nargs="*", help=EITHER)
    parser.add_argument(
        "--all", action="store_true", dest="everything", help="all runs, not only live ones and the newest others"
    )
    parser.add_argument("--failed", action="store_true", help="only those that failed, are lost or cannot be read")
    parser.add_argument(
        "--since", type=age, metavar="AGE", help="only those active since then: 2d, 12h, 90m, or 2026-10-31"
    )
    parser.add_argument("--watch", action="store_true", help="update until all are over; Ctrl-C exits")
    parser.add_argument("--json", action="store_true", dest="as_json", help="for programs: a list of objects")
    add_runs_dir(parser)


def of_logs(parser: ArgumentParser) -> None:
    """Print the run's output: the lines of all ranks in the order of time, each after its rank, for all attempts."""
    parser.add_argument("name", metavar="RUN", help=RUN)
    parser.add_argument(
        "-f", "--follow", action="store_true", help="continue until the run is over, through all attempts"
    )
    parser.add_argument(
        "--rank", type=ranks, default=(), metavar="N", help="only these ranks (3, 0-3,7); of one rank: its own files"
    )
    parser.add_argument("--attempt", type=whole_number, metavar="N", help="only this attempt (default: all)")
    parser.add_argument("--tail", type=positive, metavar="N", help="begin with the last N lines")
    add_runs_dir(parser)


def of_cancel(parser: ArgumentParser) -> None:
    """End the RUNs, or all points of a sweep. Ranks get SIGTERM, and SIGKILL after launch.grace seconds. A job of the
    launcher may be named by its id, also when the directory of its run is gone (`status` calls it orphaned)."""
    parser.add_argument("names", metavar="RUN", nargs="+", help=f"{EITHER}; or the id of a job in the queue")
    add_runs_dir(parser)


def of_resume(parser: ArgumentParser) -> None:
    """Restart RUN from its newest checkpoint, with the configuration with which it was submitted, changed by the
    KEY=VALUEs. It must be over: stopped, failed, cancelled or lost."""
    parser.add_argument("name", metavar="RUN", help=RUN)
    parser.add_argument("overrides", metavar="KEY=VALUE", nargs="*", help="keys to change (nodes=4, time=2h)")
    parser.add_argument("--new-snapshot", action="store_true", help="with env.snapshot: of the code as it is now")
    parser.add_argument("--yes", action="store_true", help="submit without confirmation (confirm_above)")
    add_runs_dir(parser)


def of_attach(parser: ArgumentParser) -> None:
    """Attach to a rank of RUN, which must be running: a shell, the stacks of all ranks, or the rank's debugger."""
    parser.add_argument("name", metavar="RUN", help=RUN)
    parser.add_argument(
        "--rank", type=whole_number, metavar="R",
        help="this rank (default: 0; stacks: all; debugger: the one that waits)",
    )  # fmt: skip
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--shell", action="store_const", const="shell", dest="what",
        help="a shell on the rank's node, in its folder and environment (default at a terminal)",
    )  # fmt: skip
    what.add_argument(
        "--stack", action="store_const", const="stack", dest="what",
        help="where every rank is, as Python stacks; the ranks continue (default elsewhere)",
    )  # fmt: skip
    what.add_argument(
        "--debug", action="store_const", const="debug", dest="what",
        help="the prompt of the rank that waits at breakpoint(); submit with debug.rank=0",
    )  # fmt: skip
    add_runs_dir(parser)


def of_open(parser: ArgumentParser) -> None:
    """Open the report page of RUN in the browser. The page is made first if it is missing or older than the run's
    newest records; `report` has more options. Without a browser on this machine, the command that copies the page to
    your own machine is printed."""
    parser.add_argument("name", metavar="RUN", help=EITHER)
    parser.add_argument(
        "--print", action="store_true", dest="only_print", help="only print where it is, and how to copy it"
    )
    add_runs_dir(parser)


def of_prune(parser: ArgumentParser) -> None:
    """List the runs and sweeps that are over and older than AGE, and with --delete remove them, checkpoints included.
    What is live, unknown, unreadable, or needed by a run that is not over is kept, and listed with the reason."""
    parser.add_argument(
        "--older-than", type=age, metavar="AGE", help="whose last activity is older than that: 30d, 12h, or 2026-10-31"
    )
    parser.add_argument(
        "--state", action="append", choices=PRUNABLE, metavar="STATE",
        help=f"only of this state ({', '.join(PRUNABLE)}); may be given several times",
    )  # fmt: skip
    parser.add_argument("--delete", action="store_true", help="remove them; without it they are only listed")
    add_runs_dir(parser)


def of_wait(parser: ArgumentParser) -> None:
    """Wait until RUN is over, and exit with its code: 0 if it is done, 75 if it can be resumed, 93 if a retry would
    fail too, else 1. Ctrl-C stops waiting."""
    parser.add_argument("name", metavar="RUN", help=EITHER)
    parser.add_argument("-q", "--quiet", action="store_true", help="do not show the run's output")
    add_runs_dir(parser)


def of_topology(parser: ArgumentParser) -> None:
    """Draw this node: its NUMA nodes and CPUs, and which of them each rank would get; of a RUN, which its ranks got."""
    parser.add_argument("name", metavar="RUN", nargs="?", help="its ranks, as they were bound in its last attempt")
    parser.add_argument(
        "--ranks", type=whole_number, metavar="N", help="ranks on this node (default: one per GPU, else one)"
    )
    parser.add_argument("--bind", default="auto", metavar="HOW", help="as launch.bind (default: auto)")
    parser.add_argument("--node-type", metavar="TYPE", help="a node of this type instead of this one (`list`: all)")
    add_runs_dir(parser)


def of_why(parser: ArgumentParser) -> None:
    """Explain why RUN waits: the reason in words, the scheduler's estimate, the limit that applies, and the smallest
    change that would start clearly sooner. If RUN does not wait: what it does, or why it ended."""
    parser.add_argument("name", metavar="RUN", help=f"of a run, or a sweep's point (SWEEP/7): {RUN}")
    parser.add_argument("--json", action="store_true", dest="as_json", help="for programs: one object")
    add_runs_dir(parser)


def of_post_mortem(parser: ArgumentParser) -> None:
    """Show why RUN ended: the cause in a line and its kind, the first rank that failed with its traceback and its last
    output, and what to do. Exits with 0 when that is known or the run is done, 1 while it is not over."""
    parser.add_argument("name", metavar="RUN", help=RUN)
    parser.add_argument("--attempt", type=whole_number, metavar="N", help="of this attempt (default: the last one)")
    parser.add_argument("--json", action="store_true", dest="as_json", help="for programs: one object")
    add_runs_dir(parser)


def of_sweep(parser: ArgumentParser) -> None:
    """Show or change sweeps. Their points are runs like any others: `logs SWEEP/7` ..."""
    parser.usage = "%(prog)s ACTION [SWEEP] [POINT ...] [options]"
    add_actions(parser, "sweep")
    parser.add_argument("name", metavar="SWEEP", nargs="?", help=RUN)
    parser.add_argument(
        "points", metavar="POINT", nargs="*",
        help="rerun, cancel: numbers of points (3, 0-4,7; default: all unfinished); throttle: N",
    )  # fmt: skip
    parser.add_argument("--all", action="store_true", dest="everything", help="status: all points, all sweeps")
    parser.add_argument("--sort", metavar="METRIC", help="results: by this, smallest first (default: its objective)")
    parser.add_argument("--reverse", action="store_true", help="results: in reverse order")
    parser.add_argument("--csv", metavar="FILE", help="results: everything as a CSV file (-: print it)")
    parser.add_argument("--json", action="store_true", dest="as_json", help="status, results: for programs")
    parser.add_argument("--yes", action="store_true", help="rerun: submit without confirmation (confirm_above)")
    add_runs_dir(parser)


def of_checkpoint(parser: ArgumentParser) -> None:
    """List the checkpoints of a run, show the contents of one, verify them, or make a plain torch.save file of one."""
    parser.usage = "%(prog)s ACTION RUN [STEP] [options]"
    parser.add_argument(
        "action", metavar="ACTION", help="list, inspect, verify (exit code 1: damaged), extract or adopt"
    )
    parser.add_argument("name", metavar="RUN", help=f"{RUN}; or a folder of checkpoints, or of one")
    parser.add_argument("step", metavar="STEP", nargs="?", help="step of one checkpoint (default: newest; verify: all)")
    parser.add_argument("--json", action="store_true", dest="as_json", help="list, inspect: for programs")
    parser.add_argument("--shard", type=whole_number, metavar="R", help="extract: only the shard of rank R")
    parser.add_argument(
        "--key", action="append", metavar="NAME", dest="keys", default=[],
        help="extract: only values of this name (model.weight, or model for all of it; may be repeated)",
    )  # fmt: skip
    parser.add_argument("-o", "--output", type=folder, metavar="FILE", help="extract: file to write (default: by name)")
    parser.add_argument(
        "--format",
        choices=("torch", "safetensors"),
        dest="as_format",
        help="extract: torch (default), or safetensors: only tensors",
    )
    add_runs_dir(parser)


def of_site(parser: ArgumentParser) -> None:
    """Show, make and check profiles of sites. Yours are in ~/.config/launcher/cluster."""
    parser.usage = "%(prog)s ACTION [NAME] [options]"
    add_actions(parser, "site")
    parser.add_argument("name", metavar="NAME", nargs="?", help="of the profile (init: default the cluster's own name)")
    # Lazily: it loads all schedulers
    from launcher.schedulers.site import described_schedulers

    names = [each.name for each in described_schedulers()]
    parser.add_argument("--scheduler", choices=names, help="init: the one to query, if there are several")
    parser.add_argument("--partition", metavar="P", help="init: a partition other than the default one")
    parser.add_argument("--queue", metavar="Q", help="init: a queue other than the default one")
    parser.add_argument("--print", action="store_true", dest="only_print", help="init: show it, and write nothing")
    parser.add_argument("--force", action="store_true", help="init: replace a profile of this name")


def of_env(parser: ArgumentParser) -> None:
    """Make an archive of an environment (env.archive): .tar, .tar.gz or .tar.zst."""
    parser.usage = "%(prog)s ACTION [FOLDER] ARCHIVE"
    add_actions(parser, "env")
    parser.add_argument("paths", metavar="[FOLDER] ARCHIVE", nargs="+", help="venv (default: this one), and the file")
    parser.add_argument("--force", action="store_true", help="replace an existing archive")


def of_template(parser: ArgumentParser) -> None:
    """Show a template to start from (cluster.template), or check what yours lacks."""
    parser.usage = "%(prog)s ACTION [PATH] [options]"
    add_actions(parser, "template", "\n\nlint exits with 0 (nothing is missing), 1 (something is) or 2 (errors)")
    parser.add_argument("path", metavar="PATH", nargs="?", help="lint: the template (default: that of the profile)")
    parser.add_argument("--cluster", metavar="NAME", help="the profile that it is for (default: slurm)")
    parser.add_argument("--whole", action="store_true", help="show: our templates, with all parts of a script")


def of_report(parser: ArgumentParser) -> None:
    """Write one HTML page about RUN: timeline, curves, bandwidths, result, config. It needs no network."""
    parser.add_argument("names", metavar="RUN", nargs="+", help=f"{EITHER}; several runs are shown side by side")
    parser.add_argument(
        "--baseline", metavar="RUN", help=f"compare with this run (default: with the first of several); {RUN}"
    )
    parser.add_argument(
        "-o", "--output", type=folder, metavar="FILE",
        help="file to write (default: report.html in the run's directory; of several runs comparison.html)",
    )  # fmt: skip
    parser.add_argument("--open", action="store_true", dest="show", help="open it in the browser")
    add_runs_dir(parser)


def of_data(parser: ArgumentParser) -> None:
    """Show which data sets are on this machine; with `fetch NAME`, download one."""
    parser.usage = "%(prog)s [fetch NAME [--mirror URL]] [--data-dir DIR]"
    parser.add_argument("action", nargs="?", metavar="fetch", help="download NAME, verify its checksums, keep it here")
    # Lazily: 10 ms, and only this command lists data sets
    from launcher.spec import data_sets

    parser.add_argument("name", nargs="?", metavar="NAME", help=", ".join(data_sets.of_all_workloads()[0]))
    parser.add_argument(
        "--mirror",
        action="append",
        metavar="URL",
        dest="mirrors",
        help="folder to download from, instead of ours (may be repeated)",
    )
    parser.add_argument(
        "--data-dir",
        type=folder,
        metavar="DIR",
        help="folder of the data sets, where runs look for them (default: the per-user data folder)",
    )


def of_doctor(parser: ArgumentParser) -> None:
    """Check what a run needs here: versions, the scheduler and its limits, GPUs, the folder of runs, ports and names.
    Each line is ok, a warning or a problem, with what to do about it. Nothing is submitted, and no secret is shown.
    Exits with 0 if there is no problem, else with 1."""
    parser.add_argument("--cluster", metavar="NAME", help="check this profile (default: the one that runs get)")
    parser.add_argument("--json", action="store_true", dest="as_json", help="for programs: one object")


def of_complete(parser: ArgumentParser) -> None:
    """Complete commands, their options, run ids and overrides (KEY=VALUE) with the Tab key, after `launcher` and
    `python -m launcher`."""
    parser.usage = "%(prog)s [--install [SHELL] | --print SHELL]"
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--install", nargs="?", const="", metavar="SHELL",
        help="have every new shell load it; bash, zsh or fish (default: that of $SHELL)",
    )  # fmt: skip
    what.add_argument("--print", dest="shell", metavar="SHELL", help="print the script that the shell has to load")
    what.add_argument("--candidates", action="store_true", help="for that script: list completions of the words so far")


def of_help(parser: ArgumentParser) -> None:
    """Show keys with their defaults and meaning: those that most runs need, those of WHAT, or all."""
    parser.add_argument(
        "words", metavar="WHAT", nargs="*", default=[], help="a command, a key (nodes), a group of keys, or GROUP=NAME"
    )
    parser.add_argument("--all", action="store_true", dest="everything", help="all keys with their defaults")
