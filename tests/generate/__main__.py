"""python -P tests/generate [--check]: see write_pages."""

import sys

from write_pages import main

sys.exit(main())
