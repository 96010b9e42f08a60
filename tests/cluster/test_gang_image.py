"""A gang on a real Kubernetes whose image cannot be had. It waits most of its time, so it has a process to itself."""

from __future__ import annotations

import plans
import pytest
from namespaces import Namespace

pytestmark = pytest.mark.cluster


def test_an_image_that_cannot_be_had_is_permanent_and_found_within_two_minutes(namespace: Namespace) -> None:
    launcher = namespace.launch(plans.plan("image", plans.WORK) | {"image": "missing/image:1"})
    assert launcher.code(120) == 40, launcher.log
    assert "(pod pending: " in launcher.log and "missing/image:1" in launcher.log
