"""Finds the parts of our job script that are missing from the script of a custom template (cluster.template)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from launcher.script import render
from launcher.spec.plan import JobPlan

# The parts of our script by name: a pattern of a line that only this part has, and the consequence if it is missing.
PARTS = {
    "private files": (r"^umask 077$", "what the script writes can be read by others"),
    "lease": (r"^until .*ln \"\$launcher_lease_of_mine\" \"\$launcher_lease\"", "two jobs of one run may run at once"),
    "attempts": (
        r"^until .*mkdir \"\$LAUNCHER_RUN_DIR/attempts/",
        "status, logs and resume do not know of the attempt",
    ),
    "done once": (r"^reads grep -q '\"event\": \"ended\"", "a run that is done may be done again"),
    "stop files": (r"^marked .*cancelled$", "a cancelled run may begin"),
    "deadline": (r"^(?!ends_in\(\)).*\bends_in \S", "ranks do not save before the wall time is up"),
    "folder": (r"^cd .*\|\| \{$", "ranks start in another folder"),
    "shell's variables": (r"^\. .*/environment\.sh", "the job has nothing of your shell's environment"),
    "secrets of the job": (r"^ *\. \"\$LAUNCHER_SECRETS_FILE\"", "secrets do not reach the ranks"),
    "set-up": (r"^setup_failed\(\)", "cluster.setup and env have no effect"),
    "srun's environment": (r"^unset SLURM_EXPORT_ENV", "ranks get no variables at a site with sbatch --export=NONE"),
    "secrets that are there": (r"^if \[ ! -v \S+ \]; then$", "ranks begin without a secret that did not come along"),
    "snapshot": (r"^done <<<\"\$\{PYTHONPATH:", "modules are those of the repository (env.snapshot)"),
    "launcher's code": (r"^case \":\$\{PYTHONPATH:-\}:\" in", "ranks may not find the launcher"),
    "heartbeat": (r"touch -c \"\$launcher_lease\"", "the lease counts as a dead job's after 90 s"),
    "waiting": (r" launcher\.job\.wait_for_others ", "it does not wait for other runs (after)"),
    "ranks": (
        r" launcher\.(agent|environment\.(unpack_on_node|container_command)) \"\$LAUNCHER_RUN_DIR\"",
        "nothing starts the ranks",
    ),
    "end": (r"^event ended \", \\\"code\\\"", "how it ended is not recorded"),
    "requeue": (r" launcher\.job\.requeue ", "it does not continue after a stop (requeue, resubmit)"),
    "secrets removed": (r"rm -f \"\$LAUNCHER_SECRETS_FILE\"", "the file with the secrets is not removed"),
    "exit code": (r"^exit \"\$code\"$", "the scheduler does not see how it ended"),
}


@dataclass(frozen=True)
class Lost:
    """A part of our script that a custom script lacks.

    Attributes:
        part: name of the part, the option of the job, or the set-up line.
        then: consequence for the job, as text.
    """

    part: str
    then: str


def lost(plan: JobPlan, theirs: str, ours: str) -> list[Lost]:
    """Returns the parts of our script that a custom script of the same plan lacks. Pure.

    Args:
        plan: plan of both scripts.
        theirs: text of the custom script.
        ours: text of our script.
    """
    missing = [
        Lost(part, then)
        for part, (pattern, then) in PARTS.items()
        if re.search(pattern, ours, re.MULTILINE) and not re.search(pattern, theirs, re.MULTILINE)
    ]
    options = [line for line in _directives(ours) if line not in _directives(theirs)]
    missing += [Lost(line, "the job does not request it") for line in options]
    missing += [Lost(each.words, "it is not executed") for each in render.setup_lines(plan) if each.line not in theirs]
    for name, value in plan.cluster.environment.items():
        word = f"unset {name}" if value is None else f"export {name}="
        if word not in theirs:
            missing.append(Lost(word.rstrip("="), "cluster.environment has no effect"))
    return missing


def _directives(script: str) -> list[str]:
    return [line for line in script.splitlines() if re.match(r"#[^\s!]+ -", line)]


def notes(plan: JobPlan, script: Callable[[JobPlan], str]) -> tuple[str, ...]:
    """Returns a note for the user if the plan has a custom template that lacks parts of our script; else nothing.

    Args:
        plan: plan of the run.
        script: renders a plan's script.
    """
    if plan.cluster.template is None:
        return ()
    parts = [each.part for each in of_plan(plan, script)]
    if not parts:
        return ()
    return (f"cluster.template={plan.cluster.template} lacks {', '.join(parts)}: see `template lint`",)


def of_plan(plan: JobPlan, script: Callable[[JobPlan], str]) -> Sequence[Lost]:
    """Returns the parts of our script that are missing from the script of a plan with a custom template.

    Args:
        plan: plan with cluster.template.
        script: renders a plan's script.
    """
    return lost(plan, script(plan), script(replace(plan, cluster=replace(plan.cluster, template=None))))
