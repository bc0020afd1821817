"""
Write `answers.json`: the answers of the DataFusion that is installed, the one of `requirements/peers.txt`.

`make datafusion` runs this, in the environment of the benchmark's peers.
"""

import json

import datafusion  # type: ignore[import-not-found]  # it is in the environment of the peers

from docs.internals.datafusion.constructs import ANSWERS, TABLES, answer, constructs

_FUNCTIONS = "SELECT DISTINCT routine_name FROM information_schema.routines ORDER BY 1"


def main() -> None:
    """Ask for each construct; one that DataFusion refuses is not a construct of its dialect."""
    context = datafusion.SessionContext(datafusion.SessionConfig().with_information_schema(True))
    for name, sql in TABLES.items():
        context.sql(f"CREATE TABLE {name} AS {sql}").collect()
    answers = {one.text: answer(context.sql(one.sql).to_arrow_table()) for one in constructs()}
    lines = (f"{json.dumps(text)}: {json.dumps(found)}" for text, found in answers.items())
    functions = context.sql(_FUNCTIONS).to_arrow_table().column(0).to_pylist()
    head = f'{{\n"version": "{datafusion.__version__}",\n"functions": {json.dumps(functions)},\n"answers": {{\n'
    ANSWERS.write_text(head + ",\n".join(lines) + "\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
