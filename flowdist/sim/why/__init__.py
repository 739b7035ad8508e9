"""Why a run ended as it did: the simulator plays it again without one of its faults, or without several.

`causes` names what can be left out of a plan, `search` decides which counterfactuals are played and which of them
explain the end, `played` plays them for a recorded job, and `words` says it in sentences. The first two are pure: they
neither simulate nor read files.
"""
