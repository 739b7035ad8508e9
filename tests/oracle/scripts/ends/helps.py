"""--help of the script."""

import argparse

parser = argparse.ArgumentParser(description="trains")
parser.add_argument("--epochs", type=int)
print(parser.parse_args())
