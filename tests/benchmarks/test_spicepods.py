"""Counting public Spicepods, on a folder like a clone of some."""

from pathlib import Path

import pytest

from benchmarks import spicepods

GOOD = """version: v1
kind: Spicepod
name: good
secrets:
  - from: aws_secrets_manager:shop
    name: secrets_of_shop
  - from: keyring
    name: keyring
datasets:
  - from: postgres:users
    name: users
    params: {pg_host: "${secrets_of_shop:PG_HOST}", pg_db: a, pg_user: b, pg_pass: "${keyring:pg_pass}"}
"""
GUIDE = """# A guide

  ```yaml
  version: v1
  kind: Spicepod
  name: in_a_guide
  datasets:
    - from: postgres:users
      name: [local name]
      params:
        pg_host: [Host]
        pg_port: <port>
        pg_db: shop
        pg_user: reader
  ```

```yaml
version: v1
kind: Spicepod
name: refused
models: []
datasets:
  - {from: "snowflake:a", name: a}
  - {from: "snowflake:b", name: b}
```

```yaml
datasets: []
```
"""


def test_files_and_blocks_are_counted_once_with_the_reasons(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a").mkdir()
    for name in ("spicepod.yaml", "a/spicepod.yml"):
        (tmp_path / name).write_text(GOOD)
    (tmp_path / "README.md").write_text(GUIDE)
    (tmp_path / "notes.txt").write_text(GOOD.replace("good", "other"))
    (tmp_path / "compose.yaml").write_text("services: {}\n")

    spicepods.main([str(tmp_path)])

    assert capsys.readouterr().out.splitlines() == [
        "2 of 3 Spicepods are accepted.",
        "",
        "  refused   for this alone",
        "        1                0   models: is not available here",
        "        1                0   datasets[].from: snowflake",
    ]
