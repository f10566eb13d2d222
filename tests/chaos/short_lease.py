"""The launcher's command line, for runs whose lease is lost within seconds: `python -m tests.chaos.short_lease ...`."""

from __future__ import annotations

import sys

from launcher.__main__ import main
from launcher.script import render

LOST_AFTER = 5  # seconds

if __name__ == "__main__":
    render.LEASE_TIMEOUT, render.LEASE_HEARTBEAT, render.LEASE_POLL = LOST_AFTER, 1, 1
    sys.exit(main())
