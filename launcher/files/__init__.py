"""Files that several machines or users share: reads with three outcomes, atomic writes, locks, owners.

It may import errors, paths and units.

- `shared_files`: reads with three outcomes (ok, wrong, unavailable), and retries of transient errors
- `run_files`: opens, replaces and makes files and folders of runs; limits on size
- `json_types`: checks JSON values against the types of a dataclass, and converts between the two
- `os_errors`: turns an OSError into a line for the user, with what to do
- `ownership`: who owns a folder and who could replace it, so that nothing of another user is executed
- `trusted_folders`: folders whose other owners the user trusts (cluster.trusted_folders)
- `writers`: who besides the owner can write to a folder, with the standard library alone
- `locks`: flock between processes
- `link_lock`: a lock made with link(2), for file systems without flock
- `shared_secret`: secrets that only processes of one user can read
- `shared_folder`: checks before a submission that compute nodes can see the folder of runs
- `memory_file`: an unnamed file in memory, whose descriptor processes pass on
- `checksum`: SHA-256 of files
"""
