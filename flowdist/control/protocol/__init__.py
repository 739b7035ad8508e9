"""What control exchanges with the outside: names, events, effects, and messages between agents and controller."""
