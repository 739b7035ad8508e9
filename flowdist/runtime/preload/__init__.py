"""The learned preload: modules that workers have imported by their first step, for the fork servers of later starts.

A forked worker writes their names into a file (`recorder`). The node's agent reads the file, and has a new fork server
import them, which checks each one (`trial`). What has passed is kept in a profile, in a cache folder of the user
(`profile`, `cache`), so that the next run begins with it. `flowdist.runtime.agent.learning` decides when.

Only installed modules are learned. A file of the user may change between two starts, and its import may have effects.
"""
