"""``python -m flexfa4``: the command line where no script is installed."""

import sys

from flexfa4.cli import main

sys.exit(main())
