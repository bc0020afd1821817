import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from runtimeclient.errors import OutputError
from runtimeclient.output.writer import Output
from tests.runtimeclient.conftest import ROOT


class Recorder(io.StringIO):
    def __init__(self) -> None:
        super().__init__()
        self.blocks: list[str] = []

    def write(self, text: str, /) -> int:
        self.blocks.append(text)
        return len(text)


def test_small_texts_are_written_in_blocks() -> None:
    stream = Recorder()
    output = Output(stream)

    for _ in range(10_000):
        output.write("0123456789")
    output.flush()
    output.flush()

    assert "".join(stream.blocks) == "0123456789" * 10_000
    assert len(stream.blocks) == 2


@pytest.mark.parametrize(("is_pipe", "error"), [(False, OutputError), (True, BrokenPipeError)])
def test_a_full_disk_is_an_output_error_and_a_closed_pipe_is_none(is_pipe: bool, error: type[Exception]) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with open(write_end, "w") as pipe, open("/dev/full", "w") as full:  # noqa: PTH123 (a descriptor and a device)
        stream = pipe if is_pipe else full
        output = Output(stream)
        output.write("x")

        with pytest.raises(error, match="Broken pipe" if is_pipe else "No space left"):
            output.flush()

        # What the stream still holds must not fail again when it is closed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "log"])
def test_a_file_that_standard_output_is_redirected_to_is_written_directly(tmp_path: Path, name: str) -> None:
    program = (
        "import pathlib, sys; from runtimeclient.output.writer import output_file\n"
        "print('before', flush=True)\n"
        "with output_file(pathlib.Path(sys.argv[1])) as file: file.output.write('answer\\n')\n"
        "print('after')\n"
    )
    log = tmp_path / "log"
    log.write_text("yesterday\n")

    with log.open("a") as stream:
        command = [sys.executable, "-c", program, name.replace("log", str(log))]
        environ = os.environ | {"PYTHONPATH": str(ROOT)}
        subprocess.run(command, stdout=stream, env=environ, timeout=60, check=True)

    assert log.read_text() == "yesterday\nbefore\nanswer\nafter\n"
