"""The help of commands (`help COMMAND`, `COMMAND --help`): their list; options, arguments and text of each; its parser.

This module imports little, so that --help and completion are fast. Each function `of_COMMAND` adds the options and
arguments of a command to the command's parser. Its docstring speaks to the user: it is the text that is shown.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import stat
import time
from argparse import ArgumentTypeError, HelpFormatter
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING

from launcher.errors import ConfigError, near, program
from launcher.units import parse_ranges, parse_time

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from typing import Any, NoReturn

# Each command's name, and its line in the list of commands.
COMMANDS = {
    "run": "Your own script; its arguments follow `--`.",
    "status": "States of runs and sweeps.",
    "logs": "The output of a run, or of one of its ranks.",
    "cancel": "Cancel runs, sweeps, or points of a sweep.",
    "resume": "Restart a run that is over, at the same size or another one.",
    "attach": "A shell on a rank's node, stacks of all ranks, or a debugger.",
    "prune": "List or remove old runs, with their checkpoints.",
    "wait": "Wait for a run and exit with its code.",
    "topology": "Which cores, GPU and NIC each rank gets, here or in a run.",
    "why": "Why a run waits, and what would start sooner.",
    "post-mortem": "Why a run ended, which rank failed first, and what to do.",
    "sweep": "Sweeps: status, results, rerun, cancel, throttle, wait.",
    "checkpoint": "Checkpoints of a run: list, inspect, verify, extract.",
    "site": "Profiles of sites: list, show, or write one for this site.",
    "env": "Pack a venv into an archive for the nodes (env.archive).",
    "template": "A template to start your own job scripts from.",
    "report": "One HTML page about a run or a sweep.",
    "data": "Data sets: which are here, and how to get one.",
    "doctor": "Check this machine and its scheduler; a report for a ticket.",
    "complete": "Completion for bash, zsh and fish: commands, run ids, KEY=VALUE.",
    "help": "A command's options; keys, their defaults and meaning.",
}
# Commands that are not about runs here, and have no option --runs-dir.
WITHOUT_RUNS = ("run", "site", "env", "template", "data", "doctor", "complete", "help")
NAMES = "its id, a unique prefix of the id, `latest`, or its directory"
RUN = f"a run or a point of a sweep (SWEEP/7): {NAMES}"
EITHER = f"a run, a sweep, or a point of a sweep (SWEEP/7): {NAMES}"
RUN_USAGE = "run [-m] SCRIPT [KEY=VALUE ...] [-- ARGUMENT ...]"
PRUNABLE = ("done", "pruned", "stopped", "failed", "cancelled", "lost")
# The actions of commands that have several, with the line that the help shows of each below the options.
ACTIONS: Mapping[str, Mapping[str, str]] = {
    "sweep": {
        "status": "show progress, and failed and running points; no SWEEP: list sweeps",
        "results": "show points with their metrics, the best one first",
        "rerun": "restart points that are not done, from their checkpoints",
        "cancel": "cancel points, and start no more",
        "throttle": "let at most N points run at once from now on",
        "wait": "wait until all points are over; exit code 0 if all are done",
    },
    "checkpoint": {
        "list": "show step, size and metrics of each, and which are kept",
        "inspect": "show the contents of one: metrics, values, tensors",
        "verify": "check sizes and checksums; exit code 1 if one is damaged",
        "extract": "write one as a plain torch.save or safetensors file",
    },
    "site": {
        "list": "list the profiles for cluster=NAME, and their files",
        "show": "print the file of a profile",
        "init": "write a profile from the configuration of this machine's scheduler",
        "login": "log in to a cluster behind ssh, for commands of the next ten minutes",
    },
    "env": {"pack": "pack a venv into an archive"},
    "template": {"show": "print a template that changes nothing, to start from"},
    "data": {"fetch": ""},
}


class _Formatter(HelpFormatter):
    # Keeps the lines of the list of actions, and wraps all other text

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith("actions:") else super()._fill_text(text, width, indent)


class Parser(argparse.ArgumentParser):
    """A parser that accepts options and arguments in any order, and reports an error in one line, with near matches."""

    def __init__(self, prog: str, description: str | None) -> None:
        # A fixed width, since argparse would import shutil and its dependencies to find the terminal's width.
        super().__init__(
            prog, description=description, allow_abbrev=False,
            formatter_class=lambda prog: _Formatter(prog, max_help_position=26, width=80),
        )  # fmt: skip
        # Attribute of the result that gets the arguments after `--` unchanged; None: they are parsed like all others.
        self.behind: str | None = None
        self.goes_with: dict[str, list[str]] = {}  # by an option's attribute: the actions that it goes with, if not all
        self._command = prog.rpartition(" ")[2]

    def add(self, *names: str, only: str = "", **settings: Any) -> None:
        """Adds an argument; only: the actions that it goes with (`status, results`); `parse` refuses it with others."""
        if only:
            settings["help"] = f"{only}: {settings['help']}"
        added = self.add_argument(*names, **settings)
        if only:
            self.goes_with[added.dest] = only.split(", ")

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Raises ConfigError: an argument is wrong; SystemExit: the help was requested, and has been printed."""
        known = [name for name in self._option_string_actions if name.startswith("--")]
        behind: Sequence[str] | None = None
        if self.behind is not None and "--" in words:
            at = words.index("--")
            words, behind = words[:at], words[at + 1 :]
        # Unknown options are found first, since argparse could take their values for a RUN.
        for word in takewhile(lambda word: word != "--", words):
            option = word.partition("=")[0]
            if option.startswith("--") and option not in known:
                raise ConfigError(self._unknown(option, known))
        arguments, unknown = self.parse_known_intermixed_args(words)
        if unknown and self.behind and unknown[0].startswith("-"):
            raise ConfigError(self._unknown(unknown[0], known))
        if unknown:
            self.error(f"unexpected argument {unknown[0]!r}")
        if self.behind is not None:
            setattr(arguments, self.behind, behind)
        if getattr(arguments, "action", None) is not None:
            self._require_fitting(arguments)
        return arguments

    def _unknown(self, option: str, known: Sequence[str]) -> str:
        problem = f"there is no option {option!r}.{near(option, known)} Known: {', '.join(known)}"
        if self.behind is None:
            return problem
        from launcher.config.keys import all_keys

        name = option.lstrip("-").replace("-", "_")
        keys = [key for key in (name, f"cluster.{name}") if key in all_keys()]
        hint = f" Keys have no dashes: {keys[0]}=VALUE." if keys else ""
        return f"{problem}.{hint} Arguments of your own program follow `--`: {self.usage}"

    def _require_fitting(self, arguments: argparse.Namespace) -> None:
        for each in self._actions:
            fitting = self.goes_with.get(each.dest, [arguments.action])
            if arguments.action not in fitting and getattr(arguments, each.dest) != each.default:
                known = " and ".join(f"{self._command} {action}" for action in fitting)
                raise ConfigError(f"{each.option_strings[-1]} goes with {known}")

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message.removeprefix('argument ')}; see `{self.prog} --help`")


def parser_of(name: str) -> Parser:
    about: Callable[[Parser], None] = globals()[f"of_{name.replace('-', '_')}"]
    parser = Parser(f"{program()} {name}", about.__doc__)
    about(parser)
    if name not in WITHOUT_RUNS:
        parser.add(
            "--runs-dir", type=existing_folder, metavar="DIR",
            help="folder of run directories (default: $LAUNCHER_RUNS_DIR, else the per-user data folder)",
        )  # fmt: skip
    return parser


# -- the options of each command


def add_actions(parser: Parser, command: str) -> None:
    """Adds the argument ACTION to a command that has several actions, and a list of the actions below the options."""
    lines = [f"  {name:<10}{words}" for name, words in ACTIONS[command].items()]
    parser.epilog = "\n".join(["actions:", *lines])
    parser.add("action", metavar="ACTION", type=partial(known_action, command), help="see below")


def known_action(command: str, action: str) -> str:
    """Returns the action; raises ConfigError. A type of argparse: a typo is named before arguments that are missing."""
    known = list(ACTIONS[command])
    if action not in known:
        raise ConfigError(f"there is no {command} command {action!r}.{near(action, known)} Known: {', '.join(known)}")
    return action


def add_json(parser: Parser, only: str = "") -> None:
    parser.add("--json", only=only, action="store_true", dest="as_json", help="print JSON, for programs")


def add_yes(parser: Parser, only: str = "") -> None:
    parser.add("--yes", only=only, action="store_true", help="submit without confirmation (confirm_above)")


def folder(text: str) -> Path:
    from pathlib import Path

    return Path(text)


def existing_folder(text: str) -> Path:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # another error: whether it is there is not known
        if stat.S_ISDIR(os.stat(text).st_mode):
            return folder(text)
    raise ArgumentTypeError(f"there is no folder {text!r}")


def whole_number(text: str, least: int = 0) -> int:
    if not text.isdecimal() or int(text) < least:
        raise ArgumentTypeError(f"{text!r} is not a whole number from {least} up")
    return int(text)


def age(text: str) -> float:
    """Converts an age (2d, 12h), a day (2026-10-31) or a local time (2026-10-31T18:00) to seconds since the epoch."""
    from datetime import datetime

    with contextlib.suppress(ValueError):
        return datetime.fromisoformat(text).timestamp()
    try:
        if text.isdecimal():
            raise ValueError
        return time.time() - parse_time(text, zero=True)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a time: write 2d, 12h, 90m, 2026-10-31 or 2026-10-31T18:00") from None


positive = partial(whole_number, least=1)


def ranks(text: str) -> tuple[int, ...]:
    try:
        return tuple(dict.fromkeys(parse_ranges(text)))
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def of_run(parser: Parser) -> None:
    """Run your own script in every rank. It may be written for torchrun, or for a single process. The run is named
    after the script. KEY=VALUE sets any key of a run (`help --all`), or of workload=program."""
    parser.usage = parser.prog.removesuffix("run") + RUN_USAGE
    parser.behind = "arguments"
    parser.epilog = (
        "The script gets all ARGUMENTs after `--` unchanged; they need no quotes but your shell's. In a sweep (-m), an "
        "argument with several values is written as a key: workload.flags.lr=0.1,0.01 adds --lr 0.1 in the first run "
        "and --lr 0.01 in the second; workload.overrides.lr=0.1,0.01 does so for a Hydra app, as lr=0.1 and lr=0.01."
    )
    parser.add("script", metavar="SCRIPT", help="a Python file, or an executable file")
    parser.add(
        "overrides", metavar="KEY=VALUE", nargs="*", default=[], help="settings: cluster=slurm nodes=2 time=2h ..."
    )
    parser.add("--module", action="store_true", help="SCRIPT is a module, as for `python -m`")
    parser.add(
        "-m", "--multirun", action="store_true", help="a sweep: one run for each combination of values (KEY=A,B)"
    )
    add_yes(parser)
    parser.add("--cfg", choices=("job", "hydra", "all"), help="only print the config: the run's, Hydra's, or both")
    parser.add("--resolve", action="store_true", help="with --cfg: print values instead of references to them")
    parser.add("--config-dir", metavar="DIR", help="one more folder in which configs are searched")


def of_status(parser: Parser) -> None:
    """Show the states of the live runs and sweeps and the newest others, or of the named RUNs. The scheduler is queried
    once for all of them."""
    parser.add("names", metavar="RUN", nargs="*", help=EITHER)
    parser.add(
        "--all", action="store_true", dest="everything", help="all runs, not only live ones and the newest others"
    )
    parser.add("--failed", action="store_true", help="only those that failed, are lost or cannot be read")
    parser.add(
        "--since", type=age, metavar="AGE", help="only those active in this time (2d, 12h) or since a day (2026-10-31)"
    )
    parser.add("--watch", action="store_true", help="update until all are over; Ctrl-C exits")
    add_json(parser)


def of_logs(parser: Parser) -> None:
    """Print the output of RUN: attempt after attempt, the lines of all ranks in the order of time. A line of rank 3
    starts with [3]."""
    parser.add("name", metavar="RUN", help=RUN)
    parser.add("-f", "--follow", action="store_true", help="print new lines, too, until the run is over")
    parser.add(
        "--rank", type=ranks, default=(), metavar="N",
        help="only these ranks (3 or 0-3,7); lines of a single one lack [3]",
    )  # fmt: skip
    parser.add("--attempt", type=whole_number, metavar="N", help="only this attempt, from 0 (default: all)")
    parser.add("--tail", type=positive, metavar="N", help="start with the last N lines")


def of_cancel(parser: Parser) -> None:
    """Cancel the RUNs; of a sweep, all points. Ranks get SIGTERM, and SIGKILL after launch.grace seconds. A RUN can
    also be named by the id of its job, even if the run's directory was deleted (`status` calls that job orphaned)."""
    parser.add("names", metavar="RUN", nargs="+", help=f"{EITHER}; or the id of its job")


def of_resume(parser: Parser) -> None:
    """Restart RUN from its newest checkpoint, with the settings of its submission, except for those that KEY=VALUE
    changes. ARGUMENTs replace all arguments of a script (`run SCRIPT`). It must be over, but not done: stopped, failed,
    cancelled, lost or pruned."""
    parser.usage = parser.prog + " RUN [KEY=VALUE ...] [options] [-- ARGUMENT ...]"
    parser.behind = "arguments"
    parser.add("name", metavar="RUN", help=RUN)
    parser.add("overrides", metavar="KEY=VALUE", nargs="*", default=[], help="settings to change (nodes=4 time=2h)")
    parser.add("--new-snapshot", action="store_true", help="with env.snapshot: copy the code again, as it is now")
    add_yes(parser)


def of_attach(parser: Parser) -> None:
    """Attach to a rank of RUN, which must be running: a shell, the stacks of all ranks, or the rank's debugger."""
    parser.add("name", metavar="RUN", help=RUN)
    parser.add(
        "--rank", type=whole_number, metavar="R",
        help="the rank (default: 0; --stack: all; --debug: the only one that waits)",
    )  # fmt: skip
    what = parser.add_mutually_exclusive_group()
    for name, text in (
        ("shell", "a shell on the rank's node, in its folder and environment (default at a terminal)"),
        ("stack", "Python stacks of the ranks, which continue (default without a terminal)"),
        ("debug", "the debugger of a rank that waits at breakpoint(); needs debug.rank=RANK when RUN is submitted"),
    ):
        what.add_argument(f"--{name}", action="store_const", const=name, dest="what", help=text)


def of_prune(parser: Parser) -> None:
    """List the runs and sweeps that are over and older than AGE; with --delete remove them, checkpoints included. Runs
    that are live, or in an unknown state, are kept. So are runs that cannot be read, or are needed by a run that is not
    over; these are listed with the reason."""
    parser.usage = "%(prog)s --older-than AGE [options]"
    parser.add(
        "--older-than", type=age, metavar="AGE",
        help="only those without activity in this time (30d, 12h) or since a day (2026-10-31); required",
    )  # fmt: skip
    parser.add(
        "--state", action="append", choices=PRUNABLE, metavar="STATE",
        help=f"only those in this state ({', '.join(PRUNABLE)}); may be given several times",
    )  # fmt: skip
    parser.add("--delete", action="store_true", help="remove them; without it they are only listed")
    parser.add(
        "--cluster", metavar="NAME", help="those on this cluster behind ssh, not those here; not with --runs-dir"
    )


def of_wait(parser: Parser) -> None:
    """Wait until RUN is over, and print its output; of a sweep, a line for each point that ends. Exits with 0 if RUN is
    done, 75 if it can be resumed, 93 if a retry would fail too, else 1. Ctrl-C stops waiting (130)."""
    parser.add("name", metavar="RUN", help=EITHER)
    parser.add("-q", "--quiet", action="store_true", help="do not print the run's output")


def of_topology(parser: Parser) -> None:
    """Show the NUMA nodes, CPUs, GPUs and network devices of this node, and which of them each rank would get. With
    RUN, show the run's nodes, and which of them each rank got in the last attempt."""
    parser.add("name", metavar="RUN", nargs="?", help=RUN)
    parser.add(
        "--ranks", type=positive, metavar="N", help="number of ranks on the node (default: one per GPU, else one)"
    )
    parser.add("--bind", default="auto", metavar="HOW", help="the binding, a value of launch.bind (default: auto)")


def of_why(parser: Parser) -> None:
    """Explain why RUN waits: the reason, the scheduler's estimate of the start, the limit that applies, and the
    smallest change with which RUN would start clearly sooner. If RUN does not wait: its state, or why it ended."""
    parser.add("name", metavar="RUN", help=RUN)
    parser.add(
        "--trials", type=positive, default=1, metavar="N",
        help="Slurm: ask by `sbatch --test-only` when RUN would start with each of the N smallest changes (default: 1)",
    )  # fmt: skip
    add_json(parser)


def of_post_mortem(parser: Parser) -> None:
    """Show why RUN ended: the cause and its kind, the first rank that failed, with its traceback and last output, and
    what to do. Exits with 0 if RUN is over, else with 1."""
    parser.add("name", metavar="RUN", help=RUN)
    parser.add("--attempt", type=whole_number, metavar="N", help="explain this attempt, from 0 (default: the last one)")
    add_json(parser)


def of_sweep(parser: Parser) -> None:
    """Show or change sweeps. Each point of a sweep is a run, which other commands take as SWEEP/7: `logs SWEEP/7`."""
    parser.usage = "%(prog)s ACTION [SWEEP] [POINT ...] [options]"
    add_actions(parser, "sweep")
    parser.add("name", metavar="SWEEP", nargs="?", help=f"a sweep: {NAMES}")
    parser.add(
        "points", metavar="POINT", nargs="*", default=[],
        help="rerun, cancel: numbers of points (3, 0-4,7; default: all unfinished); throttle: the number N",
    )  # fmt: skip
    parser.add(
        "--all", only="status", action="store_true", dest="everything", help="all points; without SWEEP, all sweeps"
    )
    parser.add(
        "--sort", only="results", metavar="METRIC",
        help="smallest METRIC first; of the objective, the default, the best first",
    )  # fmt: skip
    parser.add("--reverse", only="results", action="store_true", help="reverse the order")
    parser.add("--csv", only="results", metavar="FILE", help="write all of them to a CSV file (-: to stdout)")
    add_json(parser, "status, results")
    add_yes(parser, "rerun")


def of_checkpoint(parser: Parser) -> None:
    """List, inspect and verify the checkpoints of a run, or write a plain file with the contents of one."""
    parser.usage = "%(prog)s ACTION RUN [STEP] [options]"
    add_actions(parser, "checkpoint")
    parser.add(
        "name", metavar="RUN", help=f"{RUN}; or the folder that has the checkpoints, or a checkpoint's own folder"
    )
    parser.add("step", metavar="STEP", nargs="?", help="step of one checkpoint (default: newest; verify: all)")
    add_json(parser, "list, inspect")
    parser.add(
        "--key", only="extract", action="append", metavar="NAME", dest="keys", default=[],
        help="only this value (model.weight), or all below this name (model); may be repeated",
    )  # fmt: skip
    parser.add(
        "-o", "--output", only="extract", type=folder, metavar="FILE",
        help="file to write (default: named after RUN and STEP)",
    )  # fmt: skip
    parser.add(
        "--format", only="extract", choices=("torch", "safetensors"), dest="as_format",
        help="format of the file (default: torch); safetensors contains only tensors",
    )  # fmt: skip


def of_site(parser: Parser) -> None:
    """Show and write profiles of sites (cluster=NAME). Yours are in ~/.config/launcher/cluster."""
    parser.usage = "%(prog)s ACTION [NAME] [options]"
    add_actions(parser, "site")
    parser.add("name", metavar="NAME", nargs="?", help="name of the profile (init: by default the cluster's own name)")
    parser.add(
        "--ssh", only="init", metavar="HOST", help="a cluster behind ssh (me@login): install the launcher there, too"
    )
    parser.add("--python", only="init", metavar="PATH", help="with --ssh, the Python there (default: one with torch)")
    parser.add(
        "--activate", only="init", metavar="LINE", action="append", default=[],
        help="with --ssh, a line for the shell there before Python starts ('module load python'); may be repeated",
    )  # fmt: skip
    parser.add(
        "--setup", only="init", metavar="LINE", action="append", default=[],
        help="a shell line that jobs run first ('module load cuda'); may be repeated",
    )  # fmt: skip
    from launcher.schedulers.site import described_schedulers

    names = [each.name for each in described_schedulers()]
    parser.add("--scheduler", only="init", choices=names, help="the scheduler to query, if there are several")
    parser.add("--partition", only="init", metavar="P", help="use this partition, not the scheduler's default one")
    parser.add("--queue", only="init", metavar="Q", help="use this queue, not the scheduler's default one")
    parser.add(
        "--print", only="init", action="store_true", dest="only_print", help="print the profile, and write nothing"
    )
    parser.add("--force", only="init", action="store_true", help="replace a profile of this name")


def of_env(parser: Parser) -> None:
    """Pack a venv into an archive. A run with env.archive=ARCHIVE unpacks it on each node."""
    parser.usage = "%(prog)s ACTION [FOLDER] ARCHIVE [--force]"
    add_actions(parser, "env")
    parser.add(
        "paths", metavar="[FOLDER] ARCHIVE", nargs="+",
        help="FOLDER: the venv (default: the one of this command); ARCHIVE: file to write, .tar, .tar.gz or .tar.zst",
    )  # fmt: skip
    parser.add("--force", action="store_true", help="replace an existing archive")


def of_template(parser: Parser) -> None:
    """Print a template for your own job scripts (cluster.template=PATH)."""
    parser.usage = "%(prog)s ACTION [options]"
    add_actions(parser, "template")
    parser.add("--cluster", metavar="NAME", help="the profile that the template is for (default: slurm)")
    parser.add("--whole", action="store_true", help="print the launcher's own templates")


def of_report(parser: Parser) -> None:
    """Write one HTML page about RUN: timeline, curves, bandwidths, result, config. The page needs no network."""
    parser.add("name", metavar="RUN", help=EITHER)
    parser.add(
        "-o", "--output", type=folder, metavar="FILE", help="file to write (default: report.html in RUN's directory)"
    )
    parser.add("--open", action="store_true", dest="show", help="open the page in the browser")


def of_data(parser: Parser) -> None:
    """Show which data sets are on this machine; with `fetch NAME`, download one."""
    parser.usage = "%(prog)s [fetch NAME [--mirror URL]] [--data-dir DIR]"
    parser.add(
        "action", type=partial(known_action, "data"), nargs="?", metavar="fetch",
        help="download the data set NAME, and verify its checksums",
    )  # fmt: skip
    from launcher.plan import workload_hook

    known = ", ".join(workload_hook.data_sets_of_all()[0])
    parser.add("name", nargs="?", metavar="NAME", help=f"the data set: {known}")
    parser.add(
        "--mirror", action="append", metavar="URL", dest="mirrors",
        help="download from this folder, not from the default ones (may be repeated)",
    )  # fmt: skip
    parser.add(
        "--data-dir", type=folder, metavar="DIR",
        help="folder of data sets (default: the per-user data folder, where runs look for them)",
    )  # fmt: skip


def of_doctor(parser: Parser) -> None:
    """Check what a run needs here: versions, the scheduler and its limits, GPUs, the folder of runs, ports and host
    names. Each line is ok, a warning or a problem, with what to do about it. Nothing is submitted, and no secret is
    shown. Exits with 0 if there is no problem, else with 1."""
    parser.add("--cluster", metavar="NAME", help="check this profile (default: the one that runs use)")
    add_json(parser)


def of_complete(parser: Parser) -> None:
    """Set up your shell, so that the Tab key completes commands, their options, run ids and KEY=VALUE after `launcher`
    and `python -m launcher`."""
    parser.usage = "%(prog)s [--install [SHELL] | --print SHELL]"
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--install", nargs="?", const="", metavar="SHELL",
        help="set up every new shell: bash, zsh or fish (default: the one in $SHELL)",
    )  # fmt: skip
    what.add_argument("--print", dest="shell", metavar="SHELL", help="only print the script that the shell must load")
    what.add_argument("--candidates", action="store_true", help="used by the script: list completions")


def of_help(parser: Parser) -> None:
    """Explain WHAT. Without WHAT, show the keys that most runs need, and all commands."""
    parser.add(
        "words", metavar="WHAT", nargs="*", default=[],
        help="a command, a key (nodes), a section of keys (launch), or an option of a group (cluster=slurm)",
    )  # fmt: skip
    parser.add("--all", action="store_true", dest="everything", help="show all keys, with their defaults")
