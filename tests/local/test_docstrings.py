"""The examples in docstrings of rooms that load TensorFlow or Beam do what they show."""

import pytest
from tests import docstring_examples


@pytest.mark.parametrize("name", docstring_examples.modules(heavy=True))
def test_the_examples_of_a_module_hold(name: str) -> None:
    docstring_examples.check(name)
