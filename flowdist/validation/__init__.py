"""Published results, each a file, beside what the simulator computes for the job that the file describes.

A file states its tolerance before anything is simulated. No number of a job is fitted to the result by which the row
is judged.
"""
