"""What PBS and Grid Engine share: their class, from which a site may derive its own."""

from __future__ import annotations

from launcher.schedulers.pbs.scheduler import PBSScheduler


def test_a_sites_own_class_has_the_modules_of_the_one_that_it_derives_from() -> None:
    class Mine(PBSScheduler):
        name = "mine"

    assert Mine().notices() == PBSScheduler().notices()
