"""``python -m portpe`` is the ``portpe`` command."""

from portpe.cli import main

if __name__ == "__main__":
    main()
