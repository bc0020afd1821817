"""
The processes of a runtime: the tree that `serve` starts, restarts, reloads and stops, and the work of each process.

`startup` runs a whole runtime in one process instead, for a bare gunicorn and for development.
"""
