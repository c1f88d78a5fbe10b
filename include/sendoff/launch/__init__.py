"""Launch: plan what a period sends, leave recipients out, check the gates, and show a preview.

What other packages may use is listed in ``__init__.pyi``, and is imported when it is first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
