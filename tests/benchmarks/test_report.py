"""The report: JSON, Markdown between markers, pictures."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks import pictures
from benchmarks.bench import Curve, Effort, Results, Standalone
from benchmarks.catalogue import Catalogue, catalogue
from benchmarks.report import Report, blocks, link, number, rewrite, whole
from benchmarks.samples import Samples, Target

ROW = Standalone(
    name="speed",
    title="how fast",
    measure=lambda *_: {},
    targets=[Target(metric="requests/s", against="peer", at_least=2.0), Target(metric="s", at_most=1.0)],
)
CURVE = Curve(
    name="width",
    title="Width",
    along="columns",
    points=(1, 1000),
    subjects=("Querykeep", "peer"),
    shown=("s",),
    measure=lambda *_: {},
)
EVERYTHING = Catalogue(
    stages=(), standalone=(ROW,), curves=(CURVE,), highlights=(("speed", "requests/s", "peer"), ("late", "s", "peer"))
)


@pytest.fixture
def found() -> Report:
    speed, narrow, wide = Samples(), Samples(), Samples()
    for ours, theirs in ((3000.0, 1000.0), (2000.0, 1000.0), (2400.0, 800.0)):
        speed.add("Querykeep", {"requests/s": ours})
        speed.add("peer", {"requests/s": theirs})
    speed.fail("other", "AnswerError: no /some/environment/of a|b/file.txt")
    narrow.add("Querykeep", {"s": 0.5})
    wide.add("Querykeep", {"s": 1.5})
    wide.fail("peer", "gone")
    results = Results(rows={"speed": speed}, curves={"width": {1: narrow, 1000: wide}}, seconds=120.0)
    return Report(machine={"cores": "2"}, effort=Effort(rounds=3, seconds=1.0), results=results)


def parts(found: Report) -> Mapping[str, str]:
    return blocks(found, EVERYTHING, lambda name: f"curves/{name}.svg")


def test_json_has_the_verdicts_and_makes_a_round_trip(found: Report) -> None:
    first, second = json.loads(found.to_json(EVERYTHING))["targets"]

    assert Report.from_json(found.to_json(EVERYTHING)) == found
    assert (first["row"], first["found"]["value"], first["verdict"]) == ("speed", 2.4, "reached")
    assert (second["found"], second["verdict"]) == (None, "not measured")


def test_the_summary_has_a_line_for_each_target(found: Report) -> None:
    lines = parts(found)["summary"].splitlines()

    assert lines[2] == ("| how fast: requests/s | 2,400 | peer 1,000 | **2.40** (2.00 to 3.00) | ≥ 2 x | reached |")
    assert lines[3] == "| how fast: s |  |  |  | ≤ 1 | not measured: Querykeep: not run |"


def test_the_highlights_are_measured_targets_without_verdicts(found: Report) -> None:
    lines = parts(found)["highlights"].splitlines()

    assert lines[2:] == ["| how fast: requests/s | 2,400 | peer 1,000 | **2.40** (2.00 to 3.00) |"]


def test_a_row_shows_all_subjects_and_failures_without_paths(found: Report) -> None:
    text = parts(found)["rows"]

    assert "| peer | 1,000 (800 to 1,000) |" in text
    assert "Not measured: other. AnswerError: no of a\\|b/file.txt" in text


def test_a_curve_has_a_picture_a_table_and_failures(found: Report) -> None:
    text = parts(found)["curves"]

    assert "![Width: s.](curves/width.svg)" in text
    assert "| 1,000 | 1.50 |" in text
    assert "Not measured: peer at 1,000. gone" in text


def test_machine_and_effort_are_reported(found: Report) -> None:
    assert (
        "| cores | 2 |\n| effort | 3 rounds, 1 s of sending in each turn, 2 minutes in all |" in parts(found)["machine"]
    )


def test_only_text_between_markers_is_replaced(tmp_path: Path, found: Report) -> None:
    page = tmp_path / "page.md"
    marked = "# A page\n\n<!-- measured: machine -->\n{}<!-- /measured -->\n\nThe end.\n"
    page.write_text(marked.format("old\n"))

    for _ in range(2):
        rewrite(page, lambda _: parts(found))

    assert page.read_text() == marked.format(f"\n{parts(found)['machine']}\n\n")


def test_a_part_without_figures_is_unchanged(tmp_path: Path, found: Report) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- measured: curves -->\nold\n<!-- /measured -->\n")
    found.results.curves.clear()

    rewrite(page, lambda _: parts(found))

    assert page.read_text() == "<!-- measured: curves -->\nold\n<!-- /measured -->\n"


def test_a_missing_page_becomes_the_whole_report(tmp_path: Path, found: Report) -> None:
    page = tmp_path / "page.md"

    rewrite(page, lambda _: parts(found))

    assert page.read_text() == whole(parts(found))


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.00012, "0.00012"), (0.1234, "0.123"), (12.34, "12.3"), (12345.6, "12,346")]
)
def test_numbers_have_three_significant_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_a_curve_is_drawn_and_its_link_is_relative_to_the_page(tmp_path: Path, found: Report) -> None:
    path = tmp_path / "docs" / "curves" / "width.svg"

    pictures.draw(CURVE, found.results.curves["width"], path)

    assert path.read_text().startswith("<svg")
    assert link(path, tmp_path / "docs") == "curves/width.svg"
    assert link(path, tmp_path) == "docs/curves/width.svg"


def test_names_are_unique() -> None:
    names = catalogue(Path("peers")).names

    assert len(set(names)) == len(names)


def test_every_highlight_is_a_target() -> None:
    everything = catalogue(Path("peers"))
    targets = {(row.name, target.metric, target.against) for row in everything.rows for target in row.targets}

    assert [one for one in everything.highlights if one not in targets] == []
