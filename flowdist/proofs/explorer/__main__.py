"""Entry point of `python -m flowdist.proofs.explorer`, see `search`."""

import sys

from flowdist.proofs.explorer.search import main

sys.exit(main())
