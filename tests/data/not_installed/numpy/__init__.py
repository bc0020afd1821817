"""Stands before the real numpy in programs that tests start: who installs the runtime does not get it."""

raise ImportError("numpy is not installed")
