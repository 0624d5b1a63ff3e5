"""`python -m fedhpo_gym` is the command line, where no script was installed."""

import sys

from fedhpo_gym.cli import main

if __name__ == "__main__":  # worker processes of a build import this file, too
    sys.exit(main())
