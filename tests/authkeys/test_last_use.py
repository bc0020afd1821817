"""The file of last uses: what is damaged in it is left out."""

from pathlib import Path

import pytest

from authkeys import last_use


@pytest.mark.parametrize(
    "content",
    [
        '{"a": 1e300, "b": Infinity, "c": NaN, "d": -1, "e": "1", "f": null, "g": 7}',
        '{"h": 1' + "0" * 400 + ', "g": 7.0}',
    ],
)
def test_times_that_cannot_be_are_left_out(tmp_path: Path, content: str) -> None:
    (tmp_path / last_use.FILE_NAME).write_text(content)

    assert last_use.read(tmp_path) == {"g": 7.0}
