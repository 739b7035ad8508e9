"""Published results, each a file, beside what the simulator computes for the job that the file describes.

A file quotes its source and states a tolerance before anything is simulated. `rows` reads the files, `play` simulates
the jobs in macro mode, `verdicts` compares. No number of a job is fitted to the result by which the row is judged. The
page evidence/truth.md shows the same table, with what does not agree.
"""
