"""Builds the page of the console for a wheel or an sdist: docs/internals/decisions/0035-console.md."""

import os
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

#: Set to anything, it makes a wheel without the page: for images of servers, whose build needs no Node.js then.
WITHOUT_CONSOLE = "QUERYKEEP_WITHOUT_CONSOLE"


class ConsoleHook(BuildHookInterface[Any]):
    """Builds the page if it is out of date. An sdist contains it, so building a wheel needs no Node.js."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the page, unless its files belong to the sources that are packed."""
        if os.environ.get(WITHOUT_CONSOLE):
            return
        root = Path(self.root)
        sys.path.insert(0, str(root))
        from runtimeclient.console import assets  # noqa: PLC0415 (of the directory that is packed)

        assets.ensure_built(print)
        build_data["artifacts"].append("/runtimeclient/console/assets/")
