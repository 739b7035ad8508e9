"""Reports for people and programs, about a topology (`static`), a record (`record`) and a running job (`live`).

A report computes plain values for --json and turns them into text. It decides nothing and changes nothing.
"""
