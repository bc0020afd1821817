"""
Count how many public Spicepods the runtime accepts, to measure its compatibility with Spice.ai.

Get some first, for example::

    git clone --depth 1 https://github.com/spiceai/cookbook
    git clone --depth 1 https://github.com/spiceai/spiceai
    python -m benchmarks.spicepods cookbook spiceai

Every YAML file and every YAML block in a Markdown file with `kind: Spicepod` counts, but identical texts count once.
Every secret is set in the environment, regardless of its store, to a plausible value for its name. Placeholders in
brackets (`[Host]`), which stand for a value or a part of `from`, are replaced in the same way. Each Spicepod in
`dependencies`, which is fetched by name, exists and has no datasets.
"""

import re
import sys
import tempfile
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from runtimeconf.errors import ConfigError
from runtimeconf.loader import load

_KIND = re.compile(r"^kind:\s*Spicepod\s*$", re.MULTILINE)
_BLOCK = re.compile(r"^([ \t]*)```ya?ml[^\n]*\n(.*?)^[ \t]*```", re.MULTILINE | re.DOTALL)
STORE = re.compile(r"(?<=from: )(?:keyring|(?:aws_secrets_manager|kubernetes):\S+)[ \t]*$", re.MULTILINE)
_PLACEHOLDER = re.compile(r"(?<=: )(?:\[([^\]\n,]+)\]|<([^>\n]+)>)[ \t]*$", re.MULTILINE)

_IN_LOCATION = re.compile(r"(?<=from: )[a-z0-9]+:\S*\[[a-z_]+\]\S*[ \t]*$", re.MULTILINE)
_DEPENDENCIES = re.compile(r"^dependencies:[ \t]*\n((?:[ \t]*-.*\n?)+)", re.MULTILINE)
_DEPENDENCY = re.compile(r"-[ \t]*([\w.-]+/[\w.-]+)[ \t]*$", re.MULTILINE)
_PART = re.compile(r"\[([a-z_]+)\]")

#: What a secret of a name that contains this is.
_VALUES = {
    "endpoint": "https://data.example.com:443",
    "port": "5432",
    "host": "data.example.com",
    "enabled": "true",
    "pointer": "/data/rows",
    "connection_string": "Server=data.example.com;Database=sales;User ID=reader;Password=a_secret_42",
    "remote_host": "data.example.com",
    "remote_path": "data",
    "spark_remote": "sc://data.example.com:15002",
}


def _value(name: str) -> str:
    return next((value for part, value in _VALUES.items() if part in name.lower()), "a_secret_42")


class _Secrets(dict[str, str]):
    """An environment in which every variable has a value."""

    def get(self, name: str, default: object = None) -> str:
        del default
        return _value(name)

    def __missing__(self, name: str) -> str:
        return _value(name)


def spicepods(directory: Path) -> Iterator[str]:
    """Yield the text of each Spicepod below *directory*."""
    for path in sorted(directory.rglob("*")):
        if path.suffix.lower() not in {".yaml", ".yml", ".md", ".mdx"} or not path.is_file():
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        is_yaml = path.suffix.lower() in {".yaml", ".yml"}
        for part in [text] if is_yaml else [textwrap.dedent(block[2]) for block in _BLOCK.finditer(text)]:
            if _KIND.search(part):
                yield part


def reasons(text: str, file: Path) -> tuple[str, ...]:
    """Return why the Spicepod *text* is refused, one reason for each field; none if it is accepted. Writes *file*."""
    text = _IN_LOCATION.sub(lambda match: _PART.sub(lambda part: _value(part[1]), match[0]), text)
    text = _PLACEHOLDER.sub(lambda match: _value(match[1] or match[2]), STORE.sub("env", text))
    file.write_text(text, encoding="utf-8")
    for name in _DEPENDENCY.findall("".join(_DEPENDENCIES.findall(text))):
        dependency = file.parent / "spicepods" / name / "spicepod.yaml"
        dependency.parent.mkdir(parents=True, exist_ok=True)
        dependency.write_text(f"kind: Spicepod\nname: {Path(name).name}\n", encoding="utf-8")
    try:
        load(file, _Secrets(), needs_libraries=False)
    except ConfigError as exc:
        return tuple(dict.fromkeys(_reason(fault.yaml_path, fault.message) for fault in exc.faults))
    return ()


def _reason(path: str, message: str) -> str:
    field = re.sub(r"\[\d+\]", "[]", path)
    if match := re.search(r"the connector ([a-z0-9_.]+) is not supported", message):
        return f"{field}: {match[1]}"
    return f"{field}: {re.split('[;:(]', message)[0].strip()}"


def main(directories: list[str]) -> None:
    """Print the share of accepted Spicepods, and the number of Spicepods that each reason excludes."""
    texts = dict.fromkeys(text for directory in directories for text in spicepods(Path(directory)))
    with tempfile.TemporaryDirectory() as scratch:
        refused = [reasons(text, Path(scratch) / "spicepod.yaml") for text in texts]
    accepted = sum(not found for found in refused)
    sys.stdout.write(f"{accepted} of {len(texts)} Spicepods are accepted.\n\n  refused   for this alone\n")
    alone = Counter(found[0] for found in refused if len(found) == 1)
    for reason, count in Counter(reason for found in refused for reason in found).most_common():
        sys.stdout.write(f"{count:9,} {alone[reason]:16,}   {reason}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
