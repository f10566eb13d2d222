"""Converts an environment to shell `export` lines, for jobs that read their environment from a file, and back."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

# Variables that the scheduler sets on each node for a job or task.
OF_NODE = re.compile(r"HOSTNAME|CUDA_DEVICE_ORDER|ZE_AFFINITY_MASK|\w+_VISIBLE_DEVICES")
OF_BASH = re.compile(r"_|BASHOPTS|SHELLOPTS|UID|EUID|PPID")
VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def exports(environ: Mapping[str, str]) -> str:
    """Returns bash lines that export these variables, those of OF_NODE only where the node has none."""
    lines = []
    for name, value in environ.items():
        if VARIABLE.fullmatch(name) and not OF_BASH.fullmatch(name):
            unless_set = f"[ -v {name} ] || " if OF_NODE.fullmatch(name) else ""
            lines.append(f"{unless_set}export {name}={shlex.quote(value)}\n")
    return "".join(lines)


def parse_exports(text: str) -> dict[str, str]:
    """Returns the variables of bash lines that `exports` has made (those of OF_NODE too) and of comment lines."""
    words = iter(shlex.split(text, comments=True))
    return dict(next(words).split("=", 1) for word in words if word == "export")
