from pathlib import Path
from typing import Literal

import pytest
from msgspec.structs import replace

from authkeys import access
from authkeys.credentials import Credential, Reason
from authkeys.keys import KeySet
from authkeys.principal import ANONYMOUS, Principal
from authkeys.salt import SALT_NAME
from runtimeconf.model import AuthConfig, RuntimeConfig
from runtimeconf.secret import Secret
from system.errors import StateDirectoryError
from tests.system.harness import K1


def config_in(directory: Path, enabled: bool = True, compatibility: Literal["2.0", "1.10"] = "2.0") -> RuntimeConfig:
    return RuntimeConfig(
        file=directory / "runtime.yaml",
        state_dir=directory / "state",
        auth=AuthConfig(enabled=enabled, keys=(Secret(K1),) if enabled else ()),
        compatibility=compatibility,
    )


def test_build_creates_the_state_directory_and_the_salt(tmp_path: Path) -> None:
    built, again = (access.build(config_in(tmp_path)).key_set for _ in range(2))

    assert built is not None
    assert again is not None
    assert built.find(K1) == again.find(K1) is not None  # Fingerprints survive a restart.
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "state" / SALT_NAME).exists()


def test_off_creates_nothing_on_disk(tmp_path: Path) -> None:
    config = config_in(tmp_path, enabled=False, compatibility="1.10")

    assert access.build(config) == access.Access(key_set=None, takes_bearer=False)
    assert list(tmp_path.iterdir()) == []


def test_a_state_directory_that_cannot_be_made_stops_it(tmp_path: Path) -> None:
    (tmp_path / "state").touch()

    with pytest.raises(StateDirectoryError):
        access.build(config_in(tmp_path))


@pytest.mark.parametrize(
    ("credential", "expected"),
    [
        pytest.param(Reason.MISSING, Reason.MISSING, id="absent"),
        pytest.param(Reason.REPEATED, Reason.REPEATED, id="malformed"),
        pytest.param(Secret(K1[:-1]), Reason.UNKNOWN, id="unknown"),
        pytest.param(Secret(""), Reason.UNKNOWN, id="empty"),
        pytest.param(Secret(K1), None, id="accepted"),
    ],
)
def test_one_decision_on_a_credential(credential: Credential, expected: Reason | None) -> None:
    key_set = KeySet([Secret(K1)], bytes(32))

    caller = access.Access(key_set=key_set).authenticate(credential)

    assert caller == (expected or Principal(fingerprint=key_set.fingerprints()[0]))
    assert access.Access(key_set=None).authenticate(credential) == ANONYMOUS


@pytest.mark.parametrize("enabled", [True, False])
def test_another_process_with_the_same_configuration_decides_alike(tmp_path: Path, enabled: bool) -> None:
    config = config_in(tmp_path, enabled=enabled, compatibility="1.10")
    built = access.build(config)
    fields = None if built.key_set is None else built.key_set.handover()

    other = access.from_handover(replace(config, auth=AuthConfig(enabled=enabled)), fields)

    assert (other.takes_bearer, built.takes_bearer) == (False, False)
    assert (other.key_set is None) is (built.key_set is None)
    assert other.key_set is None or other.key_set.find(K1) is not None
    with pytest.raises(ValueError, match="another configuration"):
        access.from_handover(config_in(tmp_path, enabled=not enabled), fields)
