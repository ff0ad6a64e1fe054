# Keras 3's inline types describe all its backends at once: everything it exports is Any to the checker.
from typing import Any

def __getattr__(name: str) -> Any: ...
