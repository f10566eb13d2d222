"""The launcher's command line, with leases of runs and slot managers that expire after a few seconds.

python -m tests.chaos.short_lease ...
"""

from __future__ import annotations

import sys

from launcher.__main__ import main
from launcher.runs import lease_and_locks, point_claims

LOST_AFTER = 5  # seconds
MANAGERS_LOST_AFTER = 15.0  # seconds

if __name__ == "__main__":
    lease_and_locks.TIMEOUT, lease_and_locks.HEARTBEAT, lease_and_locks.POLL = LOST_AFTER, 1, 1
    point_claims.LEASE = MANAGERS_LOST_AFTER
    sys.exit(main())
