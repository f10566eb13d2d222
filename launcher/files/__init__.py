"""Files that several machines or users share: reading with three outcomes, replacing, locks, owners.

It may import errors, paths and units.

- `shared_files`: reads with three outcomes: ok, wrong, unavailable; retries
- `run_files`: opening, replacing and making files and folders of runs; limits on size
- `json_types`: checks that JSON has the types of a dataclass
- `os_errors`: an OSError as a line for the user, with what to do
- `ownership`: who owns a folder, and who could replace it
- `trusted_folders`: folders whose other owners the user trusts
- `writers`: who besides the owner can write to a folder, with the standard library alone
- `locks`: flock between processes
- `link_lock`: a lock for file systems without flock
- `shared_secret`: random bytes that only processes of one user know
- `shared_folder`: whether compute nodes see the folder of runs
- `memory_file`: an unnamed file in memory, passed on between processes
- `checksum`: checksums of files
"""
