"""The devices of a user: registered, listed, removed, and named by a recipe. No machine is asked."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from trainyard.errors import ConfigurationError, InfrastructureError
from trainyard.spec import devices, documents
from trainyard.spec import environment as environments
from trainyard.spec.devices import Device
from trainyard.spec.recipe import Recipe
from trainyard_control.api.run import run
from trainyard_control.cli.main import app
from trainyard_control.compiler.compilation import compiled

RECIPE = """
name: digits
data: {format: image_folder, bundled: digits, channels: 1}
model: {name: cnn_small}
export: {devices: {pie: {latency_ms_p95: 20}}}
"""


@pytest.fixture(autouse=True)
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path / "trainyard/devices"


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["devices", *arguments])


def fault(*arguments: str) -> str:
    """Return the sentence of a verb that refuses."""
    exception = invoke(*arguments).exception
    assert isinstance(exception, ConfigurationError), exception
    return str(exception)


def test_a_registered_device_is_listed_and_removed() -> None:
    assert "No device is registered" in invoke("list").stderr and json.loads(invoke("list", "-o", "json").stdout) == []
    assert "no device is registered" in fault("check")
    assert invoke("add", "pi", "--ssh", "me@board:2222", "--python", "venv/bin/python", "--no-check").exit_code == 0
    assert invoke("add", "cam", "--ssh", "cam", "--no-check").exit_code == 0
    assert [line.split() for line in invoke("list").stdout.splitlines()] == [
        ["NAME", "SSH", "PYTHON"],
        ["cam", "cam", "python3"],
        ["pi", "me@board:2222", "venv/bin/python"],
    ]
    assert json.loads(invoke("list", "-o", "json").stdout)[0] == {"name": "cam", "ssh": "cam", "python": "python3"}
    assert devices.find("pi").address == ["-p", "2222", "me@board"]
    assert invoke("remove", "pi").exit_code == 0 and devices.names() == ["cam"]


def test_unknown_names_get_the_nearest_and_a_name_is_registered_once(registry: Path) -> None:
    invoke("add", "pi", "--ssh", "pi", "--no-check")
    for verb in ("remove", "check"):
        assert "no device 'pie'. Registered: pi. Did you mean 'pi'? Register it with `trainyard" in fault(verb, "pie")
    assert f"device 'pi': is registered already, in {registry}/pi.yaml" in fault("add", "pi", "--ssh", "x")
    assert devices.find("pi") == Device(ssh="pi")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["../pi", "--ssh", "pi"], "device '../pi': not a name"),
        (["pi", "--ssh=-oProxyCommand=x"], "--ssh '-oProxyCommand=x': is not allowed. Give: user@host"),
        (["pi", "--ssh", "a;b"], "--ssh 'a;b': is not allowed"),
        (["pi", "--ssh", "pi\n"], "--ssh"),
        (
            ["pi", "--ssh", "pi", "--python", "python3; reboot"],
            "--python 'python3; reboot': is not allowed. Give: Comm",
        ),
    ],
)
def test_a_name_or_an_address_that_a_shell_would_read_is_refused(
    arguments: list[str], message: str, registry: Path
) -> None:
    assert message in fault("add", *arguments, "--no-check") and not registry.exists()


def test_a_damaged_file_is_told_with_its_line(registry: Path) -> None:
    registry.mkdir(parents=True)
    (registry / "pi.yaml").write_text("ssh: pi\npyton: python3\n")
    assert f"{registry}/pi.yaml:2: pyton: unknown key. Did you mean 'python'?" in fault("list")
    assert invoke("check").stdout.startswith(f"✗ {registry}/pi.yaml:2: pyton") and invoke("remove", "pi").exit_code == 0


def test_a_folder_that_cannot_be_written_is_said(registry: Path) -> None:
    registry.parent.write_text("a file where a folder is needed")
    with pytest.raises(InfrastructureError, match=r"pi\.yaml: cannot be written .*set XDG_CONFIG_HOME to another"):
        devices.add("pi", Device(ssh="pi"))


def _add(names: list[str]) -> int:
    added = 0
    for name in names:
        try:
            devices.add(name, Device(ssh=name))
            added += 1
        except ConfigurationError:  # registered
            pass
    return added


def test_concurrent_adds_lose_nothing_and_one_of_equal_names_wins() -> None:
    own = [[f"d{process}-{number}" for number in range(5)] for process in range(4)]
    with ThreadPoolExecutor(4) as pool:
        added = list(pool.map(_add, [["pi", *names] for names in own]))
    assert devices.names() == sorted(["pi", *(name for names in own for name in names)])
    assert sum(added) == 21
    assert all(devices.find(name).ssh == name for name in devices.names())


def test_a_recipe_with_an_unregistered_device_is_refused_before_a_step_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits.yaml").write_text(RECIPE)
    devices.add("pi", Device(ssh="pi"))
    with pytest.raises(ConfigurationError, match=r"^export\.devices: no device 'pie'\. Registered: pi\."):
        run("digits.yaml")


def test_a_pod_measures_on_no_device() -> None:
    recipe = documents.parse(RECIPE, Recipe, name="digits.yaml")
    with pytest.raises(ConfigurationError, match=r"digits: export\.devices: a pod has neither ssh nor the keys"):
        compiled(recipe, environments.load("kind"))
