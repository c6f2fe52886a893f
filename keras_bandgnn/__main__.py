"""`python -m keras_bandgnn` is the `bandgnn` command."""

import sys

from keras_bandgnn.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
