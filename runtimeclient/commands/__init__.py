"""The commands, one per module; `COMMAND` is the command."""
