"""Makes fixtures of the unit tests available here."""

from tests.unit.conftest import handlers, own_cache, server

__all__ = ["handlers", "own_cache", "server"]
