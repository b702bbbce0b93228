"""`python -m chaffinch`: the same as the command `chaffinch`."""

from chaffinch.cli.main import main

if __name__ == "__main__":
    main()
