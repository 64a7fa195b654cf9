"""`python -m cli` is `radixgate`."""

from cli.main import main

if __name__ == "__main__":
    main(prog_name="radixgate")
