"""What several test modules share."""

import os
from pathlib import Path

import pytest

# Read once when the hub client is first imported, so it has to be set before any test module is.
os.environ["HF_HUB_OFFLINE"] = "1"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with golden vectors and reference data that may lie beside the repository."""
    folder = Path(__file__).resolve().parents[2] / "shared"
    if not folder.is_dir():
        pytest.skip("the folder ../shared is not here")
    return folder
