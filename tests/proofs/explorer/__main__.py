"""Entry point of `python -m tests.proofs.explorer`, see `search`."""

import sys

from tests.proofs.explorer.search import main

sys.exit(main())
