"""The tests; a package, so that `tests.mistakes` is this folder's, whatever else is installed."""
