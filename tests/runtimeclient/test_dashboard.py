"""What `top` draws, and what the keys do, without a terminal."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from runtimeclient.dashboard.interactive import DOWN, UP, Dialogue
from runtimeclient.dashboard.rendering import View, render
from runtimeclient.dashboard.snapshot import Snapshot
from runtimeclient.http.resources import ActiveQuery, ComponentStatus, DatasetStatus, StatementStatistics
from runtimeclient.output.text import width

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


def query(number: int, sql: str = "SELECT 1") -> ActiveQuery:
    return ActiveQuery(id=f"{number:032x}", started="2026-01-01T11:59:48.000Z", state="running", sql=sql)


def statement(calls: int, sql: str | None = None) -> StatementStatistics:
    times = {f"{kind}_{phase}_ms": 1.5 for kind in ("mean", "p95") for phase in ("queued", "parse", "run", "encode")}
    return StatementStatistics(
        statement="1c9f0e2d9a483705", calls=calls, errors=2, cache_hits=0, rows=7, bytes=70,
        last="2026-01-01T11:59:59Z", mean_total_ms=12.0, p95_total_ms=25.0, sql=sql, **times,
    )  # fmt: skip


def dataset(name: str, error: str | None = None) -> DatasetStatus:
    return DatasetStatus(
        from_="file:a", name=name, acceleration_enabled=True, status="Error" if error else "Ready", rows=336_776,
        refreshed_at="2026-01-01T11:00:00Z", snapshot="s", error=error, age_s=90, bytes=7_000_000,
    )  # fmt: skip


ENGINE = ComponentStatus(
    name="engine", endpoint="unix:engine.sock", status="Ready", workers_alive=4, workers_busy=2, workers_killed=1,
    statements_running=2, statements_queued=3,
)  # fmt: skip

FULL = Snapshot(
    taken=NOW,
    key="analyst",
    is_ready=True,
    components=(ENGINE,),
    queries=tuple(query(number) for number in range(20)),
    statements=tuple(statement(number) for number in range(20)),
    datasets=tuple(dataset(f"data_{number}") for number in range(20)),
)


def lines_of(snapshot: Snapshot | None, columns: int = 120, lines: int | None = None, **more: str) -> list[str]:
    view = View(url="http://127.0.0.1:8090", snapshot=snapshot, **more)
    return render(view, columns, lines, has_color=False).splitlines()


def test_everything_is_on_the_screen() -> None:
    text = "\n".join(lines_of(replace(FULL, datasets=(dataset("fine"), dataset("broken", "no such file")))))

    for part in (
        "key analyst  ready  12:00:00 UTC",
        "engine Ready   workers 2 busy of 4, 1 killed   statements 2 running, 3 queued",
        "Statements of this key that run or wait: 20",
        f"running  12 s  {0:032x}  SELECT 1",
        "12 ms  25 ms",
        "1c9f0e2d9a483705",
    ):
        assert part in text
    assert text.index("broken") < text.index("fine")
    assert "more" not in text


def test_digests_come_with_how_to_see_the_sql() -> None:
    hint = "Statements that took longest in all (digests; history: {sql: true} keeps SQL)"

    assert hint in map(str.rstrip, lines_of(FULL, 80))
    for others in ((), (statement(1), statement(2, "SELECT 1"))):
        assert not any("digests" in line for line in lines_of(replace(FULL, statements=others), 80))


@pytest.mark.parametrize(("columns", "lines"), [(120, 50), (80, 24), (40, 10), (10, 3), (1, 1), (200, 200)])
def test_the_screen_fits_any_terminal(columns: int, lines: int) -> None:
    drawn = lines_of(FULL, columns, lines)

    assert len(drawn) <= lines
    assert max(map(width, drawn)) <= columns
    if lines in {24, 50}:
        assert "q leave" in drawn[-1]
        assert sum("more" in line for line in drawn) == 3


def test_what_others_wrote_cannot_control_the_terminal() -> None:
    bad = "\x1b[2J\u202e[bold]x\n[/]"
    snapshot = replace(
        FULL,
        key=bad,
        queries=(query(1, bad),),
        statements=(statement(1, bad),),
        datasets=(dataset(bad, bad),),
        problems=(bad,),
        components=(replace(ENGINE, name=bad, status=bad, waiting_for=(bad,)),),
    )

    text = "\n".join(lines_of(snapshot, 300, 40, message=bad))

    assert "\x1b" not in text
    assert "\u202e" not in text
    assert text.count("[bold]x") >= 7


def test_what_is_missing_is_said() -> None:
    lost = replace(FULL, is_ready=None, queries=(), problems=("The connection was refused.",))

    assert lines_of(None)[-1] == "Waiting for http://127.0.0.1:8090"
    assert "no connection" in lines_of(lost)[0]
    assert "The connection was refused." in lines_of(lost)
    assert "not ready" in lines_of(replace(FULL, is_ready=False))[0]


def test_the_chosen_statement_is_always_visible() -> None:
    for chosen in FULL.queries:
        assert any(chosen.id in line for line in lines_of(FULL, 80, 24, chosen=chosen.id))


def test_keys_choose_a_statement_and_cancel_it_after_a_question() -> None:
    dialogue, ids = Dialogue(), ["a", "b", "c"]
    dialogue.follow(ids)
    assert dialogue.chosen == "a"
    for key, chosen in ((DOWN, "b"), (DOWN, "c"), (DOWN, "a"), (UP, "c"), ("x", "c")):
        assert dialogue.press(key, ids) == ""
        assert dialogue.chosen == chosen

    assert dialogue.press("c", ids) == ""
    assert dialogue.message == "Cancel statement c? y or n"
    assert dialogue.press("n", ids) == dialogue.asks == ""
    dialogue.press("c", ids)
    assert dialogue.press("y", ids) == "c"
    dialogue.press("c", ids)
    dialogue.follow(["a", "b"])
    assert dialogue.message == "The statement has ended."
    assert dialogue.press("y", ["a", "b"]) == ""

    dialogue.follow([])
    dialogue.press("c", [])
    dialogue.press(UP, [])
    assert (dialogue.chosen, dialogue.asks, dialogue.is_over) == ("", "", False)
    dialogue.press("q", [])
    assert dialogue.is_over
