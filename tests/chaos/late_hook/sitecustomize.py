"""Every Python process that starts with this folder on its path sees claims late: tests.chaos.late_files."""

from tests.chaos import late_files

late_files.install()
