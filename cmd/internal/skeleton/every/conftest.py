"""Makes the folder's modules importable, and mlserver.

The tests run with MLServer's package, or, where it is not installed, with the
light one in Roundhouse's Python package.
"""

import importlib.util
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

if importlib.util.find_spec("mlserver") is None:
    from roundhouse.bridge import ensure  # or: pip install mlserver

    ensure()
