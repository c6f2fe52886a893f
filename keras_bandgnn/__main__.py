"""`python -m keras_bandgnn` is the `bandgnn` command."""

from keras_bandgnn.cli.main import command

if __name__ == "__main__":
    command()
