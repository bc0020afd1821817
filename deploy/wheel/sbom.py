"""Adds the JavaScript libraries that the page of the console contains to the SBOM: `sbom.py FILE`."""

import base64
import json
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

_CONSOLE = Path(__file__).parents[2] / "runtimeclient" / "console"


def components(lock: Mapping[str, Any], bundled: Collection[str]) -> Iterator[dict[str, Any]]:
    """Yield those libraries of a lock file of npm that are *bundled*, which has names with versions."""
    for path, package in sorted(lock["packages"].items()):
        name = path.rpartition("node_modules/")[2]
        if f"{name} {package.get('version')}" in bundled:
            purl = f"pkg:npm/{quote(name)}@{package['version']}"
            digest = base64.b64decode(package["integrity"].removeprefix("sha512-")).hex()
            yield {
                "bom-ref": purl,
                "hashes": [{"alg": "SHA-512", "content": digest}],
                "licenses": [{"expression": package["license"]}],
                "name": name,
                "purl": purl,
                "type": "library",
                "version": package["version"],
            }


def main() -> None:
    """Rewrite the file, in the same order each time."""
    lock = json.loads((_CONSOLE / "page" / "package-lock.json").read_text(encoding="utf-8"))
    licences = (_CONSOLE / "assets" / "LICENSES.txt").read_text(encoding="utf-8")
    file = Path(sys.argv[1])
    bom = json.loads(file.read_text(encoding="utf-8"))
    for component in components(lock, set(re.findall(r"^(\S+ \S+) \(", licences, re.MULTILINE))):
        bom["components"].append(component)
        bom["dependencies"].append({"ref": component["bom-ref"]})
    file.write_text(json.dumps(bom, indent=2, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
