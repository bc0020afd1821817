"""
What `manage.py doctor` checks, with a module for each area, and the support bundle.

Each check returns findings and changes nothing. It may fail or hang without affecting the others (`findings.run`).
"""
