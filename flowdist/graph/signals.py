"""Names of signals, by their numbers on Linux: those that a policy can name and that exit codes above 128 stand for."""

SIGNAL_NAMES = {
    1: "HUP", 2: "INT", 3: "QUIT", 4: "ILL", 6: "ABRT", 7: "BUS", 8: "FPE", 9: "KILL", 10: "USR1", 11: "SEGV",
    12: "USR2", 13: "PIPE", 14: "ALRM", 15: "TERM", 24: "XCPU", 31: "SYS",
}  # fmt: skip
