"""The examples in docstrings do what they show."""

import doctest
import importlib

import pytest

MODULES = [
    "trainyard.spec.environment",
    "trainyard.spec.feature_names",
    "trainyard.spec.hardware.catalog",
    "trainyard_control.api.forecast",
    "trainyard_control.api.packages",
    "trainyard_control.api.settings",
    "trainyard_control.planning.environment_file",
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_hold(name: str) -> None:
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert tried and not failed
