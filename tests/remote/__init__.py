"""Clusters behind ssh: a real sshd on a loopback address, with real schedulers behind it."""
