"""A stand-in for OpenPBS 23.06.06: its commands, and one daemon that is server, scheduler and MoM of two nodes.

Jobs are real processes, so signals, exit statuses and lost children behave as on a real node. test_stand_in.py compares
the commands' output with transcripts of a real PBS. Rules that were taken from OpenPBS's source instead name the file
in a comment or docstring.

| file | contents |
|---|---|
| client.py | the program of every command: sends its arguments to the daemon, and prints the answer |
| pbsdsh.py | the command pbsdsh, which runs in the client, because it handles signals |
| wire.py | the messages between client and daemon |
| daemon.py | the daemon: a Unix socket, a thread for each command, one lock; the requests of tests |
| arguments.py | parsing of options (getopt), job ids, `#PBS` lines and dates |
| variables.py | the quoting of `qsub -v` and of Variable_List |
| resources.py | types of resources, and the syntax of select, place and nodes |
| qsub.py, qstat.py | these two commands, from their arguments to their output |
| commands.py | the other commands: qdel, qsig, qselect, qrerun, qhold, qrls, qalter, pbsnodes |
| layout.py | the output formats of qstat |
| jobs.py | the record of a job, and its attributes as qstat shows them |
| server.py | the server: states of jobs, arrays, dependencies, queues; the scheduler's loop; settings for tests |
| placement.py | chooses the nodes of a job's chunks |
| mom.py | the MoMs: processes, their environment, output files and signals |
| errors.py | the server's errors: codes and texts |

It imports only the standard library, and runs with `python -I -S`, so that a command takes only about 25 ms.
"""
