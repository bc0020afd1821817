"""
The package that the wheel installs. Importing it puts the packages inside it first on `sys.path`.

In a clone these packages are at the top level, as `manage.py` expects of a Django project. Installed there, they would
collide with other distributions: PyPI has an `authkeys` and an `httpserver` that are not ours.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
