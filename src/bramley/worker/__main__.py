"""``python -m bramley.worker --fd N``: N is one end of a socketpair, inherited from the front."""

import argparse

from bramley.worker.main import run


def main() -> None:
    parser = argparse.ArgumentParser(prog="bramley.worker", description="Started by the server, not by hand.")
    parser.add_argument("--fd", type=int, required=True, help="descriptor of the socket to the server")
    run(parser.parse_args().fd)


if __name__ == "__main__":
    main()
