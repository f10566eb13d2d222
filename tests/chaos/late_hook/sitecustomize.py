"""Installs tests.chaos.late_files in every Python process that has this folder on its PYTHONPATH."""

from tests.chaos import late_files

late_files.install()
