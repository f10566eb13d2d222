"""The launcher's command line, for runs and slot managers whose lease is lost within seconds.

python -m tests.chaos.short_lease ...
"""

from __future__ import annotations

import sys

from launcher.__main__ import main
from launcher.runs import claims
from launcher.script import render

LOST_AFTER = 5  # seconds
MANAGERS_LOST_AFTER = 15.0  # seconds

if __name__ == "__main__":
    render.LEASE_TIMEOUT, render.LEASE_HEARTBEAT, render.LEASE_POLL = LOST_AFTER, 1, 1
    claims.LEASE = MANAGERS_LOST_AFTER
    sys.exit(main())
