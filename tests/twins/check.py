"""One site against its twin: what runs, what both we and the twin refuse, and a profile made from the twin."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from launcher.config.schema import Limits
from launcher.paths import resource
from tests.launch import Launcher
from tests.twins import pbs, sge, slurm
from tests.twins.rules import Refusal, Rules

TWINS = {"slurm": slurm.Twin, "pbs": pbs.Twin, "sge": sge.Twin}
P2P = ("workload=p2p", "workload.pattern=pingpong", "workload.sizes=1K", "workload.device=cpu", "time=5m", "wait=true")
# What our check knows is taken from it, so that the twin sees the job.
UNCHECKED = (
    "cluster.check=false",
    "cluster.required=[]",
    *(f"cluster.limits.{field.name}=null" for field in dataclasses.fields(Limits) if field.name != "time_by_nodes"),
)
# What this machine has instead of the site's own.
MODULE = "#!/bin/sh\nexit 0\n"


class Differs(AssertionError):
    """A twin and the launcher do not agree, with what both said."""


@dataclasses.dataclass(frozen=True)
class Twin:
    """A site's twin that is up.

    Attributes:
        rules: that it keeps.
        launcher: a command line that submits to it.
    """

    rules: Rules
    launcher: Launcher

    def checks(self) -> Iterator[tuple[str, Callable[[], None]]]:
        """All that is compared: one of `runs`, `refused` and `init`, and what does it, which raises Differs."""
        yield "runs", self.accepts
        for refusal in self.rules.refused:
            yield "refused", functools.partial(self.refuses, refusal)
        yield "init", self.describes_itself

    def accepts(self) -> None:
        """A p2p on two nodes runs with the site's profile.

        Raises:
            Differs: it does not.
        """
        words = [*shlex.split(self.rules.fits), f"cluster={self.rules.name}", *self._here()]
        self._run(*words)

    def refuses(self, refusal: Refusal) -> None:
        """The launcher refuses what the twin refuses, for the same reason, before the twin sees it.

        Raises:
            Differs: one of them does not, or says something else.
        """
        if refusal.beside:
            with self._waiting(refusal.beside):
                self.refuses(dataclasses.replace(refusal, beside=""))
            return
        fits = [word for word in shlex.split(self.rules.fits) if word.partition("=")[0] not in refusal.drops.split()]
        words = [*P2P, "nodes=2", *fits, f"cluster={self.rules.name}", *self._here(), *shlex.split(refusal.asks)]
        shutil.rmtree(self.launcher.runs_dir, ignore_errors=True)
        ours = self.launcher(*_last(words))
        if ours.returncode == 0 or refusal.ours not in _flat(ours.stderr):
            raise Differs(f"{refusal.asks or refusal.drops}: we say {_flat(ours.stderr)!r}, not {refusal.ours!r}")
        if self.launcher.runs_dir.exists() and any(self.launcher.runs_dir.glob("*/record.json")):
            raise Differs(f"{refusal.asks or refusal.drops}: a run was left behind")
        pools = yaml.safe_load((resource("conf") / "cluster" / f"{self.rules.name}.yaml").read_text()).get("pools", {})
        theirs = self.launcher(*_last([*words, *UNCHECKED, *(f"~cluster.pools.{name}" for name in pools)]))
        said = _flat(theirs.stdout + theirs.stderr)
        if theirs.returncode == 0 or refusal.theirs not in said:
            raise Differs(f"{refusal.asks or refusal.drops}: the twin says {said!r}, not {refusal.theirs!r}")

    @contextmanager
    def _waiting(self, asks: str) -> Iterator[None]:
        """Another run waits at the site inside.

        Raises:
            Differs: it is not accepted.
        """
        other = dataclasses.replace(self.launcher, runs_dir=self.launcher.runs_dir.parent / "other-runs")
        words = [*P2P, "nodes=2", "wait=false", "run_id=other", *shlex.split(self.rules.fits)]
        done = other(*_last([*words, f"cluster={self.rules.name}", *self._here(), *shlex.split(asks)]))
        if done.returncode:
            raise Differs(f"{asks}: {_flat(done.stderr)}")
        try:
            yield
        finally:
            other("cancel", "other")

    def describes_itself(self) -> None:
        """`site init` writes a profile with which a p2p runs.

        Raises:
            Differs: it does not.
        """
        made = self.launcher("site", "init", "made", "--force", *shlex.split(self.rules.init))
        if made.returncode:
            raise Differs(f"site init: {_flat(made.stderr)}")
        self._run(*shlex.split(self.rules.fits), "cluster=made", *shlex.split(self.rules.untold))

    def _run(self, *words: str) -> None:
        done = self.launcher(*_last([*P2P, "nodes=2", *words]))
        if done.returncode:
            raise Differs(f"{shlex.join(words)}: {done.stdout[-2000:]}{done.stderr[-2000:]}")

    def _here(self) -> list[str]:
        return [] if self.rules.scheduler == "sge" else ["cluster.interface=lo"]  # its nodes have networks of their own


def _last(words: list[str]) -> list[str]:
    """Each key once, as it was written last."""
    return list({word.partition("=")[0].lstrip("+"): word for word in words}.values())


def _flat(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


@contextmanager
def twin(rules: Rules, folder: Path) -> Iterator[Twin]:
    """The site's scheduler, with what else jobs look for there."""
    commands = folder / "bin"
    commands.mkdir(parents=True)
    (commands / "module").write_text(MODULE)
    (commands / "module").chmod(0o755)
    with TWINS[rules.scheduler](rules) as site:
        path = f"{commands}:{site.environment.get('PATH') or os.environ['PATH']}"
        before = site.on_head if isinstance(site, sge.Twin) else ()
        yield Twin(rules, Launcher(folder / "runs", {**site.environment, "PATH": path}, (), before))
