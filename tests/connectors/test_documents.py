"""The pages of the sources and the declarations of their connectors say the same."""

import re
import tomllib
from pathlib import Path

import pytest

from runtimeconf.file_formats import FileParams
from runtimeconf.loader import load
from runtimeconf.plugins import CONNECTORS

#: The values of secrets whose form is checked.
FORMS = {"access_key": "a2V5", "sas": "sp=r&sig=value"}

ROOT = Path(__file__).parents[2]
DIRECTORY = ROOT / "docs" / "sources"
#: The connectors of each page: its own, and those that are read alike.
ALIKE = {"http": ["https"], "delta": ["delta_lake"], "gcs": ["gs"], "abfs": ["abfss", "az"]}
PAGES = {page.stem: [page.stem, *ALIKE.get(page.stem, [])] for page in sorted(DIRECTORY.glob("*.md"))}


def test_every_connector_has_a_page() -> None:
    assert {name for names in PAGES.values() for name in names} == set(CONNECTORS)


#: What README calls the source of each page.
IN_README = {
    "abfs": "Azure Storage",
    "delta": "Delta Lake",
    "duckdb": "DuckDB",
    "file": "local",
    "flightsql": "Flight SQL",
    "ftp": "FTP",
    "gcs": "Google Cloud Storage",
    "graphql": "GraphQL",
    "http": "web",
    "iceberg": "Iceberg",
    "mssql": "SQL Server",
    "mysql": "MySQL, MariaDB",
    "postgres": "PostgreSQL",
    "s3": "S3",
    "sftp": "SFTP",
    "spark": "Spark",
    "sqlite": "SQLite",
}


def test_the_lists_of_sources_name_every_connector_and_no_other() -> None:
    (listed,) = re.findall(r"\*\*Sources:\*\* (.*?): \[", " ".join((ROOT / "README.md").read_text().split()))
    table = (ROOT / "docs" / "datasets.md").read_text().partition("| `from:` |")[2].partition("\n\n")[0]

    assert PAGES.keys() == IN_README.keys()
    assert [page for page, name in IN_README.items() if name not in listed] == []
    named = sorted(IN_README.values(), key=len, reverse=True)
    others = set(re.findall(r"\w+", re.sub("|".join(map(re.escape, named)), "", listed)))
    assert others == {"files", "or", "from", "servers", "and", "tables"}
    assert set(re.findall(r"`([a-z_0-9]+):`", table)) == set(CONNECTORS)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_every_parameter_what_to_install_and_examples_that_load(page: str, tmp_path: Path) -> None:
    text = (DIRECTORY / f"{page}.md").read_text(encoding="utf-8")
    _, _, table = text.partition("| Parameter | Default | Meaning |\n|---|---|---|\n")
    rows = set(re.findall(r"^\| `([a-z0-9_]+)` \|", table.partition("\n\n")[0], re.MULTILINE))
    blocks = re.findall(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert blocks

    for name in PAGES[page]:
        # The page of local files explains those of files.
        explained = set() if name == "file" else set(FileParams.declared)
        assert rows == CONNECTORS[name].params.declared.keys() - explained
        assert not explained & CONNECTORS[name].params.declared.keys() or "(file.md#parameters)" in text
        assert all(f"'{package.requirement}'" in text for package in CONNECTORS[name].packages)
    for block in blocks:
        (tmp_path / "runtime.yaml").write_text(block)
        secrets = {name.upper(): FORMS.get(name, "value") for name in re.findall(r"secrets:(\w+)", block)}
        assert load(tmp_path / "runtime.yaml", secrets).datasets


def test_libraries_of_connectors_are_pinned_as_the_fault_at_start_says() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    for connector in CONNECTORS.values():
        assert {package.requirement for package in connector.packages} <= {*project["optional-dependencies"]["sources"]}
