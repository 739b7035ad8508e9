"""Why a run ended as it did: the simulator plays it again without one of its faults, or without several.

`causes` names what can be left out of a plan, `search` decides which counterfactuals are played and explain the end
(both are pure), `played` plays them for a recorded job, and `words` says it in sentences.
"""
