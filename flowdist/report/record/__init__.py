"""Reports from a record: summary, time accounts, trace, log, state, timeline, and the difference of two records."""
