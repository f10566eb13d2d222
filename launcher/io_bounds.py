"""Every bound on what is written and read: bytes of a file, of a line or of a message, levels, integers, counts.

A writer refuses by name what exceeds a bound, and its reader takes the same bound from here, so that whatever was
accepted once can be read for ever. How much a command shows (rows of a table, characters of a cell) is no bound, and
stands where it is shown.
"""

RECORD_BYTES = 1 << 24  # of a run's record
EVENT_BYTES = 1 << 20  # of an event, which is a line of its file
EVENTS_BYTES = 1 << 25  # that are read of an event file: of a larger one, pieces that are evenly apart
EVENTS_LINES = 1 << 18  # that are parsed of an event file: of more, some that are evenly apart
OUTPUT_LINE_BYTES = 1 << 20  # a line of output with its prefix is shorter: of longer lines, parts become lines
MESSAGE_BYTES = 1 << 26  # of a message between two agents: the list of 32,768 agents takes a thirtieth
ACCUSED = 4096  # nodes or ranks that a fault names, so that its event is a line that is read again
JSON_LEVELS = 64  # of JSON: lists and objects, and the value in the innermost one
JSON_INTEGERS = 10**300  # integers in JSON, and in the state of a checkpoint, are below it: a float has as many digits
FIELD_INTEGERS = 1 << 64  # integers of our own fields are below it: a seed of torch has so many bits
FACTS_BYTES = 1 << 24  # of `extra`, `identity` and `metrics` of a checkpoint, each as JSON
FAILURE_LOG_BYTES = 1 << 16  # that are read of the end of the list of failures: the last 700 rounds
REMOTE_RUNS_BYTES = 1 << 24  # of the list of the runs that were submitted to a cluster behind ssh: the last 200,000
CODE_LIST_BYTES = 1 << 26  # of the list of the files that are sent to a cluster: 200,000 with long names
MANIFEST_BYTES = 1 << 26  # of a checkpoint's manifest: thrice FACTS_BYTES, and 8 MB for 10 TB of 32,768 ranks
RESULT_BYTES = 1 << 24  # of the metrics that a run returns, as JSON
LAST_WORDS_BYTES = 1 << 16  # that are read of the end of a rank's standard error when it has failed
REPORT_BYTES = RESULT_BYTES + (1 << 10)  # of a rank's report to its agent: these metrics, or an error
VARIABLE_BYTES = (1 << 17) - 1  # of an environment variable with its name: the kernel's MAX_ARG_STRLEN, without the 0
HOSTS_BYTES = 1 << 15  # of the list of a job's hosts in a variable: longer ones are compressed
CANCELLED_JOBS = 1000  # on the command line of one cancellation: 30 kB of ids
QUERY_BYTES = 1 << 26  # that a scheduler's command prints: a list of 100,000 jobs takes a sixth of it
QACCT_ELEMENTS = 10_000  # of an array that one qacct lists: each execution of one is 1.35 kB
# of the line that starts a node's tasks on Grid Engine: more would not fit into the pipe until Python reads there
QRSH_LINE_BYTES = 60_000
SEARCH_CHOICES = 10_000  # of a key in a search
SWEEP_BYTES = 1 << 27  # of a sweep's manifest
SWEEP_POINTS = 100_000  # of a sweep
SEARCH_BYTES = 1 << 28  # of the journal of a search: enough for 100,000 trials
SEARCH_LINE_BYTES = 1 << 24  # of a line of it, which has the choices of all keys
SEARCH_RUNGS = 64  # of a search: the steps of a later one would have more than 64 bits
SWEEP_OVERRIDES = 10_000_000  # of all points of a sweep together
