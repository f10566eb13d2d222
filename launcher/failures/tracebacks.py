"""Tracebacks, and stacks of crashed or hanging ranks, in what a rank has printed: finds and shortens them."""

from __future__ import annotations

import re
from collections.abc import Sequence

FRAMES = 6  # newest frames of a stack that are shown
LONG = 8  # a traceback with more frames than this is shown without frames of libraries
_HEAD = "Traceback (most recent call last):"
_CHAIN = ("During handling of the above exception", "The above exception was the direct cause")
_FRAME = re.compile(r'  File "([^"]*)", line \d+')
_TORCHS_PREFIX = re.compile(r"^\[rank\d+\]: ")
_IMPORT = re.compile(r"^<frozen |/importlib/__init__\.py$")
_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib/python3[^/]*/|^<frozen ")
_LAUNCHER = re.compile(
    r"/launcher/(agent|worker)/|/torch/distributed/elastic/|/torch/multiprocessing/|/multiprocessing/"
)


def without_torchs_prefix(line: str) -> str:
    """Removes the `[rank3]: ` that torch puts before each line of a traceback while there is a process group."""
    return _TORCHS_PREFIX.sub("", line)


def own_frames(trace: str) -> str:
    """Shortens a traceback, so that the user's frames stand out: no import machinery; if it is LONG, few libraries."""
    lines = trace.strip().splitlines()
    blocks = _blocks(lines)
    frames = [at for at, (path, _) in enumerate(blocks) if path]
    shown: list[str] = []
    skipped = 0
    for at, (path, block) in enumerate(blocks):
        follows = blocks[at + 1][0] if at + 1 < len(blocks) else ""
        library = bool(path and _LIBRARY.search(path))
        if path and (_IMPORT.search(path) or (len(frames) > LONG and library and follows and _LIBRARY.search(follows))):
            skipped += 1
            continue
        if skipped and len(frames) > LONG:
            shown.append(f"  ... {skipped} frame{'s' if skipped > 1 else ''} of libraries")
        skipped = 0
        shown += block
    return "\n".join(shown)


def _blocks(lines: Sequence[str]) -> list[tuple[str, list[str]]]:
    blocks: list[tuple[str, list[str]]] = []
    for line in lines:
        if match := _FRAME.match(line):
            blocks.append((match[1], [line]))
        elif blocks and (not blocks[-1][0] or line.startswith("   ")):
            blocks[-1][1].append(line)
        else:
            blocks.append(("", [line]))
    return blocks


def before_traceback(lines: Sequence[str]) -> list[str]:
    """Returns the lines of a log before its last traceback, or before the chain of tracebacks that ends with it."""
    heads = [at for at, line in enumerate(lines) if line.startswith(_HEAD)]
    while heads:
        at = heads.pop()
        between = "\n".join(lines[heads[-1] : at]) if heads else ""
        if not any(words in between for words in _CHAIN):
            return list(lines[:at])
    return list(lines)


def last_traceback(lines: Sequence[str]) -> str:
    """Returns the last traceback (or chain of tracebacks) in a log, with the error line; empty: there is none."""
    rest = list(lines[len(before_traceback(lines)) :])
    heads = [at for at, line in enumerate(rest) if line.startswith(_HEAD)]
    if not heads:
        return ""
    inside = range(heads[-1] + 1, len(rest))
    end = next((at for at in inside if rest[at].strip() and not rest[at][0].isspace()), len(rest) - 1)
    return "\n".join(rest[: end + 1])


def crash_lines(lines: Sequence[str]) -> tuple[str, ...]:
    """Returns the crashed thread's newest frames in a log, after faulthandler's `Fatal Python error: ...`, or ()."""
    begin = next((at for at in range(len(lines) - 1, -1, -1) if lines[at].startswith("Fatal Python error: ")), None)
    if begin is None:
        return ()
    text = "\n".join(lines[begin:])
    _, found, current = text.partition("Current thread ")
    return main_frames(current.partition("\n\n")[0]) if found else ()


def before_crash(lines: Sequence[str]) -> list[str]:
    begin = next((at for at, line in enumerate(lines) if line.startswith("Fatal Python error: ")), len(lines))
    return list(lines[:begin])


def main_thread(stack: str) -> list[str]:
    return re.split(r"\n\s*\n", stack.strip())[-1].splitlines()  # faulthandler writes the main thread last


def main_frames(stack: str) -> tuple[str, ...]:
    """Returns the main thread's newest frames in faulthandler's output, but ours; its first line if it has none."""
    frames = [line.strip() for line in main_thread(stack) if line.lstrip().startswith("File ")]
    end = next((at for at, line in enumerate(frames) if line.endswith("in _run_workload")), len(frames))
    kept = frames[:end] or frames
    own = [line for line in kept if not _LAUNCHER.search(line)]
    return tuple((own or kept)[:FRAMES]) or tuple(stack.strip().splitlines()[:1])


_ERROR = re.compile(r"[A-Za-z_][\w.]*(:|$)")


def last_error(text: str) -> str:
    """Returns the error line of the last traceback in a rank's log (`ValueError: no`); empty: there is no traceback."""
    _, found, tail = text.rpartition(_HEAD)
    if not found:
        return ""
    return next((line for line in tail.splitlines() if line and not line[0].isspace() and _ERROR.match(line)), "")
