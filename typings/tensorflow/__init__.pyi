# TensorFlow ships no usable types, and typeshed's are for older versions: everything it exports is Any to the checker.
from typing import Any

def __getattr__(name: str) -> Any: ...
