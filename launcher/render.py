"""From a plan to the script that the scheduler gets. Pure: the same plan and token give the same text.

Every value that a template prints is quoted for the shell, unless it is wrapped in `Raw`; no filter or alias turns
that off. Control characters never get through, quoted or not.
"""

from __future__ import annotations

import functools
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher import __version__
from launcher.backends import sbatch
from launcher.config import Scheduler
from launcher.paths import resource
from launcher.plan import CONTROL, JobPlan

if TYPE_CHECKING:
    import jinja2

TEMPLATES = {
    Scheduler.slurm.value: "sbatch.sh.j2",
    Scheduler.allocation.value: "allocation.sh.j2",
    Scheduler.local.value: "local.sh.j2",
}


class Raw:
    """Text that is shell code on purpose: a set-up line of the cluster's profile."""

    def __init__(self, text: str) -> None:
        self.text = text


def quote(value: Any) -> str:
    """The value as one shell word (jinja2's `finalize`).

    Raises:
        ValueError: it contains a line break or another control character.
    """
    if isinstance(value, Raw):
        return value.text
    text = str(value)
    if match := CONTROL.search(text):
        raise ValueError(f"refusing to write the control character {match[0]!r} of {text!r} into a script")
    return shlex.quote(text)


def quote_directive(value: Any) -> str:
    """The value as sbatch reads it in a #SBATCH line: like a shell, but a backslash counts within quotes too."""
    return quote(value).replace("\\", "\\\\")


def script(plan: JobPlan, *, token: str, array: str | None = None) -> str:
    """The whole script of one run, or of an array of runs whose directories are numbered folders of the plan's.

    Args:
        plan: the run.
        token: the job's comment, by which submission finds it again.
        array: indices and throttle in Slurm's words (`0-14%4`).
    """
    template = _environment(resource("templates")).get_template(TEMPLATES[plan.scheduler])
    return template.render(
        plan=plan,
        version=__version__,
        directives=[
            Raw(option if value is True else f"{option}={quote_directive(value)}")
            for option, value in sbatch.directives(plan, token, array).items()
        ],
        array=array,
        setup=[Raw(line) for line in plan.setup],
        environment=[(Raw(name), value) for name, value in plan.environment.items()],
        srun=_command(["srun", *sbatch.srun_arguments(plan)]),
        spawn=_command(
            [
                *(plan.python, "-m", "launcher.node.spawn"),
                *(["--go-on"] if plan.min_nodes < plan.nodes else []),
                *(["--pbsdsh"] if plan.starter == "pbsdsh" else []),
                *(plan.nodes, plan.tasks_per_node, plan.grace + 5),
            ]
        ),
        node=_command([plan.python, "-u", "-m", "launcher.node"]),
        umask=Raw(f"{plan.umask:03o}"),
    )


def _command(words: Sequence[Any]) -> Raw:
    return Raw(" ".join(map(quote, words)))


@functools.cache
def _environment(folder: Path) -> jinja2.Environment:
    import jinja2  # 15 ms, and only a submission needs it

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        finalize=quote,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701  `finalize` quotes, for the shell and not for HTML
    )
