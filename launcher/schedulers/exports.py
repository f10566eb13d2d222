"""An environment as shell text, for jobs that get theirs from a file. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

# What belongs to the node where a job or a task runs rather than to the shell: the scheduler sets it there.
OF_NODE = re.compile(r"HOSTNAME|CUDA_DEVICE_ORDER|ZE_AFFINITY_MASK|\w+_VISIBLE_DEVICES")
OF_BASH = re.compile(r"_|BASHOPTS|SHELLOPTS|UID|EUID|PPID")
VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def exports(environ: Mapping[str, str]) -> str:
    """Shell text that makes an environment this one, but for the node's own variables and for functions."""
    lines = []
    for name, value in environ.items():
        if VARIABLE.fullmatch(name) and not OF_BASH.fullmatch(name):
            unless_set = f"[ -v {name} ] || " if OF_NODE.fullmatch(name) else ""
            lines.append(f"{unless_set}export {name}={shlex.quote(value)}\n")
    return "".join(lines)
