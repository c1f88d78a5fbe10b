"""Comparison: how the sides of a launch did, with intervals that hold at every look.

``__init__.pyi`` lists the names that other packages may use. Each is imported when it is first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
