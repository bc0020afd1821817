"""The commands, one a module: `COMMAND` says what each is and does it."""
