"""argparse with arguments that change what is computed; a later run has others."""

import argparse

import probe

parser = argparse.ArgumentParser()
parser.add_argument("--rate", type=float, default=0.1)
parser.add_argument("--name", default="")
parser.add_argument("rest", nargs="*")
given = parser.parse_args()
probe.note("parsed", given=vars(given))
probe.first_step(given=vars(given), used=parser.format_usage())
