"""How values print, and that secrets do not."""

import pickle

import pytest

from runtimeconf.model import AuthConfig, DatasetConfig
from runtimeconf.secret import Secret


def test_c33_a_secret_does_not_print_pickle_or_hash() -> None:
    secret = Secret("canary")

    assert secret.reveal() == "canary"
    assert "canary" not in f"{secret} {secret!r} {AuthConfig(enabled=True, keys=(secret,))}"
    assert secret == Secret("canary")
    assert secret != Secret("other")
    assert secret != "canary"
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(secret)
    with pytest.raises(TypeError, match="unhashable"):
        hash(secret)


def test_c33_params_do_not_print() -> None:
    dataset = DatasetConfig(name="a", from_="file:a", location="/a", params={"file_format": "canary"})

    assert "canary" not in repr(dataset)
