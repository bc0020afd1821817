"""The lowest layer: the operating system's processes, files, sockets, locks and clocks. Knows no SQL or YAML."""
