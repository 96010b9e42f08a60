"""The examples in docstrings do what they show; those of rooms with TensorFlow or Beam are in tests/local."""

import pytest
from tests import docstring_examples


@pytest.mark.parametrize("name", docstring_examples.modules(heavy=False))
def test_the_examples_of_a_module_hold(name: str) -> None:
    docstring_examples.check(name)
