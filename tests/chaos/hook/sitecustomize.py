"""Every Python process that starts with this folder on its path meets the file server of tests.chaos.file_server."""

from tests.chaos import file_server

file_server.install()
