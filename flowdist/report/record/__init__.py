"""What a record says, for people: summary, trace, state, timeline, differences."""
