from typing import TypedDict

class PhysicalDevice:
    name: str
    device_type: str

class LogicalDevice:
    name: str
    device_type: str

class _Details(TypedDict, total=False):
    device_name: str
    compute_capability: tuple[int, int]

def list_physical_devices(device_type: str | None = None) -> list[PhysicalDevice]: ...
def list_logical_devices(device_type: str | None = None) -> list[LogicalDevice]: ...
def set_visible_devices(devices: list[PhysicalDevice], device_type: str | None = None) -> None: ...

class experimental:
    @staticmethod
    def get_device_details(device: PhysicalDevice) -> _Details: ...
