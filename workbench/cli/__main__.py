"""`python -m workbench.cli`."""

import sys

from workbench.cli.app import main

sys.exit(main())
