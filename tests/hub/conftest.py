"""Caches, homes and package indexes that belong to one test only."""

import pytest

from .fake_hub import FakeHub
from .toy import Resolver, install_fake_pip, write_catalogue, write_wheel


@pytest.fixture
def environment(tmp_path):
    """No cache, token, index or hub of the person who runs the tests is touched."""
    return {
        "NYBBLE_CACHE": str(tmp_path / "cache"),
        "HOME": str(tmp_path / "home"),
        "HF_HOME": str(tmp_path / "home" / "huggingface"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_ENDPOINT": "http://127.0.0.1:9",  # the discard port: nothing listens
        "NO_PROXY": "127.0.0.1",
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_FIND_LINKS": "",
        "PIP_NO_INDEX": "1",
    }


@pytest.fixture
def wheel(tmp_path):
    return write_wheel(tmp_path)


@pytest.fixture
def catalogue(tmp_path, wheel):
    return write_catalogue(tmp_path, wheel)


@pytest.fixture
def resolver(environment):
    """Resolves names in processes of their own."""
    return Resolver(environment)


@pytest.fixture
def fake_pip(tmp_path, wheel, environment):
    """A resolver whose pip is the stand-in."""
    return Resolver(environment | install_fake_pip(tmp_path, wheel))


@pytest.fixture
def hub(environment):
    """A small Hugging Face hub on the loopback device."""
    with FakeHub() as hub:
        environment["HF_ENDPOINT"] = hub.address
        yield hub
