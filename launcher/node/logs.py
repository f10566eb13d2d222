"""Where the ranks of a round write, and what of a traceback is theirs."""

from __future__ import annotations

import re
from pathlib import Path

from torch.distributed.elastic.multiprocessing.api import LogsDest, LogsSpecs

from launcher.agent.logs import log_name


class Logs(LogsSpecs):
    """One file per rank and stream under the attempt, and everything on this agent's own output, prefixed."""

    def __init__(self, folder: Path, round_number: int) -> None:
        super().__init__(str(folder))
        self._folder, self._round = folder, round_number
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    @property
    def root_log_dir(self) -> str:
        return str(self._folder)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        files: dict[str, dict[int, str]] = {"out": {}, "err": {}, "error.json": {}}
        for local, env in envs.items():
            env["TORCHELASTIC_RESTART_COUNT"] = env["LAUNCHER_ROUND"] = str(self._round)
            for kind, paths in files.items():
                path = self._folder / log_name(env["RANK"], self._round, kind)
                if kind != "error.json":
                    path.touch(mode=0o600)
                paths[local] = str(path)
            env["TORCHELASTIC_ERROR_FILE"] = files["error.json"][local]
        out, err = files["out"], files["err"]
        return LogsDest(out, err, dict(out), dict(err), files["error.json"])


# The last of our frames above a workload, a function of the user's own, and a script in a forked rank.
_ABOVE = re.compile(
    r"in _run_workload\n|/workloads/function\.py\", line \d+, in main\n|/worker/script\.py\", line \d+, in run_\w+\n"
)


def users_frames(trace: str) -> str:
    """A traceback without our frames and torch's above the workload. Pure."""
    *_, last = ["", *_ABOVE.findall(trace)]
    _, found, tail = trace.rpartition(last) if last else ("", "", trace)
    frames = tail.find('  File "')
    if not found:
        return trace
    if frames < 0:  # it was raised by our own line, about the workload: the last words are all that matters
        return "\n".join(line for line in tail.splitlines() if line[:1].strip())
    return f"Traceback (most recent call last):\n{tail[frames:]}"
