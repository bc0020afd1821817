"""A handover arrives unchanged, and never holds a secret."""

import os
import subprocess
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec import Struct
from msgspec.structs import replace

from runtimeconf import handover
from runtimeconf.model import AuthConfig, DatasetConfig, DatasetRule, NamedKey, RuntimeConfig
from runtimeconf.secret import Secret
from tests.open_files import open_files

TEXTS = st.text(alphabet=st.characters(codec=None, exclude_categories=()), max_size=20)
NUMBERS = st.integers(min_value=0, max_value=2**62)
SIMPLE: dict[Any, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: NUMBERS,
    float: st.floats(min_value=0.001, allow_infinity=False) | st.integers(min_value=0, max_value=2**53),
    str: TEXTS,
    Path: TEXTS.map(lambda text: Path("/", text.replace("\0", ""))),
    types.NoneType: st.none(),
}


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Return values of a type that the configuration uses, with every field of its records."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, type) and (hint is DatasetRule or issubclass(hint, Struct)):
        return st.builds(hint, **{name: values_of(hints) for name, hints in typing.get_type_hints(hint).items()})
    if origin is typing.Literal:
        return st.sampled_from(arguments)
    if origin is tuple and ... not in arguments:
        return st.tuples(*map(values_of, arguments))
    if origin is tuple:
        holds_secrets = arguments[0] in {Secret, NamedKey}  # which a handover never does
        return st.just(()) if holds_secrets else st.lists(values_of(arguments[0]), max_size=3).map(tuple)
    if origin is Mapping:
        return st.dictionaries(TEXTS, TEXTS, max_size=3)
    return st.one_of(*map(values_of, arguments)) if origin in {typing.Union, types.UnionType} else SIMPLE[hint]


EXTRAS = st.dictionaries(TEXTS, st.none() | st.booleans() | NUMBERS | TEXTS | st.lists(TEXTS, max_size=3), max_size=3)
MINIMAL = RuntimeConfig(file=Path("/runtime.yaml"), state_dir=Path("/state"))


@contextmanager
def written(config: RuntimeConfig, extra: dict[str, Any]) -> Iterator[int]:
    descriptor = handover.write(config, extra)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@given(values_of(RuntimeConfig), EXTRAS)
def test_everything_arrives_as_it_was(config: RuntimeConfig, extra: dict[str, Any]) -> None:
    with written(config, extra) as descriptor:
        assert handover.read(descriptor) == (config, extra)
        assert handover.read(descriptor) == (config, extra)


def test_another_program_reads_it_however_long_it_is() -> None:
    program = "import sys; from runtimeconf import handover; print(handover.read(int(sys.argv[1])))"
    extra = {"digests": ["0" * 64] * 50_000}

    with written(MINIMAL, extra) as descriptor:
        done = subprocess.run(
            [sys.executable, "-c", program, str(descriptor)],
            pass_fds=[descriptor],
            capture_output=True,
            text=True,
            check=True,
        )

    assert done.stdout.strip() == repr((MINIMAL, extra))


def test_a_written_handover_is_immutable_and_not_inherited_by_default() -> None:
    with written(MINIMAL, {}) as descriptor:
        assert not os.get_inheritable(descriptor)
        with pytest.raises(PermissionError):
            os.pwrite(descriptor, b"x", 0)


def test_keys_and_unsupported_types_are_refused() -> None:
    config = replace(MINIMAL, auth=AuthConfig(enabled=True, keys=(Secret("canary"),)))
    before = len(open_files("memfd"))

    with pytest.raises(TypeError, match="cannot be handed over"):
        handover.write(config, {})
    with pytest.raises(TypeError):
        handover.write(MINIMAL, {"a": object()})

    assert len(open_files("memfd")) <= before


def test_a_part_without_sources_has_no_secret_of_them() -> None:
    dataset = DatasetConfig(name="d", from_="s3://canary", location="/canary", params={"token": "canary"}, line=3)
    auth = AuthConfig(enabled=True, keys=(Secret("canary"),))
    config = replace(MINIMAL, datasets=(dataset,), auth=auth)

    stripped = handover.without_sources(config)

    with written(stripped, {}) as descriptor:
        assert b"canary" not in os.pread(descriptor, 100_000, 0)
    assert stripped.auth == AuthConfig(enabled=True)
    assert [(other.name, other.line) for other in stripped.datasets] == [("d", 3)]


class Reload(RuleBasedStateMachine):
    """A writer that offers and enacts texts of any length, and a reader that sees what is in force and offered."""

    def __init__(self) -> None:
        super().__init__()
        self.writer = handover.Handover.of(MINIMAL, {"n": "1"})
        self.reader = handover.Handover(self.writer.for_readers())
        self.texts = {1: "1"}
        self.in_force, self.offered = 1, 0

    @rule(text=st.text(alphabet="xy", max_size=40) | st.integers(0, 9000).map("x".__mul__))
    def offer(self, text: str) -> None:
        self.offered = len(self.texts) + 1
        self.texts[self.offered] = text
        self.writer.offer(self.offered, MINIMAL, {"n": text})

    @rule()
    def enact(self) -> None:
        if self.offered:
            self.writer.enact()
            self.in_force, self.offered = self.offered, 0

    @rule()
    def withdraw(self) -> None:
        self.writer.withdraw()
        self.offered = 0

    @invariant()
    def the_reader_sees_it(self) -> None:
        assert self.reader.numbers() == (self.in_force, self.offered)
        assert self.reader.in_force == self.in_force
        for number, text in self.texts.items():
            if number in {self.in_force, self.offered}:
                assert self.reader.read(number) == (MINIMAL, {"n": text})
            else:
                with pytest.raises(LookupError):
                    self.reader.read(number)

    def teardown(self) -> None:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.pwrite(self.reader.descriptor, b"x", 0)
        for end in (self.reader, self.writer):
            end.close()


TestReload = Reload.TestCase
