"""Installs tests.chaos.file_server in every Python process that has this folder on its PYTHONPATH."""

from tests.chaos import file_server

file_server.install()
