"""The first process of a job, once the job script has set everything up; see `launcher.job.driver`.

python -I .../launcher/job/__main__.py JOB_FILE [--failed WHAT [LINE CODE]]
"""

import os
import sys

# -I keeps the working folder and PYTHONPATH out; of them only the launcher itself is needed.
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from launcher.job.driver import main

sys.exit(main(sys.argv[1:]))
