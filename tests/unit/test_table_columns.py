"""What a recipe says of columns: logarithms and lists in a cell."""

import re

import pytest

from trainyard.errors import ConfigurationError
from trainyard.spec import documents
from trainyard.spec.recipe import Recipe

TABLE = """
name: songs
data:
  format: csv
  path: songs.csv
  label: sold
  features:
    price: {type: numeric}
    genres: {type: text}
model: {name: mlp}
"""


def parse(*overrides: str) -> Recipe:
    return documents.parse(TABLE, Recipe, name="songs.yaml", overrides=overrides)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("data.features.genres={type: text, separator: ' ;'}", "separator ' ;' has white space around it. Write it"),
        ("data.features.genres={type: text, separator: ' '}", "separator ' ' has white space around it"),
        ("data.features.genres={type: text, separator: '|', ngrams: 2}", "ngrams 2 counts neighbors"),
    ],
)
def test_what_a_list_in_a_cell_cannot_be_is_explained(override: str, expected: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(expected)):
        parse(override)
