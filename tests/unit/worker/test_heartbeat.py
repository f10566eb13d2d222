"""What ranks tell their agent through shared memory."""

from __future__ import annotations

import os

from launcher.worker.heartbeat import Pulse, Sign


def test_a_forked_rank_is_heard() -> None:
    pulse = Pulse(2)
    assert pulse.signs() == [Sign(False, -1, 0), Sign(False, -1, 0)]
    child = os.fork()
    if child == 0:
        slot = pulse.slot(1)
        slot.listen()
        slot.beat(7)
        slot.beat()
        os._exit(0)
    os.waitpid(child, 0)
    assert pulse.signs() == [Sign(False, -1, 0), Sign(True, 7, 2)]
    pulse.clear()
    assert pulse.signs() == [Sign(False, -1, 0), Sign(False, -1, 0)]


def test_a_rank_that_gives_up_does_not_listen_any_more() -> None:
    pulse = Pulse(1)
    slot = pulse.slot(0)
    slot.listen()
    slot.beat(3)
    slot.give_up()
    assert pulse.signs() == [Sign(False, 3, 1, gives_up=True)]
