"""The library for notebooks, scripts and other schedulers: ``import sendoff`` offers its names.

``__init__.pyi`` lists the names that other packages may use. They are imported on first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
