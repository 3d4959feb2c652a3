"""``python -m nybble`` is the command ``nybble``."""

import sys

from .cli.main import main

sys.exit(main())
