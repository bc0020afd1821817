"""
The processes of a runtime: the tree that `serve` starts, restarts, reloads and stops, and what each of its parts does.

`startup` is the other form: a runtime in one process, for a bare gunicorn and for development.
"""
