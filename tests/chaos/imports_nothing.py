"""A module that cannot be imported where its library is not installed."""

import no_such_library  # type: ignore[import-not-found]  # noqa: F401
