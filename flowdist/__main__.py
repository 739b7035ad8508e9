"""`python -m flowdist` is the `flowdist` command."""

from flowdist.cli.main import main

if __name__ == "__main__":
    main()
