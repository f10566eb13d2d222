"""A stand-in for OpenPBS 23.06.06: its commands, and one daemon that is server, scheduler and MoM of two nodes.

Jobs are real processes, so signals, exit statuses and lost children are the kernel's and bash's own. What the commands
print is held to transcripts of the real thing by test_stand_in.py; where a rule was read in OpenPBS's source instead,
the comment names the file.

| file | is |
|---|---|
| client.py | what every command runs: it hands its arguments to the daemon and prints the answer |
| pbsdsh.py | the one command that does its work by itself, for it is signalled |
| wire.py | messages between the two |
| daemon.py | the process: a Unix socket, a thread per command, one lock around everything |
| arguments.py | getopt, job ids, `#PBS` lines, dates |
| variables.py | the quoting of `qsub -v` |
| resources.py | types of resources, and the language of select and place |
| qsub.py, qstat.py | a command each, from its arguments to what it prints |
| commands.py | all the small ones |
| layout.py | the formats that qstat prints |
| jobs.py | what is known of a job, and its attributes as qstat shows them |
| server.py | the life of jobs, arrays and dependencies |
| placement.py | which chunk goes to which node |
| mom.py | processes, their environment, output files and signals |

It imports nothing but the standard library and runs with `python -I -S`: a command takes some 25 ms.
"""
