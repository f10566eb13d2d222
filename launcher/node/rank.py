"""A rank as torch's elastic agent forks it: hands over to `launcher.worker.main`. It goes with `elastic`."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from multiprocessing.synchronize import Event
from types import FrameType
from typing import Any

from launcher.agent.placement import place_variables
from launcher.node import orphans, pulse, watchdog
from launcher.node.rendezvous import Member
from launcher.plan import JobPlan
from launcher.post_mortem.symptoms import LOST_PEER
from launcher.worker import handover, main, script
from launcher.worker.main import AGENTS_OWN

__all__ = ["AGENTS_OWN", "place_variables", "run_rank"]


def run_rank(
    plan: JobPlan, members: Sequence[Member], index: int,
    signs: pulse.Pulse, stacks: watchdog.Stacks, agent: int, round_number: int, gate: Event,
) -> dict[str, Any]:  # fmt: skip
    """Runs the workload in this process, whose RANK the agent has set."""
    orphans.die_with_parent(agent)
    place = int(os.environ["LOCAL_RANK"])
    ignored = main.ignored_signals(round_number)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT):
        signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
    os.environ.update(place_variables(members, index, place))
    gate.wait(plan.rendezvous_timeout)
    readable, writable = os.pipe()
    os.write(writable, b"!")
    os.environ[handover.GATE] = str(readable)
    os.environ[handover.REPORT] = str(os.memfd_create("report"))
    if (descriptor := _sentinel()) is not None:
        os.set_inheritable(descriptor, True)
    try:
        return main.run_rank(plan, place, pulse_file=signs.share(), stacks_file=stacks.file(place), lives=round_number)
    except SystemExit as leave:
        if isinstance(leave.code, str):
            raise RuntimeError(f"sys.exit({leave.code!r})").with_traceback(leave.__traceback__) from None
        if leave.code:
            raise
        return {}
    except Exception as error:
        traceback.print_exception(error)
        if script.lost_peer(error, LOST_PEER.pattern):
            time.sleep(handover.SYMPTOM_DELAY)
        raise


def _sentinel() -> int | None:
    """The end of multiprocessing's pipe by which the agent hears of this process's end; `exec` would close it."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "_launch" and "child_w" in frame.f_locals:
            return int(frame.f_locals["child_w"])
        frame = frame.f_back
    return None
