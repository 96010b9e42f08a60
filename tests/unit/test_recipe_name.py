"""What a recipe goes by on a command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainyard.errors import ConfigurationError
from trainyard.spec import recipe as recipes


def test_a_file_of_this_folder_that_is_named_without_its_ending_is_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pets.yaml").write_text("name: pets\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=r"no recipe 'pets'\. .* Did you mean 'pets\.yaml'\?"):
        recipes.load("pets")
