from collections.abc import Callable
from inspect import Signature

get_signature: Callable[[Callable[..., object]], Signature]
