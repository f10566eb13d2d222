"""The first process of a job, once the job script has set everything up; see `launcher.job.driver`.

python -I .../launcher/job/__main__.py [functions] JOB_FILE [--failed setup LINE CODE | WHAT PATH]

With `functions` it is a job of submitit functions.
"""

import os
import signal
import sys


def _note(number: int, _: object) -> None:
    os.environ["LAUNCHER_STOP"] = os.environ.get("LAUNCHER_STOP") or signal.Signals(number).name


# Until the driver has handlers of its own, of the signals that its scheduler sends: Grid Engine SIGUSR2 before SIGKILL
for each in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
    signal.signal(each, _note)
if signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL:  # which a user's --signal=B:USR1@90 sends to this process alone
    signal.signal(signal.SIGUSR1, lambda *_: None)
# -I keeps the working folder and PYTHONPATH out; of them only the launcher itself is needed: behind the standard
# library, before another launcher that may be installed.
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SITES = ("site-packages", "dist-packages")
sys.path.insert(next((n for n, path in enumerate(sys.path) if path.endswith(SITES)), len(sys.path)), ROOT)

from launcher.job import driver

if sys.argv[1] == "functions":
    sys.exit(driver.main_of_functions(sys.argv[2:]))
sys.exit(driver.main(sys.argv[1:]))
