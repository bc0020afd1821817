"""What a caller may read of a plan of the cluster."""

import re
from collections.abc import Mapping
from typing import Final

#: What looks like a path or a URI: a slash before a character that can be a part of a name.
_PATH: Final = re.compile(r"[^\s\[\](){},<>;=`'\"]*/[^\s\[\](){},*]+")


def shown(plan: str, names: Mapping[str, str]) -> str:
    """
    Return *plan* with declared *names* instead of those of views, which are their keys.

    What looks like a path is left out: the storage of the cluster is not the caller's.
    """
    plan = _PATH.sub("<path>", plan)
    for view in sorted(names, key=len, reverse=True):  # One may begin with another.
        plan = plan.replace(view, names[view])
    return plan
